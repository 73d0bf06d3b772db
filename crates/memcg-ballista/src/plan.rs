//! The plan below a task's shuffle writer: it runs in the task's group, and ends with it.

use std::fmt;
use std::sync::{Arc, OnceLock};

use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};
use memcg_datafusion::{GroupPool, passes_on};

/// State that a task's plan and its stage share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// That of the task, once it runs.
    pool: OnceLock<Arc<GroupPool>>,
    /// The plan that the task has executed, once it has.
    executed: OnceLock<Arc<dyn ExecutionPlan>>,
}

impl Shared {
    /// The task runs in the group of `pool`.
    pub(crate) fn runs_in(&self, pool: &Arc<GroupPool>) {
        let _ = self.pool.set(Arc::clone(pool));
    }

    pub(crate) fn executed(&self) -> Option<&Arc<dyn ExecutionPlan>> {
        self.executed.get()
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
    passes_on!("TaskExec", |own, input| Arc::new(TaskExec {
        input,
        shared: Arc::clone(&own.shared)
    }));

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let _ = self.shared.executed.set(Arc::clone(&self.input));
        let Some(pool) = self.shared.pool.get() else {
            return internal_err!("TaskExec runs in the group of its task");
        };
        pool.plan(Arc::clone(&self.input))
            .execute(partition, context)
    }
}
