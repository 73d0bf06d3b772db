//! Execution in a group: the root of each plan runs in it, and ends with it.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::datasource::sink::DataSinkExec;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::{
    DiskManager, RecordBatchStream, SendableRecordBatchStream, TaskContext,
};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::analyze::AnalyzeExec;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};
use futures::Stream;
use futures::task::AtomicWaker;

use crate::contexts::{context_in, context_of, context_of_pool};
use crate::ended::Life;
use crate::figures::{RunningPartition, RunningPlan};
use crate::files::Files;
use crate::merges::leave_room_beside_sorts;
use crate::passes_on;
use crate::pool::GroupPool;
use crate::queued::{is_in_queue, put_plan_in_queue, show_in_queue, with_input};
use crate::refusal::told;
use crate::unreserved::{Excess, Unreserved};

/// The last rule of a query that is shown, not run: it shows the operators that a session adds.
#[derive(Debug)]
pub(crate) struct ShowInGroup {
    pub(crate) query: Arc<LogicalPlan>,
    pub(crate) pool: Arc<GroupPool>,
}

impl PhysicalOptimizerRule for ShowInGroup {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = match self.pool.queued() {
            Some(queued) => show_in_queue(plan, &self.query, &queued.repeatable)?,
            None => plan,
        };
        put_query_in_group(plan, &self.pool, None)
    }

    fn name(&self) -> &str {
        "run_in_group"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Puts the plan of a query into the group of `pool`. In a plan of EXPLAIN ANALYZE, what runs is
/// below the root, which shows it. `env` is the runtime of the session.
pub(crate) fn put_query_in_group(
    plan: Arc<dyn ExecutionPlan>,
    pool: &Arc<GroupPool>,
    env: Option<&Arc<RuntimeEnv>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    match plan.downcast_ref::<AnalyzeExec>() {
        Some(shows) => {
            let input = put_in_group(Arc::clone(shows.input()), pool, env);
            with_input(plan, input)
        }
        None => Ok(put_in_group(plan, pool, env)),
    }
}

/// Puts a plan into the group of `pool`, unless it is in a group already.
fn put_in_group(
    plan: Arc<dyn ExecutionPlan>,
    pool: &Arc<GroupPool>,
    env: Option<&Arc<RuntimeEnv>>,
) -> Arc<dyn ExecutionPlan> {
    if plan.is::<InGroupExec>() {
        plan
    } else {
        InGroupExec::over(plan, pool, env.cloned())
    }
}

/// Operator that passes on the rows of its input, which runs in the group. The stream ends with an
/// error when the group is cancelled or goes offline, also while it waits, and when the query has
/// allocated too much that is not reserved. The drop of the input then ends the tasks below.
///
/// The group is that of the pool, whatever pool a session has been given since. If another group's
/// session runs the plan, it runs in that session's group.
#[derive(Debug)]
struct InGroupExec {
    input: Arc<dyn ExecutionPlan>,
    pool: Arc<GroupPool>,
    /// The runtime of the pool's session. A frame may have one that SQL has set since.
    env: Option<Arc<RuntimeEnv>>,
    /// The group in which the plan has run last, and its counts; `None` before the first run.
    ran: Mutex<Option<Arc<Life>>>,
    running: Mutex<Weak<RunningPlan>>,
}

impl InGroupExec {
    fn over(
        input: Arc<dyn ExecutionPlan>,
        pool: &Arc<GroupPool>,
        env: Option<Arc<RuntimeEnv>>,
    ) -> Arc<dyn ExecutionPlan> {
        Arc::new(InGroupExec {
            input,
            pool: Arc::clone(pool),
            env,
            ran: Mutex::default(),
            running: Mutex::default(),
        })
    }

    /// The life of the group that it has run in last, or is to run in.
    fn life(&self) -> Arc<Life> {
        let ran = self
            .ran
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        ran.unwrap_or_else(|| Arc::clone(self.pool.life()))
    }

    fn runs_in(&self, life: &Arc<Life>) {
        let mut ran = self.ran.lock().unwrap_or_else(PoisonError::into_inner);
        let before = ran.replace(Arc::clone(life));
        // Without the lock: the last handle of a group may call listeners.
        drop(ran);
        drop(before);
    }

    fn begins(&self, life: &Arc<Life>) -> RunningPartition {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        RunningPartition::begins(life, &mut running)
    }
}

impl DisplayAs for InGroupExec {
    fn fmt_as(&self, kind: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.life().group().path();
        match kind {
            DisplayFormatType::TreeRender => writeln!(f, "group={path}"),
            _ => write!(f, "InGroupExec: group={path}"),
        }
    }
}

impl ExecutionPlan for InGroupExec {
    passes_on!("InGroupExec", |own, input| InGroupExec::over(
        input,
        &own.pool,
        own.env.clone()
    ));

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let env = context.runtime_env();
        let own = Arc::clone(&self.pool) as Arc<dyn MemoryPool>;
        let pool = if env.memory_pool.is::<GroupPool>() {
            &env.memory_pool
        } else {
            &own
        };
        let registry = |env: &RuntimeEnv| Arc::clone(&env.object_store_registry);
        let of_session = self.env.as_ref().filter(|own_env| {
            Arc::ptr_eq(pool, &own) && Arc::ptr_eq(&registry(own_env), &registry(&env))
        });
        let context = match of_session {
            Some(own_env) if Arc::ptr_eq(own_env, &env) => context,
            Some(own_env) => context_in(&context, Arc::clone(own_env)),
            None => context_with(context, pool)?,
        };
        let pool = pool.downcast_ref().unwrap_or(&*self.pool);
        // A sink takes the rows of its query above the queue.
        let of_sink = self.input.is::<DataSinkExec>().then(|| pool.above_queue());
        let context = match of_sink.flatten() {
            Some(pool) => context_of_pool(&context, Arc::new(pool)),
            None => context,
        };
        let life = Arc::clone(pool.life());
        let unreserved = pool.unreserved();
        if let Some(ended) = life.ended() {
            return Err(ended.into_error());
        }
        self.runs_in(&life);
        let input = life
            .group()
            .run(|| self.input.execute(partition, context))?;
        Ok(Box::pin(InGroupStream {
            schema: input.schema(),
            input: Some(input),
            _running: self.begins(&life),
            waker: life.waker(),
            life,
            unreserved,
            is_queued: is_in_queue(&self.input),
            excess: None,
        }))
    }

    /// Returns the bounds on the peak of the group's live bytes, which are one number where one
    /// thread has charged it, its refusals and waits, and the bytes that the plan has spilled.
    fn metrics(&self) -> Option<MetricsSet> {
        let life = self.life();
        let group = life.group();
        let metrics = ExecutionPlanMetricsSet::new();
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let peak = group.peak_live();
        MetricBuilder::new(&metrics)
            .gauge("group_peak_live_min_bytes", 0)
            .set(bytes(peak.min()));
        MetricBuilder::new(&metrics)
            .gauge("group_peak_live_max_bytes", 0)
            .set(bytes(peak.max()));
        MetricBuilder::new(&metrics)
            .gauge("group_refusals", 0)
            .set(life.refusals.load(Ordering::Relaxed));
        MetricBuilder::new(&metrics)
            .gauge("group_waits", 0)
            .set(life.waits.load(Ordering::Relaxed));
        MetricBuilder::new(&metrics)
            .gauge("plan_spilled_bytes", 0)
            .set(spilled(&self.input));
        Some(metrics.clone_inner())
    }
}

/// Bytes that the operators of a plan have spilled.
fn spilled(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let own = plan
        .metrics()
        .and_then(|metrics| metrics.spilled_bytes())
        .unwrap_or(0);
    own + plan.children().into_iter().map(spilled).sum::<usize>()
}

impl GroupPool {
    /// Returns `context` with this pool, for an engine that executes plans itself. Object stores,
    /// caches and settings stay, but for what a sort reserves for its merge: as in a session of the
    /// group, the sorts of a plan have an eighth of the max for it, where the value is DataFusion's
    /// default. Where the pool counts spill files, those of the context count.
    ///
    /// # Errors
    ///
    /// Those of DataFusion, where it makes no runtime.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use datafusion::prelude::SessionContext;
    /// use memcg::Runtime;
    /// use memcg_datafusion::GroupPool;
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let pool = Arc::new(GroupPool::new(&runtime.root()));
    /// let context = pool.context(SessionContext::new().task_ctx())?;
    /// assert_eq!(context.memory_pool().to_string(), "group(/)");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn context(self: &Arc<Self>, context: Arc<TaskContext>) -> Result<Arc<TaskContext>> {
        let context = context_with(context, &(Arc::clone(self) as Arc<dyn MemoryPool>))?;
        let mut config = context.session_config().clone();
        leave_room_beside_sorts(&mut config, self.group().effective_max());
        Ok(context_of(&context, config, context.runtime_env()))
    }

    /// Returns `plan` in the pool's group, for an engine that executes plans itself: it runs there,
    /// and ends with the group.
    ///
    /// If the pool is that of a session with a [`QueryQueue`](crate::QueryQueue), the plan waits in
    /// line, and what runs is a copy of it, another one each time. The partitions that are executed wait
    /// and run again together, until one of them has given a row. The plan that is returned shows the
    /// copy whose rows have left, with its metrics. A plan in which an operator reads a dynamic filter
    /// of another one does not run again: it waits in its place.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use datafusion::physical_plan::collect;
    /// use datafusion::prelude::SessionContext;
    /// use memcg::{Limits, Runtime};
    /// use memcg_datafusion::{InGroupSession, PoolConfig};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = Runtime::builder().build()?;
    /// let session = SessionContext::new();
    /// let plan = session.read_empty()?.create_physical_plan().await?; // by another engine
    /// let query = session.for_query(&runtime.root(), 17, Limits::new(), &PoolConfig::new())?;
    /// let context = query.pool().context(session.task_ctx())?;
    /// assert_eq!(collect(query.pool().plan(plan), context).await?.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn plan(self: &Arc<Self>, plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        let plan = match self.queued() {
            Some(queued) => put_plan_in_queue(plan, &queued.repeatable),
            None => plan,
        };
        put_in_group(plan, self, None)
    }
}

/// What runs below the operators that [`GroupPool::plan`] adds: the plan that it was given, or the copy
/// whose rows have left. The adapter of Ballista shows it.
#[doc(hidden)]
pub fn plan_in_group(plan: &Arc<dyn ExecutionPlan>) -> &Arc<dyn ExecutionPlan> {
    match plan.children()[..] {
        [input] if plan.is::<InGroupExec>() || is_in_queue(plan) => plan_in_group(input),
        _ => plan,
    }
}

fn context_with(context: Arc<TaskContext>, pool: &Arc<dyn MemoryPool>) -> Result<Arc<TaskContext>> {
    let Some(env) = with_pool(&context.runtime_env(), pool)? else {
        return Ok(context);
    };
    Ok(context_in(&context, env))
}

/// Returns a copy of `env` whose memory pool is `pool`, and whose spill files are charged for that
/// pool. `None`: `env` is so already.
pub(crate) fn with_pool(
    env: &RuntimeEnv,
    pool: &Arc<dyn MemoryPool>,
) -> Result<Option<Arc<RuntimeEnv>>> {
    let disk = disk_of(env, pool)?;
    if Arc::ptr_eq(&env.memory_pool, pool) && Arc::ptr_eq(&env.disk_manager, &disk) {
        return Ok(None);
    }
    let mut builder = RuntimeEnvBuilder::from_runtime_env(env).with_memory_pool(Arc::clone(pool));
    builder.disk_manager = Some(disk);
    builder.build_arc().map(Some)
}

/// Returns a disk manager with the files of `env` that charges for `pool`, and no longer for the
/// pool of before.
pub(crate) fn disk_of(env: &RuntimeEnv, pool: &Arc<dyn MemoryPool>) -> Result<Arc<DiskManager>> {
    let uncounted = files_of(&env.memory_pool).and_then(|files| files.uncounted(&env.disk_manager));
    let disk = uncounted.unwrap_or_else(|| Arc::clone(&env.disk_manager));
    files_of(pool).map_or(Ok(Arc::clone(&disk)), |files| files.counted(&disk))
}

fn files_of(pool: &Arc<dyn MemoryPool>) -> Option<&Files> {
    pool.downcast_ref::<GroupPool>().and_then(GroupPool::files)
}

struct InGroupStream {
    schema: SchemaRef,
    /// `None`: it has ended.
    input: Option<SendableRecordBatchStream>,
    _running: RunningPartition,
    waker: Arc<AtomicWaker>,
    life: Arc<Life>,
    unreserved: Option<Arc<Unreserved>>,
    /// The queue looks at the ends that `unreserved` tells of.
    is_queued: bool,
    /// The excess at the last batch.
    excess: Option<Excess>,
}

impl Stream for InGroupStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let Some(input) = &mut this.input else {
            return Poll::Ready(None);
        };
        // Registered before it looks, so no end is missed.
        this.waker.register(context.waker());
        if let Some(ended) = this.life.ended() {
            this.end();
            return Poll::Ready(Some(Err(ended.into_error())));
        }
        // A query in line runs again after such an end.
        let ends = this.unreserved.as_ref().filter(|_| !this.is_queued);
        if let Some((error, _)) = ends.and_then(|unreserved| unreserved.error()) {
            this.end();
            return Poll::Ready(Some(Err(error)));
        }
        let polled = this.life.group().run(|| input.as_mut().poll_next(context));
        // An error is the last that comes, also where an operator would go on.
        if let Poll::Ready(None | Some(Err(_))) = polled {
            this.end();
        }
        let polled = polled.map_err(told);
        if let (Poll::Ready(Some(Ok(_))), Some(unreserved)) = (&polled, &this.unreserved) {
            unreserved.look_at_batch(&mut this.excess);
            if !this.is_queued
                && let Some((error, _)) = unreserved.error()
            {
                this.end();
                return Poll::Ready(Some(Err(error)));
            }
        }
        polled
    }
}

impl InGroupStream {
    fn end(&mut self) {
        self.life.group().run(|| self.input = None);
    }
}

impl Drop for InGroupStream {
    fn drop(&mut self) {
        self.end();
    }
}

impl RecordBatchStream for InGroupStream {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}
