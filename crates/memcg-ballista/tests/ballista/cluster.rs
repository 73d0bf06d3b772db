//! Jobs of two tenants in a cluster: a scheduler and an executor in this process, tables of TPC-H
//! as files.

use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::common::Result;
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use memcg::Limits;
use memcg_ballista::GroupEngine;
use tempfile::TempDir;
use tpchgen::generators::{LineItemGenerator, OrderGenerator};
use tpchgen_arrow::{LineItemArrow, OrderArrow};

use crate::data::{MIB, assert_empty, client, cluster, register, runtime};

const SCALE: f64 = 0.01;

/// An aggregation, a join with one, and a sort of a whole table.
const QUERIES: [&str; 3] = [
    "SELECT l_returnflag, l_linestatus, sum(l_quantity), count(*) FROM lineitem GROUP BY 1, 2",
    "SELECT o_orderpriority, count(*), sum(l_extendedprice) FROM orders JOIN lineitem ON o_orderkey = l_orderkey \
     WHERE l_shipdate > DATE '1995-03-15' GROUP BY 1",
    "SELECT * FROM (SELECT l_orderkey, l_comment, row_number() OVER (ORDER BY l_comment, l_orderkey, l_linenumber) AS n \
     FROM lineitem) WHERE n % 5000 = 0",
];

type Batches<'a> = &'a mut dyn Iterator<Item = std::result::Result<RecordBatch, ArrowError>>;

async fn write(dir: &Path, name: &str, batches: Batches<'_>) {
    let batches: Vec<_> = batches.map(|batch| batch.expect("generated")).collect();
    let table = MemTable::try_new(batches[0].schema(), vec![batches]).expect("a table");
    let rows = SessionContext::new()
        .read_table(Arc::new(table))
        .expect("a table");
    let path = dir.join(format!("{name}.parquet")).display().to_string();
    let options = DataFrameWriteOptions::new().with_single_file_output(true);
    rows.write_parquet(&path, options, None)
        .await
        .expect("a file");
}

async fn tables() -> TempDir {
    let tables = TempDir::new().expect("a folder");
    write(
        tables.path(),
        "orders",
        &mut OrderArrow::new(OrderGenerator::new(SCALE, 1, 1)),
    )
    .await;
    write(
        tables.path(),
        "lineitem",
        &mut LineItemArrow::new(LineItemGenerator::new(SCALE, 1, 1)),
    )
    .await;
    tables
}

/// The rows, whatever their order.
async fn run(session: &SessionContext, query: &str) -> Result<Vec<String>> {
    let rows = session.sql(query).await?.collect().await?;
    let text = pretty_format_batches(&rows)?.to_string();
    let mut lines: Vec<_> = text.lines().map(str::to_string).collect();
    lines.sort_unstable();
    Ok(lines)
}

/// The jobs of two tenants give the rows that DataFusion gives, each in the groups of its tenant.
/// One that does not fit below its tenant's max is refused and named, and the other tenant's go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn jobs_of_two_tenants() {
    let runtime = runtime(64 * MIB);
    let tables = tables().await;
    let files = TempDir::new().unwrap();
    let [gold, silver] =
        ["gold", "silver"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    let small = runtime
        .root()
        .create("small", Limits::new().max(64_usize << 10))
        .unwrap();
    let url = cluster(GroupEngine::new(&runtime.root()), &files).await;
    let plain = SessionContext::new();
    register(&plain, &tables).await;

    let clients = [
        client(&url, "gold", &tables).await,
        client(&url, "silver", &tables).await,
    ];
    for query in QUERIES {
        let expected = run(&plain, query).await.unwrap();
        let (first, second) = tokio::join!(run(&clients[0], query), run(&clients[1], query));
        assert_eq!(first.unwrap(), expected);
        assert_eq!(second.unwrap(), expected);
    }
    assert!(
        gold.peak() > 0 && silver.peak() > 0,
        "{} {}",
        gold.peak(),
        silver.peak()
    );
    assert_empty(&runtime);

    let refused = run(&client(&url, "small", &tables).await, QUERIES[2])
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("/small refused"), "{refused}");
    assert!(run(&clients[0], QUERIES[0]).await.is_ok());
    // A session that names no tenant.
    let unnamed = run(&client(&url, "", &tables).await, QUERIES[0])
        .await
        .unwrap_err()
        .to_string();
    assert!(unnamed.contains("names no tenant"), "{unnamed}");
    drop((gold, silver, small));
    assert_empty(&runtime);
}
