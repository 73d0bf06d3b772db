//! A task of a process whose allocator charges groups: what the task has reserved pays for what it
//! allocates itself.

use std::alloc::System;
use std::fmt;
use std::hint::black_box;
use std::sync::Arc;

use ballista_core::JobId;
use ballista_core::extension::SessionConfigExt;
use ballista_core::serde::protobuf::ShuffleWritePartition;
use ballista_executor::execution_engine::{ExecutionEngine, QueryStageExecutor};
use datafusion::arrow::datatypes::Schema;
use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::prelude::{SessionConfig, SessionContext};
use memcg::{Group, Limits, Runtime};
use memcg_alloc::{LARGE_OBJECTS, MemcgAlloc};
use memcg_ballista::{GroupEngine, TenantOptions};

#[global_allocator]
static ALLOCATOR: MemcgAlloc<System, LARGE_OBJECTS> = MemcgAlloc::with_threshold(System);

const MIB: u64 = 1 << 20;

/// An engine whose tasks do as a shuffle writer does: they reserve memory and allocate it in the
/// poll of the task.
#[derive(Debug)]
struct Writes;

impl ExecutionEngine for Writes {
    fn create_query_stage_exec(
        &self,
        _job_id: JobId,
        _stage_id: usize,
        _task_id: usize,
        _global_output_partition_ids: Vec<usize>,
        _plan: Arc<dyn ExecutionPlan>,
        _work_dir: &str,
        _config: &SessionConfig,
    ) -> Result<Arc<dyn QueryStageExecutor>> {
        Ok(Arc::new(Writes))
    }
}

impl fmt::Display for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Writes")
    }
}

#[async_trait::async_trait]
impl QueryStageExecutor for Writes {
    async fn execute_query_stage(
        &self,
        _task_id: usize,
        context: Arc<TaskContext>,
    ) -> Result<Vec<ShuffleWritePartition>> {
        let reserved = MemoryConsumer::new("ShuffleWriter").register(context.memory_pool());
        reserved.try_grow(8 << 20)?;
        let first = black_box(vec![1_u8; 2 << 20]);
        // A poll later.
        tokio::task::yield_now().await;
        let second = black_box(vec![1_u8; 2 << 20]);
        let group = Group::current().expect("a task is in its group");
        let ledger = group.ledger();
        assert_eq!(
            (ledger.reserved(), ledger.unpaid()),
            (8 * MIB, 0),
            "{ledger:?}"
        );
        assert!(ledger.allocated() >= 4 * MIB, "{ledger:?}");
        assert_eq!(group.live(), 8 * MIB, "paid once");
        drop((first, second));
        Ok(Vec::new())
    }

    fn collect_plan_metrics(&self) -> Vec<MetricsSet> {
        Vec::new()
    }
}

#[tokio::test]
async fn a_task_pays_once() {
    let runtime = Runtime::builder().build().unwrap();
    runtime.root().create("gold", Limits::new()).unwrap();
    let engine = GroupEngine::new(&runtime.root()).over(Arc::new(Writes));
    let config =
        SessionConfig::new_with_ballista().with_option_extension(TenantOptions::of("gold"));
    let session = SessionContext::new_with_config(config);
    let plan = Arc::new(EmptyExec::new(Arc::new(Schema::empty())));
    let stage = engine
        .create_query_stage_exec(
            "j1".into(),
            1,
            1,
            vec![0],
            plan,
            "",
            &session.copied_config(),
        )
        .unwrap();
    stage
        .execute_query_stage(1, session.task_ctx())
        .await
        .unwrap();
    drop(stage);
    runtime.settle();
    assert_eq!(runtime.root().live(), 0);
    let verdict = runtime.verify();
    assert!(verdict.is_ok(), "{verdict}");
}
