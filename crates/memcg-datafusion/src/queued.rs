//! A plan whose query waits in line for memory that others hold, and runs again.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, internal_err};
use datafusion::datasource::sink::DataSinkExec;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::expressions::DynamicFilterPhysicalExpr;
use datafusion::physical_plan::analyze::AnalyzeExec;
use datafusion::physical_plan::execution_plan::{
    ChildrenPropertiesMode, ReplaceChildrenOptions, reset_plan_states,
};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties,
};

use crate::again::{Again, Plan};
use crate::passes_on;
use crate::pool::GroupPool;
use crate::queue::QueryQueue;
use crate::repeats::Repeatable;
use crate::runs::{Figures, InQueue, QueuedStream, Rows, Run};

/// Puts a [`QueuedExec`] at the root of the plan of `query`. In a plan with a sink it goes below the
/// sink, which cannot take its rows twice; in one of EXPLAIN ANALYZE, below the operator that shows
/// what has run. `again` makes the means to plan a query anew.
pub(crate) fn put_in_queue(
    plan: Plan,
    query: &LogicalPlan,
    repeatable: &Repeatable,
    again: impl FnOnce(&LogicalPlan, &Plan) -> Again,
) -> Result<Plan> {
    if let LogicalPlan::Analyze(of) = query
        && let Some(shows) = plan.downcast_ref::<AnalyzeExec>()
    {
        let input = Arc::clone(shows.input());
        let input = put_part_in_queue(input, &of.input, repeatable, again, Rows::AreCounted)?;
        return with_input(plan, input);
    }
    put_part_in_queue(plan, query, repeatable, again, Rows::Leave)
}

/// The same of the part of the plan that runs.
fn put_part_in_queue(
    plan: Plan,
    query: &LogicalPlan,
    repeatable: &Repeatable,
    again: impl FnOnce(&LogicalPlan, &Plan) -> Again,
    rows: Rows,
) -> Result<Plan> {
    let unknown = repeatable.unknown_table(query)?;
    let means = |input: &Plan| match unknown.or_else(|| repeatable.unknown_part(&**input)) {
        None => Ok(Arc::new(again(query, input))),
        Some(part) => Err(Never(part)),
    };
    if let Some(sink) = plan.downcast_ref::<DataSinkExec>() {
        let input = Arc::clone(sink.input());
        let means = means(&input);
        let input = Arc::new(QueuedExec::over(input, means, Rows::Leave));
        return with_input(plan, input);
    }
    // A plan that writes without a sink of DataFusion's writes while it runs.
    let means = if matches!(query, LogicalPlan::Dml(_) | LogicalPlan::Copy(_)) {
        Err(Never(plan.name().to_string()))
    } else {
        means(&plan)
    };
    Ok(Arc::new(QueuedExec::over(plan, means, rows)))
}

/// The plan of a query that is shown, not run, as [`put_in_queue`] makes it.
pub(crate) fn show_in_queue(
    plan: Plan,
    query: &LogicalPlan,
    repeatable: &Repeatable,
) -> Result<Plan> {
    put_in_queue(plan, query, repeatable, |_, plan| {
        Again::Physical(Arc::clone(plan))
    })
}

/// The plan with another input.
pub(crate) fn with_input(plan: Plan, input: Plan) -> Result<Plan> {
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    plan.replace_children(vec![input], options)
}

/// Has a plan that another engine has made wait in line. All its partitions run again together: they
/// share what their operators hold. The partitions of a scan hand out its files to whichever asks
/// first, and the last one to read the table of an outer join gives the rows without a match.
pub(crate) fn put_plan_in_queue(plan: Plan, repeatable: &Repeatable) -> Plan {
    let again = match repeatable.unknown_part(&*plan) {
        Some(part) => Err(Never(part)),
        None if has_filter_of_another(&plan) => Err(Never("a dynamic filter".to_string())),
        None => reset_plan_states(Arc::clone(&plan))
            .map(|copy| Arc::new(Again::Physical(copy)))
            .map_err(|error| Never(error.strip_backtrace())),
    };
    Arc::new(QueuedExec::over(plan, again, Rows::Leave))
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

/// The part of a plan for which it does not run again.
#[derive(Clone, Debug)]
struct Never(String);

/// Operator that passes on the rows of its input, and has the query wait in line.
struct QueuedExec {
    /// The plan that is shown until one has run. One that may run again is a copy that never runs:
    /// a plan that has run keeps memory, such as the table of a join, for as long as it is there.
    input: Plan,
    /// The plan of the first run. `None`: it has been taken, or each run makes its own, or `input`
    /// runs.
    first: Mutex<Option<Plan>>,
    /// The plan of the attempt whose rows have left.
    ran: Arc<OnceLock<Plan>>,
    again: std::result::Result<Arc<Again>, Never>,
    /// The run that has not begun all its partitions yet.
    run: Mutex<Option<Arc<Run>>>,
    rows: Rows,
    metrics: ExecutionPlanMetricsSet,
}

impl QueuedExec {
    fn over(plan: Plan, again: std::result::Result<Arc<Again>, Never>, rows: Rows) -> QueuedExec {
        let is_logical = again
            .as_ref()
            .is_ok_and(|again| matches!(**again, Again::Logical(_)));
        let shown = is_logical.then(|| reset_plan_states(Arc::clone(&plan)));
        let (input, first) = match shown {
            Some(Ok(shown)) => (shown, Some(plan)),
            _ => (plan, None),
        };
        QueuedExec {
            input,
            first: Mutex::new(first),
            ran: Arc::default(),
            again,
            run: Mutex::default(),
            rows,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    fn shown(&self) -> &Plan {
        self.ran.get().unwrap_or(&self.input)
    }

    /// The plan of a new run's first attempt. `None`: the run begins with a new one.
    fn first_plan(&self) -> Option<Plan> {
        if self.again.is_err() {
            return Some(Arc::clone(&self.input));
        }
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.take()
    }

    /// The plan for a pool without a queue.
    fn plan_without_queue(&self) -> Result<&Plan> {
        if self.ran.get().is_none() {
            let plan = match (self.first_plan(), self.again.as_deref()) {
                (Some(plan), _) => plan,
                (None, Ok(Again::Physical(plan))) => reset_plan_states(Arc::clone(plan))?,
                (None, _) => return internal_err!("the plan runs in a queue"),
            };
            return Ok(self.ran.get_or_init(|| plan));
        }
        Ok(self.shown())
    }

    /// The run of a partition.
    fn run_of(&self, partition: usize, queue: &QueryQueue, pool: &GroupPool) -> Result<Arc<Run>> {
        let partitions = self.input.output_partitioning().partition_count();
        if partition >= partitions {
            return internal_err!("partition {partition} of a plan that has {partitions}");
        }
        let begins = || {
            let run = Arc::new(Run::new(
                self.first_plan(),
                partitions,
                self.again.as_ref().ok().cloned(),
                self.rows,
                InQueue::new(queue, pool),
                Figures::new(&self.metrics, partition),
                &self.ran,
            ));
            run.joins(partition);
            run
        };
        let mut run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        let joined = run.as_ref().filter(|run| run.joins(partition));
        let joined = joined.map(Arc::clone).unwrap_or_else(begins);
        let before = if joined.is_complete() {
            run.take()
        } else {
            run.replace(Arc::clone(&joined))
        };
        // Without the lock: what a run has may be foreign.
        drop(run);
        drop(before);
        Ok(joined)
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
        let again = match (&self.again, self.rows) {
            (Ok(_), Rows::Leave) => "until the first row".to_string(),
            (Ok(_), Rows::AreCounted) => "until the end".to_string(),
            (Err(Never(part)), _) => format!("never, for {part}"),
        };
        match kind {
            DisplayFormatType::TreeRender => writeln!(f, "again={again}"),
            _ => write!(f, "QueuedExec: again={again}"),
        }
    }
}

impl ExecutionPlan for QueuedExec {
    // With another input, the plan made again would not be this one.
    passes_on!(
        "QueuedExec",
        |own, input| {
            if Arc::ptr_eq(&input, own.shown()) {
                own
            } else {
                let other = Err(Never("another input".to_string()));
                Arc::new(QueuedExec::over(input, other, own.rows))
            }
        },
        |own| own.shown()
    );

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let pool = context.memory_pool().downcast_ref::<GroupPool>();
        let Some((pool, queued)) = pool.and_then(|pool| Some((pool, pool.queued()?))) else {
            return self.plan_without_queue()?.execute(partition, context);
        };
        let run = self.run_of(partition, &queued.queue, pool)?;
        let schema = self.input.schema();
        Ok(Box::pin(QueuedStream::new(schema, run, partition, context)))
    }

    /// Returns the number of restarts, and the time in line. The operators below show the attempt
    /// whose rows have left.
    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
