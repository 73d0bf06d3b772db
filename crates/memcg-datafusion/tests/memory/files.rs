//! A quota of spill files: a counter of the group beside memory.

use datafusion::common::{DataFusionError, Result};
use datafusion::physical_plan::collect;
use datafusion::prelude::SessionContext;
use memcg::{CounterKey, Group, Limits, Runtime};
use memcg_datafusion::{InGroupSession, PoolConfig};

use crate::data::{MIB, assert_empty, limit, session_of};

/// It writes some 4 MiB below a max of 3 MiB.
const SORT: &str = "SELECT text FROM rows ORDER BY text";
const MAX: u64 = 3 * MIB;

/// A runtime with a counter for spill files, which no thread charges in advance.
fn runtime() -> (Runtime, CounterKey) {
    let mut builder = Runtime::builder().audit(true);
    let spill = builder.counter("spill", memcg::Unit::Bytes);
    let runtime = builder.build().unwrap();
    runtime.root().counter(spill).unwrap().set_batch(0);
    (runtime, spill)
}

fn live(group: &Group, counter: CounterKey) -> u64 {
    group.counter(counter).unwrap().live()
}

/// The text of the refusal of a query whose files do not fit below the quota of `/acme`.
#[track_caller]
fn refused(ended: Result<()>) -> String {
    let error = ended.unwrap_err();
    assert!(
        matches!(error, DataFusionError::ResourcesExhausted(_)),
        "{error:?}"
    );
    let line = error.to_string();
    assert!(
        line.contains("spill file: /acme refused ")
            && line.contains(" of spill for /acme/17: short by "),
        "{line}"
    );
    assert!(
        line.contains(
            " of max 1 MiB; to fit, read fewer rows at once or run when less runs in /acme"
        ),
        "{line}"
    );
    assert!(!line.contains("datafusion.runtime"), "{line}");
    line
}

async fn run(session: &SessionContext, sql: &str) -> Result<()> {
    session.sql(sql).await?.collect().await.map(|_| ())
}

/// A tenant with a quota is refused the bytes beyond it, and one without a quota writes on. All
/// charges come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_has_a_quota_of_spill_files() {
    let base = session_of(1, 60);
    let (runtime, spill) = runtime();
    let [acme, free] =
        ["acme", "free"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    acme.counter(spill).unwrap().set_max(1 << 20).unwrap();
    let config = PoolConfig::new().spill_counter(spill);
    let query = base.for_query(&acme, 17, limit(MAX), &config).unwrap();
    refused(run(&query, SORT).await);
    assert_eq!(live(&acme, spill), 0, "its files are gone");
    drop(query);
    let query = base.for_query(&free, 17, limit(MAX), &config).unwrap();
    run(&query, SORT).await.unwrap();
    assert!(free.counter(spill).unwrap().peak() > 2 * MIB);
    drop(query);
    assert_eq!(live(&runtime.root(), spill), 0);
    for tenant in [acme, free] {
        tenant.offline_tree();
    }
    assert_empty(&runtime);
}

/// Whatever SQL sets of the runtime, the quota holds: of the next statement, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sql_does_not_leave_the_quota() {
    let base = session_of(1, 60);
    let (runtime, spill) = runtime();
    let acme = runtime.root().create("acme", Limits::new()).unwrap();
    acme.counter(spill).unwrap().set_max(1 << 20).unwrap();
    let config = PoolConfig::new().spill_counter(spill);
    for command in [
        "SET datafusion.runtime.max_temp_directory_size = '100G'",
        "SET datafusion.runtime.temp_directory = '/tmp'",
        "SET datafusion.runtime.max_spill_merge_fan_in = 2",
        "RESET datafusion.runtime.temp_directory",
        "RESET datafusion.runtime.memory_limit",
    ] {
        let query = base.for_query(&acme, 17, limit(MAX), &config).unwrap();
        let answer = query.sql(command).await.unwrap();
        refused(run(&query, SORT).await);
        refused(run(&query, SORT).await);
        drop(answer);
    }
    acme.offline_tree();
    drop(acme);
    assert_empty(&runtime);
}

/// A session that is made from one of its tenant counts for its own group, and no byte twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_byte_counts_once() {
    let base = session_of(1, 60);
    let (runtime, spill) = runtime();
    let acme = runtime.root().create("acme", Limits::new()).unwrap();
    let config = PoolConfig::new().spill_counter(spill);
    let of_acme = base.with_group(&acme, &config).unwrap();
    let query = of_acme.for_query(&acme, 17, limit(MAX), &config).unwrap();
    let plan = query
        .sql(SORT)
        .await
        .unwrap()
        .create_physical_plan()
        .await
        .unwrap();
    collect(std::sync::Arc::clone(&plan), query.task_ctx())
        .await
        .unwrap();
    let spilled = plan
        .metrics()
        .unwrap()
        .sum_by_name("plan_spilled_bytes")
        .unwrap()
        .as_usize() as u64;
    let peaks = [&acme, query.group()].map(|group| group.counter(spill).unwrap().peak());
    assert_eq!(peaks[0], peaks[1]);
    assert!(
        peaks[0] > 2 * MIB && peaks[0] <= spilled,
        "{} of {spilled}",
        peaks[0]
    );
    // A session whose configuration has no counter charges none.
    let none = of_acme
        .for_query(&acme, 18, limit(MAX), &PoolConfig::new())
        .unwrap();
    run(&none, SORT).await.unwrap();
    assert_eq!(none.group().counter(spill).unwrap().peak(), 0);
    drop((none, query, of_acme, plan));
    acme.offline_tree();
    drop(acme);
    assert_empty(&runtime);
}

/// A counter of another runtime is an error where the session is made.
#[tokio::test(flavor = "current_thread")]
async fn a_counter_of_another_runtime() {
    let (ours, _) = runtime();
    let (_other, spill) = runtime();
    let config = PoolConfig::new().spill_counter(spill);
    let error = session_of(1, 1)
        .for_query(&ours.root(), 17, Limits::new(), &config)
        .unwrap_err();
    assert!(matches!(error, DataFusionError::External(_)), "{error}");
    assert_eq!(ours.root().children().len(), 0);
}
