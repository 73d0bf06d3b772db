//! Many queries of two tenants at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::arrow::array::RecordBatch;
use memcg::{Limit, Limits, Runtime};
use memcg_datafusion::{EndedError, InGroupSession, PoolConfig};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::data::{MIB, assert_empty, limit, session};
use crate::queries::lines;

const QUERIES: [&str; 3] = [
    "SELECT text, id FROM rows ORDER BY text",
    "SELECT text, count(*) FROM rows GROUP BY text",
    "SELECT count(*) FROM rows a JOIN rows b ON a.key = b.key",
];

/// The lines of a query's rows, whatever their order.
fn sorted(rows: &[RecordBatch]) -> Vec<String> {
    let mut lines = lines(rows);
    lines.sort_unstable();
    lines
}

/// A hundred queries, some aborted: each ends with the rows that it has without a limit, or with a
/// refusal that names its group. Both tenants have queries that end. At the end all adds up, and
/// nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_queries_add_up() {
    let runtime = Runtime::builder()
        .audit(true)
        .max(Limit::Bytes(12 * MIB))
        .build()
        .unwrap();
    let tenants = ["a", "b"].map(|name| runtime.root().create(name, limit(8 * MIB)).unwrap());
    let session = session(10);
    let mut expected = Vec::new();
    for sql in QUERIES {
        expected.push(sorted(
            &session.sql(sql).await.unwrap().collect().await.unwrap(),
        ));
    }
    let expected = Arc::new(expected);
    let done: Arc<[AtomicUsize; 2]> = Arc::default();
    let mut random = SmallRng::seed_from_u64(22);
    let mut queries = Vec::new();
    for number in 0..100_u32 {
        let config = match random.random_range(0..3) {
            0 => PoolConfig::new(),
            1 => PoolConfig::new().spill_on_demand(),
            _ => PoolConfig::new()
                .spill_on_demand()
                .by_operator()
                .unspillable_reserve(64 << 10),
        };
        let tenant = &tenants[number as usize % 2];
        let query = session
            .for_query(tenant, u64::from(number), Limits::new(), &config)
            .unwrap();
        let asked = random.random_range(0..QUERIES.len());
        let path = tenant.path();
        let expected = Arc::clone(&expected);
        let done = Arc::clone(&done);
        let task = tokio::spawn(async move {
            match query.sql(QUERIES[asked]).await.unwrap().collect().await {
                Ok(rows) => {
                    assert!(sorted(&rows) == expected[asked], "{number}: other rows");
                    done[number as usize % 2].fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    let line = error.to_string();
                    let is_ours = EndedError::of(&error).is_some()
                        || line.contains(&format!("for {path}/{number}"));
                    assert!(is_ours || line.contains("to go on, spill"), "{line}");
                    // A stranger learns no names of others.
                    let other = if path == "/a" { "/b" } else { "/a" };
                    assert!(!line.contains(other), "{line}");
                }
            }
        });
        if random.random_ratio(1, 5) {
            task.abort();
        }
        queries.push(task);
    }
    let mut aborted = 0;
    for query in queries {
        match query.await {
            Ok(()) => {}
            Err(error) if error.is_cancelled() => aborted += 1,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    let done = done.each_ref().map(|done| done.load(Ordering::Relaxed));
    assert!(
        aborted > 0 && done.iter().all(|&done| done > 0),
        "{aborted} aborted, {done:?} ended with their rows"
    );
    assert!(runtime.root().peak() <= 12 * MIB);
    for tenant in tenants {
        assert_eq!(
            tenant.children().len(),
            0,
            "each query's group went offline with it"
        );
        tenant.offline_tree();
    }
    assert_empty(&runtime);
}
