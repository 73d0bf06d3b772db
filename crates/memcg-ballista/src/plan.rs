//! The plan below a task's shuffle writer: it runs in the task's group, and ends with it.

use std::fmt;
use std::sync::{Arc, OnceLock};

use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};
use memcg_datafusion::{GroupPool, passes_on, plan_in_group};

/// State that a task's plan and its stage share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// That of the task, once it runs.
    pool: OnceLock<Arc<GroupPool>>,
    /// The plan that the task executes in its group, once it does.
    executed: OnceLock<Arc<dyn ExecutionPlan>>,
}

impl Shared {
    /// The task runs in the group of `pool`.
    pub(crate) fn runs_in(&self, pool: &Arc<GroupPool>) {
        let _ = self.pool.set(Arc::clone(pool));
    }

    /// What has run: in a queue, the run whose rows are written.
    pub(crate) fn executed(&self) -> Option<&Arc<dyn ExecutionPlan>> {
        self.executed.get().map(plan_in_group)
    }
}

/// Passes on what its input gives. Ballista's writers run in tasks of their own, which go on when
/// Ballista cancels the task; this stream ends with the group of the task.
#[derive(Debug)]
pub(crate) struct TaskExec {
    input: Arc<dyn ExecutionPlan>,
    shared: Arc<Shared>,
}

impl TaskExec {
    /// Puts one below `writer`, whose other parts stay as they are.
    pub(crate) fn below(
        writer: Arc<dyn ExecutionPlan>,
        shared: &Arc<Shared>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let [input] = writer.children()[..] else {
            return Ok(writer);
        };
        let task = TaskExec {
            input: Arc::clone(input),
            shared: Arc::clone(shared),
        };
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
    // The executor takes the metrics of what has run from below.
    passes_on!(
        "TaskExec",
        |own, input| Arc::new(TaskExec {
            input,
            shared: Arc::clone(&own.shared)
        }),
        |own| own.shared.executed().unwrap_or(&own.input)
    );

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        // All partitions of the task are of one plan: they share its state, so in a queue they run again
        // together.
        let executed = match self.shared.executed.get() {
            Some(executed) => executed,
            None => {
                let Some(pool) = self.shared.pool.get() else {
                    return internal_err!("TaskExec runs in the group of its task");
                };
                // Made before the cell is taken, since a copy calls foreign operators.
                let made = pool.plan(Arc::clone(&self.input));
                self.shared.executed.get_or_init(|| made)
            }
        };
        executed.execute(partition, context)
    }
}
