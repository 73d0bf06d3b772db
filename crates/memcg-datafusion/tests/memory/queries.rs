//! The tables of TPC-H in memory, and its queries. The tests and the bench have them both.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::datasource::MemTable;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator,
    PartSuppGenerator, RegionGenerator, SupplierGenerator,
};
use tpchgen::q_and_a::queries;
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

/// Values in the place of `:1`, `:2` and so on, by query: those with which the benchmark checks its
/// answers.
const VALUES: [&[&str]; 22] = [
    &["90"],
    &["15", "BRASS", "EUROPE"],
    &["BUILDING", "1995-03-15"],
    &["1993-07-01"],
    &["ASIA", "1994-01-01"],
    &["1994-01-01", "0.06", "24"],
    &["FRANCE", "GERMANY"],
    &["BRAZIL", "AMERICA", "ECONOMY ANODIZED STEEL"],
    &["green"],
    &["1993-10-01"],
    &["GERMANY", "0.0001"],
    &["MAIL", "SHIP", "1994-01-01"],
    &["special", "requests"],
    &["1995-09-01"],
    &["1996-01-01"],
    &[
        "Brand#45",
        "MEDIUM POLISHED",
        "49",
        "14",
        "23",
        "45",
        "19",
        "3",
        "36",
        "9",
    ],
    &["Brand#23", "MED BOX"],
    &["300"],
    &["Brand#12", "Brand#23", "Brand#34", "1", "10", "20"],
    &["forest", "1994-01-01", "CANADA"],
    &["SAUDI ARABIA"],
    &["13", "31", "23", "29", "30", "18", "17"],
];

/// The statements of a query. All but one of them make and drop a view.
pub(crate) fn statements(number: usize) -> Vec<String> {
    let text = queries::query(number as i32)
        .expect("of 22")
        .replace("day (3)", "day")
        .replace("revenue:s", "revenue");
    // The last first: `:1` is the begin of `:10`.
    let values = VALUES[number - 1].iter().enumerate().rev();
    let text = values.fold(text, |text, (at, value)| {
        text.replace(&format!(":{}", at + 1), value)
    });
    text.split(';')
        .map(str::trim)
        .filter(|statement| !statement.is_empty())
        .map(str::to_string)
        .collect()
}

/// Registers the tables, each of two partitions and with so many rows in a batch.
pub(crate) fn register(session: &SessionContext, scale: f64, batch: usize) {
    let register =
        |name: &str,
         batches: &mut dyn Iterator<Item = std::result::Result<RecordBatch, ArrowError>>| {
            let batches: Vec<_> = batches.map(|batch| batch.expect("generated")).collect();
            let part = |from| {
                batches
                    .iter()
                    .skip(from)
                    .step_by(2)
                    .cloned()
                    .collect::<Vec<_>>()
            };
            let table =
                MemTable::try_new(batches[0].schema(), vec![part(0), part(1)]).expect("a table");
            session
                .register_table(name, Arc::new(table))
                .expect("a free name");
        };
    macro_rules! tables {
        ($($name:literal $arrow:ident $generator:ident,)*) => {
            $(register($name, &mut $arrow::new($generator::new(scale, 1, 1)).with_batch_size(batch));)*
        };
    }
    tables! {
        "customer" CustomerArrow CustomerGenerator,
        "lineitem" LineItemArrow LineItemGenerator,
        "nation" NationArrow NationGenerator,
        "orders" OrderArrow OrderGenerator,
        "part" PartArrow PartGenerator,
        "partsupp" PartSuppArrow PartSuppGenerator,
        "region" RegionArrow RegionGenerator,
        "supplier" SupplierArrow SupplierGenerator,
    }
}

/// Files that the operators of a plan have spilled.
pub(crate) fn spills(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let own = plan
        .metrics()
        .and_then(|metrics| metrics.spill_count())
        .unwrap_or(0);
    own + plan.children().into_iter().map(spills).sum::<usize>()
}

/// A line of text for each row, to compare. For a table of them the width of each value would be measured, which takes
/// longer than most of the queries.
pub(crate) fn lines(rows: &[RecordBatch]) -> Vec<String> {
    let options = FormatOptions::default();
    rows.iter()
        .flat_map(|batch| {
            let column =
                |values| ArrayFormatter::try_new(values, &options).expect("of a type with a text");
            let columns: Vec<_> = batch
                .columns()
                .iter()
                .map(|values| column(values.as_ref()))
                .collect();
            let line = |row| {
                let values = columns.iter().map(|column| column.value(row).to_string());
                values.collect::<Vec<_>>().join(" | ")
            };
            (0..batch.num_rows()).map(line).collect::<Vec<_>>()
        })
        .collect()
}
