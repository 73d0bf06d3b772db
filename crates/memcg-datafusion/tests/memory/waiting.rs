//! Late queries beside running ones: what cannot spill waits, and the others spill.

use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::prelude::SessionContext;
use memcg::{Bytes, Group, Limits, Runtime};
use memcg_datafusion::{GroupPool, InGroupSession, PoolConfig, QuerySession};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::data::{
    KIB, MIB, assert_empty, batch, exhausted, fed, limit, runtime, session, unspillable,
};
use crate::queries::lines;

/// Bytes that the tenant has.
const MAX: u64 = 8 * MIB;
/// Rows of the running query: more than twice what fits.
const FED: usize = 240;

const AGGREGATE: &str = "SELECT text, count(*) AS n FROM fed GROUP BY text";

/// A tenant whose running aggregate holds nearly all it has.
struct Busy {
    runtime: Runtime,
    acme: Group,
    session: SessionContext,
    running: QuerySession,
    rows: JoinHandle<Result<Vec<RecordBatch>>>,
    feed: mpsc::Sender<RecordBatch>,
    /// Batches that it has read.
    fed: usize,
}

async fn busy(config: &PoolConfig) -> Busy {
    let session = session(30);
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(MAX)).unwrap();
    let feed = fed(&session, "fed");
    let running = session.for_query(&acme, 1, Limits::new(), config).unwrap();
    // One partition: of two that both read back what they have spilled, DataFusion may let neither
    // end below a limit.
    running
        .sql("SET datafusion.execution.target_partitions = 1")
        .await
        .unwrap();
    let frame = running.sql(AGGREGATE).await.unwrap();
    let rows = tokio::spawn(async move { frame.collect().await });
    let mut fed = 0;
    // Its table doubles: it may be refused, and spill, before it holds so much. Then it fills again
    // while the other runs.
    while running.group().live() < MAX - MIB && fed < FED / 2 {
        feed.send(batch(fed)).await.unwrap();
        fed += 1;
    }
    assert!(
        running.group().peak() > MAX / 4,
        "the running query has held {} at most",
        running.group().peak()
    );
    Busy {
        runtime,
        acme,
        session,
        running,
        rows,
        feed,
        fed,
    }
}

/// So slowly that the late query comes while the running one reads.
async fn feed_slowly(feed: mpsc::Sender<RecordBatch>, from: usize) {
    for number in from..FED {
        if feed.send(batch(number)).await.is_err() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Runs a second query of the tenant, as a service does: in a task of its own.
async fn late(
    session: SessionContext,
    acme: Group,
    sql: &'static str,
    config: PoolConfig,
) -> Result<Vec<RecordBatch>> {
    tokio::spawn(async move {
        let late = session.for_query(&acme, 2, Limits::new(), &config)?;
        late.sql(sql).await?.collect().await
    })
    .await
    .unwrap()
}

/// A late query: with plain pools it is refused where others hold the memory. Beside a running
/// query, with spilling on demand, both end with all their rows.
async fn late_beside(late_sql: &'static str) {
    let runtime = runtime();
    let session = session(30);
    let acme = runtime.root().create("acme", limit(MAX)).unwrap();
    let rest = acme.create("rest", Limits::new()).unwrap();
    rest.raw().charge(Bytes(MAX)).unwrap();
    let error = late(session, acme.clone(), late_sql, PoolConfig::new())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("/acme refused"), "{error}");
    rest.raw().uncharge(Bytes(MAX));
    drop(rest);
    acme.offline_tree();
    drop(acme);
    assert_empty(&runtime);

    // Nothing moves for two seconds only where it never moves again, also on a machine whose
    // threads stand still.
    let config = PoolConfig::new()
        .spill_on_demand()
        .unspillable_reserve(512 << 10)
        .patience(Duration::from_secs(100));
    let Busy {
        runtime,
        acme,
        session,
        running,
        rows,
        feed,
        fed,
    } = busy(&config).await;
    let alone = session
        .sql(late_sql)
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    let feeds = tokio::spawn(feed_slowly(feed, fed));
    let late = late(session, acme.clone(), late_sql, config)
        .await
        .unwrap_or_else(|error| panic!("late: {error}"));
    assert!(lines(&late) == lines(&alone), "other rows");
    feeds.await.unwrap();
    let rows = rows
        .await
        .unwrap()
        .unwrap_or_else(|error| panic!("running: {error}"));
    assert_eq!(
        rows.iter().map(RecordBatch::num_rows).sum::<usize>(),
        FED * 1_000
    );
    assert!(acme.peak() <= MAX && acme.forced() == 0);
    drop((running, rows));
    acme.offline_tree();
    drop(acme);
    assert_empty(&runtime);
}

/// A join cannot spill: the aggregate beside it does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_join_beside_an_aggregate() {
    let join = "SELECT count(*), max(a.text), max(b.text) FROM rows a JOIN rows b ON a.key = b.key";
    late_beside(join).await;
}

/// A sort that comes late has nothing to spill yet: the one that holds all the memory gives some of
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_sort_beside_an_aggregate() {
    late_beside("SELECT text, id FROM rows ORDER BY text").await;
}

/// If nothing moves, a consumer waits for a moment, and for less and less; it never waits for its
/// whole patience.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_in_vain_are_short() {
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(100 * KIB)).unwrap();
    let query = acme.create(1, Limits::new()).unwrap();
    let config = PoolConfig::new().patience(Duration::from_secs(10));
    let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::with_config(&query, &config).unwrap());
    tokio::spawn(async move {
        let held = unspillable("held", &pool);
        let join = unspillable("HashJoinInput", &pool);
        held.try_grow(100 << 10).unwrap();
        // A hundred times its whole patience would be a quarter of an hour.
        for _ in 0..100 {
            let line = exhausted(join.try_grow(1));
            assert!(line.contains("/acme refused 1 B"), "{line}");
        }
        assert_eq!(pool.reserved(), 100 << 10);
    })
    .await
    .unwrap();
    drop(query);
    acme.offline_tree();
    drop(acme);
    assert_empty(&runtime);
}

/// A wait ends when the memory comes, also from a query that knows nothing of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_with_the_memory() {
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(100 * KIB)).unwrap();
    let query = acme.create(1, Limits::new()).unwrap();
    let config = PoolConfig::new().patience(Duration::from_secs(3_600));
    let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::with_config(&query, &config).unwrap());
    let held = unspillable("held", &pool);
    let join = unspillable("HashJoinInput", &pool);
    held.try_grow(100 << 10).unwrap();
    let gives = tokio::spawn({
        let acme = acme.clone();
        async move {
            while acme.refused_count() < 3 {
                tokio::task::yield_now().await;
            }
            held.shrink(30 << 10);
            held
        }
    });
    // Nothing moves for longer than a wait lasts, where the other task comes late: then it asks
    // again.
    let join = tokio::spawn(async move {
        while join.try_grow(20 << 10).is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        join
    });
    let held = gives.await.unwrap();
    let join = join.await.unwrap();
    assert_eq!(
        (held.size(), join.size(), acme.live()),
        (70 << 10, 20 << 10, 90 * KIB)
    );
    drop((held, join, pool, query));
    acme.offline_tree();
    drop(acme);
    assert_empty(&runtime);
}

/// On a current-thread runtime no consumer waits: its own thread would have to give the memory.
#[tokio::test(flavor = "current_thread")]
async fn no_wait_on_the_only_thread() {
    let runtime = runtime();
    let query = runtime.root().create(1, Limits::new().max(100)).unwrap();
    let config = PoolConfig::new().patience(Duration::from_secs(3_600));
    let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::with_config(&query, &config).unwrap());
    let held = unspillable("held", &pool);
    held.try_grow(100).unwrap();
    exhausted(
        tokio::spawn(async move { unspillable("HashJoinInput", &pool).try_grow(1) })
            .await
            .unwrap(),
    );
    assert_eq!(query.refused_count(), 1, "it has not asked again");
}

/// A local task may not block, which tokio says by a panic: its consumer is refused, and none of
/// the pool asks again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_wait_in_a_local_task() {
    let runtime = runtime();
    let query = runtime.root().create(1, Limits::new().max(100)).unwrap();
    let config = PoolConfig::new().patience(Duration::from_secs(3_600));
    let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::with_config(&query, &config).unwrap());
    let held = unspillable("held", &pool);
    held.try_grow(100).unwrap();
    let local = tokio::task::LocalSet::new();
    let late = local.run_until(async move {
        let late = tokio::task::spawn_local(async move {
            let join = unspillable("HashJoinInput", &pool);
            [join.try_grow(1), join.try_grow(1)].map(exhausted)
        });
        late.await.unwrap()
    });
    for line in late.await {
        assert!(line.contains("/1 refused 1 B"), "{line}");
    }
    assert_eq!(query.refused_count(), 2, "neither has asked again");
}
