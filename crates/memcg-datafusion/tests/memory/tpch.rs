//! The queries of TPC-H, without a limit and below two.

use std::sync::Arc;
use std::time::Duration;

use datafusion::common::Result;
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};
use memcg::{Bytes, Group, Limits};
use memcg_datafusion::{InGroupSession, PoolConfig};
use tokio::time::timeout;

use crate::data::{MIB, assert_empty, limit, runtime};
use crate::queries::{lines, register, spills, statements};

/// The scale factor, and the bytes of the two limits at it. `MEMCG_TPCH_SCALE` has another scale:
/// limits and reserves follow.
const SCALE: f64 = 0.01;
const LIMITS: [u64; 2] = [8 * MIB, 768 << 10];

/// An exchange of DataFusion that spills two inputs may stop for ever (apache/datafusion#24883).
const DEADLINE: Duration = Duration::from_secs(600);

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

fn session() -> SessionContext {
    // A sort reserves more than twice a batch at a time.
    let batch = if scale() < 0.1 { 1_024 } else { 8_192 };
    let session = SessionContext::new_with_config(
        SessionConfig::new()
            .with_target_partitions(2)
            .with_batch_size(batch)
            .with_sort_spill_reservation_bytes(scaled(128 << 10) as usize),
    );
    register(&session, scale(), batch);
    session
}

/// The rows, whatever their order, and the number of files.
async fn run(
    session: &SessionContext,
    tenant: &Group,
    number: usize,
    config: &PoolConfig,
) -> Result<(String, usize)> {
    let query = session.for_query(tenant, number as u64, Limits::new(), config)?;
    let mut all = Vec::new();
    let mut files = 0;
    for statement in statements(number) {
        let frame = query.sql(&statement).await?;
        let context = Arc::new(frame.task_ctx());
        let plan = frame.create_physical_plan().await?;
        // In a task, as in a service: there a consumer may wait.
        let rows = timeout(DEADLINE, tokio::spawn(collect(Arc::clone(&plan), context))).await;
        let rows = rows
            .unwrap_or_else(|_| panic!("{number} does not end"))
            .expect("no panic");
        let Ok(rows) = rows else {
            // The view is dropped for the next run.
            let _ = query.sql("DROP VIEW IF EXISTS revenue").await?;
            return Err(rows.unwrap_err());
        };
        files += spills(&plan);
        all.extend(lines(&rows));
    }
    all.sort_unstable();
    Ok((all.join("\n"), files))
}

/// Each query gives the same rows below a limit, or fails with a refusal that names its group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rows_are_the_same_below_a_limit() {
    let session = session();
    let runtime = runtime();
    let config = PoolConfig::new()
        .spill_on_demand()
        .unspillable_reserve(Bytes(scaled(256 << 10)));
    let free = runtime.root().create("free", Limits::new()).unwrap();
    let limited = LIMITS.map(scaled).map(|max| {
        (
            runtime
                .root()
                .create(&*format!("{max}"), limit(max))
                .unwrap(),
            max,
        )
    });
    let mut files = 0;
    let mut refused = [0; 2];
    let mut same = [0; 2];
    for number in 1..=22 {
        let (rows, none) = run(&session, &free, number, &config)
            .await
            .unwrap_or_else(|e| panic!("{number}: {e}"));
        assert_eq!(none, 0, "{number} spills without a limit");
        for (at, (tenant, max)) in limited.iter().enumerate() {
            match run(&session, tenant, number, &config).await {
                Ok((again, spilled)) => {
                    assert!(
                        again == rows,
                        "{number} at {max}: other rows\n{again}\n\n{rows}"
                    );
                    println!(
                        "{number} at {max}: the same {} lines, {spilled} files",
                        rows.lines().count()
                    );
                    files += spilled;
                    same[at] += 1;
                }
                Err(error) => {
                    let line = error.to_string();
                    let is_named = line.contains(&format!("/{max} refused"))
                        && line.contains(&format!("for /{max}/{number}"));
                    assert!(is_named, "{number} at {max}: {line}");
                    println!("{number} at {max}: {line}");
                    refused[at] += 1;
                }
            }
        }
    }
    println!("same rows {same:?}, refused {refused:?}, {files} files");
    assert!(
        same[0] > same[1] && same[1] > 0 && refused[1] > 0 && files > 0,
        "{same:?}, {refused:?}, {files} files"
    );
    for (tenant, _) in limited {
        tenant.offline_tree();
    }
    free.offline_tree();
    drop(free);
    assert_empty(&runtime);
}
