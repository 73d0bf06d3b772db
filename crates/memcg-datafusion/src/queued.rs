//! A plan whose query waits in line for memory that others hold, and runs again.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::utils::memory::RecordBatchMemoryCounter;
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::datasource::sink::DataSinkExec;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::{
    RecordBatchStream, SendableRecordBatchStream, SessionState, TaskContext,
};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::expressions::DynamicFilterPhysicalExpr;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::{
    ChildrenPropertiesMode, ReplaceChildrenOptions, reset_plan_states,
};
use datafusion::physical_plan::metrics::{
    Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet,
};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties,
};
use futures::Stream;
use futures::future::BoxFuture;
use futures::task::AtomicWaker;
use memcg::{Charge, Group, OnFull};

use crate::attempts::{Attempt, Queued, Waits};
use crate::lines::Reader;
use crate::passes_on;
use crate::pool::GroupPool;
use crate::queue::{OfOthers, Place, Turn};
use crate::repeats::Repeatable;
use crate::unreserved::Unreserved;

/// So many batches are held back for an error that is under way. Some operators go on after a
/// refusal, so it may not come.
const HELD: usize = 16;

type Plan = Arc<dyn ExecutionPlan>;

/// Means to make a plan again. A run leaves state in its plan, such as the bounds of a dynamic
/// filter; a new plan has none.
pub(crate) enum Again {
    Logical(Box<Logical>),
    /// Of a plan that another engine has made. This copy does not run.
    Physical(Plan),
}

pub(crate) struct Logical {
    pub(crate) planner: Arc<dyn QueryPlanner + Send + Sync>,
    pub(crate) plan: LogicalPlan,
    pub(crate) state: SessionState,
}

impl Again {
    /// Plans the query again. Returns the plan below the sink, if the plan has a sink.
    async fn plan(self: Arc<Self>) -> Result<Plan> {
        match &*self {
            Again::Logical(logical) => {
                let plan = logical
                    .planner
                    .create_physical_plan(&logical.plan, &logical.state)
                    .await?;
                Ok(of_one_partition(
                    match plan.downcast_ref::<DataSinkExec>() {
                        Some(sink) => Arc::clone(sink.input()),
                        None => plan,
                    },
                ))
            }
            Again::Physical(plan) => reset_plan_states(Arc::clone(plan)),
        }
    }
}

/// Puts a [`QueuedExec`] at the root of a plan. In a plan with a sink it goes below the sink, which
/// cannot take its rows twice. `logical` plans the query anew.
pub(crate) fn put_in_queue(plan: Plan, logical: Logical, repeatable: &Repeatable) -> Result<Plan> {
    let unknown = repeatable.unknown_table(&logical.plan)?;
    let again = |input: &Plan, logical: Logical| match unknown
        .or_else(|| repeatable.unknown_part(&**input))
    {
        None => Ok(Arc::new(Again::Logical(Box::new(logical)))),
        Some(part) => Err(Never(part)),
    };
    if let Some(sink) = plan.downcast_ref::<DataSinkExec>() {
        let input = of_one_partition(Arc::clone(sink.input()));
        let again = again(&input, logical);
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        return plan.replace_children(vec![Arc::new(QueuedExec::new(input, again))], options);
    }
    // A plan that writes without a sink of DataFusion's writes while it runs.
    let again = if matches!(logical.plan, LogicalPlan::Dml(_) | LogicalPlan::Copy(_)) {
        Err(Never(plan.name().to_string()))
    } else {
        again(&plan, logical)
    };
    Ok(Arc::new(QueuedExec::new(of_one_partition(plan), again)))
}

/// Has each partition of a plan that another engine has made wait in line.
pub(crate) fn put_partitions_in_queue(plan: Plan, repeatable: &Repeatable) -> Plan {
    let again = match repeatable.unknown_part(&*plan) {
        Some(part) => Err(Never(part)),
        None if has_filter_of_another(&plan) => Err(Never("a dynamic filter".to_string())),
        None => reset_plan_states(Arc::clone(&plan))
            .map(|copy| Arc::new(Again::Physical(copy)))
            .map_err(|error| Never(error.strip_backtrace())),
    };
    Arc::new(QueuedExec::new(plan, again))
}

/// True if the root of the plan waits in line. Below a sink, the sink's own end is the query's.
pub(crate) fn is_in_queue(plan: &Plan) -> bool {
    plan.is::<QueuedExec>()
}

/// True if an operator reads a dynamic filter of another one: a copy of the plan would share it,
/// with what an earlier run has left there.
fn has_filter_of_another(plan: &Plan) -> bool {
    let mut has = false;
    let looked = plan.apply_expressions(&mut |expression| {
        has |= expression.exists(|part| Ok(part.is::<DynamicFilterPhysicalExpr>()))?;
        Ok(TreeNodeRecursion::Continue)
    });
    let is_of_another = looked.is_err() || (has && plan.dynamic_expressions_produced().is_empty());
    is_of_another || plan.children().into_iter().any(has_filter_of_another)
}

/// Makes a plan of one partition, so that all its partitions start and end together. DataFusion
/// does the same for a plan that is read as one stream.
fn of_one_partition(plan: Plan) -> Plan {
    if plan.output_partitioning().partition_count() > 1 {
        Arc::new(CoalescePartitionsExec::new(plan))
    } else {
        plan
    }
}

/// The part of a plan for which it does not run again.
#[derive(Clone, Debug)]
struct Never(String);

/// Operator that passes on the rows of its input, and has the query wait in line.
struct QueuedExec {
    input: Plan,
    again: std::result::Result<Arc<Again>, Never>,
    metrics: ExecutionPlanMetricsSet,
}

impl QueuedExec {
    fn new(input: Plan, again: std::result::Result<Arc<Again>, Never>) -> QueuedExec {
        QueuedExec {
            input,
            again,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }
}

impl fmt::Debug for QueuedExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuedExec")
            .field("input", &self.input)
            .field("runs_again", &self.again.is_ok())
            .finish()
    }
}

impl DisplayAs for QueuedExec {
    fn fmt_as(&self, kind: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let again = match &self.again {
            Ok(_) => "until the first row".to_string(),
            Err(Never(part)) => format!("never, for {part}"),
        };
        match kind {
            DisplayFormatType::TreeRender => writeln!(f, "again={again}"),
            _ => write!(f, "QueuedExec: again={again}"),
        }
    }
}

impl ExecutionPlan for QueuedExec {
    // With another input, the plan made again would not be this one.
    passes_on!("QueuedExec", |own, input| {
        if Arc::ptr_eq(&input, &own.input) {
            own
        } else {
            let other = Never("another input".to_string());
            Arc::new(QueuedExec::new(of_one_partition(input), Err(other)))
        }
    });

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let pool = context.memory_pool().downcast_ref::<GroupPool>();
        let Some((queued, own, unreserved)) = pool.and_then(|pool| {
            let unreserved = pool.unreserved();
            Some((pool.queued()?, pool.group().clone(), unreserved))
        }) else {
            return self.input.execute(partition, context);
        };
        Ok(Box::pin(QueuedStream {
            schema: self.input.schema(),
            input: Some(Arc::clone(&self.input)),
            again: self.again.clone().ok(),
            partition,
            context,
            queued,
            own,
            unreserved,
            waker: Arc::default(),
            reader: Arc::default(),
            restarts: MetricBuilder::new(&self.metrics).counter("restarts", partition),
            stage: Stage::New,
        }))
    }

    /// Returns the number of restarts. The operators below show the first run.
    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

struct QueuedStream {
    schema: SchemaRef,
    /// The plan of the first run.
    input: Option<Plan>,
    again: Option<Arc<Again>>,
    partition: usize,
    context: Arc<TaskContext>,
    queued: Arc<Queued>,
    own: Group,
    unreserved: Option<Arc<Unreserved>>,
    waker: Arc<AtomicWaker>,
    reader: Arc<Reader>,
    restarts: Count,
    stage: Stage,
}

/// Batches that wait for an error that may come before them. The query is charged for them.
#[derive(Default)]
struct Held {
    batches: VecDeque<(RecordBatch, Option<Charge>)>,
    counter: RecordBatchMemoryCounter,
    /// Time since which there is no place or no room for more.
    full: Option<Instant>,
}

impl Held {
    /// Keeps a batch. If there are many, or no room for this one, it is the last one.
    fn keep(&mut self, own: &Group, batch: RecordBatch) {
        let bytes = self.counter.count_batch(&batch);
        let has_place = self.batches.len() < HELD;
        let charge = has_place
            .then(|| own.charge_with(bytes, OnFull::IfRoom).ok())
            .flatten();
        self.full = charge.is_none().then(Instant::now);
        self.batches.push_back((batch, charge));
    }

    fn next(&mut self) -> Option<RecordBatch> {
        self.batches.pop_front().map(|(batch, _)| batch)
    }
}

/// Stages of a query. The fields of a stage drop in their order: a stream goes before its attempt.
enum Stage {
    New,
    Waits(Place, Option<Waits>),
    Plans(BoxFuture<'static, Result<Plan>>, Attempt),
    Runs(SendableRecordBatchStream, Attempt, Held),
    /// The attempt has ended well.
    Ends(Held),
    Over,
}

impl QueuedStream {
    fn start(&mut self, place: Place) -> Result<()> {
        let attempt = Attempt::new(&self.queued, place, self.again.is_none());
        match (self.input.take(), &self.again) {
            (Some(plan), _) => self.execute(&plan, attempt),
            (None, Some(again)) => {
                if let Some(unreserved) = &self.unreserved {
                    unreserved.begins_anew();
                }
                self.restarts.add(1);
                attempt.place.restarts();
                self.stage = Stage::Plans(Box::pin(Arc::clone(again).plan()), attempt);
                Ok(())
            }
            (None, None) => internal_err!("a plan that cannot run again"),
        }
    }

    fn execute(&mut self, plan: &Plan, attempt: Attempt) -> Result<()> {
        match plan.execute(self.partition, Arc::clone(&self.context)) {
            Ok(input) => {
                self.stage = Stage::Runs(input, attempt, Held::default());
                Ok(())
            }
            Err(error) => self.refused(error, attempt),
        }
    }

    /// Ends an attempt that another query waits for, as if it were refused.
    fn give_way(&mut self, attempt: Attempt, of_others: OfOthers) {
        let text = format!(
            "{}: another query that cannot run again waits for its memory",
            self.own.path()
        );
        self.line_up(
            attempt,
            of_others,
            DataFusionError::ResourcesExhausted(text),
        );
    }

    fn line_up(&mut self, attempt: Attempt, of_others: OfOthers, error: DataFusionError) {
        let waits = Waits::new(&self.queued, error);
        let place = attempt.place.line_up(of_others, &self.waker);
        drop(attempt);
        self.stage = Stage::Waits(place, Some(waits));
    }

    /// Handles the error of an attempt, which has given back what it held, but for tasks that are
    /// about to end. The query waits in line, or ends with the error.
    fn refused(&mut self, error: DataFusionError, attempt: Attempt) -> Result<()> {
        match self.queued.level_of(&error) {
            Some(level) => self.refused_at(&level, error, attempt),
            None => Err(error),
        }
    }

    fn refused_at(
        &mut self,
        level: &Group,
        error: DataFusionError,
        attempt: Attempt,
    ) -> Result<()> {
        let Some(of_others) = attempt.place.of_others(level, &self.own) else {
            return Err(error);
        };
        if attempt.cannot_run_again || !attempt.place.may_run_again(&of_others) {
            self.queued.queue().has_refused(attempt.cannot_run_again);
            return Err(error);
        }
        self.line_up(attempt, of_others, error);
        Ok(())
    }

    fn poll_batch(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<RecordBatch>>> {
        loop {
            match mem::replace(&mut self.stage, Stage::Over) {
                Stage::New => {
                    let place = self.queued.queue().arrive(
                        &self.own,
                        &self.waker,
                        &self.reader,
                        self.again.is_none(),
                    );
                    self.stage = Stage::Waits(place, None);
                }
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
                Stage::Runs(mut input, mut attempt, mut held) => {
                    let unreserved = self.unreserved.as_ref();
                    if let Some((error, level)) = unreserved.and_then(|one| one.error()) {
                        drop((input, held));
                        self.refused_at(&level, error, attempt)?;
                        continue;
                    }
                    if attempt.cannot_run_again {
                        held.full = None;
                        if let Some(batch) = held.next() {
                            self.stage = Stage::Runs(input, attempt, held);
                            return Poll::Ready(Some(Ok(batch)));
                        }
                    }
                    // The first rows stay while another query sends some: it may yet need this
                    // one's memory.
                    if let Some(full) = held.full
                        && !attempt.sends(false)
                    {
                        if let Some(of_others) = attempt.place.gives_way(&self.own) {
                            drop((input, held));
                            self.give_way(attempt, of_others);
                            continue;
                        }
                        if attempt.place.holds(full, &self.waker) {
                            self.stage = Stage::Runs(input, attempt, held);
                            return Poll::Pending;
                        }
                        attempt.sends(true);
                    }
                    if held.full.is_some() {
                        self.stage = Stage::Runs(input, attempt, held);
                        continue;
                    }
                    let Poll::Ready(batch) = input.as_mut().poll_next(context) else {
                        self.stage = Stage::Runs(input, attempt, held);
                        return Poll::Pending;
                    };
                    match batch {
                        Some(Ok(batch)) => {
                            let is_first = held.batches.is_empty();
                            let leaves = is_first && (batch.num_rows() == 0 || attempt.may_send());
                            let batch = if leaves {
                                Some(batch)
                            } else {
                                held.keep(&self.own, batch);
                                None
                            };
                            self.stage = Stage::Runs(input, attempt, held);
                            if let Some(batch) = batch {
                                return Poll::Ready(Some(Ok(batch)));
                            }
                        }
                        Some(Err(error)) => {
                            drop((input, held));
                            self.refused(error, attempt)?;
                        }
                        None => {
                            drop(input);
                            attempt.place.ended_well();
                            self.stage = Stage::Ends(held);
                        }
                    }
                }
                Stage::Ends(mut held) => {
                    let next = held.next();
                    self.stage = Stage::Ends(held);
                    return Poll::Ready(next.map(Ok));
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
        self.reader.asks();
        let batch = ready!(self.poll_batch(context));
        if let Some(Ok(_)) = batch {
            self.reader.takes();
        }
        Poll::Ready(batch)
    }
}

impl RecordBatchStream for QueuedStream {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}
