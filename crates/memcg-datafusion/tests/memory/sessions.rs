//! A session of a group has all of the session that it is made from, and SQL cannot change its
//! group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use datafusion::physical_plan::{collect, displayable};
use datafusion::prelude::SessionContext;
use memcg::{GroupName, Limits};
use memcg_datafusion::{InGroupSession, PoolConfig};

use crate::data::{MIB, assert_empty, limit, runtime, session, session_of, text};

/// It holds some 4 MiB that it cannot spill.
const JOIN: &str = "SELECT count(*) FROM rows a JOIN rows b ON a.key = b.key";

async fn run(session: &SessionContext, sql: &str) -> Result<String> {
    Ok(text(&session.sql(sql).await?.collect().await?))
}

/// The text of each field of a state.
fn fields(state: &SessionState) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::<String, String>::new();
    let mut name = String::new();
    for line in format!("{state:#?}").lines() {
        if let Some((field, _)) = line
            .strip_prefix("    ")
            .filter(|line| !line.starts_with([' ', '}', ']', ')']))
            .and_then(|line| line.split_once(": "))
        {
            name = field.to_string();
        }
        let text = fields.entry(name.clone()).or_default();
        text.push_str(line);
        text.push('\n');
    }
    fields
}

/// All that a state shows of itself is as in the session that it is made from, but for the runtime
/// and the planner.
#[tokio::test(flavor = "current_thread")]
async fn a_session_of_a_group_has_all_that_its_session_has() {
    let base = session(1);
    let runtime = runtime();
    let look = |values: &[ColumnarValue]| -> Result<ColumnarValue> { Ok(values[0].clone()) };
    base.register_udf(create_udf(
        "look",
        vec![DataType::Int64],
        DataType::Int64,
        Volatility::Volatile,
        Arc::new(look),
    ));
    for sql in [
        "PREPARE next(BIGINT) AS SELECT look($1 + 1)",
        "SET datafusion.execution.batch_size = 77",
        "SET datafusion.sql_parser.dialect = 'PostgreSQL'",
        "CREATE TABLE seen AS SELECT 1 AS a",
        "CREATE SCHEMA other",
    ] {
        run(&base, sql).await.unwrap();
    }
    let acme = runtime.root().create("acme", Limits::new()).unwrap();
    let config = PoolConfig::new().spill_on_demand();
    let of_group = base.with_group(&acme, &config).unwrap();
    let query = base
        .for_query(&acme, GroupName::Unnamed, Limits::new(), &config)
        .unwrap();
    let again = of_group
        .for_query(&acme, GroupName::Unnamed, Limits::new(), &config)
        .unwrap();
    let expected = fields(&base.state());
    assert!(
        expected.len() > 20 && expected["prepared_plans"].contains("next"),
        "{:?}",
        expected.keys()
    );
    for session in [&of_group, &*query, &*again] {
        let state = session.state();
        let of_session = fields(&state);
        assert!(of_session.keys().eq(expected.keys()));
        // `execution_props` has the time of the statement.
        let others = [
            "runtime_env",
            "query_planners",
            "execution_props",
            "catalog_list",
            "table_functions",
            "analyzer",
            "optimizer",
        ];
        for (name, text) in of_session
            .iter()
            .filter(|(name, _)| !others.contains(&name.as_str()))
        {
            assert!(*text == expected[name], "another {name}: {text}");
        }
        let before = base.state();
        let analyzers = [&state, &before].map(|state| {
            let rules = state.analyzer().rules.iter();
            rules.map(|rule| rule.name()).collect::<Vec<_>>()
        });
        let optimizers = [&state, &before].map(|state| {
            let rules = state.optimizers().iter();
            rules.map(|rule| rule.name()).collect::<Vec<_>>()
        });
        for [own, rules] in [analyzers, optimizers] {
            let rules = [&["take_marks_off"], &rules[..], &["put_marks_on"]].concat();
            assert_eq!(own, rules);
        }
        let functions =
            [&state, &before].map(|state| state.table_functions().keys().collect::<BTreeSet<_>>());
        assert!(functions[0] == functions[1] && !functions[0].is_empty());
        let catalogs = [&state, &before].map(|state| state.catalog_list().catalog_names());
        assert_eq!(catalogs[0], catalogs[1]);
        assert!(Arc::ptr_eq(
            &state.runtime_env().disk_manager,
            &before.runtime_env().disk_manager
        ));
        let list = |state: &SessionState| {
            let caches = &state.runtime_env().cache_manager;
            caches.get_list_files_cache().unwrap()
        };
        list(&before).update_cache_limit(3 << 20);
        assert_eq!(list(&state).cache_limit(), 3 << 20, "one cache for all");
        assert!(
            run(session, "EXECUTE next(41)")
                .await
                .unwrap()
                .contains("| 42 ")
        );
        assert!(run(session, "SELECT * FROM seen").await.is_ok());
        run(session, "DEALLOCATE next").await.unwrap();
        run(session, "SET datafusion.execution.batch_size = 78")
            .await
            .unwrap();
        assert_eq!(session.runtime_env().memory_pool.name(), "group");
    }
    assert!(
        run(&base, "EXECUTE next(41)")
            .await
            .unwrap()
            .contains("| 42 "),
        "it has its own"
    );
    assert_eq!(base.state().config().batch_size(), 77);
    assert_eq!(base.runtime_env().memory_pool.name(), "unbounded");
}

/// A tenant that sets or resets its memory limit is told whose it is, and stays in its group, also
/// where it does not read the answer.
#[tokio::test(flavor = "current_thread")]
async fn sql_does_not_leave_the_group() {
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(MIB)).unwrap();
    for command in [
        "SET datafusion.runtime.memory_limit = '8G'",
        "RESET datafusion.runtime.memory_limit",
    ] {
        for is_read in [true, false] {
            let session = session(60).with_group(&acme, &PoolConfig::new()).unwrap();
            let answer = session.sql(command).await.unwrap();
            if is_read {
                let told = answer.collect().await.unwrap_err();
                assert!(matches!(told, DataFusionError::Configuration(_)), "{told}");
                let told = told.to_string();
                for part in [
                    "do not change datafusion.runtime.memory_limit in a session of /acme",
                    "is that of the group, with a max of 1 MiB",
                ] {
                    assert!(told.contains(part), "{told}");
                }
                assert_eq!(
                    session.runtime_env().memory_pool.to_string(),
                    "group(/acme)"
                );
            }
            let refused = run(&session, JOIN).await.unwrap_err().to_string();
            assert!(refused.contains("/acme refused "), "{refused}");
            assert!(acme.peak() <= MIB, "{}", acme.peak());
            assert_eq!(
                session.runtime_env().memory_pool.to_string(),
                "group(/acme)"
            );
        }
    }
}

/// A session that a service makes of the state of a group's session is in that group, whatever it
/// makes it with.
#[tokio::test(flavor = "current_thread")]
async fn what_is_made_of_the_state_stays_in_the_group() {
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(MIB)).unwrap();
    let of_group = session(60).with_group(&acme, &PoolConfig::new()).unwrap();
    let built = of_group.clone().into_state_builder().build();
    let from = SessionStateBuilder::new_from_existing(of_group.state());
    for session in [
        SessionContext::new_with_state(of_group.state()),
        SessionContext::new_with_state(built),
        SessionContext::new_with_state(from.with_session_id("other".to_string()).build()),
        of_group.clone().enable_url_table(),
    ] {
        let refused = run(&session, JOIN).await.unwrap_err().to_string();
        assert!(refused.contains("/acme refused "), "{refused}");
        assert!(acme.peak() <= MIB, "{}", acme.peak());
    }
}

/// A plan of a group runs in it with the pool of its group, whatever pool it is run with. If
/// another group's session runs the plan, it runs in that session's group.
#[tokio::test(flavor = "current_thread")]
async fn a_plan_is_charged_to_a_group_whoever_runs_it() {
    let base = session(60);
    let runtime = runtime();
    // So the peaks differ.
    let [a, b] = [("a", MIB / 4), ("b", MIB)]
        .map(|(name, max)| runtime.root().create(name, limit(max)).unwrap());
    let of_a = base.with_group(&a, &PoolConfig::new()).unwrap();
    let plan = of_a
        .sql(JOIN)
        .await
        .unwrap()
        .create_physical_plan()
        .await
        .unwrap();
    // A join keeps how its first run ended.
    let kept = of_a
        .sql(JOIN)
        .await
        .unwrap()
        .create_physical_plan()
        .await
        .unwrap();
    let greedy = Arc::new(GreedyMemoryPool::new(usize::MAX >> 1));
    let env = RuntimeEnvBuilder::new()
        .with_memory_pool(greedy)
        .build_arc()
        .unwrap();
    let of_none = base.task_ctx().session_config().clone();
    let of_none = SessionContext::new_with_config_rt(of_none, env).task_ctx();
    let refused = collect(plan, of_none).await.unwrap_err().to_string();
    assert!(
        refused.contains("/a refused ") && a.refused_count() > 0,
        "{refused}"
    );
    let before = a.peak();
    let query = base
        .for_query(&b, 17, Limits::new(), &PoolConfig::new())
        .unwrap();
    a.offline().unwrap();
    let again = Arc::clone(&kept);
    let refused = collect(kept, query.task_ctx())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("/b refused ") && refused.contains("for /b/17") && a.peak() == before,
        "{refused}"
    );
    // Its figures are those of the group that it ran in, whatever level has refused.
    let metrics = again.metrics().unwrap();
    assert!(query.group().peak() > MIB / 4, "{}", query.group().peak());
    assert_eq!(
        metrics
            .sum_by_name("group_peak_live_max_bytes")
            .unwrap()
            .as_usize() as u64,
        query.group().peak_live().max()
    );
    assert!(
        metrics.sum_by_name("group_refusals").unwrap().as_usize() > 0,
        "{metrics}"
    );
    let shown = displayable(&*again).one_line().to_string();
    assert!(shown.contains("InGroupExec: group=/b/17"), "{shown}");
    drop((query, of_a, a, again));
    b.offline_tree();
    drop(b);
    assert_empty(&runtime);
}

/// Peak, refusals and waits of a query's group are in the root's metrics, in EXPLAIN ANALYZE and in
/// the tree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_says_what_it_has_taken() {
    let base = session_of(1, 60);
    let runtime = runtime();
    let sort = "SELECT text FROM rows ORDER BY text";
    let query = base
        .for_query(&runtime.root(), 17, limit(3 * MIB), &PoolConfig::new())
        .unwrap();
    let plan = query
        .sql(sort)
        .await
        .unwrap()
        .create_physical_plan()
        .await
        .unwrap();
    collect(Arc::clone(&plan), query.task_ctx()).await.unwrap();
    let metrics = plan.metrics().unwrap();
    let figure = |name| {
        metrics
            .sum_by_name(name)
            .unwrap_or_else(|| panic!("no {name}"))
            .as_usize()
    };
    let peak = query.group().peak_live();
    assert_eq!(
        (
            figure("group_peak_live_min_bytes") as u64,
            figure("group_peak_live_max_bytes") as u64
        ),
        (peak.min(), peak.max())
    );
    assert!(
        0 < peak.min() && peak.max() <= query.group().peak(),
        "{peak}"
    );
    assert!(
        figure("group_refusals") > 0
            && figure("plan_spilled_bytes") > 0
            && figure("group_waits") == 0,
        "{metrics}"
    );
    let analyzed = run(&query, &format!("EXPLAIN ANALYZE {sort}"))
        .await
        .unwrap();
    assert_eq!(
        analyzed
            .matches("InGroupExec: group=/17, metrics=[")
            .count(),
        1,
        "{analyzed}"
    );
    assert!(
        analyzed.contains("group_peak_live_min_bytes=")
            && analyzed.contains("group_peak_live_max_bytes=")
            && analyzed.contains("plan_spilled_bytes="),
        "{analyzed}"
    );
    let tree = run(&query, &format!("EXPLAIN FORMAT TREE {sort}"))
        .await
        .unwrap();
    assert!(
        tree.contains("InGroupExec") && tree.contains("group: /17"),
        "{tree}"
    );
}

/// DataFusion's advice to raise a limit of the runtime is not for a tenant's SQL, which cannot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_advises_nothing_that_leaves_the_group() {
    let base = session_of(1, 60);
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(MIB / 4)).unwrap();
    let query = base
        .for_query(&acme, 17, Limits::new(), &PoolConfig::new())
        .unwrap();
    let refused = run(&query, "SELECT text FROM rows ORDER BY text")
        .await
        .unwrap_err();
    let line = refused.to_string();
    assert!(
        matches!(refused, DataFusionError::ResourcesExhausted(_)),
        "{refused:?}"
    );
    assert!(
        line.contains("ExternalSorterMerge[0]: /acme refused ") && !line.contains("datafusion."),
        "{line}"
    );
}
