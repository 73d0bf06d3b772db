//! The tables, as files of Parquet.

use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::error::ArrowError;
use datafusion::common::Result;
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::datasource::MemTable;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use tpchgen::generators::{CustomerGenerator, LineItemGenerator, OrderGenerator};
use tpchgen_arrow::{CustomerArrow, LineItemArrow, OrderArrow};

const TABLES: [&str; 3] = ["customer", "orders", "lineitem"];

/// Files of each table, so that its rows can be read by several tasks.
const PARTS: i32 = 4;

type Generated<'a> = &'a mut dyn Iterator<Item = std::result::Result<RecordBatch, ArrowError>>;

/// Writes the tables, each into a folder of its own, a file at a time.
pub(crate) async fn write(scale: f64, dir: &Path) -> Result<()> {
    for part in 1..=PARTS {
        write_part(
            dir,
            "customer",
            part,
            &mut CustomerArrow::new(CustomerGenerator::new(scale, part, PARTS)),
        )
        .await?;
        write_part(
            dir,
            "orders",
            part,
            &mut OrderArrow::new(OrderGenerator::new(scale, part, PARTS)),
        )
        .await?;
        write_part(
            dir,
            "lineitem",
            part,
            &mut LineItemArrow::new(LineItemGenerator::new(scale, part, PARTS)),
        )
        .await?;
    }
    Ok(())
}

async fn write_part(dir: &Path, table: &str, part: i32, batches: Generated<'_>) -> Result<()> {
    let batches = batches.collect::<std::result::Result<Vec<_>, _>>()?;
    let Some(first) = batches.first() else {
        return Ok(());
    };
    let rows = MemTable::try_new(first.schema(), vec![batches])?;
    let path = dir.join(table).join(format!("{part}.parquet"));
    std::fs::create_dir_all(dir.join(table))?;
    let options = DataFrameWriteOptions::new().with_single_file_output(true);
    let frame = SessionContext::new().read_table(Arc::new(rows))?;
    frame
        .write_parquet(&path.display().to_string(), options, None)
        .await?;
    Ok(())
}

/// Gives a session the tables.
pub(crate) async fn register(session: &SessionContext, dir: &Path) -> Result<()> {
    for table in TABLES {
        let path = format!("{}/", dir.join(table).display());
        session
            .register_parquet(table, &path, ParquetReadOptions::default())
            .await?;
    }
    Ok(())
}
