//! Queries of 18 kinds, and the rows that they read.

use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use datafusion::common::Result;
use datafusion::datasource::MemTable;

/// A name, settings of the session, and the query. `{copy}` is the folder of a copy.
pub(crate) type Kind = (&'static str, &'static [&'static str], &'static str);

const MERGE: &[&str] = &["SET datafusion.optimizer.prefer_hash_join = false"];

pub(crate) const KINDS: [Kind; 18] = [
    (
        "group by strings",
        &[],
        "SELECT text, count(*) FROM rows GROUP BY text",
    ),
    (
        "group by many",
        &[],
        "SELECT id * 7 % 70001 AS g, min(text), max(text), avg(v) FROM rows GROUP BY g",
    ),
    ("distinct", &[], "SELECT DISTINCT text FROM rows"),
    (
        "count distinct",
        &[],
        "SELECT k, count(DISTINCT text) FROM rows GROUP BY k",
    ),
    (
        "rollup",
        &[],
        "SELECT k, m, count(*) FROM rows GROUP BY ROLLUP(k, m)",
    ),
    (
        "array_agg",
        &[],
        "SELECT m, array_agg(text) FROM rows GROUP BY m",
    ),
    ("median", &[], "SELECT m, median(v) FROM rows GROUP BY m"),
    (
        "sort",
        &[],
        "SELECT id, k, m, v, text FROM rows ORDER BY text",
    ),
    (
        "sort by two",
        &[],
        "SELECT id, text, m FROM rows ORDER BY m, text DESC",
    ),
    (
        "sort with limit",
        &[],
        "SELECT id, text FROM rows ORDER BY text LIMIT 1000",
    ),
    (
        "union of sorts",
        &[],
        "SELECT text, id FROM rows UNION ALL SELECT text, m FROM rows ORDER BY text",
    ),
    (
        "hash join",
        &[],
        "SELECT count(*), max(a.text), max(b.text) FROM rows a JOIN rows b ON a.id = b.other",
    ),
    (
        "sort-merge join",
        MERGE,
        "SELECT count(*), max(a.text), max(b.text) FROM rows a JOIN rows b ON a.id = b.other",
    ),
    (
        "nested loops",
        &[],
        "SELECT count(*), max(a.text) FROM few a JOIN few b ON a.v < b.v AND a.m > b.m",
    ),
    (
        "cross join",
        &[],
        "SELECT count(*), max(a.v + b.v) FROM few a CROSS JOIN few b",
    ),
    (
        "window by key",
        &[],
        "SELECT id, sum(v) OVER (PARTITION BY k ORDER BY id) FROM rows",
    ),
    (
        "window over all",
        &[],
        "SELECT id, text, row_number() OVER (ORDER BY text) FROM rows",
    ),
    (
        "copy",
        &[],
        "COPY (SELECT id, text, k % 20 AS part FROM rows) TO '{copy}/' STORED AS {format} PARTITIONED BY (part)",
    ),
];

/// Parquet, where it is compiled in.
const FORMAT: &str = if cfg!(feature = "parquet") {
    "PARQUET"
} else {
    "CSV"
};

pub(crate) fn sql(kind: &Kind, copy: &Path) -> String {
    kind.2
        .replace("{copy}", &copy.display().to_string())
        .replace("{format}", FORMAT)
}

/// Well mixed bits of a number.
fn mix(number: u64) -> u64 {
    let mut bits = number
        .wrapping_add(0x9E37_79B9_7F4A_7C15)
        .wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

fn batch(rows: std::ops::Range<u64>, of: u64) -> Result<RecordBatch> {
    let below = |row: u64, salt: u64, most: u64| (mix(row ^ (salt << 40)) % most) as i64;
    let text = |row: u64| {
        format!(
            "{:016x}-{:016x}-{:016x}-{:04}",
            mix(row),
            mix(!row),
            mix(row ^ 77),
            row % 10_000
        )
    };
    let columns: [(&str, ArrayRef); 6] = [
        (
            "id",
            Arc::new(Int64Array::from_iter_values(
                rows.clone().map(|row| row as i64),
            )),
        ),
        (
            "other",
            Arc::new(Int64Array::from_iter_values(
                rows.clone().map(|row| below(row, 1, of)),
            )),
        ),
        (
            "k",
            Arc::new(Int64Array::from_iter_values(
                rows.clone().map(|row| below(row, 2, 100)),
            )),
        ),
        (
            "m",
            Arc::new(Int64Array::from_iter_values(
                rows.clone().map(|row| below(row, 3, 20_000)),
            )),
        ),
        (
            "v",
            Arc::new(Float64Array::from_iter_values(
                rows.clone().map(|row| below(row, 4, 1 << 30) as f64),
            )),
        ),
        (
            "text",
            Arc::new(StringArray::from_iter_values(rows.map(text))),
        ),
    ];
    Ok(RecordBatch::try_from_iter(columns)?)
}

/// `rows`, and `few`: one in a hundred of them.
pub(crate) fn tables(
    rows: u64,
    batch_rows: u64,
    partitions: u64,
) -> Result<Vec<(&'static str, Arc<MemTable>)>> {
    let table = |rows: u64| -> Result<Arc<MemTable>> {
        let mut parts = vec![Vec::new(); usize::try_from(partitions).unwrap_or(1)];
        for (number, from) in (0..rows)
            .step_by(usize::try_from(batch_rows).unwrap_or(1))
            .enumerate()
        {
            let at = number % parts.len();
            parts[at].push(batch(from..rows.min(from + batch_rows), rows)?);
        }
        Ok(Arc::new(MemTable::try_new(
            batch(0..1, rows)?.schema(),
            parts,
        )?))
    };
    Ok(vec![("rows", table(rows)?), ("few", table(rows / 100)?)])
}
