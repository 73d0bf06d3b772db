//! Wrong rows of DataFusion's own, under any pool. Each test fails once its fault is gone: then take
//! it off the list in `crates/memcg-datafusion/src/README.md`, and off the page of the book.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::common::Result;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::collect;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::data::batch;
use crate::queries::spills;

/// A plain session with DataFusion's own pool.
fn session(partitions: usize, limit: Option<usize>) -> SessionContext {
    let config = SessionConfig::new()
        .with_target_partitions(partitions)
        .with_batch_size(16);
    let mut env = RuntimeEnvBuilder::new();
    if let Some(limit) = limit {
        env = env.with_memory_limit(limit, 1.0);
    }
    SessionContext::new_with_config_rt(config, env.build_arc().unwrap())
}

/// The number of rows of a join, without a limit and with one for which it spills.
async fn rows(partitions: usize, sql: &str) -> [usize; 2] {
    let mut rows = [0; 2];
    for (rows, limit) in rows.iter_mut().zip([None, Some(64)]) {
        let session = session(partitions, limit);
        let frame = session.sql(sql).await.unwrap();
        let plan = frame.create_physical_plan().await.unwrap();
        let batches = collect(Arc::clone(&plan), session.task_ctx())
            .await
            .unwrap();
        assert_eq!(spills(&plan) > 0, limit.is_some(), "{sql}");
        *rows = batches.iter().map(RecordBatch::num_rows).sum();
    }
    rows
}

/// apache/datafusion#24745: a nested loop join that spills loses the rows without a match.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_that_spills_loses_rows() {
    let [large, small] = [
        "generate_series(0, 199) AS l(v)",
        "generate_series(3, 92) AS r(w)",
    ];
    for kind in ["RIGHT", "FULL"] {
        let sql = format!("SELECT v, w FROM {small} {kind} JOIN {large} ON v > w");
        let [all, limited] = rows(1, &sql).await;
        assert!(
            limited < all,
            "the fault is gone: {sql}: {limited} of {all}"
        );
    }
}

/// apache/datafusion#22641: with more than one partition on the right such a join gives rows of the
/// left more than once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_of_partitions_that_spills_gives_rows_twice() {
    let [small, large] = [
        "generate_series(0, 49) AS l(v)",
        "(SELECT w % 7 AS w FROM generate_series(1, 2000) AS r(w))",
    ];
    for sql in [
        format!("SELECT v, w FROM {small} LEFT JOIN {large} ON v * 2 < w"),
        format!("SELECT v FROM {small} WHERE NOT EXISTS (SELECT 1 FROM {large} WHERE v * 2 < w)"),
    ] {
        let [all, limited] = rows(4, &sql).await;
        assert!(
            limited > all,
            "the fault is gone: {sql}: {limited} of {all}"
        );
    }
}

/// A stream whose rows can be taken once.
#[derive(Debug)]
struct Once {
    batches: Arc<Mutex<Vec<RecordBatch>>>,
    schema: SchemaRef,
    runs: Arc<AtomicUsize>,
}

impl PartitionStream for Once {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        self.runs.fetch_add(1, Ordering::Relaxed);
        let next = |batches: Arc<Mutex<Vec<RecordBatch>>>| async {
            let batch = batches
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop()?;
            Some((Ok(batch), batches))
        };
        Box::pin(RecordBatchStreamAdapter::new(
            Arc::clone(&self.schema),
            futures::stream::unfold(Arc::clone(&self.batches), next),
        ))
    }
}

/// apache/datafusion#24676: a nested loop join that spills reads its left side a second time, and so
/// loses what the first time has taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_that_spills_reads_its_left_side_twice() {
    let schema = batch(0).schema();
    let runs = Arc::new(AtomicUsize::new(0));
    let once = Once {
        batches: Arc::new(Mutex::new((0..8).map(batch).collect())),
        schema: Arc::clone(&schema),
        runs: Arc::clone(&runs),
    };
    let session = session(1, Some(30 << 10));
    let table = StreamingTable::try_new(schema, vec![Arc::new(once)]).unwrap();
    session.register_table("once", Arc::new(table)).unwrap();
    let sql = "SELECT id, v FROM once JOIN generate_series(1, 2) AS r(v) ON id + v > 0";
    let collected: Result<Vec<_>> = session.sql(sql).await.unwrap().collect().await;
    let rows = collected.map(|rows| rows.iter().map(RecordBatch::num_rows).sum());
    assert!(
        runs.load(Ordering::Relaxed) == 2 && rows.as_ref().unwrap_or(&0) != &16_000,
        "the fault is gone: {rows:?}"
    );
}
