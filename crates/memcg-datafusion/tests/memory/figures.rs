//! Tables of groups and of running queries, for SQL of an operator.

use datafusion::common::Result;
use datafusion::prelude::SessionContext;
use futures::StreamExt;
use memcg::{Bytes, Group, Limits};
use memcg_datafusion::{InGroupSession, PoolConfig, QueryQueue};

use crate::data::{MIB, assert_empty, limit, runtime, session, text, until};

const GROUPS: &str = "SELECT * FROM memcg.groups ORDER BY path";
const QUERIES: &str = "SELECT path, partitions FROM memcg.queries ORDER BY path";

async fn shown(session: &SessionContext, sql: &str) -> Result<String> {
    Ok(text(&session.sql(sql).await?.collect().await?))
}

/// The rows of a table as text, without its frame.
async fn lines(session: &SessionContext, sql: &str) -> Vec<String> {
    let shown = shown(session, sql).await.unwrap();
    let rows = shown.lines().filter(|line| line.starts_with("| /"));
    let words = |line: &str| {
        line.replace('|', " ")
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    rows.map(words).collect()
}

/// The table of groups has their figures as they are, and those of the subtree alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_reads_the_groups() {
    let base = session(2);
    let runtime = runtime();
    let root = runtime.root();
    let acme = root.create("acme", limit(MIB).low(1_000)).unwrap();
    let query = acme.create("q", Limits::new()).unwrap();
    let other = root.create("other", Limits::new()).unwrap();
    let held = query.charge(Bytes(3_000)).unwrap();
    drop(query.charge(Bytes(2_000)).unwrap());
    acme.charge(Bytes(2 * MIB)).unwrap_err();
    let operator = base.with_figures(&root).unwrap();
    let columns = "path, live, max, low, refused, waiting, waited_seconds, peak_live_max";
    let sql = format!("SELECT {columns} FROM memcg.groups ORDER BY path");
    let acmes = [
        "/acme 3000 1048576 1000 1 0 0.0 5000",
        "/acme/q 3000 0 0 0 0.0 5000",
    ];
    let all = lines(&operator, &sql).await;
    assert_eq!(all[0].split(' ').next(), Some("/"));
    assert_eq!(all[1..], [&acmes[..], &["/other 0 0 0 0 0.0 0"]].concat());
    let of_acme = base.with_figures(&acme).unwrap();
    assert_eq!(lines(&of_acme, &sql).await, acmes);
    let bounds =
        "SELECT path FROM memcg.groups WHERE peak_live_min > peak_live_max OR usage < live";
    assert!(lines(&operator, bounds).await.is_empty());
    // A session that shows one subtree shows another one in its place.
    let again = operator.with_figures(&other).unwrap();
    assert_eq!(lines(&again, &sql).await, ["/other 0 0 0 0 0.0 0"]);
    drop((held, query, acme, other, operator, of_acme, again));
    end(&runtime);
}

/// Sessions of groups do not have the tables, whatever session they are made from, unless the
/// service gives them: then those of the subtree that it names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_reads_no_figures_of_others() {
    let base = session(2);
    let runtime = runtime();
    let root = runtime.root();
    let [acme, other] = ["acme", "other"].map(|name| root.create(name, limit(MIB)).unwrap());
    let config = PoolConfig::new();
    let operator = base.with_group(&root, &config).unwrap();
    let operator = operator.with_figures(&root).unwrap();
    assert_eq!(lines(&operator, GROUPS).await.len(), 3);
    for session in [&base, &operator] {
        let query = session
            .for_query(&acme, "q", Limits::new(), &config)
            .unwrap();
        let of_group = session.with_group(&acme, &config).unwrap();
        let again = of_group.with_group(&acme, &config).unwrap();
        for tenant in [&*query, &of_group, &again] {
            for sql in [GROUPS, QUERIES] {
                let told = shown(tenant, sql).await.unwrap_err().to_string();
                assert!(told.contains("memcg"), "{told}");
            }
            let names = "SELECT catalog_name, schema_name FROM information_schema.schemata";
            let set = "SET datafusion.catalog.information_schema = true";
            shown(tenant, set).await.unwrap();
            let names = shown(tenant, names).await.unwrap();
            assert!(
                names.contains("public") && !names.contains("memcg"),
                "{names}"
            );
        }
    }
    assert!(shown(&base, GROUPS).await.is_err());
    let of_acme = base.with_group(&acme, &config).unwrap();
    let tenant = of_acme.with_figures(&acme).unwrap();
    let all = lines(&tenant, "SELECT path FROM memcg.groups").await;
    assert_eq!(all, ["/acme"]);
    drop((operator, of_acme, tenant, acme, other));
    end(&runtime);
}

/// A query is in the table from its first poll until its last stream is dropped, once, whatever the
/// number of its partitions, and also while it waits in line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_reads_the_queries_that_run() {
    let base = session(2);
    let runtime = runtime();
    let root = runtime.root();
    let [acme, other] = ["acme", "other"].map(|name| root.create(name, Limits::new()).unwrap());
    let operator = base.with_figures(&root).unwrap();
    let of_acme = base.with_figures(&acme).unwrap();
    let config = PoolConfig::new();
    let first = base.for_query(&acme, 1, Limits::new(), &config).unwrap();
    let frame = first.sql("SELECT text FROM rows").await.unwrap();
    let streams = frame.execute_stream_partitioned().await.unwrap();
    assert_eq!(streams.len(), 2);
    let queue = QueryQueue::new(2, std::time::Duration::from_secs(3_600)).at_once(1);
    let queued = PoolConfig::new().queue(&queue);
    let second = base.for_query(&other, 2, Limits::new(), &queued).unwrap();
    let frame = second.sql("SELECT text FROM rows").await.unwrap();
    let mut runs = frame.execute_stream_partitioned().await.unwrap();
    runs[0].next().await.unwrap().unwrap();
    let third = base.for_query(&other, 3, Limits::new(), &queued).unwrap();
    let frame = third.sql("SELECT count(*) FROM rows").await.unwrap();
    let waits = tokio::spawn(async move { frame.collect().await });
    until("the third waits", || queue.counts().waiting == 1);
    let all = ["/acme/1 2", "/other/2 2", "/other/3 1"];
    assert_eq!(lines(&operator, QUERIES).await, all);
    assert_eq!(lines(&of_acme, QUERIES).await, all[..1]);
    let figures = "SELECT path FROM memcg.queries WHERE seconds >= 0 AND refused = 0 AND waits = 0";
    assert_eq!(lines(&operator, figures).await.len(), 3);
    drop(streams);
    assert_eq!(lines(&operator, QUERIES).await, all[1..]);
    drop(runs);
    waits.await.unwrap().unwrap();
    assert!(lines(&operator, QUERIES).await.is_empty());
    drop((first, second, third, acme, other, operator, of_acme));
    end(&runtime);
}

fn end(runtime: &memcg::Runtime) {
    runtime
        .root()
        .children()
        .iter()
        .for_each(Group::offline_tree);
    assert_empty(runtime);
}
