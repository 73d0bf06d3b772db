//! Trees, tasks of an engine without a cluster, and a cluster in this process.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arrow_flight::flight_service_server::FlightServiceServer;
use ballista::prelude::SessionContextExt;
use ballista_core::BALLISTA_PROTOCOL_VERSION;
use ballista_core::execution_plans::ShuffleWriterExec;
use ballista_core::extension::SessionConfigExt;
use ballista_core::ids::new_instance_id;
use ballista_core::serde::BallistaCodec;
use ballista_core::serde::protobuf::ExecutorRegistration;
use ballista_core::serde::protobuf::ShuffleWritePartition;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::serde::scheduler::{
    ExecutorOperatingSystemSpecification, ExecutorSpecification,
};
use ballista_core::utils::{GrpcServerConfig, create_grpc_server, default_session_builder};
use ballista_executor::execution_engine::{ExecutionEngine, QueryStageExecutor};
use ballista_executor::execution_loop::poll_loop;
use ballista_executor::executor::Executor;
use ballista_executor::flight_service::BallistaFlightService;
use ballista_executor::health::ExecutorHealth;
use ballista_executor::metrics::LoggingMetricsCollector;
use ballista_scheduler::standalone::new_standalone_scheduler_with_builder;
use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::common::Result;
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::datasource::MemTable;
use datafusion::execution::{SendableRecordBatchStream, SessionStateBuilder, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::{SessionConfig, SessionContext};
use memcg::{Limit, Limits, Runtime};
use memcg_ballista::{GroupEngine, TenantOptions, config_producer};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;

pub(crate) const MIB: u64 = 1 << 20;

// === The tree ===

pub(crate) fn runtime(max: u64) -> Runtime {
    Runtime::builder()
        .audit(true)
        .max(Limit::Bytes(max))
        .build()
        .expect("a runtime")
}

pub(crate) fn limit(bytes: u64) -> Limits {
    Limits::new().max(Limit::Bytes(bytes))
}

/// Nothing is charged, no group of a task is left, and all counts add up.
#[track_caller]
pub(crate) fn assert_empty(runtime: &Runtime) {
    until("all bytes are back", || {
        runtime.settle();
        runtime.root().live() == 0 && runtime.dying_count() == 0
    });
    let left: Vec<_> = runtime
        .root()
        .children()
        .iter()
        .flat_map(|tenant| tenant.children())
        .collect();
    assert_eq!((left, runtime.counts().underflows), (vec![], 0));
    // Not once: a thread that nobody waits for may have given its bytes back, and take their credit
    // off its levels still.
    assert!(
        comes_true(|| runtime.verify().is_ok()),
        "{}",
        runtime.verify()
    );
}

#[track_caller]
pub(crate) fn until(what: &str, is: impl Fn() -> bool) {
    assert!(comes_true(is), "never: {what}");
}

/// Waits until something is so: for a minute, which is long in vain.
fn comes_true(is: impl Fn() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(60);
    while !is() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

// === Tasks ===

/// Rows of one batch, some 80 KiB.
const ROWS: usize = 1_000;

pub(crate) fn batch(number: usize) -> RecordBatch {
    let ids = (0..ROWS).map(|row| (number * ROWS + row) as i64);
    let texts = ids
        .clone()
        .map(|id| format!("{:060}", id.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64)));
    let columns: [(&str, ArrayRef); 2] = [
        ("id", Arc::new(Int64Array::from_iter_values(ids))),
        ("text", Arc::new(StringArray::from_iter_values(texts))),
    ];
    RecordBatch::try_from_iter(columns).expect("two columns of one length")
}

/// A table of so many batches in one partition.
pub(crate) fn rows(batches: usize) -> Arc<MemTable> {
    let table = MemTable::try_new(batch(0).schema(), vec![(0..batches).map(batch).collect()]);
    Arc::new(table.expect("a table"))
}

#[derive(Debug)]
struct Fed {
    schema: SchemaRef,
    fed: Mutex<Option<mpsc::Receiver<RecordBatch>>>,
}

impl PartitionStream for Fed {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let fed = self
            .fed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .expect("read once");
        let next = |mut fed: mpsc::Receiver<RecordBatch>| async {
            fed.recv().await.map(|batch| (Ok(batch), fed))
        };
        Box::pin(RecordBatchStreamAdapter::new(
            Arc::clone(&self.schema),
            futures::stream::unfold(fed, next),
        ))
    }
}

/// A session of a tenant as an executor has it, with settings that let small queries spill.
pub(crate) fn session_of(tenant: &str) -> SessionContext {
    let config = config_producer()()
        .with_target_partitions(1)
        .with_batch_size(ROWS)
        .with_sort_spill_reservation_bytes(256 << 10)
        .with_sort_in_place_threshold_bytes(64 << 10)
        .with_option_extension(TenantOptions::of(tenant));
    SessionContext::new_with_config(config)
}

/// A folder with a table of so many batches, in four Parquet files.
pub(crate) async fn parquet(batches: usize) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let writes = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    for file in 0..4 {
        let part = (file..batches).step_by(4).map(batch).collect();
        let table = MemTable::try_new(batch(0).schema(), vec![part]).expect("a table");
        let path = folder.path().join(format!("{file}.parquet"));
        let options = DataFrameWriteOptions::new().with_single_file_output(true);
        let rows = writes.read_table(Arc::new(table)).expect("a table");
        rows.write_parquet(&path.display().to_string(), options, None)
            .await
            .expect("a file");
    }
    folder
}

/// A sort of what is sent.
pub(crate) async fn fed_sort(
    session: &SessionContext,
) -> (mpsc::Sender<RecordBatch>, Arc<dyn ExecutionPlan>) {
    let (feed, fed) = mpsc::channel(1);
    let stream = Fed {
        schema: batch(0).schema(),
        fed: Mutex::new(Some(fed)),
    };
    let table =
        StreamingTable::try_new(batch(0).schema(), vec![Arc::new(stream)]).expect("a table");
    let rows = session.read_table(Arc::new(table)).expect("a table");
    let sorted = rows
        .sort(vec![datafusion::prelude::col("text").sort(true, false)])
        .expect("a column");
    (feed, sorted.create_physical_plan().await.expect("a plan"))
}

/// A task of a stage that writes the rows of `plan`.
pub(crate) struct Task {
    pub(crate) stage: Arc<dyn QueryStageExecutor>,
    context: Arc<TaskContext>,
    number: usize,
    _files: TempDir,
}

impl Task {
    pub(crate) fn new(
        engine: &dyn ExecutionEngine,
        session: &SessionContext,
        plan: Arc<dyn ExecutionPlan>,
        (job, stage, number): (&str, usize, usize),
    ) -> Result<Task> {
        let files = TempDir::new().expect("a folder");
        let dir = files.path().display().to_string();
        let writer = Arc::new(ShuffleWriterExec::try_new(
            job.into(),
            stage,
            plan,
            dir.clone(),
        )?);
        let config = session.copied_config();
        let partitions = writer.input_partition_count();
        let stage = engine.create_query_stage_exec(
            job.into(),
            stage,
            number,
            (0..partitions).collect(),
            writer,
            &dir,
            &config,
        )?;
        Ok(Task {
            stage,
            context: session.task_ctx(),
            number,
            _files: files,
        })
    }

    /// As an executor runs it.
    pub(crate) async fn run(&self) -> Result<Vec<ShuffleWritePartition>> {
        self.stage
            .execute_query_stage(self.number, Arc::clone(&self.context))
            .await
    }
}

// === A cluster ===

/// A scheduler and an executor of two slots in this process. Returns the scheduler's address.
pub(crate) async fn cluster(engine: GroupEngine, files: &TempDir) -> String {
    let scheduler = new_standalone_scheduler_with_builder(
        Arc::new(default_session_builder),
        config_producer(),
        BallistaCodec::default(),
    )
    .await
    .expect("a scheduler");
    let url = format!("http://localhost:{}", scheduler.port());
    let client = loop {
        match SchedulerGrpcClient::connect(url.clone()).await {
            Ok(client) => break client,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let listener = TcpListener::bind("localhost:0").await.expect("a port");
    let metadata = ExecutorRegistration {
        id: new_instance_id(),
        host: Some("localhost".to_string()),
        port: u32::from(listener.local_addr().expect("bound").port()),
        grpc_port: 0, // of tasks that are pushed; this one polls
        specification: Some(ExecutorSpecification::default().with_vcores(2).into()),
        os_info: Some(ExecutorOperatingSystemSpecification::default().into()),
        ballista_protocol_version: BALLISTA_PROTOCOL_VERSION,
    };
    let dir = files.path().display().to_string();
    let env = SessionContext::new().runtime_env();
    let executor = Executor::new(
        metadata,
        &dir,
        Arc::new(move |_| Ok(Arc::clone(&env))),
        config_producer(),
        Arc::default(),
        Arc::new(LoggingMetricsCollector::default()),
        2,
        Arc::new(engine),
    );
    let flight = FlightServiceServer::new(BallistaFlightService::new(dir));
    let server = create_grpc_server(&GrpcServerConfig::default()).add_service(flight);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let codec = BallistaCodec::default();
    tokio::spawn(poll_loop(
        client,
        Arc::new(executor),
        codec,
        None,
        None,
        ExecutorHealth::new(),
    ));
    url
}

/// A client of a tenant, with the tables of `files`.
pub(crate) async fn client(url: &str, tenant: &str, tables: &TempDir) -> SessionContext {
    let config = SessionConfig::new_with_ballista()
        .with_target_partitions(2)
        .with_option_extension(TenantOptions::of(tenant));
    let state = SessionStateBuilder::new()
        .with_config(config)
        .with_default_features()
        .build();
    let session = SessionContext::remote_with_state(url, state)
        .await
        .expect("a session");
    register(&session, tables).await;
    session
}

pub(crate) async fn register(session: &SessionContext, tables: &TempDir) {
    for table in ["orders", "lineitem"] {
        let path = tables
            .path()
            .join(format!("{table}.parquet"))
            .display()
            .to_string();
        session
            .register_parquet(table, &path, Default::default())
            .await
            .expect("a table");
    }
}
