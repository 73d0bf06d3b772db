//! One queue for several tenants: each has a line, and none waits for another's slow reader.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use datafusion::common::DataFusionError;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool};
use datafusion::prelude::SessionContext;
use futures::StreamExt;
use memcg::{Group, Limit, Limits, Runtime};
use memcg_datafusion::{InGroupSession, PoolConfig, QueryQueue, QuerySession};

use crate::data::{MIB, assert_empty, batch, fed, session_of, text, until};

const MAX: u64 = 8 * MIB;
/// A patience so long that no test waits for its end.
const LONG: Duration = Duration::from_secs(3_600);
const JOIN: &str =
    "SELECT a.id, a.text, b.text AS other FROM rows a JOIN rows b ON a.key = b.key ORDER BY a.id";
const SMALL: &str = "SELECT count(*) FROM rows";

fn tenants<const N: usize>(names: [&str; N]) -> (Runtime, [Group; N]) {
    let runtime = Runtime::builder()
        .audit(true)
        .max(Limit::Bytes(MAX))
        .build()
        .unwrap();
    let root = runtime.root();
    let tenants = names.map(|name| root.create(name, Limits::new()).unwrap());
    (runtime, tenants)
}

fn query(
    session: &SessionContext,
    tenant: &Group,
    config: &PoolConfig,
    name: &str,
) -> QuerySession {
    session
        .for_query(tenant, name, Limits::new(), config)
        .unwrap()
}

async fn collected(session: &SessionContext, sql: &str) -> Result<String, DataFusionError> {
    Ok(text(&session.sql(sql).await?.collect().await?))
}

fn end<const N: usize>(runtime: &Runtime, tenants: [Group; N]) {
    tenants.iter().for_each(Group::offline_tree);
    drop(tenants);
    assert_empty(runtime);
}

/// A client reads one batch of a query that holds most of the memory, and pauses. Another tenant's
/// query waits for that memory, in line or in its place. A third tenant's small queries run as if
/// neither were there.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_slow_reader_holds_up_no_other_tenant() {
    for waits_in_place in [false, true] {
        let (runtime, [slow, large, small]) = tenants(["slow", "large", "small"]);
        let session = session_of(1, 30);
        let queue = QueryQueue::new(3, LONG);
        let config = PoolConfig::new().queue(&queue);
        let paused = query(&session, &slow, &config, "paused");
        let pool = Arc::clone(paused.pool()) as Arc<dyn MemoryPool>;
        let held = MemoryConsumer::new("held").register(&pool);
        held.try_grow(6 << 20).unwrap();
        let mut stream = paused
            .sql("SELECT id FROM rows")
            .await
            .unwrap()
            .execute_stream()
            .await
            .unwrap();
        stream.next().await.unwrap().unwrap();
        let waits = query(&session, &large, &config, "waits");
        let feed = fed(&session, "stream");
        let sql = if waits_in_place {
            "SELECT max(a.text) FROM stream a JOIN rows b ON a.key = b.key"
        } else {
            JOIN
        };
        let rows = tokio::spawn(async move { collected(&waits, sql).await });
        if waits_in_place {
            tokio::spawn(async move {
                for number in 0..30 {
                    let _ = feed.send(batch(number)).await;
                }
            });
            let before = runtime.root().refused_count();
            until("it asks again and again", || {
                rows.is_finished() || runtime.root().refused_count() > before + 20
            });
        } else {
            until("it waits", || queue.counts().waiting == 1);
        }
        for number in 0..8 {
            let first = query(&session, &small, &config, &format!("a{number}"));
            let second = query(&session, &small, &config, &format!("b{number}"));
            let both = futures::future::join(collected(&first, SMALL), collected(&second, SMALL));
            let both = tokio::time::timeout(Duration::from_secs(60), both).await;
            let (first, second) = both.expect("none waits for the slow reader");
            first.unwrap();
            second.unwrap();
        }
        assert!(!rows.is_finished());
        drop((held, stream, pool, paused));
        let rows = rows.await.unwrap().unwrap();
        if !waits_in_place {
            assert!(rows == collected(&session, sql).await.unwrap());
        }
        assert_eq!(queue.counts().refused, 0);
        end(&runtime, [slow, large, small]);
    }
}

/// A client reads two partitions in one task, takes a batch, and pauses: the other partition has been
/// asked, too, and has a batch that nobody takes. The same of a client that has asked a query which
/// waits in line, and does not come for its turn. Neither holds up another tenant, whose queries need
/// more than a little.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reader_of_several_streams_that_pauses_holds_up_no_other_tenant() {
    const GROUPS: &str = "SELECT text, count(*) FROM rows WHERE id < 3000 GROUP BY text";
    const UNSORTED: &str =
        "SELECT a.id, a.text, b.text AS other FROM rows a JOIN rows b ON a.key = b.key";
    let (runtime, [slow, large, other]) = tenants(["slow", "large", "other"]);
    let session = session_of(2, 30);
    let queue = QueryQueue::new(2, LONG);
    let config = PoolConfig::new().queue(&queue);
    let paused = query(&session, &slow, &config, "paused");
    let pool = Arc::clone(paused.pool()) as Arc<dyn MemoryPool>;
    let held = MemoryConsumer::new("held").register(&pool);
    held.try_grow(6 << 20).unwrap();
    // Its exchange has both partitions wait at first.
    let frame = paused.sql("SELECT key, count(*) FROM rows WHERE id < 1000 GROUP BY key");
    let streams = frame
        .await
        .unwrap()
        .execute_stream_partitioned()
        .await
        .unwrap();
    assert_eq!(streams.len(), 2);
    let mut both = futures::stream::select_all(streams);
    both.next().await.unwrap().unwrap();
    let waits = query(&session, &large, &config, "waits");
    let frame = waits.sql(UNSORTED).await.unwrap();
    let streams = frame.execute_stream_partitioned().await.unwrap();
    let mut rows = futures::stream::select_all(streams);
    while queue.counts().waiting == 0 {
        let asks = |context: &mut Context<'_>| Poll::Ready(rows.poll_next_unpin(context));
        assert!(std::future::poll_fn(asks).await.is_pending());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for is_its_turn in [false, true] {
        if is_its_turn {
            held.free();
            drop(std::mem::take(&mut both));
            until("it is its turn", || queue.counts().waiting == 0);
        }
        for number in 0..3 {
            let one = query(&session, &other, &config, &format!("{is_its_turn}{number}"));
            let ended = collected(&one, GROUPS);
            let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
            let groups = ended.expect("it waits for no slow reader").unwrap();
            assert_eq!(groups.lines().count(), 3_000 + 4);
        }
    }
    let mut count = 0;
    while let Some(batch) = rows.next().await {
        count += batch.unwrap().num_rows();
    }
    assert_eq!(count, 30_000);
    drop((rows, held, pool, both, paused, waits));
    assert_eq!(queue.counts().refused, 0);
    end(&runtime, [slow, large, other]);
}

/// A query that needs most of the memory ends beside an endless flood of another tenant's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_query_beside_a_flood_ends() {
    const FLOOD: &str = "SELECT max(a.text || b.text) FROM (SELECT * FROM rows WHERE id < 5000) a JOIN \
                         (SELECT * FROM rows WHERE id < 5000) b ON a.key = b.key";
    let (runtime, [flood, large]) = tenants(["flood", "large"]);
    let session = session_of(1, 45);
    let queue = QueryQueue::new(3, Duration::from_secs(600));
    let config = PoolConfig::new().queue(&queue);
    let stops = Arc::new(AtomicBool::new(false));
    let ended = Arc::new(AtomicUsize::new(0));
    let mut floods = Vec::new();
    for task in 0..6 {
        let (session, flood, config) = (session.clone(), flood.clone(), config.clone());
        let (stops, ended) = (Arc::clone(&stops), Arc::clone(&ended));
        floods.push(tokio::spawn(async move {
            let mut number = 0;
            while !stops.load(Ordering::Relaxed) {
                number += 1;
                let one = query(&session, &flood, &config, &format!("{task}-{number}"));
                let rows = collected(&one, FLOOD).await;
                ended.fetch_add(usize::from(rows.is_ok()), Ordering::Relaxed);
            }
        }));
    }
    until("the flood runs", || ended.load(Ordering::Relaxed) > 20);
    let query = query(&session, &large, &config, "large");
    let rows = collected(&query, JOIN).await;
    let before = ended.load(Ordering::Relaxed);
    until("the flood goes on", || {
        ended.load(Ordering::Relaxed) > before + 5
    });
    stops.store(true, Ordering::Relaxed);
    for task in floods {
        task.await.unwrap();
    }
    assert!(rows.unwrap() == collected(&session, JOIN).await.unwrap());
    drop(query);
    end(&runtime, [flood, large]);
}
