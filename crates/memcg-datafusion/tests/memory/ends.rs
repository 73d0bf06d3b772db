//! Queries that do not end by themselves: aborted, chosen as victims, or their group is offline.

use std::panic::panic_any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use datafusion::execution::memory_pool::MemoryPool;
use futures::StreamExt;
use memcg::allocator::Owner; // what an allocator does
use memcg::{Limits, OomPolicy};
use memcg_datafusion::{EndReason, EndedError, GroupPool, InGroupSession, PoolConfig};

use crate::data::{MIB, assert_empty, batch, fed, limit, runtime, session, unspillable};

const SORT: &str = "SELECT key, text, id FROM endless ORDER BY text";

/// A sort that waits for rows is chosen, on the only thread of its runtime: it ends with a typed
/// error and gives all back, and the query that needed the memory gets it.
#[tokio::test(flavor = "current_thread")]
async fn a_victim_on_a_current_thread_runtime() {
    let session = session(2);
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(2 * MIB)).unwrap();
    acme.set_oom_policy(OomPolicy::Choose);
    let feed = fed(&session, "endless");
    let victim = session
        .for_query(&acme, 1, Limits::new(), &PoolConfig::new())
        .unwrap();
    let rows = victim.sql(SORT).await.unwrap();
    let sorts = tokio::spawn(async move { rows.collect().await });
    let mut fed = 0;
    while victim.group().live() < MIB {
        feed.send(batch(fed)).await.unwrap();
        fed += 1;
        tokio::task::yield_now().await;
    }
    let other = acme.create(2, Limits::new()).unwrap();
    let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::new(&other));
    let join = unspillable("HashJoinInput", &pool);
    let end = Instant::now() + Duration::from_secs(60);
    while let Err(refused) = join.try_grow(3 << 19) {
        assert!(Instant::now() < end, "{refused}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let error = sorts.await.unwrap().unwrap_err();
    let ended = EndedError::of(&error).unwrap_or_else(|| panic!("{error}"));
    assert_eq!(
        (ended.path(), ended.reason()),
        ("/acme/1", EndReason::Cancelled)
    );
    assert_eq!(victim.group().live(), 0);
    drop((join, pool, other, victim, feed));
    acme.offline_tree();
    drop(acme);
    assert_empty(&runtime);
}

/// A session that is dropped ends what it runs, also while that waits for rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_goes_ends_its_query() {
    let session = session(2);
    let runtime = runtime();
    let feed = fed(&session, "endless");
    let query = session
        .for_query(&runtime.root(), 17, Limits::new(), &PoolConfig::new())
        .unwrap();
    let group = query.group().clone();
    let mut rows = query
        .sql(SORT)
        .await
        .unwrap()
        .execute_stream()
        .await
        .unwrap();
    let reads = tokio::spawn(async move {
        let first = rows.next().await.expect("an error").expect_err("no row");
        assert!(rows.next().await.is_none());
        first
    });
    for number in 0..10 {
        feed.send(batch(number)).await.unwrap();
    }
    drop(query);
    let error = reads.await.unwrap();
    assert_eq!(
        EndedError::of(&error).map(EndedError::reason),
        Some(EndReason::Offline),
        "{error}"
    );
    drop((group, feed));
    assert_empty(&runtime);
}

/// Notes that it was woken, or panics.
struct Woken {
    panics: bool,
    woken: AtomicBool,
}

impl Woken {
    fn new(panics: bool) -> Arc<Woken> {
        Arc::new(Woken {
            panics,
            woken: AtomicBool::new(false),
        })
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Relaxed);
        if self.panics {
            panic_any(PanicsAgain);
        }
    }
}

/// Payload of a panic, which panics itself when it is dropped.
struct PanicsAgain;

impl Drop for PanicsAgain {
    fn drop(&mut self) {
        panic_any(PanicsAgain);
    }
}

/// The drop of a session wakes each stream, also where the waker of one before it panics with a
/// value that panics, too.
#[tokio::test(flavor = "current_thread")]
async fn a_waker_that_panics_keeps_no_other_stream_asleep() {
    let session = session(2);
    let runtime = runtime();
    let query = session
        .for_query(&runtime.root(), 17, Limits::new(), &PoolConfig::new())
        .unwrap();
    let wakers = [true, false].map(Woken::new);
    let mut streams = Vec::new();
    let mut feeds = Vec::new();
    for (table, waker) in ["first", "second"].into_iter().zip(&wakers) {
        feeds.push(fed(&session, table));
        let frame = query.sql(&SORT.replace("endless", table)).await.unwrap();
        let mut stream = frame.execute_stream().await.unwrap();
        let waker = Waker::from(Arc::clone(waker));
        assert!(
            stream
                .poll_next_unpin(&mut Context::from_waker(&waker))
                .is_pending()
        );
        streams.push(stream);
    }
    drop(query);
    assert!(
        wakers
            .iter()
            .all(|waker| waker.woken.load(Ordering::Relaxed))
    );
    for stream in &mut streams {
        match stream.poll_next_unpin(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(Err(error))) => assert_eq!(
                EndedError::of(&error).map(EndedError::reason),
                Some(EndReason::Offline)
            ),
            other => panic!("{other:?}"),
        }
    }
    drop((streams, feeds));
    assert_empty(&runtime);
}

/// A task that is aborted gives all back, a moment later: charges outlive the query's group
/// meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aborted_query_gives_all_back() {
    let session = session(2);
    let runtime = runtime();
    let feed = fed(&session, "endless");
    let query = session
        .for_query(
            &runtime.root(),
            17,
            Limits::new(),
            &PoolConfig::new().spill_on_demand(),
        )
        .unwrap();
    let rows = query.sql(SORT).await.unwrap();
    let runs = tokio::spawn(async move { rows.collect().await });
    let mut fed = 0;
    while query.group().live() < MIB {
        feed.send(batch(fed)).await.unwrap();
        fed += 1;
    }
    runs.abort();
    drop(query);
    assert!(runs.await.unwrap_err().is_cancelled());
    drop(feed);
    assert_empty(&runtime);
}

/// A query that has allocated too much beyond what it has reserved ends with an error that names
/// it. What is reserved does not count, and neither does another query's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_allocates_what_it_does_not_reserve() {
    let session = session(2);
    let runtime = runtime();
    let config = PoolConfig::new().max_unreserved(2 * MIB as usize);
    let queries = [1, 2].map(|name| {
        session
            .for_query(&runtime.root(), name, Limits::new(), &config)
            .unwrap()
    });
    let feeds = ["first", "second"].map(|table| fed(&session, table));
    let mut runs = Vec::new();
    for (query, table) in queries.iter().zip(["first", "second"]) {
        let rows = query.sql(&SORT.replace("endless", table)).await.unwrap();
        runs.push(tokio::spawn(async move { rows.collect().await }));
    }
    let end = Instant::now() + Duration::from_secs(60);
    let mut sent = 0;
    while queries.iter().any(|query| query.group().live() < 3 * MIB) {
        assert!(Instant::now() < end, "they read");
        for feed in &feeds {
            feed.send(batch(sent)).await.unwrap();
        }
        sent += 1;
    }
    let bytes = 16 << 20;
    let object = queries[0].group().run(|| Owner::charge(bytes));
    // It ends while it waits for rows.
    let error = runs.remove(0).await.unwrap().unwrap_err().to_string();
    assert!(
        error.contains("/1 has allocated 16 MiB and reserved"),
        "{error}"
    );
    assert!(
        error.contains("more than 2 MiB beyond what is reserved"),
        "{error}"
    );
    // SAFETY: the object of these bytes is freed once.
    #[allow(unsafe_code)]
    unsafe {
        object.uncharge(bytes);
    }
    drop(feeds);
    assert!(runs.remove(0).await.unwrap().is_ok());
    drop(queries);
    assert_empty(&runtime);
}
