//! The plan below a task's shuffle writer: it runs in the task's group, and ends with it.

use std::fmt;
use std::sync::{Arc, OnceLock};

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use memcg_datafusion::QuerySession;

/// What a task's plan and its stage know of each other.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Puts a plan into the task's group, once the task runs.
    rule: OnceLock<Arc<dyn PhysicalOptimizerRule + Send + Sync>>,
    /// The plan that the task has executed, once it has.
    executed: OnceLock<Arc<dyn ExecutionPlan>>,
}

impl Shared {
    /// The task runs in the group of `query`: the last rule of its session puts plans there.
    pub(crate) fn runs_in(&self, query: &QuerySession) -> Result<()> {
        let Some(rule) = query.state().physical_optimizers().last().map(Arc::clone) else {
            return internal_err!("a session of a group has a rule");
        };
        let _ = self.rule.set(rule);
        Ok(())
    }

    pub(crate) fn executed(&self) -> Option<&Arc<dyn ExecutionPlan>> {
        self.executed.get()
    }
}

/// Passes on what its input gives. Ballista's writers run in tasks of their own, which go on when Ballista cancels the
/// task; this stream ends with the group of the task.
#[derive(Debug)]
pub(crate) struct TaskExec {
    input: Arc<dyn ExecutionPlan>,
    shared: Arc<Shared>,
}

impl TaskExec {
    /// Puts one below `writer`, whose other parts stay as they are.
    pub(crate) fn below(writer: Arc<dyn ExecutionPlan>, shared: &Arc<Shared>) -> Result<Arc<dyn ExecutionPlan>> {
        let [input] = writer.children()[..] else { return Ok(writer) };
        let task = TaskExec { input: Arc::clone(input), shared: Arc::clone(shared) };
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        writer.replace_children(vec![Arc::new(task)], options)
    }
}

impl DisplayAs for TaskExec {
    fn fmt_as(&self, _kind: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TaskExec")
    }
}

impl ExecutionPlan for TaskExec {
    fn name(&self) -> &str {
        "TaskExec"
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

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.is_empty()) {
            (Some(input), true) => Ok(Arc::new(TaskExec { input, shared: Arc::clone(&self.shared) })),
            _ => internal_err!("TaskExec has one child"),
        }
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let _ = self.shared.executed.set(Arc::clone(&self.input));
        let Some(rule) = self.shared.rule.get() else { return internal_err!("TaskExec runs in the group of its task") };
        rule.optimize(Arc::clone(&self.input), context.session_config().options())?.execute(partition, context)
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
            _ => internal_err!("TaskExec has one child"),
        }
    }

    fn supports_limit_pushdown(&self) -> bool {
        true
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}
