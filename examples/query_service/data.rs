//! The tables: `lineitem` and `orders` of TPC-H, in memory.

use std::sync::Arc;

use datafusion::arrow::array::{Array, RecordBatch};
use datafusion::arrow::error::ArrowError;
use datafusion::datasource::MemTable;
use memcg::Group;
use memcg_datafusion::ArrowPool;
use tpchgen::generators::{LineItemGenerator, OrderGenerator};
use tpchgen_arrow::{LineItemArrow, OrderArrow};

/// Rows of a batch: a sort reserves more than twice a batch at a time.
pub(crate) fn batch(memory: u64) -> usize {
    usize::try_from(memory >> 15)
        .unwrap_or(usize::MAX)
        .clamp(64, 8_192)
}

/// Each table has so many partitions, and each query.
pub(crate) const PARTITIONS: usize = 2;

/// A table by its name.
pub(crate) struct Tables(Vec<(&'static str, Vec<RecordBatch>)>);

impl Tables {
    pub(crate) fn generate(scale: f64, rows: usize) -> Result<Tables, ArrowError> {
        let lineitem =
            LineItemArrow::new(LineItemGenerator::new(scale, 1, 1)).with_batch_size(rows);
        let orders = OrderArrow::new(OrderGenerator::new(scale, 1, 1)).with_batch_size(rows);
        Ok(Tables(vec![
            ("lineitem", lineitem.collect::<Result<_, _>>()?),
            ("orders", orders.collect::<Result<_, _>>()?),
        ]))
    }

    /// The bytes of the tables.
    pub(crate) fn bytes(&self) -> u64 {
        let batches = self.0.iter().flat_map(|(_, batches)| batches);
        batches
            .map(|batch| batch.get_array_memory_size() as u64)
            .sum()
    }

    /// Charges each buffer of the tables to a group, until the buffer is freed.
    pub(crate) fn charge(&self, group: &Group) {
        let pool = ArrowPool::new(group);
        let columns = self
            .0
            .iter()
            .flat_map(|(_, batches)| batches)
            .flat_map(|batch| batch.columns());
        columns.for_each(|column| {
            column
                .to_data()
                .buffers()
                .iter()
                .for_each(|buffer| buffer.claim(&pool))
        });
    }

    /// The tables as DataFusion reads them.
    pub(crate) fn into_providers(
        self,
    ) -> datafusion::common::Result<Vec<(&'static str, Arc<MemTable>)>> {
        let provider = |(name, batches): (&'static str, Vec<RecordBatch>)| {
            let part = |from| {
                batches
                    .iter()
                    .skip(from)
                    .step_by(PARTITIONS)
                    .cloned()
                    .collect()
            };
            let table =
                MemTable::try_new(batches[0].schema(), (0..PARTITIONS).map(part).collect())?;
            Ok((name, Arc::new(table)))
        };
        self.0.into_iter().map(provider).collect()
    }
}
