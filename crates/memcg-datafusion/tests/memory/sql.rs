//! Queries that spill: the same rows as without a limit, and never above it.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::common::DataFusionError;
use datafusion::physical_plan::collect;
use datafusion::prelude::SessionContext;
use memcg::errors::CreateError;
use memcg::{Limits, Runtime};
use memcg_datafusion::{InGroupSession, PoolConfig};

use crate::data::{KIB, MIB, assert_empty, limit, runtime, session, session_of, text, until};
use crate::queries::{lines, spills};

const SORT: &str = "SELECT key, text, id FROM rows ORDER BY text";
const AGGREGATE: &str = "SELECT count(*), sum(n), max(t) FROM \
                         (SELECT text, count(*) AS n, max(text) AS t FROM rows GROUP BY text)";
const JOIN: &str =
    "SELECT count(*), max(a.text), max(b.text) FROM rows a JOIN rows b ON a.key = b.key";

struct Ran {
    rows: Vec<RecordBatch>,
    spills: usize,
}

/// Runs a query below a max.
async fn run(
    session: &SessionContext,
    runtime: &Runtime,
    sql: &str,
    max: u64,
    config: &PoolConfig,
) -> Ran {
    let acme = runtime.root().scope("acme", limit(max)).unwrap();
    let query = session.for_query(&acme, 17, Limits::new(), config).unwrap();
    let frame = query.sql(sql).await.unwrap();
    let context = Arc::new(frame.task_ctx());
    let plan = frame.create_physical_plan().await.unwrap();
    // In a task, as in a service: there a consumer may wait.
    let rows = tokio::spawn(collect(Arc::clone(&plan), context))
        .await
        .unwrap();
    let rows = rows.unwrap_or_else(|error| panic!("{sql}: {error}"));
    assert!(
        acme.peak() <= max && acme.forced() == 0,
        "{} of {max}",
        acme.peak()
    );
    Ran {
        rows,
        spills: spills(&plan),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_spills_is_the_same() {
    let plain = PoolConfig::new();
    let on_demand = PoolConfig::new()
        .spill_on_demand()
        .unspillable_reserve(512 << 10);
    let configs = [
        plain.clone(),
        plain.by_operator(),
        on_demand.clone(),
        on_demand.by_operator(),
    ];
    let cases = [
        (SORT, 4 * MIB, true),
        (AGGREGATE, 12 * MIB, true),
        (JOIN, 24 * MIB, false),
    ];
    // Two partitions of a sort compete, so one may be refused before it has anything to spill.
    for (partitions, cases) in [(1, &cases[..]), (2, &cases[1..])] {
        let session = session_of(partitions, 60);
        for &(sql, max, does_spill) in cases {
            let runtime = runtime();
            let free = run(&session, &runtime, sql, u64::MAX >> 1, &PoolConfig::new()).await;
            assert_eq!(free.spills, 0, "{sql}");
            for config in &configs {
                let limited = run(&session, &runtime, sql, max, config).await;
                assert!(
                    (limited.spills > 0) == does_spill,
                    "{sql}: {} files",
                    limited.spills
                );
                assert!(
                    lines(&limited.rows) == lines(&free.rows),
                    "{sql}: other rows"
                );
            }
            assert_empty(&runtime);
        }
    }
}

/// A query that cannot spill fails with the whole sentence, and gives all back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_names_its_group() {
    let session = session(60);
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(MIB)).unwrap();
    let query = session
        .for_query(&acme, 17, Limits::new(), &PoolConfig::new())
        .unwrap();
    // A refusal beside another one may name no holder: it does not queue for the list of groups.
    let mut names_a_holder = false;
    for _ in 0..100 {
        let error = query.sql(JOIN).await.unwrap().collect().await.unwrap_err();
        assert!(
            matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)),
            "{error}"
        );
        let line = error.to_string();
        for part in [
            "HashJoinInput",
            "/acme refused",
            "for /acme/17: short by",
            "of max 1 MiB; ",
            "to fit, read fewer rows",
        ] {
            assert!(line.contains(part), "no {part:?} in {line}");
        }
        // The author of SQL calls no method, and raises no max.
        assert!(
            ["charge", "raise", "reclaimer"]
                .iter()
                .all(|word| !line.contains(word)),
            "{line}"
        );
        names_a_holder = line.contains("of max 1 MiB; most in /acme/17");
        if names_a_holder {
            break;
        }
    }
    assert!(names_a_holder, "none of a hundred refusals");
    drop(query);
    acme.offline_tree();
    drop(acme);
    assert_empty(&runtime);
}

/// Joins of each kind below a max that is too small for them: a refusal that names the group, or
/// files, or bytes above max by force where DataFusion does not let a growth fail. All comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_of_each_kind_are_refused_or_forced() {
    const MAX: u64 = 256 * KIB;
    let session = session(6);
    let runtime = runtime();
    let settings =
        |prefer_hash: bool| format!("SET datafusion.optimizer.prefer_hash_join = {prefer_hash}");
    let cases = [
        ("HashJoinExec", true, JOIN),
        ("SortMergeJoin", false, JOIN),
        (
            "NestedLoopJoinExec",
            true,
            "SELECT count(*), max(a.text), max(b.text) FROM rows a JOIN rows b ON a.key < b.id",
        ),
        (
            "CrossJoinExec",
            true,
            "SELECT max(a.text), max(b.text) FROM rows a CROSS JOIN rows b",
        ),
    ];
    for (operator, prefer_hash, sql) in cases {
        let acme = runtime.root().scope("acme", limit(MAX)).unwrap();
        let query = session
            .for_query(&acme, 17, Limits::new(), &PoolConfig::new())
            .unwrap();
        query
            .sql(&settings(prefer_hash))
            .await
            .unwrap()
            .collect()
            .await
            .unwrap();
        let plan = text(
            &query
                .sql(&format!("EXPLAIN {sql}"))
                .await
                .unwrap()
                .collect()
                .await
                .unwrap(),
        );
        assert!(plan.contains(operator), "no {operator} in {plan}");
        match query.sql(sql).await.unwrap().collect().await {
            // It was refused and spilled, or above max by force.
            Ok(rows) => {
                let is_short = acme.refused_count() > 0 || acme.peak() > MAX;
                assert!(
                    !rows.is_empty() && is_short,
                    "{operator} needs no memory: {}",
                    acme.peak()
                );
            }
            Err(error) => {
                let line = error.to_string();
                assert!(
                    line.contains("/acme refused") && line.contains("for /acme/17"),
                    "{operator}: {line}"
                );
            }
        }
        drop(query);
        until("all bytes are back", || acme.live() == 0);
    }
    assert_empty(&runtime);
}

/// Two queries of one name: the second is told, and gets no group.
#[tokio::test(flavor = "current_thread")]
async fn a_name_is_taken_once() {
    let session = session(1);
    let runtime = runtime();
    let acme = runtime.root().create("acme", Limits::new()).unwrap();
    let first = session
        .for_query(&acme, "q17", Limits::new(), &PoolConfig::new())
        .unwrap();
    let error = session
        .for_query(&acme, "q17", Limits::new(), &PoolConfig::new())
        .unwrap_err();
    let DataFusionError::External(inner) = &error else {
        panic!("{error:?}")
    };
    assert!(
        matches!(inner.downcast_ref(), Some(CreateError::Taken { .. })),
        "{error}"
    );
    assert_eq!(acme.children().len(), 1);
    drop(first);
    assert!(
        session
            .for_query(&acme, "q17", Limits::new(), &PoolConfig::new())
            .is_ok()
    );
}

/// A session of a tenant: all its queries are in one group, and a session of another group made
/// from it is not.
#[tokio::test(flavor = "current_thread")]
async fn sessions_have_their_groups() {
    let session = session(2);
    let runtime = runtime();
    let [a, b] = ["a", "b"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    let of_a = session.with_group(&a, &PoolConfig::new()).unwrap();
    let of_b = of_a.with_group(&b, &PoolConfig::new()).unwrap();
    for (session, group, other) in [(&of_a, &a, &b), (&of_b, &b, &a)] {
        let before = other.peak();
        let explained = session
            .sql(&format!("EXPLAIN {SORT}"))
            .await
            .unwrap()
            .collect()
            .await
            .unwrap();
        assert_eq!(
            text(&explained).matches("InGroupExec: group=").count(),
            1,
            "{}",
            text(&explained)
        );
        assert_eq!(
            session
                .sql(SORT)
                .await
                .unwrap()
                .collect()
                .await
                .unwrap()
                .iter()
                .map(RecordBatch::num_rows)
                .sum::<usize>(),
            2_000
        );
        assert!(group.peak() > 0 && other.peak() == before);
    }
}
