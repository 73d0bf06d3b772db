//! The execution of a task in its group.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ballista_core::execution_plans::collect_runtime_stats_reports;
use ballista_core::serde::protobuf::{
    RuntimeStatsReport, ShuffleWritePartition, TaskColumnStats, WindowStateReport,
};
use ballista_executor::execution_engine::QueryStageExecutor;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::prelude::SessionContext;
use memcg::errors::CreateError;
use memcg::{Group, GroupName, Limits};
use memcg_datafusion::{GroupPool, InGroupSession, PoolConfig, QuerySession};

use crate::plan::Shared;
use crate::tree::{Entered, Tree};

/// The place in the tree for the groups of a stage's tasks.
pub(crate) struct Place {
    pub(crate) sessions: SessionContext,
    pub(crate) tree: Arc<Tree>,
    pub(crate) tenant: Group,
    pub(crate) job: String,
    pub(crate) job_limits: Limits,
    pub(crate) stage: usize,
    pub(crate) pool: PoolConfig,
}

impl Place {
    fn task(&self, session: &str, task: usize) -> Result<Running> {
        let external = |error: CreateError| DataFusionError::External(error.into());
        let enter = |parent: &Group, name: &str| {
            self.tree
                .enter(parent, name, Limits::new(), |_| ())
                .map_err(external)
        };
        let session = enter(&self.tenant, session)?;
        // One task that is cancelled fails the job.
        let job = self
            .tree
            .enter(session.group(), &self.job, self.job_limits, |job| {
                job.set_oom_group(true)
            });
        let job = job.map_err(external)?;
        let stage = enter(job.group(), &self.stage.to_string())?;
        let query = |name| {
            self.sessions
                .for_query(stage.group(), name, Limits::new(), &self.pool)
        };
        let query = match query(GroupName::Number(task as u64)) {
            // An earlier attempt is about to end.
            Err(error) if is_taken(&error) => query(GroupName::Unnamed)?,
            made => made?,
        };
        Ok(Running {
            query,
            _stage: stage,
            _job: job,
            _session: session,
        })
    }
}

fn is_taken(error: &DataFusionError) -> bool {
    match error {
        DataFusionError::External(error) => {
            matches!(error.downcast_ref(), Some(CreateError::Taken { .. }))
        }
        _ => false,
    }
}

/// A task that runs. Its group goes offline with it, and so do those above that have no other task.
struct Running {
    query: QuerySession,
    _stage: Entered,
    _job: Entered,
    _session: Entered,
}

/// A stage of another engine, each of whose tasks runs in a group.
pub(crate) struct GroupStage {
    pub(crate) inner: Arc<dyn QueryStageExecutor>,
    pub(crate) place: Place,
    pub(crate) shared: Arc<Shared>,
}

impl fmt::Debug for GroupStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupStage")
            .field("tenant", &self.place.tenant)
            .field("inner", &self.inner)
            .finish()
    }
}

impl fmt::Display for GroupStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "GroupStage: group={}\n{}",
            self.place.tenant.path(),
            self.inner
        )
    }
}

#[async_trait::async_trait]
impl QueryStageExecutor for GroupStage {
    async fn execute_query_stage(
        &self,
        task_id: usize,
        context: Arc<TaskContext>,
    ) -> Result<Vec<ShuffleWritePartition>> {
        let running = self.place.task(&context.session_id(), task_id)?;
        let pool = running.query.pool();
        self.shared.runs_in(pool);
        let context = pool.context(context)?;
        let work = pool.run(|| self.inner.execute_query_stage(task_id, context));
        Work {
            work: Some(work),
            pool: Arc::clone(pool),
        }
        .await
    }

    fn collect_plan_metrics(&self) -> Vec<MetricsSet> {
        self.inner.collect_plan_metrics()
    }

    /// Ballista looks for these from the writer down, past the operators that it knows: it stops at
    /// `TaskExec`.
    fn collect_runtime_stats_reports(&self) -> Vec<RuntimeStatsReport> {
        let mut reports = self.inner.collect_runtime_stats_reports();
        reports.extend(
            self.shared
                .executed()
                .and_then(|plan| collect_runtime_stats_reports(plan).ok())
                .unwrap_or_default(),
        );
        reports
    }

    fn collect_window_state_reports(&self) -> Result<Vec<WindowStateReport>> {
        self.inner.collect_window_state_reports()
    }

    fn collect_column_stats(&self) -> Vec<TaskColumnStats> {
        self.inner.collect_column_stats()
    }
}

/// The work of a task: it is polled and dropped in the group of its pool, whose reservations pay
/// for what it allocates.
struct Work<F> {
    /// Taken by the drop.
    work: Option<F>,
    pool: Arc<GroupPool>,
}

impl<F: Future + Unpin> Future for Work<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Work { work, pool } = &mut *self;
        let Some(work) = work else {
            return Poll::Pending;
        };
        pool.run(|| Pin::new(work).poll(context))
    }
}

impl<F> Drop for Work<F> {
    fn drop(&mut self) {
        self.pool.run(|| self.work = None);
    }
}
