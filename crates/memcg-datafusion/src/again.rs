//! Means to run a query a second time.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::datasource::sink::DataSinkExec;
use datafusion::execution::SessionState;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::reset_plan_states;

pub(crate) type Plan = Arc<dyn ExecutionPlan>;

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
    pub(crate) async fn plan(self: Arc<Self>) -> Result<Plan> {
        match &*self {
            Again::Logical(logical) => {
                let plan = logical
                    .planner
                    .create_physical_plan(&logical.plan, &logical.state)
                    .await?;
                Ok(match plan.downcast_ref::<DataSinkExec>() {
                    Some(sink) => Arc::clone(sink.input()),
                    None => plan,
                })
            }
            Again::Physical(plan) => reset_plan_states(Arc::clone(plan)),
        }
    }
}
