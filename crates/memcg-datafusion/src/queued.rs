//! A plan whose query waits in line for memory that others hold, and runs again.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result, Statistics, internal_err};
use datafusion::datasource::sink::DataSinkExec;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, SessionState, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::{
    Boundedness, CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions,
};
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::streaming::StreamingTableExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::Stream;
use futures::future::BoxFuture;
use futures::task::AtomicWaker;
use memcg::Group;

use crate::pool::GroupPool;
use crate::queue::{InPlace, Place, Queue, Turn};

type Plan = Arc<dyn ExecutionPlan>;

/// Most refusals that a pool keeps: other operators may be refused before an error reaches the root.
const KNOWN: usize = 256;

/// The queue of a pool's queries, and the refusals and attempts of that pool.
#[derive(Debug)]
pub(crate) struct Queued {
    queue: Queue,
    /// Texts and levels of the last refusals: nothing else in an error tells which level has refused.
    refusals: Mutex<VecDeque<(String, Group)>>,
    /// Place numbers of the attempts that run; true for those that cannot run again.
    attempts: Mutex<Vec<(u64, bool)>>,
    /// Number of queries that have given all back and wait. Relaxed: it only ends waits early.
    waiting: AtomicUsize,
}

impl Queued {
    pub(crate) fn new(queue: Queue) -> Arc<Queued> {
        let (refusals, attempts) = (Mutex::default(), Mutex::default());
        Arc::new(Queued { queue, refusals, attempts, waiting: AtomicUsize::new(0) })
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    fn refusals(&self) -> MutexGuard<'_, VecDeque<(String, Group)>> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attempts(&self) -> MutexGuard<'_, Vec<(u64, bool)>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a refusal of a growth at `level`, whose text the operator is told.
    pub(crate) fn note(&self, refused: &Result<()>, level: &Group) {
        if let Err(DataFusionError::ResourcesExhausted(text)) = refused {
            let mut refusals = self.refusals();
            if refusals.len() == KNOWN {
                refusals.pop_front();
            }
            refusals.push_back((text.clone(), level.clone()));
        }
    }

    /// Returns the level that was full if an error of the plan is a refusal of the pool.
    fn level_of(&self, error: &DataFusionError) -> Option<Group> {
        let DataFusionError::ResourcesExhausted(text) = error.find_root() else { return None };
        let refusals = self.refusals();
        let found = refusals.iter().rev().find(|(known, _)| text.contains(known));
        found.map(|(_, level)| level.clone())
    }

    /// True if queries of the pool wait and no attempt runs: tasks that still hold memory are about to end.
    pub(crate) fn gives_back(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0 && self.attempts().is_empty()
    }

    /// Has a growth wait in place for the pool's attempt that cannot run again. `None`: no such attempt runs, or no
    /// other attempt runs below `level`.
    pub(crate) fn wait_in_place(&self, level: &Group) -> Option<InPlace> {
        let attempt = self.attempts().iter().find(|(_, cannot_run_again)| *cannot_run_again).copied();
        self.queue.wait_in_place(attempt?.0, level)
    }
}

/// An attempt that runs.
struct Attempt {
    queued: Arc<Queued>,
    place: Place,
    cannot_run_again: bool,
}

impl Attempt {
    fn new(queued: &Arc<Queued>, place: Place, cannot_run_again: bool) -> Attempt {
        queued.attempts().push((place.id(), cannot_run_again));
        Attempt { queued: Arc::clone(queued), place, cannot_run_again }
    }

    /// A row leaves the plan: from here on the attempt cannot run again.
    fn sends(&mut self) {
        if !mem::replace(&mut self.cannot_run_again, true) {
            let mut attempts = self.queued.attempts();
            let own = attempts.iter_mut().find(|(id, _)| *id == self.place.id());
            own.into_iter().for_each(|(_, cannot_run_again)| *cannot_run_again = true);
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.queued.attempts().retain(|(id, _)| *id != self.place.id());
    }
}

/// A query that has given all back and waits, with the refusal that it ends with if the wait is in vain.
struct Waits {
    queued: Arc<Queued>,
    refusal: DataFusionError,
}

impl Waits {
    fn new(queued: &Arc<Queued>, refusal: DataFusionError) -> Waits {
        queued.waiting.fetch_add(1, Ordering::Relaxed);
        Waits { queued: Arc::clone(queued), refusal }
    }

    fn into_error(mut self) -> DataFusionError {
        mem::replace(&mut self.refusal, DataFusionError::ResourcesExhausted(String::new()))
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.queued.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Means to plan a query again. A run leaves state in its plan, such as the bounds of a dynamic filter; a new plan has
/// none.
pub(crate) struct Again {
    pub(crate) planner: Arc<dyn QueryPlanner + Send + Sync>,
    pub(crate) plan: LogicalPlan,
    pub(crate) state: SessionState,
}

impl Again {
    /// Plans the query again. Returns the plan below the sink, if the plan has a sink.
    async fn plan(self: Arc<Self>) -> Result<Plan> {
        let plan = self.planner.create_physical_plan(&self.plan, &self.state).await?;
        Ok(of_one_partition(match plan.downcast_ref::<DataSinkExec>() {
            Some(sink) => Arc::clone(sink.input()),
            None => plan,
        }))
    }
}

/// Puts a [`QueuedExec`] at the root of a plan. In a plan with a sink it goes below the sink, which cannot take its
/// rows twice. `again` plans the query anew.
pub(crate) fn put_in_queue(plan: Plan, again: Again) -> Result<Plan> {
    let runs_again = can_run_again(&again.plan, &plan)?;
    if let Some(sink) = plan.downcast_ref::<DataSinkExec>() {
        let again = can_read_again(sink.input()).then(|| Arc::new(again));
        let input = QueuedExec::new(Arc::clone(sink.input()), again);
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        return plan.replace_children(vec![Arc::new(input)], options);
    }
    Ok(Arc::new(QueuedExec::new(plan, runs_again.then(|| Arc::new(again)))))
}

/// True if the plan only reads, from sources that can be read again.
fn can_run_again(logical: &LogicalPlan, plan: &Plan) -> Result<bool> {
    let is_other =
        |node: &LogicalPlan| Ok(matches!(node, LogicalPlan::Dml(_) | LogicalPlan::Copy(_) | LogicalPlan::Extension(_)));
    Ok(can_read_again(plan) && !logical.exists(is_other)?)
}

fn can_read_again(plan: &Plan) -> bool {
    let is_other = plan.is::<DataSinkExec>() || plan.is::<StreamingTableExec>();
    !is_other && plan.boundedness() == Boundedness::Bounded && plan.children().into_iter().all(can_read_again)
}

/// Makes a plan of one partition, so that all its partitions start and end together. DataFusion does the same for a
/// plan that is read as one stream.
fn of_one_partition(plan: Plan) -> Plan {
    if plan.output_partitioning().partition_count() > 1 { Arc::new(CoalescePartitionsExec::new(plan)) } else { plan }
}

/// Operator that passes on the rows of its input, and has the query wait in line.
struct QueuedExec {
    input: Plan,
    /// `None`: the query cannot run again.
    again: Option<Arc<Again>>,
    metrics: ExecutionPlanMetricsSet,
}

impl QueuedExec {
    fn new(input: Plan, again: Option<Arc<Again>>) -> QueuedExec {
        QueuedExec { input: of_one_partition(input), again, metrics: ExecutionPlanMetricsSet::new() }
    }
}

impl fmt::Debug for QueuedExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuedExec").field("input", &self.input).field("runs_again", &self.again.is_some()).finish()
    }
}

impl DisplayAs for QueuedExec {
    fn fmt_as(&self, kind: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let again = if self.again.is_some() { "until the first row" } else { "never" };
        match kind {
            DisplayFormatType::TreeRender => writeln!(f, "again={again}"),
            _ => write!(f, "QueuedExec: again={again}"),
        }
    }
}

impl ExecutionPlan for QueuedExec {
    fn name(&self) -> &str {
        "QueuedExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Plan> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    /// Replaces the input. The query then cannot run again: a new plan would not have that input.
    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Plan>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.is_empty()) {
            (Some(input), true) if Arc::ptr_eq(&input, &self.input) => Ok(self),
            (Some(input), true) => Ok(Arc::new(QueuedExec::new(input, None))),
            _ => internal_err!("QueuedExec has one child"),
        }
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Plan>) -> Result<Plan> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let pool = context.memory_pool().downcast_ref::<GroupPool>();
        let Some((queued, own)) = pool.and_then(|pool| Some((pool.queued()?, pool.group().clone()))) else {
            return self.input.execute(partition, context);
        };
        Ok(Box::pin(QueuedStream {
            schema: self.input.schema(),
            input: Some(Arc::clone(&self.input)),
            again: self.again.clone(),
            context,
            queued,
            own,
            waker: Arc::default(),
            restarts: MetricBuilder::new(&self.metrics).counter("restarts", partition),
            stage: Stage::New,
        }))
    }

    /// Returns the number of restarts. The operators below show the first run.
    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        _arguments: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        match inputs {
            [input] => Ok(Arc::clone(input)),
            _ => internal_err!("QueuedExec has one child"),
        }
    }

    fn supports_limit_pushdown(&self) -> bool {
        true
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}

struct QueuedStream {
    schema: SchemaRef,
    /// The plan of the first run.
    input: Option<Plan>,
    again: Option<Arc<Again>>,
    context: Arc<TaskContext>,
    queued: Arc<Queued>,
    own: Group,
    waker: Arc<AtomicWaker>,
    restarts: Count,
    stage: Stage,
}

/// Stages of a query. The fields of a stage drop in their order: a stream goes before its attempt.
enum Stage {
    New,
    Waits(Place, Option<Waits>),
    Plans(BoxFuture<'static, Result<Plan>>, Attempt),
    Runs(SendableRecordBatchStream, Attempt),
    Over,
}

impl QueuedStream {
    fn start(&mut self, place: Place) -> Result<()> {
        let attempt = Attempt::new(&self.queued, place, self.again.is_none());
        match (self.input.take(), &self.again) {
            (Some(plan), _) => self.execute(&plan, attempt),
            (None, Some(again)) => {
                self.restarts.add(1);
                attempt.place.restarts();
                self.stage = Stage::Plans(Box::pin(Arc::clone(again).plan()), attempt);
                Ok(())
            }
            (None, None) => internal_err!("a plan that cannot run again"),
        }
    }

    fn execute(&mut self, plan: &Plan, attempt: Attempt) -> Result<()> {
        match plan.execute(0, Arc::clone(&self.context)) {
            Ok(input) => {
                self.stage = Stage::Runs(input, attempt);
                Ok(())
            }
            Err(error) => self.refused(error, attempt),
        }
    }

    /// Handles the error of an attempt, which has given back what it held, but for tasks that are about to end. The
    /// query waits in line, or ends with the error.
    fn refused(&mut self, error: DataFusionError, attempt: Attempt) -> Result<()> {
        let Some(level) = self.queued.level_of(&error) else { return Err(error) };
        let Some(of_others) = attempt.place.of_others(&level, &self.own) else { return Err(error) };
        if attempt.cannot_run_again || !attempt.place.may_run_again(&of_others) {
            self.queued.queue().has_refused(attempt.cannot_run_again);
            return Err(error);
        }
        let waits = Waits::new(&self.queued, error);
        self.queued.refusals().clear();
        let place = attempt.place.line_up(of_others, &self.waker);
        drop(attempt);
        self.stage = Stage::Waits(place, Some(waits));
        Ok(())
    }

    fn poll_batch(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<RecordBatch>>> {
        loop {
            match mem::replace(&mut self.stage, Stage::Over) {
                Stage::New => self.stage = Stage::Waits(self.queued.queue().arrive(&self.own, &self.waker), None),
                Stage::Waits(place, waits) => match (place.turn(), waits) {
                    (Turn::Waits, waits) => {
                        self.stage = Stage::Waits(place, waits);
                        return Poll::Pending;
                    }
                    (Turn::Over, Some(waits)) => {
                        self.queued.queue().has_refused(false);
                        return Poll::Ready(Some(Err(waits.into_error())));
                    }
                    (_, waits) => {
                        drop(waits);
                        self.start(place)?;
                    }
                },
                Stage::Plans(mut plan, attempt) => match plan.as_mut().poll(context) {
                    Poll::Pending => {
                        self.stage = Stage::Plans(plan, attempt);
                        return Poll::Pending;
                    }
                    Poll::Ready(plan) => self.execute(&plan?, attempt)?,
                },
                Stage::Runs(mut input, mut attempt) => {
                    let Poll::Ready(batch) = input.as_mut().poll_next(context) else {
                        self.stage = Stage::Runs(input, attempt);
                        return Poll::Pending;
                    };
                    match batch {
                        Some(Ok(batch)) => {
                            if batch.num_rows() > 0 {
                                attempt.sends();
                            }
                            self.stage = Stage::Runs(input, attempt);
                            return Poll::Ready(Some(Ok(batch)));
                        }
                        Some(Err(error)) => {
                            drop(input);
                            self.refused(error, attempt)?;
                        }
                        None => {
                            drop(input);
                            attempt.place.ended_well();
                            return Poll::Ready(None);
                        }
                    }
                }
                Stage::Over => return Poll::Ready(None),
            }
        }
    }
}

impl Stream for QueuedStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // Registered before the look at the turn, so that no turn is missed.
        self.waker.register(context.waker());
        Poll::Ready(ready!(self.poll_batch(context)))
    }
}

impl RecordBatchStream for QueuedStream {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}
