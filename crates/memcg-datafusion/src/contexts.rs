//! Contexts of a plan's run that are those of another one, with something in its place.

use std::sync::Arc;

use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::prelude::SessionConfig;

/// Returns `context` with another pool of the same session.
pub(crate) fn context_of_pool(
    context: &TaskContext,
    memory_pool: Arc<dyn MemoryPool>,
) -> Arc<TaskContext> {
    let env = RuntimeEnv {
        memory_pool,
        ..RuntimeEnv::clone(&context.runtime_env())
    };
    context_in(context, Arc::new(env))
}

pub(crate) fn context_in(context: &TaskContext, env: Arc<RuntimeEnv>) -> Arc<TaskContext> {
    context_of(context, context.session_config().clone(), env)
}

pub(crate) fn context_of(
    context: &TaskContext,
    config: SessionConfig,
    env: Arc<RuntimeEnv>,
) -> Arc<TaskContext> {
    Arc::new(TaskContext::new(
        context.task_id(),
        context.session_id(),
        config,
        context.scalar_functions().clone(),
        context.higher_order_functions().clone(),
        context.aggregate_functions().clone(),
        context.window_functions().clone(),
        env,
    ))
}
