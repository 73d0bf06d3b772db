//! Queries of a process whose allocator charges groups: what a pool has charged pays for what its
//! queries allocate.

use std::alloc::System;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use datafusion::arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::execution::cache::cache_manager::{CacheManager, CacheManagerConfig};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use datafusion::prelude::{SessionConfig, SessionContext};
use memcg::figures::Ledger;
use memcg::{Group, InGroup, Limit, Limits, Runtime};
use memcg_alloc::{LARGE_OBJECTS, MemcgAlloc};
use memcg_datafusion::{
    GroupCaches, GroupPool, GroupTracer, InGroupSession, PoolConfig, QueryQueue, QuerySession,
};

#[global_allocator]
static ALLOCATOR: MemcgAlloc<System, LARGE_OBJECTS> = MemcgAlloc::with_threshold(System);

const MIB: u64 = 1 << 20;
/// Bytes that a query may hold, and those that a function of it hoards.
const MAX: u64 = 64 * MIB;
const SERIES: &str = "generate_series(1, 1000000) AS series(value)";

fn limit(bytes: u64) -> Limits {
    Limits::new().max(Limit::Bytes(bytes))
}

/// All bytes come back, some with tasks that end a moment after their query.
#[track_caller]
fn assert_empty(runtime: &Runtime) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        runtime.settle();
        let live = runtime.root().live();
        let ledger = runtime.root().ledger();
        // A thread may have given bytes back, and take their credit off its levels still.
        let verdict = runtime.verify();
        if live == 0 && ledger == Ledger::default() && verdict.is_ok() {
            break;
        }
        assert!(
            Instant::now() < end,
            "{live} bytes stay: {ledger:?}, {verdict}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(runtime.counts().underflows, 0);
}

/// A session whose queries call `look(value)` for each batch.
fn session(look: impl Fn() + Send + Sync + 'static) -> SessionContext {
    // Once for the process; another test may have done so.
    let _ = GroupTracer::install();
    let call = move |values: &[ColumnarValue]| -> Result<ColumnarValue> {
        look();
        Ok(values[0].clone())
    };
    let udf: ScalarUDF = create_udf(
        "look",
        vec![DataType::Int64],
        DataType::Int64,
        Volatility::Volatile,
        Arc::new(call),
    );
    let session = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2));
    session.register_udf(udf);
    session
}

async fn rows(query: &QuerySession, sql: &str) -> Result<usize> {
    let batches = query.sql(sql).await?.collect().await?;
    Ok(batches.iter().map(|batch| batch.num_rows()).sum())
}

#[test]
fn a_reservation_pays_for_what_is_allocated_before_and_after() {
    let runtime = Runtime::builder().build().unwrap();
    let tenant = runtime.root().create("tenant", limit(10 * MIB)).unwrap();
    let of = |config: PoolConfig| {
        let query = tenant
            .create(memcg::GroupName::Unnamed, Limits::new().cover_allocations())
            .unwrap();
        GroupPool::with_config(&query, &config).unwrap()
    };
    let configs = [
        PoolConfig::new(),
        PoolConfig::new().spill_on_demand(),
        PoolConfig::new().by_operator(),
        PoolConfig::new().spill_on_demand().by_operator(),
    ];
    for config in configs {
        let pool = Arc::new(of(config.clone()));
        let query = pool.group().clone();
        let dynamic: Arc<dyn MemoryPool> = Arc::<GroupPool>::clone(&pool);
        let sorter = MemoryConsumer::new("ExternalSorter[0]")
            .with_can_spill(true)
            .register(&dynamic);
        let early = pool.run(|| black_box(vec![1_u8; 4 << 20]));
        sorter.try_grow(8 << 20).unwrap();
        let late = pool.run(|| black_box(vec![1_u8; 4 << 20]));
        let ledger = query.ledger();
        assert_eq!(
            (ledger.reserved(), ledger.unpaid()),
            (8 * MIB, 0),
            "{config:?}"
        );
        assert!(ledger.allocated() >= 8 * MIB, "{config:?}: {ledger:?}");
        assert_eq!(tenant.live(), 8 * MIB, "{config:?}: paid once");
        let refused = sorter.try_grow(3 << 20).unwrap_err().to_string();
        assert!(
            refused.contains("/tenant refused 3 MiB for "),
            "{config:?}: {refused}"
        );

        sorter.shrink(6 << 20);
        assert_eq!(
            (query.ledger().reserved(), tenant.live()),
            (2 * MIB, 8 * MIB),
            "{config:?}: all is there still"
        );
        drop((early, late));
        assert_eq!(tenant.live(), 2 * MIB, "{config:?}");
        drop((sorter, dynamic, pool));
        query.offline_tree();
    }
    drop(tenant);
    assert_empty(&runtime);
}

/// Every task of a query runs in its group, which covers, and the operators' groups say who has
/// reserved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_query_allocates_is_covered() {
    let runtime = Runtime::builder().build().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let look = {
        let seen = Arc::clone(&seen);
        move || {
            let group = Group::current().expect("each task is in the query's group");
            let operators = group
                .children()
                .iter()
                .map(|operator| (operator.path(), operator.live()))
                .collect::<Vec<_>>();
            seen.lock().unwrap_or_else(PoisonError::into_inner).push((
                group.path(),
                group.ledger(),
                operators,
            ));
        }
    };
    let config = PoolConfig::new().spill_on_demand().by_operator();
    let query = session(look)
        .for_query(&runtime.root(), "query", Limits::new(), &config)
        .unwrap();
    let sql = format!(
        "SELECT value % 1000 AS key, count(*), sum(look(value)) FROM {SERIES} GROUP BY key ORDER BY key"
    );
    assert_eq!(rows(&query, &sql).await.unwrap(), 1_000);
    drop(query);
    let seen = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    assert!(seen.len() > 50, "one call a batch: {}", seen.len());
    assert!(seen.iter().all(|(path, ..)| path == "/query"), "{seen:?}");
    assert!(
        seen.iter()
            .any(|(_, ledger, _)| ledger.allocated() > 64 << 10),
        "{seen:?}"
    );
    let reserves = |(path, live): &(String, u64)| path.starts_with("/query/") && *live > 0;
    assert!(
        seen.iter()
            .any(|(_, _, operators)| operators.iter().any(reserves)),
        "{seen:?}"
    );
    drop(seen);
    assert_empty(&runtime);
}

/// A function hoards what it never reserves. Its query is refused, with its group's name; the query
/// beside it is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_allocates_what_it_does_not_reserve_is_stopped() {
    let runtime = Runtime::builder().build().unwrap();
    let tenants =
        ["heavy", "light"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    let [heavy, light] = &tenants;
    let config = PoolConfig::new().spill_on_demand();
    let sorts = format!("SELECT look(value) AS looked, value FROM {SERIES} ORDER BY looked DESC");
    // Without an operator that reserves anything.
    let passes_on = format!("SELECT look(value) FROM {SERIES}");
    for (number, sql) in [&sorts, &passes_on].into_iter().enumerate() {
        let hoard = Arc::new(Mutex::new(Vec::new()));
        let look = {
            let hoard = Arc::clone(&hoard);
            move || {
                hoard
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(black_box(vec![1_u8; 1 << 20]))
            }
        };
        let query = session(look)
            .for_query(heavy, number as u64, limit(MAX), &config)
            .unwrap();
        let beside = session(|| {})
            .for_query(light, number as u64, limit(MAX), &config)
            .unwrap();
        let (hoards, sorted) = tokio::join!(rows(&query, sql), rows(&beside, &sorts));
        let line = hoards.unwrap_err().to_string();
        assert!(
            line.contains(&format!("/heavy/{number} refused ")),
            "{line}"
        );
        let held = hoard.lock().unwrap_or_else(PoisonError::into_inner).len() as u64 * MIB;
        assert!(
            held > MAX / 2 && held < 2 * MAX,
            "stopped at its limit: {held}"
        );
        assert_eq!(sorted.unwrap(), 1_000_000);
        drop((query, beside, hoard));
    }
    drop(tenants);
    assert_empty(&runtime);
}

/// A max of the tenant stops the query that reserves nothing: where it keeps all rows for a table,
/// and where a window gives its rows at its end. The query beside it, of the same tenant, goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_max_of_the_tenant_stops_what_reserves_nothing() {
    const WIDE: &str = "repeat('x', 200) || look(value) AS text";
    let runtime = Runtime::builder().build().unwrap();
    let table = format!("CREATE TABLE kept AS SELECT {WIDE} FROM {SERIES}");
    let window = format!("SELECT count(*) OVER (), text FROM (SELECT {WIDE} FROM {SERIES})");
    // A tenant that covers, too, is paid for by what any of its queries reserves.
    let both = [&table, &window]
        .into_iter()
        .flat_map(|sql| [(sql, limit(MAX)), (sql, limit(MAX).cover_allocations())]);
    for (number, (sql, limits)) in both.enumerate() {
        let heavy = runtime.root().create("heavy", limits).unwrap();
        let looks = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&looks);
        let look = move || _ = counted.fetch_add(1, Ordering::Relaxed);
        let query = session(look)
            .for_query(&heavy, number as u64, Limits::new(), &PoolConfig::new())
            .unwrap();
        let beside = session(|| {})
            .for_query(&heavy, "beside", Limits::new(), &PoolConfig::new())
            .unwrap();
        let passes_on = format!("SELECT count(look(value)) FROM {SERIES}");
        let (kept, counted) = tokio::join!(rows(&query, sql), rows(&beside, &passes_on));
        let line = kept.unwrap_err().to_string();
        assert!(
            line.contains("/heavy refused ") && line.contains(&format!(" for /heavy/{number}: ")),
            "{line}"
        );
        assert!(
            line.contains(&format!("/heavy/{number} has allocated ")),
            "{line}"
        );
        let looks = looks.load(Ordering::Relaxed);
        assert!(
            (20..122).contains(&looks),
            "stopped before its end: {looks} batches"
        );
        assert_eq!(counted.unwrap(), 1);
        assert!(query.table_provider("kept").await.is_err());
        drop((query, beside));
        heavy.offline_tree();
    }
    assert_empty(&runtime);
}

/// A query that is over for what it has allocated, beside memory that others hold, waits in line as
/// one that was refused a growth, and runs again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_over_for_what_it_allocates_waits_in_line() {
    // It is over long before its window has all rows and gives the first: from then on it cannot run
    // again.
    const WINDOW: &str = "SELECT count(*) OVER (), text FROM \
                          (SELECT repeat('x', 200) || value AS text FROM generate_series(1, 200000) AS series(value))";
    let runtime = Runtime::builder().build().unwrap();
    let heavy = runtime.root().create("heavy", limit(2 * MAX)).unwrap();
    let queue = QueryQueue::new(3, Duration::from_secs(3_600));
    let config = PoolConfig::new().queue(&queue);
    let held = heavy.charge(memcg::Bytes(2 * MAX - 2 * MIB)).unwrap();
    let query = session(|| {})
        .for_query(&heavy, 17, Limits::new(), &config)
        .unwrap();
    let running = tokio::spawn(async move { rows(&query, WINDOW).await });
    let end = Instant::now() + Duration::from_secs(60);
    while queue.counts().waiting == 0 {
        assert!(!running.is_finished(), "{:?}", running.await);
        assert!(Instant::now() < end, "it never waits");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(held);
    assert_eq!(running.await.unwrap().unwrap(), 200_000);
    assert!(queue.counts().restarts > 0);
    heavy.offline_tree();
    drop(heavy);
    assert_empty(&runtime);
}

/// The refusal names the level that is full, also where the query has less room than is unpaid
/// there: another query of the tenant has allocated most of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_level_that_is_full_is_named() {
    let runtime = Runtime::builder().build().unwrap();
    let heavy = runtime
        .root()
        .create("heavy", limit(MAX).cover_allocations())
        .unwrap();
    let neighbour = heavy.create("neighbour", Limits::new()).unwrap();
    let hoard = neighbour.run(|| black_box(vec![1_u8; MAX as usize * 3 / 4]));
    let query = session(|| {})
        .for_query(&heavy, 1, limit(MAX), &PoolConfig::new())
        .unwrap();
    let table =
        format!("CREATE TABLE kept AS SELECT repeat('x', 200) || value AS text FROM {SERIES}");
    let line = rows(&query, &table).await.unwrap_err().to_string();
    assert!(
        line.contains("query: /heavy refused 1 B for /heavy/1: ")
            && line.contains(" of max 64 MiB"),
        "{line}"
    );
    assert!(query.group().peak() < MAX, "{}", query.group().peak());
    neighbour.run(|| drop(hoard));
    drop((query, neighbour));
    heavy.offline_tree();
    assert_empty(&runtime);
}

/// Reads files into the caches of a runtime, which have a group of their own or none. Returns what
/// the tenant and the caches have allocated after the query.
async fn after_a_query(
    has_group: bool,
    table: &str,
    entries: impl Fn(&CacheManager) -> usize,
) -> [u64; 2] {
    const QUERY: &str = "SELECT count(a) FROM files";
    // The allocations that DataFusion makes once for the process are no tenant's.
    let before = SessionContext::new();
    before.sql(table).await.unwrap();
    before.sql(QUERY).await.unwrap().collect().await.unwrap();
    let runtime = Runtime::builder().build().unwrap();
    let [tenant, caches] =
        ["tenant", "caches"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    let config = if has_group {
        GroupCaches::new(&caches).into_config()
    } else {
        CacheManagerConfig::default()
    };
    let env = RuntimeEnvBuilder::new()
        .with_cache_manager(config)
        .build_arc()
        .unwrap();
    let sessions = SessionContext::new_with_config_rt(SessionConfig::new(), env);
    let query = sessions
        .for_query(&tenant, 17, Limits::new(), &PoolConfig::new())
        .unwrap();
    let work = async {
        query.sql(table).await.unwrap();
        rows(&query, QUERY).await.unwrap()
    };
    assert_eq!(work.in_group(query.group()).await, 1);
    drop(query);
    assert!(
        entries(&sessions.runtime_env().cache_manager) > 0,
        "nothing is in the cache"
    );
    runtime.settle();
    let allocated = [&tenant, &caches].map(|group| group.ledger().allocated());
    drop((sessions, tenant, caches));
    assert_empty(&runtime);
    allocated
}

/// The bytes that a query reads into a cache that all share are the first reader's, long after its
/// query. Caches of a group keep them there, and the tenant holds nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_caches_are_not_the_first_readers() {
    let folder = std::env::temp_dir().join(format!("memcg-caches-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for number in 0..500 {
        std::fs::write(folder.join(format!("{number:0200}.csv")), "a\n1\n").unwrap();
    }
    let table = format!(
        "CREATE EXTERNAL TABLE files STORED AS CSV LOCATION '{}/'",
        folder.display()
    );
    for has_group in [false, true] {
        let lists = |caches: &CacheManager| caches.get_list_files_cache().unwrap().len();
        let [of_tenant, of_caches] = after_a_query(has_group, &table, lists).await;
        // The names of the files alone.
        let least = 500 * 200;
        assert_eq!(
            (of_tenant > least, of_caches > least),
            (!has_group, has_group),
            "{of_tenant}, {of_caches}"
        );
        assert!(!has_group || of_tenant < 16 << 10, "{of_tenant}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// The same of the footer of a Parquet file.
#[cfg(feature = "parquet")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn footers_are_not_the_first_readers() {
    let file = std::env::temp_dir().join(format!("memcg-footer-{}.parquet", std::process::id()));
    let copy = format!(
        "COPY (SELECT value AS a FROM {SERIES}) TO '{}' STORED AS PARQUET OPTIONS ('format.max_row_group_size' 1000)",
        file.display()
    );
    SessionContext::new()
        .sql(&copy)
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    let table = format!(
        "CREATE EXTERNAL TABLE files STORED AS PARQUET LOCATION '{}'",
        file.display()
    );
    for has_group in [false, true] {
        let footers = |caches: &CacheManager| caches.get_file_metadata_cache().len();
        let [of_tenant, of_caches] = after_a_query(has_group, &table, footers).await;
        // Of 1,000 row groups.
        let least = 100 << 10;
        assert_eq!(
            (of_tenant > least, of_caches > least),
            (!has_group, has_group),
            "{of_tenant}, {of_caches}"
        );
        assert!(!has_group || of_tenant < 16 << 10, "{of_tenant}");
    }
    std::fs::remove_file(file).unwrap();
}

/// What a statement takes before it runs is its query's: the texts and trees of a long list, and
/// the copies that rules make of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_is_parsed_and_planned_in_its_group() {
    let session = session(|| ());
    let runtime = Runtime::builder().build().unwrap();
    let [tenant, outside] =
        ["tenant", "outside"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    let list: Vec<_> = (0..20_000).map(|number| number.to_string()).collect();
    let list = list.join(", ");
    let sql =
        format!("SELECT count(*) FROM generate_series(1, 10) AS s(value) WHERE value IN ({list})");
    let query = session
        .for_query(&tenant, 17, Limits::new(), &PoolConfig::new())
        .unwrap();
    let peaks = || [query.group(), &outside].map(|group| group.peak_live().max());
    let frame = query.sql(&sql).in_group(&outside).await.unwrap();
    let after_sql = peaks();
    let rows = frame.collect().in_group(&outside).await.unwrap();
    let after_all = peaks();
    assert_eq!(rows[0].num_rows(), 1);
    for [own, other] in [after_sql, after_all] {
        assert!(own > 4 * MIB && other < 512 << 10, "{own}, {other}");
    }
    drop((query, rows, tenant, outside));
    let root = runtime.root();
    root.children().iter().for_each(Group::offline_tree);
    drop(root);
    assert_empty(&runtime);
}
