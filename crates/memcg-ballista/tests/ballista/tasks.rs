//! Tasks of an engine without a cluster.

use std::sync::Arc;
use std::time::Duration;

use ballista_executor::execution_engine::DefaultExecutionEngine;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool};
use datafusion::physical_plan::displayable;
use datafusion::prelude::{SessionConfig, SessionContext};
use memcg::{Group, Limits, OomPolicy, Runtime};
use memcg_ballista::{GroupEngine, TenantOptions, config_producer};
use memcg_datafusion::{GroupPool, PoolConfig, QueryQueue};
use tokio::sync::mpsc;

use crate::data::{
    MIB, Task, assert_empty, batch, fed_sort, limit, parquet, rows, runtime, session_of, until,
};

type Batches = mpsc::Sender<datafusion::arrow::array::RecordBatch>;

fn tenants<const N: usize>(runtime: &Runtime, names: [(&str, Limits); N]) -> [Group; N] {
    names.map(|(name, limits)| runtime.root().create(name, limits).unwrap())
}

/// Sends batches until `group` holds so much.
async fn fill(feed: &Batches, group: &Group, bytes: u64) {
    let mut sent = 0;
    while group.live() < bytes {
        assert!(
            sent < 10_000,
            "{} of {bytes} in {}",
            group.live(),
            group.path()
        );
        feed.send(batch(sent)).await.expect("it reads");
        sent += 1;
    }
}

/// Tenant, session, job, stage and task are groups while the task runs. Tasks of a job are in one
/// group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_has_its_place() {
    let runtime = runtime(64 * MIB);
    let [gold] = tenants(&runtime, [("gold", Limits::new())]);
    let engine = GroupEngine::new(&runtime.root()).job_limits(limit(32 * MIB));
    let session = session_of("gold");
    let job = format!("/gold/{}/j1", session.session_id());
    let mut runs = Vec::new();
    for number in [3, 4] {
        let (feed, plan) = fed_sort(&session).await;
        let task = Task::new(&engine, &session, plan, ("j1", 2, number)).unwrap();
        let run =
            tokio::spawn(async move { (task.run().await, task.stage.collect_plan_metrics()) });
        let path = format!("{job}/2/{number}");
        until(&path, || runtime.group(&path).is_some());
        fill(&feed, &runtime.group(&path).unwrap(), MIB).await;
        runs.push((feed, run, path));
    }
    let there = runtime.group(&job).unwrap();
    assert_eq!(
        (
            there.max(),
            there.oom_group(),
            there.parent().unwrap().children().len()
        ),
        (32 * MIB, true, 1)
    );
    // A task may be about to reserve for the last batch.
    until("both are still", || {
        there.live() >= 2 * MIB && gold.live() == there.live()
    });
    for (feed, run, path) in runs {
        assert!(!there.is_offline());
        drop(feed);
        let (written, metrics) = run.await.unwrap();
        let rows: u64 = written
            .unwrap()
            .iter()
            .map(|partition| partition.num_rows)
            .sum();
        assert!(rows > 1_000 && metrics.len() > 1, "{rows} {metrics:?}");
        assert_eq!(runtime.group(&path), None);
    }
    assert!(there.is_offline() && gold.children().is_empty());
    drop(there);
    assert_empty(&runtime);
}

/// The executor reports the same of a task as without groups.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metrics_are_those_of_the_plan() {
    let runtime = runtime(64 * MIB);
    let _gold = tenants(&runtime, [("gold", Limits::new())]);
    let engine = GroupEngine::new(&runtime.root());
    let plain = DefaultExecutionEngine::new();
    let session = session_of("gold");
    let mut seen = Vec::new();
    for engine in [
        &engine as &dyn ballista_executor::execution_engine::ExecutionEngine,
        &plain,
    ] {
        let (feed, plan) = fed_sort(&session).await;
        let task = Task::new(engine, &session, plan, ("j1", 1, 1)).unwrap();
        let feeds = async move {
            for number in 0..4 {
                feed.send(batch(number)).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(task.run(), feeds);
        let metrics = task.stage.collect_plan_metrics();
        let rows: Vec<_> = metrics
            .iter()
            .map(|metrics| metrics.output_rows())
            .collect();
        seen.push((
            rows,
            written.unwrap().len(),
            task.stage.collect_column_stats().len(),
        ));
    }
    assert_eq!(seen[0], seen[1]);
    assert_empty(&runtime);
}

/// Whatever the session of a tenant has set of the runtime, its tasks have the pool of their group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_does_not_change_the_limits_of_its_tasks() {
    let runtime = runtime(64 * MIB);
    let [heavy] = tenants(&runtime, [("heavy", limit(4 * MIB))]);
    let engine = GroupEngine::new(&runtime.root());
    for command in [
        "SET datafusion.runtime.memory_limit = '8G'",
        "RESET datafusion.runtime.memory_limit",
    ] {
        let session = session_of("heavy");
        session.sql(command).await.unwrap();
        let (feed, plan) = fed_sort(&session).await;
        let task = Task::new(&engine, &session, plan, ("j1", 1, 1)).unwrap();
        let run =
            tokio::spawn(async move { (task.run().await, task.stage.collect_plan_metrics()) });
        for number in 0..120 {
            feed.send(batch(number)).await.unwrap();
        }
        drop(feed);
        let (written, metrics) = run.await.unwrap();
        assert!(written.is_ok(), "{written:?}");
        let spilled: usize = metrics
            .iter()
            .filter_map(|metrics| metrics.spill_count())
            .sum();
        assert!(
            spilled > 0 && heavy.peak() <= 4 * MIB,
            "{spilled} files, {}",
            heavy.peak()
        );
        assert_empty(&runtime);
    }
}

/// A task that is refused for room that another one holds waits in line, and runs again: each row
/// is written once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_that_fits_alone_is_not_failed() {
    const JOIN: &str = "SELECT a.id, b.text FROM rows a JOIN rows b ON a.text = b.text";
    let runtime = runtime(64 * MIB);
    let [heavy] = tenants(&runtime, [("heavy", limit(8 * MIB))]);
    let queue = QueryQueue::new(3, Duration::from_secs(3_600));
    let session = session_of("heavy");
    session.register_table("rows", rows(30)).unwrap();
    session
        .sql("SET datafusion.optimizer.prefer_hash_join = true")
        .await
        .unwrap();
    for queued in [false, true] {
        let config = if queued {
            PoolConfig::new().queue(&queue)
        } else {
            PoolConfig::new()
        };
        let engine = GroupEngine::new(&runtime.root()).pool(config);
        let (feed, plan) = fed_sort(&session).await;
        let first = Task::new(&engine, &session, plan, ("j1", 1, 1)).unwrap();
        let first = tokio::spawn(async move { first.run().await });
        fill(&feed, &heavy, 6 * MIB).await;
        let plan = session
            .sql(JOIN)
            .await
            .unwrap()
            .create_physical_plan()
            .await
            .unwrap();
        let late = Task::new(&engine, &session, plan, ("j2", 1, 1)).unwrap();
        let late = tokio::spawn(async move { late.run().await });
        if queued {
            until("it waits in line", || queue.counts().waiting == 1);
        } else {
            let refused = late.await.unwrap().unwrap_err().to_string();
            assert!(refused.contains("/heavy refused"), "{refused}");
            drop(feed);
            first.await.unwrap().unwrap();
            continue;
        }
        drop(feed);
        first.await.unwrap().unwrap();
        let written: u64 = late
            .await
            .unwrap()
            .unwrap()
            .iter()
            .map(|partition| partition.num_rows)
            .sum();
        assert_eq!(written, 30_000);
        let counts = queue.counts();
        assert_eq!(
            (
                counts.restarts,
                counts.refused,
                counts.running,
                counts.waiting
            ),
            (1, 0, 0, 0)
        );
    }
    assert_empty(&runtime);
}

/// The partitions of a task share the files of its scan, and the table of its join. A task that is
/// refused runs again as a whole: each row is written once. Its metrics are those of the run whose
/// rows are written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_partitions_of_a_task_run_again_together() {
    const JOIN: &str =
        "SELECT f.id, f.text, r.text AS other FROM rows r JOIN files f ON r.id = f.id";
    let runtime = runtime(64 * MIB);
    let [heavy] = tenants(&runtime, [("heavy", limit(8 * MIB))]);
    let queue = QueryQueue::new(3, Duration::from_secs(3_600));
    let engine = GroupEngine::new(&runtime.root()).pool(PoolConfig::new().queue(&queue));
    let session = session_of("heavy");
    let files = parquet(40).await;
    session.register_table("rows", rows(30)).unwrap();
    let path = files.path().display().to_string();
    session
        .register_parquet("files", path, Default::default())
        .await
        .unwrap();
    let (feed, plan) = fed_sort(&session).await;
    for (key, value) in [
        ("execution.target_partitions", "2"),
        ("optimizer.prefer_hash_join", "true"),
        ("optimizer.join_reordering", "false"),
        (
            "optimizer.hash_join_single_partition_threshold",
            "1000000000",
        ),
        // A plan in which an operator reads the filter of another one does not run again.
        ("optimizer.enable_dynamic_filter_pushdown", "false"),
    ] {
        let set = format!("SET datafusion.{key} = {value}");
        session.sql(&set).await.unwrap();
    }
    let holds = Task::new(&engine, &session, plan, ("j1", 1, 1)).unwrap();
    let holds = tokio::spawn(async move { holds.run().await });
    fill(&feed, &heavy, 6 * MIB).await;
    let frame = session.sql(JOIN).await.unwrap();
    let plan = frame.create_physical_plan().await.unwrap();
    let shown = displayable(plan.as_ref()).indent(false).to_string();
    assert!(
        shown.contains("mode=CollectLeft") && shown.contains("file_groups={2 groups"),
        "{shown}"
    );
    let late = Task::new(&engine, &session, plan, ("j2", 1, 1)).unwrap();
    let late = tokio::spawn(async move { (late.run().await, late.stage.collect_plan_metrics()) });
    until("it waits in line", || queue.counts().waiting == 1);
    drop(feed);
    holds.await.unwrap().unwrap();
    let (written, metrics) = late.await.unwrap();
    let written = written.unwrap();
    let rows: u64 = written.iter().map(|partition| partition.num_rows).sum();
    assert_eq!(rows, 30_000);
    let joined = metrics.iter().filter_map(|metrics| metrics.output_rows());
    assert!(
        joined.clone().filter(|rows| *rows == 30_000).count() >= 2,
        "{metrics:?}"
    );
    let counts = queue.counts();
    assert_eq!((counts.restarts, counts.refused, counts.running), (1, 0, 0));
    assert_empty(&runtime);
}

/// With the settings of a session as they are, a sort ends below a max that is less than what it
/// reserves for its merge elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_sort_ends_with_default_settings() {
    let runtime = runtime(64 * MIB);
    let [heavy] = tenants(&runtime, [("heavy", limit(8 * MIB))]);
    let engine = GroupEngine::new(&runtime.root());
    let default = SessionConfig::new();
    let execution = &default.options().execution;
    assert!(execution.sort_spill_reservation_bytes as u64 > 8 * MIB);
    let config = config_producer()()
        .with_target_partitions(1)
        .with_option_extension(TenantOptions::of("heavy"));
    let session = SessionContext::new_with_config(config);
    let (feed, plan) = fed_sort(&session).await;
    let task = Task::new(&engine, &session, plan, ("j1", 1, 1)).unwrap();
    let run = tokio::spawn(async move { task.run().await });
    for number in 0..200 {
        if feed.send(batch(number)).await.is_err() {
            break;
        }
    }
    drop(feed);
    let written = run.await.unwrap().unwrap();
    let rows: u64 = written.iter().map(|partition| partition.num_rows).sum();
    assert_eq!(rows, 200_000);
    assert!(heavy.peak() <= 8 * MIB, "{}", heavy.peak());
    assert_empty(&runtime);
}

/// One task uses more than its slot's share, and gives it back when a tenant that has a guarantee
/// needs it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_borrow_from_each_other() {
    let runtime = runtime(8 * MIB);
    let [gold, heavy] = tenants(
        &runtime,
        [
            ("gold", Limits::new().low(4 << 20)),
            ("heavy", Limits::new()),
        ],
    );
    let engine = GroupEngine::new(&runtime.root());
    let session = session_of("heavy");
    let (feed, plan) = fed_sort(&session).await;
    let task = Task::new(&engine, &session, plan, ("j1", 1, 1)).unwrap();
    let run = tokio::spawn(async move { (task.run().await, task.stage.collect_plan_metrics()) });
    fill(&feed, &heavy, 6 * MIB).await;
    let query = gold.create("q", Limits::new()).unwrap();
    let pool: Arc<dyn MemoryPool> =
        Arc::new(GroupPool::with_config(&query, &PoolConfig::new()).unwrap());
    let join = MemoryConsumer::new("HashJoinInput").register(&pool);
    let mut sent = 0;
    while let Err(refused) = join.try_grow(4 << 20) {
        assert!(sent < 10_000, "{refused}");
        feed.send(batch(sent)).await.unwrap();
        sent += 1;
    }
    assert!(heavy.live() <= 4 * MIB, "{}", heavy.live());
    drop(feed);
    let (written, metrics) = run.await.unwrap();
    assert!(written.is_ok(), "{written:?}");
    let spilled: usize = metrics
        .iter()
        .filter_map(|metrics| metrics.spill_count())
        .sum();
    assert!(spilled > 0);
    drop((join, pool));
    query.offline().unwrap();
    drop(query);
    assert_empty(&runtime);
}

/// Ballista drops what waits for a task and leaves its writer running. The task's plan ends and
/// gives all back, though no row comes any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_task_gives_all_back() {
    let runtime = runtime(64 * MIB);
    let [gold] = tenants(&runtime, [("gold", Limits::new())]);
    let engine = GroupEngine::new(&runtime.root());
    let session = session_of("gold");
    let (feed, plan) = fed_sort(&session).await;
    let task = Task::new(&engine, &session, plan, ("j1", 1, 1)).unwrap();
    let run = tokio::spawn(async move { task.run().await });
    fill(&feed, &gold, 2 * MIB).await;
    run.abort();
    assert!(run.await.unwrap_err().is_cancelled());
    feed.closed().await;
    assert_empty(&runtime);
}

/// If memory is short and nothing can spill, a job is chosen as a whole: each of its tasks ends
/// with an error that says so, and the query that needed the memory gets it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_a_victim_as_a_whole() {
    let runtime = runtime(8 * MIB);
    runtime.root().set_oom_policy(OomPolicy::Choose);
    let [gold, heavy] = tenants(
        &runtime,
        [
            ("gold", Limits::new().low(4 << 20)),
            ("heavy", Limits::new()),
        ],
    );
    // Pools that are not asked to spill.
    let engine = GroupEngine::new(&runtime.root()).pool(PoolConfig::new());
    let session = session_of("heavy");
    let mut runs = Vec::new();
    for number in [1, 2] {
        let (feed, plan) = fed_sort(&session).await;
        let task = Task::new(&engine, &session, plan, ("j1", 1, number)).unwrap();
        let run = tokio::spawn(async move { task.run().await });
        fill(&feed, &heavy, number as u64 * 3 * MIB).await;
        runs.push((feed, run));
    }
    let query = gold.create("q", Limits::new()).unwrap();
    let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::new(&query));
    let join = MemoryConsumer::new("HashJoinInput").register(&pool);
    let mut refused = String::new();
    until("the join has its memory", || join.try_grow(6 << 20).is_ok());
    for (feed, run) in runs {
        refused = run.await.unwrap().expect_err("it is a victim").to_string();
        assert!(refused.contains("is cancelled to make room"), "{refused}");
        drop(feed);
    }
    assert!(refused.contains("/heavy/"), "{refused}");
    assert_eq!(heavy.live(), 0);
    drop((join, pool));
    query.offline().unwrap();
    drop(query);
    assert_empty(&runtime);
}

/// Whose tasks have a place, and what the others are told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_without_a_group() {
    let runtime = runtime(64 * MIB);
    let [_gold, others] = tenants(
        &runtime,
        [("gold", Limits::new()), ("others", Limits::new())],
    );
    let strict = GroupEngine::new(&runtime.root());
    let error = |session: &SessionContext, plan| {
        Task::new(&strict, session, plan, ("j1", 1, 1))
            .err()
            .expect("no group")
            .to_string()
    };
    let unnamed = session_of("");
    let silver = session_of("silver");
    let none = error(&unnamed, fed_sort(&unnamed).await.1);
    assert!(
        none.contains("the session names no tenant: set memcg.tenant"),
        "{none}"
    );
    let unknown = error(&silver, fed_sort(&silver).await.1);
    assert!(
        unknown.contains(r#"no tenant "silver" in /: create its group"#),
        "{unknown}"
    );

    let lenient = GroupEngine::new(&runtime.root()).other_tenants(&others);
    let by_catalog = GroupEngine::new(&runtime.root()).tenant_of(|config| {
        config
            .options()
            .catalog
            .default_catalog
            .strip_prefix("data")
            .map(|_| "others".to_string())
    });
    for (engine, session) in [
        (&lenient, &unnamed),
        (&lenient, &silver),
        (&by_catalog, &silver),
    ] {
        let (feed, plan) = fed_sort(session).await;
        let task = Task::new(engine, session, plan, ("j1", 1, 1)).unwrap();
        let run = tokio::spawn(async move { task.run().await });
        fill(&feed, &others, MIB).await;
        drop(feed);
        assert!(run.await.unwrap().is_ok());
        assert_empty(&runtime);
    }
}
