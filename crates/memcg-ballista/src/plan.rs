//! The plan below a task's shuffle writer: it runs in the task's group, and ends with it.

use std::fmt;
use std::sync::{Arc, OnceLock};

use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};
use memcg_datafusion::{QuerySession, passes_on};

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
    passes_on!("TaskExec", |own, input| Arc::new(TaskExec { input, shared: Arc::clone(&own.shared) }));

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let _ = self.shared.executed.set(Arc::clone(&self.input));
        let Some(rule) = self.shared.rule.get() else { return internal_err!("TaskExec runs in the group of its task") };
        rule.optimize(Arc::clone(&self.input), context.session_config().options())?.execute(partition, context)
    }
}
