//! A query in the queue has its partitions, and `EXPLAIN ANALYZE` shows the run whose rows it gives.

use std::collections::BTreeSet;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use datafusion::arrow::array::{Int64Array, RecordBatch};
use datafusion::arrow::datatypes::DataType;
use datafusion::catalog::Session;
use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::MemTable;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, SessionStateBuilder};
use datafusion::logical_expr::{ColumnarValue, LogicalPlan, Volatility, create_udf};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, collect, displayable};
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use datafusion::prelude::SessionContext;
use futures::StreamExt;
use memcg::{Bytes, Charge, Group, Limits, Runtime};
use memcg_datafusion::{InGroupSession, PoolConfig, QueryQueue, QuerySession};

use crate::data::{MIB, assert_empty, batch, limit, runtime, session_of, text, until};

/// Max of the tenant, and the bytes of it that another group holds at first.
const MAX: u64 = 8 * MIB;
const HELD: u64 = 6 * MIB;
/// A patience so long that no test waits for its end.
const LONG: Duration = Duration::from_secs(3_600);
/// Two partitions, and some 3 MiB.
const JOIN: &str =
    "SELECT a.id, a.text, b.text AS other FROM rows a JOIN rows b ON a.key = b.key AND a.id = b.id";
/// The same in each of two partitions: the function reserves more than there is at first.
const GROWN: &str = "SELECT id, grow(id) AS grown FROM rows";
const ROWS: usize = 30_000;

struct Tenant {
    runtime: Runtime,
    acme: Group,
    session: SessionContext,
    queue: QueryQueue,
    held: Option<Charge>,
}

fn tenant(session: SessionContext, patience: Duration) -> Tenant {
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(MAX)).unwrap();
    let held = Some(acme.charge(Bytes(HELD)).unwrap());
    Tenant {
        runtime,
        acme,
        session,
        queue: QueryQueue::new(3, patience),
        held,
    }
}

impl Tenant {
    fn query(&self) -> QuerySession {
        let config = PoolConfig::new().queue(&self.queue);
        let query = self
            .session
            .for_query(&self.acme, "late", Limits::new(), &config);
        query.unwrap()
    }

    /// A query waits in line, and has given back all that it had.
    fn waits(&self, query: &QuerySession) {
        until("it waits in line", || self.queue.counts().waiting == 1);
        until("it gives all back", || query.group().live() == 0);
    }

    /// Checks that nothing is left. Returns the numbers of restarts, of refusals, and of refusals
    /// after a first row.
    fn end(self) -> [u64; 3] {
        let counts = self.queue.counts();
        assert_eq!((counts.running, counts.waiting), (0, 0), "all are gone");
        drop(self.held);
        self.acme.offline_tree();
        drop(self.acme);
        assert_empty(&self.runtime);
        [
            counts.restarts,
            counts.refused,
            counts.refused_after_first_row,
        ]
    }
}

/// A function that reserves a part of the group's memory in each run. If it is refused, its next
/// call ends with the refusal.
#[derive(Default)]
struct Grows {
    /// Calls that come before the one that reserves.
    calls_before: usize,
    reservation: Option<MemoryReservation>,
    refusal: Option<DataFusionError>,
}

fn register_grow(session: &SessionContext) -> Arc<Mutex<Grows>> {
    let grows = Arc::new(Mutex::new(Grows::default()));
    let of_query = Arc::clone(&grows);
    let grow = move |values: &[ColumnarValue]| -> Result<ColumnarValue> {
        let mut grows = of_query.lock().unwrap();
        if let Some(refusal) = grows.refusal.take() {
            return Err(refusal);
        }
        if grows.calls_before > 0 {
            grows.calls_before -= 1;
            return Ok(values[0].clone());
        }
        let reservation = grows.reservation.as_ref();
        let reservation = reservation.filter(|reservation| reservation.size() == 0);
        grows.refusal =
            reservation.and_then(|reservation| reservation.try_grow(MAX as usize / 2).err());
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

fn reservation_of(query: &QuerySession) -> MemoryReservation {
    let pool = Arc::clone(query.pool()) as Arc<dyn MemoryPool>;
    MemoryConsumer::new("grow").register(&pool)
}

async fn plan_of(query: &QuerySession, sql: &str) -> Arc<dyn ExecutionPlan> {
    let frame = query.sql(sql).await.unwrap();
    frame.create_physical_plan().await.unwrap()
}

/// The numbers of a batch's rows.
fn ids(batch: &RecordBatch) -> Vec<i64> {
    let ids = batch.column(0).as_any().downcast_ref::<Int64Array>();
    ids.unwrap().values().to_vec()
}

async fn read(mut stream: SendableRecordBatchStream) -> Result<Vec<i64>> {
    let mut read = Vec::new();
    while let Some(batch) = stream.next().await {
        read.extend(ids(&batch?));
    }
    Ok(read)
}

#[track_caller]
fn has_each_row_once(parts: &[Vec<i64>]) {
    let all: Vec<_> = parts.iter().flatten().copied().collect();
    let different: BTreeSet<_> = all.iter().collect();
    assert_eq!((all.len(), different.len()), (ROWS, ROWS));
}

/// The streams of a query that is refused wait together, and run again together. All rows come once,
/// from more than one stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn partitions_wait_and_run_again_together() {
    let mut tenant = tenant(session_of(2, 30), LONG);
    let query = tenant.query();
    let frame = query.sql(JOIN).await.unwrap();
    let streams = frame.execute_stream_partitioned().await.unwrap();
    assert_eq!(streams.len(), 2);
    let tasks: Vec<_> = streams
        .into_iter()
        .map(|stream| tokio::spawn(read(stream)))
        .collect();
    tenant.waits(&query);
    assert!(tasks.iter().all(|task| !task.is_finished()));
    assert_eq!(tenant.queue.counts().running, 0);
    drop(tenant.held.take());
    let mut parts = Vec::new();
    for task in tasks {
        parts.push(task.await.unwrap().unwrap());
    }
    assert!(parts.iter().all(|part| !part.is_empty()));
    has_each_row_once(&parts);
    drop(query);
    assert_eq!(tenant.end(), [1, 0, 0]);
}

/// How a test reads the partitions of a plan.
#[derive(Clone, Copy, Debug)]
enum Reads {
    AtOnce,
    OneByOne,
    FromTheLast,
    /// A partition is executed once the one before has been read, and its stream is gone.
    ExecutesLate,
    /// As DataFusion reads a plan as one stream.
    Merged,
}

/// However its partitions are read, a query gives each row once, refused before or not. A partition
/// may have no rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_row_comes_once_however_partitions_are_read() {
    use Reads::{AtOnce, ExecutesLate, FromTheLast, Merged, OneByOne};
    for (reads, is_refused) in [AtOnce, OneByOne, FromTheLast, ExecutesLate, Merged]
        .into_iter()
        .flat_map(|reads| [(reads, false), (reads, true)])
    {
        for sql in [
            GROWN.to_string(),
            // One of the two partitions has no row of these.
            format!("{GROWN} WHERE id < 1000"),
        ] {
            let session = session_of(2, 30);
            let grows = register_grow(&session);
            // No end of a partition without rows waits for a fiftieth of it, though an error is under way.
            let mut tenant = tenant(session, 50 * LONG);
            let query = tenant.query();
            if is_refused {
                grows.lock().unwrap().reservation = Some(reservation_of(&query));
            }
            let plan = plan_of(&query, &sql).await;
            let partitions = plan.output_partitioning().partition_count();
            assert_eq!(partitions, 2);
            let context = query.task_ctx();
            let of_plan = Arc::clone(&plan);
            let task = tokio::spawn(async move {
                let execute = |partition| of_plan.execute(partition, Arc::clone(&context)).unwrap();
                match reads {
                    ExecutesLate => {
                        let mut parts = Vec::new();
                        for partition in 0..partitions {
                            parts.push(read(execute(partition)).await?);
                        }
                        Ok(parts)
                    }
                    Merged => {
                        let rows = collect(Arc::clone(&of_plan), Arc::clone(&context)).await?;
                        Ok(rows.iter().map(ids).collect())
                    }
                    AtOnce => {
                        let streams = (0..partitions).map(execute).map(read);
                        futures::future::try_join_all(streams).await
                    }
                    OneByOne | FromTheLast => {
                        let mut streams: Vec<_> = (0..partitions).map(execute).collect();
                        if matches!(reads, FromTheLast) {
                            streams.reverse();
                        }
                        let mut parts = Vec::new();
                        for stream in streams {
                            parts.push(read(stream).await?);
                        }
                        Ok::<_, DataFusionError>(parts)
                    }
                }
            });
            // A single batch gives its row before the next call could end with the refusal.
            if is_refused && sql == GROWN {
                tenant.waits(&query);
                drop(tenant.held.take());
            }
            let parts = task.await.unwrap().unwrap_or_else(|told| {
                panic!("{reads:?}, refused: {is_refused}: {told}");
            });
            if sql == GROWN {
                has_each_row_once(&parts);
            } else {
                assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), 1_000);
            }
            *grows.lock().unwrap() = Grows::default();
            drop((plan, query));
            let [restarts, ..] = tenant.end();
            assert_eq!(restarts, u64::from(is_refused && sql == GROWN), "{reads:?}");
        }
    }
}

/// Partitions of a plan share what its operators hold: the last one to read the table of an outer join
/// gives the rows without a match. So the plan of another engine runs again as a whole, too, and shows
/// what has run.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_plan_of_an_engine_runs_again_as_a_whole() {
    const OUTER: &str = "SELECT f.id, r.grown FROM few f LEFT JOIN (SELECT id, grow(id) AS grown FROM rows) r \
                         ON f.id = r.id";
    let session = session_of(2, 30);
    let grows = register_grow(&session);
    let few = (20..40).map(batch).collect();
    let few = MemTable::try_new(batch(0).schema(), vec![few]).unwrap();
    session.register_table("few", Arc::new(few)).unwrap();
    // A plan in which an operator reads the filter of another one does not run again.
    let set = "SET datafusion.optimizer.enable_dynamic_filter_pushdown = false";
    session.sql(set).await.unwrap();
    let frame = session.sql(OUTER).await.unwrap();
    let plan = frame.create_physical_plan().await.unwrap();
    let shown = displayable(plan.as_ref()).indent(false).to_string();
    assert!(
        shown.contains("mode=CollectLeft, join_type=Left"),
        "{shown}"
    );
    let mut tenant = tenant(session, LONG);
    let query = tenant.query();
    grows.lock().unwrap().reservation = Some(reservation_of(&query));
    let plan = query.pool().plan(plan);
    assert_eq!(plan.output_partitioning().partition_count(), 2);
    assert!(plan.execute(2, query.task_ctx()).is_err());
    let context = query.pool().context(tenant.session.task_ctx()).unwrap();
    let execute = |partition| plan.execute(partition, Arc::clone(&context)).unwrap();
    let streams = [0, 1].map(|partition| tokio::spawn(read(execute(partition))));
    tenant.waits(&query);
    drop(tenant.held.take());
    let mut all = Vec::new();
    for stream in streams {
        all.extend(stream.await.unwrap().unwrap());
    }
    all.sort_unstable();
    let expected: Vec<_> = (20_000..40_000).collect();
    assert!(all == expected, "{} rows", all.len());
    let join = find(&plan, "HashJoinExec").expect("it is shown");
    assert_eq!(join.metrics().unwrap().output_rows(), Some(20_000));
    *grows.lock().unwrap() = Grows::default();
    drop((join, plan, context, query));
    assert_eq!(tenant.end(), [1, 0, 0]);
}

/// A refusal after the first row of any stream is an error of all of them, and gives all back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_after_a_first_row_ends_all_streams() {
    let session = session_of(2, 30);
    let grows = register_grow(&session);
    let tenant = tenant(session, Duration::from_millis(100));
    let query = tenant.query();
    let frame = query.sql(GROWN).await.unwrap();
    let mut streams = frame.execute_stream_partitioned().await.unwrap();
    assert_eq!(streams.len(), 2);
    let first = streams[0].next().await.unwrap().unwrap();
    assert_eq!(first.num_rows(), 1_000);
    grows.lock().unwrap().reservation = Some(reservation_of(&query));
    // The second stream has given no row.
    for stream in streams.iter_mut().rev() {
        let told = loop {
            match stream.next().await.expect("an error") {
                Ok(_) => {}
                Err(told) => break told,
            }
        };
        assert!(
            matches!(told.find_root(), DataFusionError::ResourcesExhausted(_)),
            "{told}"
        );
        assert!(told.to_string().contains("/acme refused"), "{told}");
        assert!(stream.next().await.is_none());
    }
    *grows.lock().unwrap() = Grows::default();
    assert_eq!(query.group().live(), 0);
    drop((streams, query));
    assert_eq!(tenant.end()[1..], [0, 1]);
}

/// Streams that are dropped leave the others alone. The last one takes the query out of the line, or
/// gives all back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_streams_give_all_back() {
    let mut tenant = tenant(session_of(2, 30), LONG);
    let query = tenant.query();
    for drops_in_line in [true, false] {
        tenant
            .held
            .get_or_insert_with(|| tenant.acme.charge(Bytes(HELD)).unwrap());
        let plan = plan_of(&query, JOIN).await;
        let [first, second] =
            [0, 1].map(|partition| plan.execute(partition, query.task_ctx()).unwrap());
        let [first, second] = [first, second].map(|stream| tokio::spawn(read(stream)));
        tenant.waits(&query);
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        assert_eq!(tenant.queue.counts().waiting, 1, "the other one waits");
        if drops_in_line {
            second.abort();
            assert!(second.await.unwrap_err().is_cancelled());
        } else {
            drop(tenant.held.take());
            let rows = second.await.unwrap().unwrap();
            assert!(!rows.is_empty() && rows.len() < ROWS);
        }
        let counts = tenant.queue.counts();
        assert_eq!((counts.waiting, counts.running), (0, 0));
        drop(plan);
    }
    let frame = query.sql(JOIN).await.unwrap();
    let mut streams = frame.execute_stream_partitioned().await.unwrap();
    let batches = futures::future::join_all(streams.iter_mut().map(StreamExt::next)).await;
    assert!(batches.iter().all(|batch| batch.as_ref().unwrap().is_ok()));
    assert!(query.group().live() > 0);
    assert_eq!(tenant.queue.counts().running, 1);
    drop(streams.pop());
    assert_eq!(tenant.queue.counts().running, 1);
    drop(streams);
    until("all is back", || query.group().live() == 0);
    drop(query);
    assert_eq!(tenant.end()[1..], [0, 0]);
}

/// A plan that is kept while it waits keeps no memory, such as the table of a join. Its metrics are
/// those of the run whose rows have come, and it can be run again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_that_is_kept_waits_with_nothing() {
    let session = session_of(1, 30);
    let grows = register_grow(&session);
    let mut tenant = tenant(session, LONG);
    let query = tenant.query();
    grows.lock().unwrap().reservation = Some(reservation_of(&query));
    // The table of the join is there before the function is refused.
    let sql = "SELECT grow(a.id), b.id FROM rows a JOIN (SELECT key, id FROM rows WHERE id < 9000) b ON a.key = b.key";
    let plan = plan_of(&query, sql).await;
    for restarts in [1, 0] {
        let rows = tokio::spawn(collect(Arc::clone(&plan), query.task_ctx()));
        if restarts > 0 {
            tenant.waits(&query);
            drop(tenant.held.take());
        }
        let rows = rows.await.unwrap().unwrap();
        assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 9_000);
        let reservation = grows.lock().unwrap().reservation.take();
        drop(reservation);
    }
    let join = find(&plan, "HashJoinExec").expect("a join");
    assert_eq!(join.metrics().unwrap().output_rows(), Some(9_000));
    let queued = find(&plan, "QueuedExec").unwrap().metrics().unwrap();
    assert_eq!(queued.sum_by_name("restarts").unwrap().as_usize(), 1);
    drop((join, plan, query));
    assert_eq!(tenant.end(), [1, 0, 0]);
}

fn find(plan: &Arc<dyn ExecutionPlan>, name: &str) -> Option<Arc<dyn ExecutionPlan>> {
    if plan.name() == name {
        return Some(Arc::clone(plan));
    }
    plan.children()
        .into_iter()
        .find_map(|child| find(child, name))
}

/// `EXPLAIN ANALYZE` waits in line as its query does, gives all back meanwhile, and shows the run
/// that has ended, with the number of restarts and the time in line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_analyze_waits_in_line() {
    for partitions in [1, 2] {
        let mut tenant = tenant(session_of(partitions, 30), LONG);
        let query = tenant.query();
        let frame = query.sql(&format!("EXPLAIN ANALYZE {JOIN}")).await.unwrap();
        let rows = tokio::spawn(async move { frame.collect().await });
        tenant.waits(&query);
        assert!(!rows.is_finished());
        drop(tenant.held.take());
        let shown = text(&rows.await.unwrap().unwrap());
        let line = |name: &str| {
            let mut lines = shown.lines().filter(|line| line.contains(name));
            let line = lines.next().unwrap_or_else(|| panic!("no {name}: {shown}"));
            assert!(lines.next().is_none(), "{name} twice: {shown}");
            line.to_string()
        };
        assert!(line("InGroupExec").contains("group=/acme/late, metrics=[group_peak_live"));
        let queued = line("QueuedExec");
        assert!(
            queued.contains("again=until the end, metrics=[")
                && queued.contains("restarts=1")
                && queued.contains("time_in_line="),
            "{queued}"
        );
        assert!(!queued.contains("time_in_line=1ns"), "{queued}");
        let join = line("HashJoinExec");
        assert!(
            join.contains("output_rows=30.00 K") || join.contains("output_rows=30000"),
            "{join}"
        );
        drop(query);
        assert_eq!(tenant.end(), [1, 0, 0]);
    }
}

/// The rows of `EXPLAIN ANALYZE` go nowhere, so its query runs again after them, too, and those of
/// the run that has ended are counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_analyze_runs_again_after_its_first_row() {
    for partitions in [1, 2] {
        let session = session_of(partitions, 30);
        let grows = register_grow(&session);
        let mut tenant = tenant(session, LONG);
        let query = tenant.query();
        *grows.lock().unwrap() = Grows {
            calls_before: 20,
            reservation: Some(reservation_of(&query)),
            refusal: None,
        };
        let analyzed = format!("EXPLAIN ANALYZE VERBOSE {GROWN}");
        let frame = query.sql(&analyzed).await.unwrap();
        let rows = tokio::spawn(async move { frame.collect().await });
        tenant.waits(&query);
        drop(tenant.held.take());
        let shown = text(&rows.await.unwrap().unwrap());
        let counted = shown.lines().find(|line| line.contains("Output Rows"));
        let counted = counted.unwrap_or_else(|| panic!("{shown}"));
        assert!(counted.contains(&format!(" {ROWS} ")), "{counted}");
        assert!(shown.contains("restarts=1"), "{shown}");
        *grows.lock().unwrap() = Grows::default();
        drop(query);
        assert_eq!(tenant.end(), [1, 0, 0]);
    }
}

/// `EXPLAIN` shows the place in the queue, and the part for which a plan does not run again. That of
/// a write is below its sink.
#[tokio::test(flavor = "current_thread")]
async fn explain_shows_the_queue() {
    let tenant = tenant(session_of(2, 3), LONG);
    let feed = crate::data::fed(&tenant.session, "stream");
    let query = tenant.query();
    for (sql, again) in [
        ("SELECT id FROM rows", "until the first row"),
        ("SELECT id FROM stream", "never, for stream"),
        (
            "COPY (SELECT id FROM rows) TO '/nowhere/' STORED AS CSV",
            "until the first row",
        ),
    ] {
        let frame = query.sql(&format!("EXPLAIN {sql}")).await.unwrap();
        let shown = text(&frame.collect().await.unwrap());
        let has = |line: &str| shown.matches(line).count();
        assert_eq!(has("InGroupExec: group=/acme/late"), 1, "{shown}");
        assert_eq!(has(&format!("QueuedExec: again={again}")), 1, "{shown}");
        if sql.starts_with("COPY") {
            assert!(
                shown.find("DataSinkExec") < shown.find("QueuedExec"),
                "{shown}"
            );
        }
    }
    drop((feed, query));
    assert_eq!(tenant.end(), [0, 0, 0]);
}

/// A planner of the service that panics when it plans a query again.
struct Panics(AtomicUsize);

impl fmt::Debug for Panics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Panics")
    }
}

impl QueryPlanner for Panics {
    fn create_physical_plan<'a, 'b, 'c, 'd>(
        &'a self,
        plan: &'b LogicalPlan,
        session: &'c dyn Session,
    ) -> Pin<Box<dyn Future<Output = Result<Arc<dyn ExecutionPlan>>> + Send + 'd>>
    where
        'a: 'd,
        'b: 'd,
        'c: 'd,
        Self: 'd,
    {
        Box::pin(async move {
            assert_eq!(self.0.fetch_add(1, Ordering::Relaxed), 0, "planned again");
            let planner = DefaultPhysicalPlanner::default();
            planner.create_physical_plan(plan, session).await
        })
    }
}

/// Where the stream that plans the query again panics, the others end with an error, and nothing is
/// left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_ends_all_streams() {
    let base = session_of(2, 30);
    let state = SessionStateBuilder::new_from_existing(base.state())
        .with_query_planner(Arc::new(Panics(AtomicUsize::new(0))))
        .build();
    let mut tenant = tenant(SessionContext::new_with_state(state), LONG);
    let query = tenant.query();
    let frame = query.sql(JOIN).await.unwrap();
    let streams = frame.execute_stream_partitioned().await.unwrap();
    let tasks: Vec<_> = streams
        .into_iter()
        .map(|stream| tokio::spawn(read(stream)))
        .collect();
    tenant.waits(&query);
    drop(tenant.held.take());
    let mut panics = 0;
    for task in tasks {
        match task.await {
            Ok(ended) => {
                let told = ended.unwrap_err().to_string();
                assert!(told.contains("panicked in another partition"), "{told}");
            }
            Err(joined) => panics += usize::from(joined.is_panic()),
        }
    }
    assert_eq!(panics, 1);
    drop(query);
    assert_eq!(tenant.end(), [1, 0, 0]);
}
