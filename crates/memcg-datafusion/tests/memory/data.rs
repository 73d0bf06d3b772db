//! Tables, sessions and what all tests look at.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::common::Result;
use datafusion::datasource::MemTable;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::{SessionConfig, SessionContext};
use memcg::{Group, Limit, Limits, Runtime};
use memcg_datafusion::GroupPool;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::mpsc;

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn runtime() -> Runtime {
    Runtime::builder().audit(true).build().expect("a runtime")
}

pub(crate) fn limit(bytes: u64) -> Limits {
    Limits::new().max(Limit::Bytes(bytes))
}

/// Nothing is charged, no group is left, and all counts add up.
#[track_caller]
pub(crate) fn assert_empty(runtime: &Runtime) {
    until("all bytes are back", || {
        runtime.settle();
        runtime.root().live() == 0 && runtime.dying_count() == 0
    });
    assert_eq!(
        (runtime.root().forced(), runtime.counts().underflows),
        (0, 0)
    );
    // Not once: a thread that nobody waits for may have given its bytes back, and take their credit
    // off its levels still.
    assert!(
        comes_true(|| runtime.verify().is_ok()),
        "{}",
        runtime.verify()
    );
}

#[track_caller]
pub(crate) fn until(what: &str, is: impl Fn() -> bool) {
    assert!(comes_true(is), "never: {what}");
}

/// Waits until something is so: for a minute, which is long in vain.
fn comes_true(is: impl Fn() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(60);
    while !is() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

// === Reservations ===

pub(crate) fn pool_of(group: &Group) -> Arc<dyn MemoryPool> {
    Arc::new(GroupPool::new(group))
}

pub(crate) fn spillable(name: &str, pool: &Arc<dyn MemoryPool>) -> MemoryReservation {
    MemoryConsumer::new(name)
        .with_can_spill(true)
        .register(pool)
}

pub(crate) fn unspillable(name: &str, pool: &Arc<dyn MemoryPool>) -> MemoryReservation {
    MemoryConsumer::new(name).register(pool)
}

/// The text of a refusal on which operators spill.
#[track_caller]
pub(crate) fn exhausted(ended: Result<()>) -> String {
    match ended {
        Err(datafusion::common::DataFusionError::ResourcesExhausted(text)) => text,
        other => panic!("{other:?}"),
    }
}

// === Tables ===

/// Rows of one batch.
const ROWS: usize = 1_000;

/// A batch of a number, a key and a text of some 60 bytes. The numbers go on where the last batch
/// ended.
pub(crate) fn batch(number: usize) -> RecordBatch {
    let mut random = SmallRng::seed_from_u64(number as u64);
    let ids = (0..ROWS).map(|row| (number * ROWS + row) as i64);
    let keys: Vec<i64> = (0..ROWS).map(|_| random.random_range(0..1 << 40)).collect();
    let texts = keys
        .iter()
        .map(|key| format!("{:060}", key.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64)));
    let columns: [(&str, ArrayRef); 3] = [
        ("id", Arc::new(Int64Array::from_iter_values(ids))),
        ("key", Arc::new(Int64Array::from(keys.clone()))),
        ("text", Arc::new(StringArray::from_iter_values(texts))),
    ];
    RecordBatch::try_from_iter(columns).expect("three columns of one length")
}

/// A session of two partitions.
pub(crate) fn session(batches: usize) -> SessionContext {
    session_of(2, batches)
}

/// A session with settings that let small queries spill, and a table `rows` of so many batches.
pub(crate) fn session_of(partitions: usize, batches: usize) -> SessionContext {
    let config = SessionConfig::new()
        .with_target_partitions(partitions)
        .with_batch_size(ROWS)
        .with_sort_spill_reservation_bytes(512 << 10)
        .with_sort_in_place_threshold_bytes(64 << 10);
    let session = SessionContext::new_with_config(config);
    let part = |from| {
        (from..batches)
            .step_by(partitions)
            .map(batch)
            .collect::<Vec<_>>()
    };
    let table =
        MemTable::try_new(batch(0).schema(), (0..partitions).map(part).collect()).expect("a table");
    session
        .register_table("rows", Arc::new(table))
        .expect("a free name");
    session
}

/// A table whose only partition gives what is sent, and ends with the sender.
pub(crate) fn fed(session: &SessionContext, name: &str) -> mpsc::Sender<RecordBatch> {
    let (feed, fed) = mpsc::channel(1);
    let stream = Fed {
        schema: batch(0).schema(),
        fed: Mutex::new(Some(fed)),
    };
    let table =
        StreamingTable::try_new(batch(0).schema(), vec![Arc::new(stream)]).expect("a table");
    session
        .register_table(name, Arc::new(table))
        .expect("a free name");
    feed
}

#[derive(Debug)]
struct Fed {
    schema: SchemaRef,
    fed: Mutex<Option<mpsc::Receiver<RecordBatch>>>,
}

impl PartitionStream for Fed {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let fed = self
            .fed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .expect("read once");
        let next = |mut fed: mpsc::Receiver<RecordBatch>| async {
            fed.recv().await.map(|batch| (Ok(batch), fed))
        };
        Box::pin(RecordBatchStreamAdapter::new(
            Arc::clone(&self.schema),
            futures::stream::unfold(fed, next),
        ))
    }
}

pub(crate) fn text(rows: &[RecordBatch]) -> String {
    pretty_format_batches(rows).expect("rows").to_string()
}
