//! The names by which the pool knows some of DataFusion's consumers, as DataFusion registers them:
//! a test for each fails where DataFusion renames it. `README.md` beside this file is the list.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::common::{Result, resources_err};
use datafusion::datasource::MemTable;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext, col};

use crate::consumer::{Kind, Part};

/// A pool that notes the consumers that register.
#[derive(Debug, Default)]
struct Notes(Mutex<Vec<Consumer>>);

#[derive(Debug)]
struct Consumer {
    name: String,
    can_spill: bool,
    kind: Kind,
}

impl MemoryPool for Notes {
    fn name(&self) -> &str {
        "notes"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        let name = consumer.name().to_string();
        let can_spill = consumer.can_spill();
        let kind = Kind::of(consumer);
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Consumer {
                name,
                can_spill,
                kind,
            });
    }

    fn grow(&self, _reservation: &MemoryReservation, _additional: usize) {}

    fn shrink(&self, _reservation: &MemoryReservation, _shrink: usize) {}

    fn try_grow(&self, _reservation: &MemoryReservation, _additional: usize) -> Result<()> {
        Ok(())
    }

    fn reserved(&self) -> usize {
        0
    }
}

impl fmt::Display for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("notes")
    }
}

/// A pool that refuses one growth of an aggregate, and notes the addresses of the reservations that
/// grow.
#[derive(Debug)]
struct RefusesOne {
    number: usize,
    growths: Mutex<Vec<usize>>,
}

impl RefusesOne {
    fn growths(&self) -> MutexGuard<'_, Vec<usize>> {
        self.growths.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryPool for RefusesOne {
    fn name(&self) -> &str {
        "refuses one"
    }

    fn grow(&self, _reservation: &MemoryReservation, _additional: usize) {}

    fn shrink(&self, _reservation: &MemoryReservation, _shrink: usize) {}

    fn try_grow(&self, reservation: &MemoryReservation, _additional: usize) -> Result<()> {
        if Kind::of(reservation.consumer()) != Kind::Replaying {
            return Ok(());
        }
        let mut growths = self.growths();
        growths.push(std::ptr::from_ref(reservation).addr());
        if growths.len() == self.number {
            return resources_err!("one");
        }
        Ok(())
    }

    fn reserved(&self) -> usize {
        0
    }
}

impl fmt::Display for RefusesOne {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refuses one")
    }
}

/// Runs a query of a table `rows` with the columns `a`, in order, and `b`. Returns the consumers
/// that registered.
async fn consumers(partitions: usize, sql: &str) -> Vec<Consumer> {
    let config = SessionConfig::new()
        .with_target_partitions(partitions)
        .with_prefer_existing_sort(true);
    let notes = Arc::new(Notes::default());
    let env = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::clone(&notes) as _)
        .build_arc()
        .unwrap();
    let session = SessionContext::new_with_config_rt(config, env);
    let column =
        |values: std::ops::Range<i64>| Arc::new(Int64Array::from_iter_values(values)) as ArrayRef;
    let batch =
        RecordBatch::try_from_iter([("a", column(0..100)), ("b", column(100..200))]).unwrap();
    let table = MemTable::try_new(batch.schema(), vec![vec![batch]; partitions]).unwrap();
    let table = table.with_sort_order(vec![vec![col("a").sort(true, false)]]);
    session.register_table("rows", Arc::new(table)).unwrap();
    session.sql(sql).await.unwrap().collect().await.unwrap();
    std::mem::take(&mut *notes.0.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Returns the consumers of a kind, and fails if there are none.
fn of_kind(consumers: &[Consumer], kind: Kind) -> Vec<&Consumer> {
    let found: Vec<_> = consumers
        .iter()
        .filter(|consumer| consumer.kind == kind)
        .collect();
    assert!(!found.is_empty(), "no {kind:?} in {consumers:?}");
    found
}

const SORT: &str = "SELECT b FROM rows ORDER BY b";

#[tokio::test]
async fn external_sorter() {
    let consumers = consumers(1, SORT).await;
    assert!(
        of_kind(&consumers, Kind::Sort(Part::Sorter))
            .iter()
            .all(|sorter| sorter.can_spill)
    );
}

/// The merge of a sorter registers right after its sorter: so the pool knows whose merge it is.
#[tokio::test]
async fn external_sorter_merge() {
    let consumers = consumers(1, SORT).await;
    of_kind(&consumers, Kind::Sort(Part::Merge));
    let kinds: Vec<_> = consumers
        .iter()
        .map(|consumer| consumer.kind)
        .filter(|kind| kind.part().is_some())
        .collect();
    assert_eq!(kinds, [Part::Sorter, Part::Merge].map(Kind::Sort));
}

#[tokio::test]
async fn repartition_exec() {
    of_kind(
        &consumers(2, "SELECT b, count(*) FROM rows GROUP BY b").await,
        Kind::Exchange,
    );
}

/// The merge of an exchange that keeps an order begins with the same name, and cannot spill.
#[tokio::test]
async fn repartition_exec_merge() {
    let consumers = consumers(2, "SELECT a, count(*) FROM rows GROUP BY a").await;
    let merges: Vec<_> = consumers
        .iter()
        .filter(|consumer| consumer.name.starts_with("RepartitionExec[Merge "))
        .collect();
    assert!(!merges.is_empty(), "{consumers:?}");
    assert!(
        merges
            .iter()
            .all(|merge| !merge.can_spill && merge.kind == Kind::Other),
        "{merges:?}"
    );
}

#[tokio::test]
async fn ordered_final_aggregate_stream() {
    let consumers = consumers(2, "SELECT a, count(*) FROM rows GROUP BY a").await;
    assert!(
        of_kind(&consumers, Kind::Bounded)
            .iter()
            .all(|aggregate| aggregate.can_spill)
    );
}

#[tokio::test]
async fn grouped_hash_aggregate_stream() {
    of_kind(
        &consumers(2, "SELECT a, b, count(*) FROM rows GROUP BY ROLLUP(a, b)").await,
        Kind::Grouped,
    );
}

#[tokio::test]
async fn final_hash_aggregate_stream() {
    let consumers = consumers(2, "SELECT b, count(*) FROM rows GROUP BY b").await;
    assert!(
        of_kind(&consumers, Kind::Replaying)
            .iter()
            .all(|aggregate| aggregate.can_spill)
    );
}

#[tokio::test]
async fn single_hash_aggregate_stream() {
    let consumers = consumers(1, "SELECT b, count(*) FROM rows GROUP BY b").await;
    assert!(
        of_kind(&consumers, Kind::Replaying)
            .iter()
            .all(|aggregate| aggregate.can_spill)
    );
}

/// The reservation of an aggregate that was refused is where it was until the aggregate has read all.
/// Those that grow later read back. A refusal for the last rows makes one file, which is read without
/// a merge: the growths are those of the table.
#[tokio::test]
async fn an_aggregate_reads_back_by_other_reservations() {
    const BATCHES: usize = 12;
    for partitions in [1, 2] {
        for number in [BATCHES / 2, BATCHES] {
            let pool = Arc::new(RefusesOne {
                number,
                growths: Mutex::default(),
            });
            let env = RuntimeEnvBuilder::new()
                .with_memory_pool(Arc::clone(&pool) as _)
                .build_arc()
                .unwrap();
            // Each batch has groups of its own, and comes as it is.
            let config = SessionConfig::new()
                .with_target_partitions(partitions)
                .with_batch_size(100)
                .with_repartition_aggregations(false);
            let session = SessionContext::new_with_config_rt(config, env);
            let batch = |at: usize| {
                let values = (at * 100..(at + 1) * 100).map(|value| value as i64);
                let column = Arc::new(Int64Array::from_iter_values(values)) as ArrayRef;
                RecordBatch::try_from_iter([("b", column)]).unwrap()
            };
            let batches: Vec<_> = (0..BATCHES).map(batch).collect();
            let mut parts = vec![batches];
            parts.resize(partitions, Vec::new());
            let table = MemTable::try_new(batch(0).schema(), parts).unwrap();
            session.register_table("rows", Arc::new(table)).unwrap();
            let sql = "SELECT b, count(*) FROM rows GROUP BY b";
            let rows = session.sql(sql).await.unwrap().collect().await.unwrap();
            let rows: usize = rows.iter().map(RecordBatch::num_rows).sum();
            assert_eq!(rows, BATCHES * 100);
            let growths = pool.growths().clone();
            let (reads, replays) = growths.split_at(BATCHES);
            assert!(reads.iter().all(|one| *one == reads[0]), "{growths:?}");
            assert!(!replays.is_empty() && !replays.contains(&reads[0]));
            let of_one = replays.iter().all(|one| *one == replays[0]);
            assert_eq!(of_one, number == BATCHES, "{growths:?}");
        }
    }
}
