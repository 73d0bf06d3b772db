//! The queries of TPC-H, without a limit and below two.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::error::ArrowError;
use datafusion::common::Result;
use datafusion::datasource::MemTable;
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};
use memcg::{Bytes, Group, Limits};
use memcg_datafusion::{InGroupSession, PoolConfig};
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};
use tpchgen::q_and_a::queries;
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow, SupplierArrow,
};

use crate::data::{MIB, assert_empty, limit, runtime, spills, text};

/// The scale factor, and the bytes of the two limits at it. `MEMCG_TPCH_SCALE` has another scale: limits and reserves
/// follow.
const SCALE: f64 = 0.01;
const LIMITS: [u64; 2] = [8 * MIB, MIB];

fn scale() -> f64 {
    match std::env::var("MEMCG_TPCH_SCALE") {
        Ok(scale) => scale.parse().expect("MEMCG_TPCH_SCALE is a number"),
        Err(_) => SCALE,
    }
}

/// So many bytes of the small scale.
fn scaled(bytes: u64) -> u64 {
    (bytes as f64 * scale() / SCALE) as u64
}

/// What stands in the place of `:1`, `:2` and so on, by query: the values with which the benchmark checks its answers.
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
    &["Brand#45", "MEDIUM POLISHED", "49", "14", "23", "45", "19", "3", "36", "9"],
    &["Brand#23", "MED BOX"],
    &["300"],
    &["Brand#12", "Brand#23", "Brand#34", "1", "10", "20"],
    &["forest", "1994-01-01", "CANADA"],
    &["SAUDI ARABIA"],
    &["13", "31", "23", "29", "30", "18", "17"],
];

/// The statements of a query. All but one of them make and drop a view.
fn statements(number: usize) -> Vec<String> {
    let text = queries::query(number as i32).expect("of 22").replace("day (3)", "day").replace("revenue:s", "revenue");
    // The last first: `:1` is the begin of `:10`.
    let values = VALUES[number - 1].iter().enumerate().rev();
    let text = values.fold(text, |text, (at, value)| text.replace(&format!(":{}", at + 1), value));
    text.split(';').map(str::trim).filter(|statement| !statement.is_empty()).map(str::to_string).collect()
}

fn session() -> SessionContext {
    let session = SessionContext::new_with_config(
        SessionConfig::new()
            .with_target_partitions(2)
            .with_batch_size(1_024)
            .with_sort_spill_reservation_bytes(scaled(128 << 10) as usize),
    );
    let register = |name: &str, batches: &mut dyn Iterator<Item = std::result::Result<RecordBatch, ArrowError>>| {
        let batches: Vec<_> = batches.map(|batch| batch.expect("generated")).collect();
        let part = |from| batches.iter().skip(from).step_by(2).cloned().collect::<Vec<_>>();
        let table = MemTable::try_new(batches[0].schema(), vec![part(0), part(1)]).expect("a table");
        session.register_table(name, Arc::new(table)).expect("a free name");
    };
    macro_rules! tables {
        ($($name:literal $arrow:ident $generator:ident,)*) => {
            $(register($name, &mut $arrow::new($generator::new(scale(), 1, 1)).with_batch_size(1_024));)*
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
    session
}

/// The rows, whatever their order, and the number of files.
async fn run(session: &SessionContext, tenant: &Group, number: usize, config: &PoolConfig) -> Result<(String, usize)> {
    let query = session.for_query(tenant, number as u64, Limits::new(), config)?;
    let (mut lines, mut files) = (Vec::new(), 0);
    for statement in statements(number) {
        let frame = query.sql(&statement).await?;
        let context = Arc::new(frame.task_ctx());
        let plan = frame.create_physical_plan().await?;
        // In a task, as in a service: there a consumer may wait.
        let rows = tokio::spawn(collect(Arc::clone(&plan), context)).await.expect("no panic");
        let Ok(rows) = rows else {
            // The view is dropped for the next run.
            let _ = query.sql("DROP VIEW IF EXISTS revenue").await?;
            return Err(rows.unwrap_err());
        };
        files += spills(&plan);
        lines.extend(text(&rows).lines().map(str::to_string));
    }
    lines.sort_unstable();
    Ok((lines.join("\n"), files))
}

/// Each query gives the same rows below a limit, or fails with a refusal that names its group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rows_are_the_same_below_a_limit() {
    let (session, runtime) = (session(), runtime());
    let config = PoolConfig::new().spill_on_demand().unspillable_reserve(Bytes(scaled(256 << 10)));
    let free = runtime.root().create("free", Limits::new()).unwrap();
    let limited = LIMITS.map(scaled).map(|max| (runtime.root().create(&*format!("{max}"), limit(max)).unwrap(), max));
    let (mut files, mut refused, mut same) = (0, [0; 2], [0; 2]);
    for number in 1..=22 {
        let (rows, none) = run(&session, &free, number, &config).await.unwrap_or_else(|e| panic!("{number}: {e}"));
        assert_eq!(none, 0, "{number} spills without a limit");
        for (at, (tenant, max)) in limited.iter().enumerate() {
            match run(&session, tenant, number, &config).await {
                Ok((again, spilled)) => {
                    assert!(again == rows, "{number} at {max}: other rows\n{again}\n\n{rows}");
                    println!("{number} at {max}: the same {} lines, {spilled} files", rows.lines().count());
                    (files, same[at]) = (files + spilled, same[at] + 1);
                }
                Err(error) => {
                    let line = error.to_string();
                    let is_named =
                        line.contains(&format!("/{max} refused")) && line.contains(&format!("for /{max}/{number}"));
                    assert!(is_named, "{number} at {max}: {line}");
                    println!("{number} at {max}: {line}");
                    refused[at] += 1;
                }
            }
        }
    }
    println!("same rows {same:?}, refused {refused:?}, {files} files");
    assert!(same[0] > same[1] && same[1] > 0 && refused[1] > 0 && files > 0, "{same:?}, {refused:?}, {files} files");
    for (tenant, _) in limited {
        tenant.offline_tree();
    }
    free.offline_tree();
    drop(free);
    assert_empty(&runtime);
}
