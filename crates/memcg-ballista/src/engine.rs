//! `GroupEngine`: an executor's execution engine, which puts each task into a group.

use std::fmt;
use std::sync::Arc;

use ballista_core::JobId;
use ballista_core::execution_plans::{RangeShuffleReaderExec, ShuffleReaderExec};
use ballista_executor::execution_engine::{
    DefaultExecutionEngine, ExecutionEngine, QueryStageExecutor,
};
use datafusion::common::{Result, config_err};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::{SessionConfig, SessionContext};
use memcg::{Group, Limits};
use memcg_datafusion::PoolConfig;

use crate::plan::{Shared, TaskExec};
use crate::stage::{GroupStage, Place};
use crate::tenant;
use crate::tree::Tree;

/// Finds the tenant in the settings of a session.
type TenantOf = Arc<dyn Fn(&SessionConfig) -> Option<String> + Send + Sync>;

/// Ballista's execution engine, with a group for each task: `/tenant/session/job/stage/task`.
///
/// The memory pool of a task is a [`GroupPool`](memcg_datafusion::GroupPool) of its group, in the
/// place of the pool that the executor gives it: a task may use what no other uses, up to the
/// limits of its group and of those above. A tenant is a group below the one that the engine is
/// made with; the program creates it and sets its limits. The groups below it are there while tasks
/// run in them.
///
/// A job is one for a [victim](memcg::OomPolicy): where a task is chosen, the whole job is
/// cancelled, because Ballista fails it in any case. A task that ends takes its group offline, also
/// where Ballista cancels it. What Ballista leaves running of a cancelled task then ends, and its
/// memory comes back.
///
/// Cost: for each task one copy of its context and five groups at most, some tens of microseconds.
/// The pool's costs are those of [`GroupPool`](memcg_datafusion::GroupPool).
///
/// ```
/// use std::sync::Arc;
///
/// use ballista_executor::executor_process::ExecutorProcessConfig;
/// use memcg::{Limits, Runtime};
/// use memcg_ballista::{GroupEngine, config_producer};
///
/// let runtime = Runtime::builder().max(2 << 30).build()?;
/// runtime.root().create("gold", Limits::new().low(512 << 20))?;
/// let others = runtime.root().create("others", Limits::new().max(1 << 30))?;
/// let engine = GroupEngine::new(&runtime.root()).other_tenants(&others);
/// let executor = ExecutorProcessConfig {
///     override_execution_engine: Some(Arc::new(engine)),
///     override_config_producer: Some(config_producer()),
///     memory_pool_size: Some(0), // the pool that would be made for each task is not used
///     ..ExecutorProcessConfig::default()
/// };
/// # let _ = executor;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct GroupEngine {
    tenants: Group,
    others: Option<Group>,
    tenant_of: TenantOf,
    job_limits: Limits,
    pool: PoolConfig,
    inner: Arc<dyn ExecutionEngine>,
    tree: Arc<Tree>,
    /// The session from which those of tasks are made.
    sessions: SessionContext,
}

impl GroupEngine {
    /// An engine whose tenants are the groups below `tenants`.
    ///
    /// The pools [spill on demand](PoolConfig::spill_on_demand). A task whose tenant has no group
    /// fails with an error that says so.
    pub fn new(tenants: &Group) -> GroupEngine {
        GroupEngine {
            tenants: tenants.clone(),
            others: None,
            tenant_of: Arc::new(tenant::tenant_of),
            job_limits: Limits::new(),
            pool: PoolConfig::new().spill_on_demand(),
            inner: Arc::new(DefaultExecutionEngine::new()),
            tree: Arc::default(),
            sessions: SessionContext::new(),
        }
    }

    /// Runs the tasks of tenants that have no group, and of sessions that name no tenant, in
    /// `group`.
    pub fn other_tenants(mut self, group: &Group) -> GroupEngine {
        self.others = Some(group.clone());
        self
    }

    /// Finds the tenant of a session by `find`, in the place of
    /// [`TenantOptions`](crate::TenantOptions): where the scheduler does not know that setting, by
    /// one that it passes on.
    ///
    /// ```
    /// use ballista_core::extension::SessionConfigExt;
    /// use memcg::Runtime;
    /// use memcg_ballista::GroupEngine;
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let engine = GroupEngine::new(&runtime.root())
    ///     .tenant_of(|config| config.options().catalog.default_catalog.strip_prefix("tenant_").map(str::to_string));
    /// # let _ = engine;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tenant_of(
        mut self,
        find: impl Fn(&SessionConfig) -> Option<String> + Send + Sync + 'static,
    ) -> GroupEngine {
        self.tenant_of = Arc::new(find);
        self
    }

    /// Sets the limits of each job's group.
    pub fn job_limits(mut self, limits: Limits) -> GroupEngine {
        self.job_limits = limits;
        self
    }

    /// Sets what the pools of the tasks do. With a [`QueryQueue`](memcg_datafusion::QueryQueue) a
    /// stage that fits alone is not failed: a task that is refused for room that others hold, before
    /// its first row is written, waits in line and runs again, with all its partitions. An executor has
    /// one queue; where the tenants are not children of the root, give
    /// [`queue.tenants_of`](memcg_datafusion::QueryQueue::tenants_of) with their parent. Files of a
    /// shuffle can be read again; other parts of plans that are not DataFusion's own are
    /// [declared](PoolConfig::repeatable), or their tasks do not run again.
    pub fn pool(mut self, config: PoolConfig) -> GroupEngine {
        self.pool = config
            .repeatable::<ShuffleReaderExec>()
            .repeatable::<RangeShuffleReaderExec>();
        self
    }

    /// Has `inner` run the tasks. The default is a `DefaultExecutionEngine` without a client pool:
    /// each fetch of shuffle data from another executor opens a connection. Give one with a pool
    /// where that matters. A stage that `inner` makes runs the plan that it is given, with the
    /// memory pool of the context that it is given.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use ballista_executor::execution_engine::DefaultExecutionEngine;
    /// use memcg::Runtime;
    /// use memcg_ballista::GroupEngine;
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let engine = GroupEngine::new(&runtime.root()).over(Arc::new(DefaultExecutionEngine::new()));
    /// # let _ = engine;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn over(mut self, inner: Arc<dyn ExecutionEngine>) -> GroupEngine {
        self.inner = inner;
        self
    }

    fn tenant(&self, config: &SessionConfig) -> Result<Group> {
        let name = (self.tenant_of)(config);
        let named = name.as_ref().and_then(|name| {
            self.tenants
                .children()
                .into_iter()
                .find(|group| group.name() == *name)
        });
        match (named.or_else(|| self.others.clone()), name) {
            (Some(group), _) => Ok(group),
            (None, Some(name)) => {
                let path = self.tenants.path();
                config_err!(
                    "no tenant {name:?} in {path}: create its group, or set GroupEngine::other_tenants"
                )
            }
            (None, None) => config_err!(
                "the session names no tenant: set memcg.tenant, with memcg_ballista::config_producer at the scheduler \
                 and the executors, or set GroupEngine::other_tenants"
            ),
        }
    }
}

impl ExecutionEngine for GroupEngine {
    fn create_query_stage_exec(
        &self,
        job_id: JobId,
        stage_id: usize,
        task_id: usize,
        global_output_partition_ids: Vec<usize>,
        plan: Arc<dyn ExecutionPlan>,
        work_dir: &str,
        config: &SessionConfig,
    ) -> Result<Arc<dyn QueryStageExecutor>> {
        let place = Place {
            sessions: self.sessions.clone(),
            tree: Arc::clone(&self.tree),
            tenant: self.tenant(config)?,
            job: job_id.to_string(),
            job_limits: self.job_limits,
            stage: stage_id,
            pool: self.pool.clone(),
        };
        let shared = Arc::new(Shared::default());
        let inner = self.inner.create_query_stage_exec(
            job_id,
            stage_id,
            task_id,
            global_output_partition_ids,
            TaskExec::below(plan, &shared)?,
            work_dir,
            config,
        )?;
        Ok(Arc::new(GroupStage {
            inner,
            place,
            shared,
        }))
    }
}

impl fmt::Debug for GroupEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupEngine")
            .field("tenants", &self.tenants)
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}
