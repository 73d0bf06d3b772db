//! Queries that were refused for room that others hold wait in line, and run again.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::catalog::streaming::StreamingTable;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::prelude::SessionContext;
use futures::{Stream, StreamExt, stream};
use memcg::{Group, Limits, Runtime};
use memcg_datafusion::{
    EndReason, EndedError, InGroupSession, PoolConfig, QueryQueue, QuerySession,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::data::{MIB, assert_empty, batch, fed, limit, runtime, session_of, text, until};
use crate::queries::lines;

/// Max of the tenant, and the bytes of it that the first query holds.
const MAX: u64 = 8 * MIB;
const HELD: u64 = 6 * MIB;
/// A patience so long that no test waits for its end.
const LONG: Duration = Duration::from_secs(3_600);

const SORT: &str = "SELECT key, text, id FROM fed ORDER BY text";
const JOIN: &str =
    "SELECT a.id, a.text, b.text AS other FROM rows a JOIN rows b ON a.key = b.key ORDER BY a.id";
const SMALL: &str = "SELECT count(*) FROM rows";

type Rows = JoinHandle<Result<Vec<RecordBatch>>>;

/// A tenant whose first query holds most of what it has, until `feed` is dropped.
struct Held {
    runtime: Runtime,
    acme: Group,
    session: SessionContext,
    queue: QueryQueue,
    config: PoolConfig,
    holder: QuerySession,
    first: Option<(Rows, mpsc::Sender<RecordBatch>)>,
    fed: usize,
}

async fn held(attempts: u32, patience: Duration) -> Held {
    let session = session_of(1, 30);
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(MAX)).unwrap();
    let queue = QueryQueue::new(attempts, patience);
    let config = PoolConfig::new().queue(&queue);
    let feed = fed(&session, "fed");
    let holder = session
        .for_query(&acme, "holder", Limits::new(), &config)
        .unwrap();
    let rows = collects(&holder, SORT).await;
    let mut fed = 0;
    while holder.group().live() < HELD {
        feed.send(batch(fed)).await.unwrap();
        fed += 1;
    }
    Held {
        runtime,
        acme,
        session,
        queue,
        config,
        holder,
        first: Some((rows, feed)),
        fed,
    }
}

async fn collects(query: &SessionContext, sql: &str) -> Rows {
    let frame = query.sql(sql).await.unwrap();
    tokio::spawn(async move { frame.collect().await })
}

impl Held {
    fn query(&self, name: &str) -> QuerySession {
        self.session
            .for_query(&self.acme, name, Limits::new(), &self.config)
            .unwrap()
    }

    async fn alone(&self, sql: &str) -> String {
        text(
            &self
                .session
                .sql(sql)
                .await
                .unwrap()
                .collect()
                .await
                .unwrap(),
        )
    }

    fn waits(&self, count: usize) {
        until("queries wait in line", || {
            self.queue.counts().waiting == count
        });
    }

    /// The first query ends with all its rows.
    async fn end_first(&mut self) {
        let (rows, feed) = self.first.take().unwrap();
        drop(feed);
        let rows = rows.await.unwrap().unwrap();
        assert_eq!(
            rows.iter().map(RecordBatch::num_rows).sum::<usize>(),
            self.fed * 1_000
        );
    }

    /// Checks that nothing is left. Returns the numbers of restarts, of refusals, and of refusals
    /// after a first row.
    async fn end(mut self) -> [u64; 3] {
        if self.first.is_some() {
            self.end_first().await;
        }
        let Held {
            runtime,
            acme,
            queue,
            holder,
            ..
        } = self;
        drop(holder);
        let counts = queue.counts();
        assert_eq!((counts.running, counts.waiting), (0, 0), "all are gone");
        acme.offline_tree();
        drop(acme);
        assert_empty(&runtime);
        [
            counts.restarts,
            counts.refused,
            counts.refused_after_first_row,
        ]
    }
}

#[track_caller]
fn is_refusal(error: &DataFusionError) {
    assert!(
        matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)),
        "{error}"
    );
    assert!(error.to_string().contains("/acme refused"), "{error}");
}

/// A query that fits alone is refused beside another one. It waits in line and runs again, and
/// gives each row once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fits_alone_waits_in_line() {
    for attempts in [2, 3] {
        let mut held = held(attempts, LONG).await;
        let unqueued = held
            .session
            .for_query(&held.acme, "late", Limits::new(), &PoolConfig::new())
            .unwrap();
        is_refusal(
            &unqueued
                .sql(JOIN)
                .await
                .unwrap()
                .collect()
                .await
                .unwrap_err(),
        );
        drop(unqueued);
        let late = held.query("late");
        let rows = collects(&late, JOIN).await;
        held.waits(1);
        until("it gives all back", || late.group().live() == 0);
        // A query that comes later waits behind it.
        let small = held.query("small");
        let counted = collects(&small, SMALL).await;
        held.waits(2);
        assert!(!rows.is_finished() && !counted.is_finished());
        let [expected, count] = [held.alone(JOIN).await, held.alone(SMALL).await];
        held.end_first().await;
        assert!(
            text(&rows.await.unwrap().unwrap()) == expected,
            "other rows"
        );
        assert_eq!(text(&counted.await.unwrap().unwrap()), count);
        drop((late, small));
        assert_eq!(held.end().await, [1, 0, 0]);
    }
}

/// The queue does not run a query again that its own max has refused, also if others run beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_own_max_is_not_waited_for() {
    let held = held(3, LONG).await;
    let late = held
        .session
        .for_query(&held.acme, "late", limit(MIB), &held.config)
        .unwrap();
    let error = late.sql(JOIN).await.unwrap().collect().await.unwrap_err();
    assert!(error.to_string().contains("/acme/late refused"), "{error}");
    drop(late);
    assert_eq!(held.end().await, [0, 0, 0]);
}

/// A query that does not fit alone runs again while others are beside it, and then ends with its
/// refusal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_fit_alone_is_refused() {
    let session = session_of(1, 200);
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(MIB)).unwrap();
    let queue = QueryQueue::new(3, LONG);
    let query = session
        .for_query(&acme, 17, Limits::new(), &PoolConfig::new().queue(&queue))
        .unwrap();
    is_refusal(&query.sql(JOIN).await.unwrap().collect().await.unwrap_err());
    assert_eq!(
        (queue.counts().restarts, queue.counts().refused),
        (0, 0),
        "nothing was beside it"
    );
    drop(query);
    acme.offline_tree();
    drop(acme);
    assert_empty(&runtime);
}

/// A growth of a query that runs alone waits for the query's own memory as the queue is patient,
/// also where the pool is less so: after a refusal the query would not run again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_a_growth_waits_for_memory_of_its_own() {
    let session = session_of(1, 1);
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(MAX)).unwrap();
    let config = PoolConfig::new()
        .patience(Duration::from_secs(1))
        .queue(&QueryQueue::new(3, LONG));
    let query = session
        .for_query(&acme, 17, Limits::new(), &config)
        .unwrap();
    let pool = Arc::clone(query.pool()) as Arc<dyn MemoryPool>;
    let [held, grows] = ["held", "grow"].map(|name| MemoryConsumer::new(name).register(&pool));
    held.try_grow(MAX as usize).unwrap();
    let grow = move |values: &[ColumnarValue]| grows.try_grow(1).map(|()| values[0].clone());
    let kind = DataType::Int64;
    query.register_udf(create_udf(
        "grow",
        vec![kind.clone()],
        kind,
        Volatility::Volatile,
        Arc::new(grow),
    ));
    let rows = collects(&query, "SELECT grow(id) FROM rows").await;
    // A third of the time that the attempt has run is over long before it has asked so often.
    let end = acme.refused_count() + 200;
    until("it waits", || {
        rows.is_finished() || acme.refused_count() >= end
    });
    held.free();
    assert_eq!(rows.await.unwrap().unwrap().len(), 1);
    drop((held, pool, query));
    acme.offline_tree();
    drop(acme);
    assert_empty(&runtime);
}

/// A query whose patience ends returns its refusal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patience_ends_with_the_refusal() {
    let held = held(3, Duration::from_millis(200)).await;
    let late = held.query("late");
    is_refusal(&late.sql(JOIN).await.unwrap().collect().await.unwrap_err());
    // A new query waits as long at most, and then runs.
    let small = held.query("small");
    small.sql(SMALL).await.unwrap().collect().await.unwrap();
    drop((late, small));
    assert_eq!(held.end().await[1..], [1, 0]);
}

/// A query leaves the line with its stream, and with its session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_leaves_the_line() {
    let held = held(3, LONG).await;
    let [first, second] = ["first", "second"].map(|name| held.query(name));
    let aborted = collects(&first, JOIN).await;
    held.waits(1);
    let ended = collects(&second, SMALL).await;
    held.waits(2);
    aborted.abort();
    assert!(aborted.await.unwrap_err().is_cancelled());
    held.waits(1);
    drop(second);
    let error = ended.await.unwrap().unwrap_err();
    assert_eq!(
        EndedError::of(&error).map(EndedError::reason),
        Some(EndReason::Offline),
        "{error}"
    );
    held.waits(0);
    drop(first);
    held.end().await;
}

/// A function that waits for `goes_on`.
fn register_stop(session: &SessionContext) -> Arc<AtomicBool> {
    let goes_on = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&goes_on);
    let stop = move |values: &[ColumnarValue]| -> Result<ColumnarValue> {
        tokio::task::block_in_place(|| until("it goes on", || flag.load(Ordering::Relaxed)));
        Ok(values[0].clone())
    };
    session.register_udf(create_udf(
        "stop",
        vec![DataType::Int64],
        DataType::Int64,
        Volatility::Volatile,
        Arc::new(stop),
    ));
    goes_on
}

/// Work of `grow`, once for each run: it reserves, and if it is refused, the error comes with the
/// next batch.
#[derive(Default)]
struct Grows {
    reservation: Option<MemoryReservation>,
    refusal: Option<DataFusionError>,
    goes_on: bool,
    /// The group whose usage is looked at, and the most that it was.
    looks_at: Option<Group>,
    most: u64,
}

fn register_grow(session: &SessionContext) -> Arc<Mutex<Grows>> {
    let grows = Arc::new(Mutex::new(Grows::default()));
    let of_query = Arc::clone(&grows);
    let grow = move |values: &[ColumnarValue]| -> Result<ColumnarValue> {
        let mut grows = of_query.lock().unwrap();
        grows.most = grows
            .most
            .max(grows.looks_at.as_ref().map_or(0, Group::live));
        if grows.refusal.is_none() {
            let reservation = grows
                .reservation
                .as_ref()
                .filter(|reservation| reservation.size() == 0);
            grows.refusal =
                reservation.and_then(|reservation| reservation.try_grow(MAX as usize / 2).err());
        } else if !grows.goes_on {
            return Err(grows.refusal.take().unwrap());
        }
        Ok(values[0].clone())
    };
    session.register_udf(create_udf(
        "grow",
        vec![DataType::Int64],
        DataType::Int64,
        Volatility::Volatile,
        Arc::new(grow),
    ));
    grows
}

const GROWN: &str = "SELECT id, grow(id) AS grown FROM rows";

/// An error that is under way comes before the first row, which is there first: the query runs
/// again. Where the operator goes on without the memory, all rows come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_that_is_under_way_comes_before_the_first_row() {
    for goes_on in [false, true] {
        let mut held = held(3, LONG).await;
        let grows = register_grow(&held.session);
        let late = held.query("late");
        let pool = Arc::clone(late.pool()) as Arc<dyn MemoryPool>;
        let reservation = MemoryConsumer::new("grow").register(&pool);
        let looks_at = Some(late.group().clone());
        *grows.lock().unwrap() = Grows {
            reservation: Some(reservation),
            goes_on,
            looks_at,
            ..Grows::default()
        };
        let rows = collects(&late, GROWN).await;
        if !goes_on {
            held.waits(1);
            held.end_first().await;
        }
        let rows = rows.await.unwrap().unwrap();
        let Grows { most, .. } = std::mem::take(&mut *grows.lock().unwrap());
        assert_eq!(
            text(&rows),
            held.alone("SELECT id, id AS grown FROM rows").await
        );
        if goes_on {
            // 16 batches of 1,000 numbers.
            assert_eq!(
                most,
                16 * 8_000,
                "the query is charged for the rows that it holds back"
            );
        }
        drop((pool, late));
        assert_eq!(held.end().await, [u64::from(!goes_on), 0, 0]);
    }
}

/// Rows are held back only where there is room for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_do_not_fit_are_not_held_back() {
    let held = held(3, Duration::from_millis(100)).await;
    let grows = register_grow(&held.session);
    let late = held.query("late");
    let pool = Arc::clone(late.pool()) as Arc<dyn MemoryPool>;
    let [rest, reservation] =
        ["rest", "grow"].map(|name| MemoryConsumer::new(name).register(&pool));
    // The first query would spill for a batch that it still takes in.
    loop {
        let before = held.holder.group().live();
        tokio::time::sleep(Duration::from_millis(200)).await;
        if held.holder.group().live() == before {
            break;
        }
    }
    while rest.try_grow(1 << 10).is_ok() {}
    grows.lock().unwrap().reservation = Some(reservation);
    let mut stream = late
        .sql(GROWN)
        .await
        .unwrap()
        .execute_stream()
        .await
        .unwrap();
    let first = stream.next().await.unwrap().unwrap();
    assert_eq!(first.num_rows(), 1_000);
    is_refusal(&stream.next().await.unwrap().unwrap_err());
    *grows.lock().unwrap() = Grows::default();
    drop((stream, rest, pool, late));
    assert_eq!(held.end().await, [0, 0, 1]);
}

/// From its first row on a query waits in its place. Where that is in vain, it is refused, and
/// counted apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn after_its_first_row_a_query_waits_in_its_place() {
    const UNION: &str = "SELECT id FROM rows UNION ALL SELECT a.id FROM \
                         (SELECT stop(id) AS id, text FROM rows) a JOIN (SELECT stop(id) AS id, text FROM rows) b \
                         ON a.id = b.id WHERE a.text <> b.text || 'x'";
    for patience in [LONG, Duration::from_millis(300)] {
        let mut held = held(3, patience).await;
        let goes_on = register_stop(&held.session);
        let late = held.query("late");
        let mut stream = late
            .sql(UNION)
            .await
            .unwrap()
            .execute_stream()
            .await
            .unwrap();
        let first = stream.next().await.unwrap().unwrap().num_rows();
        let reads = tokio::spawn(async move {
            let mut rows = first;
            while let Some(batch) = stream.next().await {
                rows += batch?.num_rows();
            }
            Ok::<_, DataFusionError>(rows)
        });
        let before = held.acme.refused_count();
        goes_on.store(true, Ordering::Relaxed);
        until("it is refused again and again", || {
            held.acme.refused_count() > before + 2
        });
        if patience == LONG {
            assert!(!reads.is_finished());
            held.end_first().await;
            assert_eq!(reads.await.unwrap().unwrap(), 60_000);
        } else {
            is_refusal(&reads.await.unwrap().unwrap_err());
            held.end_first().await;
        }
        drop(late);
        assert_eq!(held.end().await, [0, 0, u64::from(patience != LONG)]);
    }
}

/// Below a group that has refused, a query keeps its first rows while another one sends rows. If
/// that one then waits for memory, the query gives all back, and runs again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_query_sends_rows_at_a_time() {
    for needs in [false, true] {
        let mut held = held(3, LONG).await;
        let goes_on = register_stop(&held.session);
        let early = held.query("early");
        let mut stream = early
            .sql("SELECT stop(id) AS id FROM rows")
            .await
            .unwrap()
            .execute_stream()
            .await
            .unwrap();
        let sent = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&sent);
        let reads = tokio::spawn(async move {
            while let Some(batch) = stream.next().await {
                count.fetch_add(batch?.num_rows(), Ordering::Relaxed);
            }
            Ok::<_, DataFusionError>(())
        });
        until("it runs", || held.queue.counts().running == 2);
        let late = held.query("late");
        let rows = collects(&late, JOIN).await;
        held.waits(1);
        goes_on.store(true, Ordering::Relaxed);
        until("it keeps its rows", || early.group().live() >= 16 * 8_000);
        if needs {
            let pool = Arc::clone(held.holder.pool()) as Arc<dyn MemoryPool>;
            let reservation = MemoryConsumer::new("grow").register(&pool);
            let room = usize::try_from(MAX - held.acme.live()).unwrap();
            let grows = tokio::spawn(async move { reservation.try_grow(room + (64 << 10)) });
            grows.await.unwrap().expect("the other query has given way");
            assert_eq!(early.group().live(), 0);
        } else {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert_eq!(sent.load(Ordering::Relaxed), 0, "no row has left");
        held.end_first().await;
        reads.await.unwrap().unwrap();
        assert_eq!(sent.load(Ordering::Relaxed), 30_000);
        rows.await.unwrap().unwrap();
        drop((early, late));
        let [restarts, refused, after] = held.end().await;
        assert!((restarts > 1) == needs, "{restarts}");
        assert_eq!([refused, after], [0, 0]);
    }
}

/// Beside a query that sends rows, below a group that has refused, one that cannot run again starts
/// late, and long before its patience ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_stream_starts_beside_another_one() {
    let mut held = held(3, Duration::from_secs(100)).await;
    let goes_on = register_stop(&held.session);
    let beside = ["a", "b", "c"].map(|name| held.query(name));
    let mut counts = Vec::new();
    for query in &beside {
        counts.push(collects(query, "SELECT count(stop(id)) FROM rows").await);
    }
    until("they run", || held.queue.counts().running == 4);
    let late = held.query("late");
    let refused = collects(&late, JOIN).await;
    // Two of the five may run side by side now.
    held.waits(1);
    refused.abort();
    assert!(refused.await.unwrap_err().is_cancelled());
    goes_on.store(true, Ordering::Relaxed);
    for count in counts {
        count.await.unwrap().unwrap();
    }
    let feed = fed(&held.session, "other");
    let second = held.query("second");
    let rows = collects(&second, "SELECT count(*) FROM other").await;
    until("it runs", || held.queue.counts().running == 2);
    drop(feed);
    rows.await.unwrap().unwrap();
    drop((beside, late, second));
    held.end_first().await;
    assert_eq!(held.end().await, [0, 0, 0]);
}

/// A copy runs again while its sink has no row yet: it writes each row once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_writes_each_row_once() {
    let folder: PathBuf = std::env::temp_dir().join(format!("memcg-queue-{}", std::process::id()));
    let mut held = held(3, LONG).await;
    let late = held.query("late");
    let copy = format!("COPY ({JOIN}) TO '{}/' STORED AS CSV", folder.display());
    let plan = text(
        &late
            .sql(&format!("EXPLAIN {copy}"))
            .await
            .unwrap()
            .collect()
            .await
            .unwrap(),
    );
    assert!(plan.contains("DataSinkExec"), "{plan}");
    let rows = collects(&late, &copy).await;
    held.waits(1);
    held.end_first().await;
    assert!(text(&rows.await.unwrap().unwrap()).contains("30000"));
    let files = std::fs::read_dir(&folder)
        .unwrap()
        .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
    let mut written: Vec<_> = files
        .flat_map(|file| file.lines().skip(1).map(str::to_string).collect::<Vec<_>>())
        .collect();
    std::fs::remove_dir_all(&folder).unwrap();
    written.sort_unstable();
    assert_eq!(written.len(), 30_000);
    written.dedup();
    assert_eq!(written.len(), 30_000, "no row twice");
    drop(late);
    assert_eq!(held.end().await, [1, 0, 0]);
}

/// The queue does not run a query again that reads a stream, which cannot be read twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_streams_in_is_not_read_twice() {
    let held = held(3, Duration::from_millis(200)).await;
    let feed = fed(&held.session, "other");
    let late = held.query("late");
    let rows = collects(
        &late,
        "SELECT max(a.text) FROM other a JOIN rows b ON a.key = b.key",
    )
    .await;
    for number in 0..60 {
        if feed.send(batch(number)).await.is_err() {
            break;
        }
    }
    drop(feed);
    is_refusal(&rows.await.unwrap().unwrap_err());
    drop(late);
    assert_eq!(held.end().await, [0, 0, 1]);
}

/// Queries of one session share its group, and so their pool. Each that fits alone is answered: none
/// loses its refusal to another one that waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn queries_of_one_session_wait_for_one_another() {
    let base = session_of(2, 30);
    // An exchange of DataFusion that spills two inputs may stop for ever (apache/datafusion#24883).
    let one_side = base.sql("SET datafusion.optimizer.repartition_joins = false");
    one_side.await.unwrap();
    let expected = lines(&base.sql(JOIN).await.unwrap().collect().await.unwrap());
    let runtime = runtime();
    // On a busy machine 7 MiB refuse some of them alone: it depends on which sorts are at work at once.
    let acme = runtime.root().create("acme", limit(12 * MIB)).unwrap();
    // More attempts than queries: each may be refused beside each other one, and none for that alone.
    let queue = QueryQueue::new(16, LONG);
    let config = PoolConfig::new().spill_on_demand().queue(&queue);
    let session = base.with_group(&acme, &config).unwrap();
    let mut queries = Vec::new();
    for _ in 0..8 {
        queries.push(collects(&session, JOIN).await);
    }
    for query in queries {
        let rows = query.await.unwrap().unwrap_or_else(|told| panic!("{told}"));
        assert!(lines(&rows) == expected);
    }
    let counts = queue.counts();
    assert!(counts.restarts > 0 && counts.refused == 0, "{counts:?}");
    drop(session);
    acme.offline_tree();
    drop(acme);
    assert_empty(&runtime);
}

/// A table whose only partition is a stream that is made with the query's pool, anew for each run.
struct Scripted<F>(F);

impl<F> fmt::Debug for Scripted<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

impl<F, S> PartitionStream for Scripted<F>
where
    F: Fn(Arc<dyn MemoryPool>) -> S + Send + Sync,
    S: Stream<Item = Result<RecordBatch>> + Send + 'static,
{
    fn schema(&self) -> &SchemaRef {
        static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| batch(0).schema());
        &SCHEMA
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let stream = (self.0)(Arc::clone(context.memory_pool()));
        Box::pin(RecordBatchStreamAdapter::new(
            Arc::clone(self.schema()),
            stream,
        ))
    }
}

fn register_script<F, S>(session: &SessionContext, name: &str, script: F)
where
    F: Fn(Arc<dyn MemoryPool>) -> S + Send + Sync + 'static,
    S: Stream<Item = Result<RecordBatch>> + Send + 'static,
{
    let partition = Arc::new(Scripted(script));
    let table = StreamingTable::try_new(Arc::clone(partition.schema()), vec![partition]);
    session
        .register_table(name, Arc::new(table.unwrap()))
        .unwrap();
}

/// Of two queries of one session, the growth of one that has sent rows waits in its place. That of
/// one that can run again is refused, so the query gives all back, and the first one goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_growth_waits_for_its_own_query() {
    let base = session_of(1, 1);
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(MAX)).unwrap();
    let grows = |pool: &Arc<dyn MemoryPool>, bytes: u64| {
        let reservation = MemoryConsumer::new("grow").register(pool);
        reservation.try_grow(bytes as usize).map(|()| reservation)
    };
    let (ask, asked) = watch::channel(false);
    register_script(&base, "sends", {
        let asked = asked.clone();
        move |pool| {
            let first = grows(&pool, MAX / 2).map(|held| (batch(0), held));
            let mut asked = asked.clone();
            let next = async move {
                asked.wait_for(|asked| *asked).await.unwrap();
                grows(&pool, MAX / 4).map(|held| (batch(1), held))
            };
            // What a batch needs is held until the stream is gone.
            let mut all = Vec::new();
            let rows = stream::iter([first]).chain(stream::once(next));
            rows.map(move |row| {
                let (batch, held) = row?;
                all.push(held);
                Ok(batch)
            })
        }
    });
    register_script(&base, "keeps", {
        let acme = acme.clone();
        move |pool| {
            let acme = acme.clone();
            let ask = ask.clone();
            let both = async move {
                let _held = grows(&pool, MAX * 3 / 8)?;
                let before = acme.refused_count();
                ask.send_replace(true);
                // Once it has waited for a while, what can run again gives way.
                while acme.refused_count() < before + 64 && acme.live() > MAX / 2 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                let _more = grows(&pool, MAX / 2)?;
                Ok(batch(2))
            };
            stream::once(both)
        }
    });
    let queue = QueryQueue::new(3, LONG);
    let config = PoolConfig::new()
        .queue(&queue)
        .repeatable::<StreamingTable>()
        .repeatable::<StreamingTableExec>();
    let session = base.with_group(&acme, &config).unwrap();
    let frame = session.sql("SELECT id FROM sends").await.unwrap();
    let mut sends = frame.execute_stream().await.unwrap();
    assert_eq!(sends.next().await.unwrap().unwrap().num_rows(), 1_000);
    let keeps = collects(&session, "SELECT id FROM keeps").await;
    let rest = tokio::spawn(async move { sends.collect::<Vec<_>>().await });
    let rest = timeout(Duration::from_secs(60), rest).await;
    let rest = rest.expect("it goes on").unwrap();
    assert_eq!(rest.len(), 1);
    assert_eq!(rest[0].as_ref().unwrap().num_rows(), 1_000);
    assert_eq!(keeps.await.unwrap().unwrap()[0].num_rows(), 1_000);
    let counts = queue.counts();
    assert_eq!(
        (
            counts.restarts,
            counts.refused,
            counts.refused_after_first_row
        ),
        (1, 0, 0)
    );
    drop((rest, session, base));
    acme.offline_tree();
    drop(acme);
    assert_empty(&runtime);
}

/// The rows of a query may be read on another runtime than the one that has planned it: it waits in
/// line there, and runs again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_read_on_another_runtime() {
    for is_of_one_thread in [false, true] {
        let mut held = held(3, LONG).await;
        let late = held.query("late");
        let frame = late.sql(JOIN).await.unwrap();
        let mut stream = frame.execute_stream().await.unwrap();
        let reads = std::thread::spawn(move || {
            let mut other = if is_of_one_thread {
                tokio::runtime::Builder::new_current_thread()
            } else {
                tokio::runtime::Builder::new_multi_thread()
            };
            other.enable_all().build().unwrap().block_on(async move {
                let mut rows = 0;
                while let Some(batch) = stream.next().await {
                    rows += batch?.num_rows();
                }
                Ok::<_, DataFusionError>(rows)
            })
        });
        held.waits(1);
        until("it gives all back", || late.group().live() == 0);
        held.end_first().await;
        assert_eq!(reads.join().unwrap().unwrap(), 30_000);
        drop(late);
        assert_eq!(held.end().await, [1, 0, 0]);
    }
}

/// A patience without an end is one that no process sees the end of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_patience_may_have_no_end() {
    let session = session_of(1, 2);
    let runtime = runtime();
    let queue = QueryQueue::new(3, Duration::MAX);
    for queue in [queue.clone(), queue.patience(Duration::MAX)] {
        let config = PoolConfig::new().spill_on_demand().queue(&queue);
        let query = session
            .for_query(&runtime.root(), 17, Limits::new(), &config)
            .unwrap();
        let rows = collects(&query, SMALL).await.await.unwrap().unwrap();
        assert_eq!(rows[0].num_rows(), 1);
    }
    assert_empty(&runtime);
}
