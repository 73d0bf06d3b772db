//! With `spill_on_demand` a query alone ends wherever it ends with `GreedyMemoryPool`.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::datasource::MemTable;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use memcg::{Group, Limits};
use memcg_datafusion::{GroupPool, InGroupSession, PoolConfig};

use crate::data::{KIB, MIB, assert_empty, batch, limit, runtime};

const SORT: &str = "SELECT key, text, id FROM rows ORDER BY text";

fn session(config: SessionConfig, partitions: usize, batches: usize) -> SessionContext {
    let session = SessionContext::new_with_config(config.with_target_partitions(partitions));
    let part = |from| (from..batches).step_by(partitions).map(batch).collect();
    let parts: Vec<Vec<RecordBatch>> = (0..partitions).map(part).collect();
    let table = MemTable::try_new(batch(0).schema(), parts).unwrap();
    session.register_table("rows", Arc::new(table)).unwrap();
    session
}

/// The number of rows that a query gives, in a task, as in a service.
async fn rows(session: SessionContext, sql: &'static str) -> Result<usize> {
    let collects = async move { session.sql(sql).await?.collect().await };
    let rows = tokio::spawn(collects).await.unwrap()?;
    Ok(rows.iter().map(RecordBatch::num_rows).sum())
}

/// Runs a query with each pool, alone. Returns if it ends with `GreedyMemoryPool`.
async fn ends_as_with_greedy(base: &SessionContext, sql: &'static str, max: u64) -> bool {
    let greedy = Arc::new(GreedyMemoryPool::new(max as usize));
    let env = RuntimeEnvBuilder::from_runtime_env(&base.runtime_env())
        .with_memory_pool(greedy)
        .build_arc()
        .unwrap();
    let state = SessionStateBuilder::new_from_existing(base.state()).with_runtime_env(env);
    let Ok(expected) = rows(SessionContext::new_with_state(state.build()), sql).await else {
        return false;
    };
    for config in [
        PoolConfig::new().spill_on_demand(),
        PoolConfig::new().spill_on_demand().by_operator(),
    ] {
        let runtime = runtime();
        let acme = runtime.root().create("acme", limit(max)).unwrap();
        let query = base.for_query(&acme, 17, Limits::new(), &config).unwrap();
        let ended = rows((*query).clone(), sql).await;
        let ended = ended.unwrap_or_else(|error| panic!("{sql} below {}: {error}", max / KIB));
        assert_eq!(ended, expected);
        assert!(acme.peak() <= max && acme.forced() == 0);
        drop(query);
        end(&runtime, acme);
    }
    true
}

fn end(runtime: &memcg::Runtime, acme: Group) {
    acme.offline_tree();
    drop(acme);
    assert_empty(runtime);
}

/// What a sort keeps for its merge is there for the operator that reads the sort, and for the sort of
/// another partition, which need not spill where it does not spill with `GreedyMemoryPool`.
///
/// Near the least limit it is chance if a sort ends, with any pool: it depends on which partitions are
/// read at once. A worker that is alone reads them in the same order each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_lone_sort_ends_where_it_ends_with_greedy() {
    let config = SessionConfig::new().with_sort_spill_reservation_bytes(2 << 20);
    let base = session(config, 2, 60);
    let mut ended = 0;
    let close = (12 * 8..13 * 8).map(|eighth| eighth * MIB / 8);
    for max in close.chain((13..22).map(|mib| mib * MIB)) {
        ended += usize::from(ends_as_with_greedy(&base, SORT, max).await);
    }
    assert!(ended > 14, "{ended} of 17");
}

/// The same of queries of several kinds, with DataFusion's default settings, below limits of which
/// the sorts of four partitions would reserve more than all before they read a row.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn with_default_settings_a_query_ends_where_it_ends_with_greedy() {
    let base = session(SessionConfig::new(), 4, 60);
    let mut ended = 0;
    for mib in [12, 16, 20, 24, 32, 44, 68] {
        for sql in [
            SORT,
            "SELECT text, count(*), max(id) FROM rows GROUP BY text",
            "SELECT DISTINCT text FROM rows",
            "SELECT a.id, b.text FROM rows a JOIN rows b ON a.key = b.key ORDER BY b.text",
            "SELECT id, sum(key) OVER (PARTITION BY id % 100 ORDER BY key) FROM rows",
        ] {
            ended += usize::from(ends_as_with_greedy(&base, sql, mib * MIB).await);
        }
    }
    assert!(ended > 14, "{ended} of 35");
    // The part of an eighth, for each partition; a value of the service stays.
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(64 * MIB)).unwrap();
    let reserved = |base: &SessionContext| {
        let session = base.with_group(&acme, &PoolConfig::new()).unwrap();
        let state = session.state();
        state
            .config_options()
            .execution
            .sort_spill_reservation_bytes
    };
    assert_eq!(reserved(&base), 2 << 20);
    let own = SessionConfig::new().with_sort_spill_reservation_bytes(20 << 20);
    let own = session(own, 4, 1);
    assert_eq!(reserved(&own), 20 << 20);
    // The same where an engine executes plans itself.
    let pool = Arc::new(GroupPool::new(&acme));
    for (session, expected) in [(&base, 2 << 20), (&own, 20 << 20)] {
        let context = pool.context(session.task_ctx()).unwrap();
        let execution = &context.session_config().options().execution;
        assert_eq!(execution.sort_spill_reservation_bytes, expected);
    }
    drop(pool);
    end(&runtime, acme);
}
