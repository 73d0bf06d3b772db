//! With the queue the rows of a query are those that it gives without a limit, or it ends with an
//! error: whatever its plan reads.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use datafusion::arrow::array::{Int64Array, RecordBatch};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, Statistics};
use datafusion::datasource::memory::{DataSourceExec, MemorySourceConfig};
use datafusion::datasource::source::DataSource;
use datafusion::datasource::{MemTable, TableType};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Expr;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{
    Boundedness, EmissionType, ReplaceChildrenOptions,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties,
};
use datafusion::prelude::SessionContext;
use memcg::{Bytes, Limits};
use memcg_datafusion::{InGroupSession, PoolConfig, QueryQueue};

use crate::data::{MIB, assert_empty, batch, fed, limit, runtime, session_of, until};
use crate::queries::lines;

/// Max of the tenant, and the bytes of it that another group holds at first.
const MAX: u64 = 8 * MIB;
const HELD: u64 = 6 * MIB;
/// Rows of each source: as many as the table `rows` has.
const ROWS: i64 = 30_000;

/// What a source of a service does with its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Its plan hands the batches out once.
    PlanOnce,
    /// Its plan has an input, and gives the rows of that once.
    InnerOnce,
    /// Its scan takes the rows, and puts them into a plan of DataFusion.
    ScanOnce,
    /// The same behind a `DataSource` of its own.
    DataOnce,
    /// Its plan gives all rows each time.
    Anew,
}

/// Batches that are taken once, unless the source begins anew.
#[derive(Debug)]
struct Rows {
    source: Source,
    schema: SchemaRef,
    left: Mutex<Vec<RecordBatch>>,
}

impl Rows {
    fn take(&self) -> Vec<RecordBatch> {
        let mut left = self.left.lock().unwrap();
        if self.source == Source::Anew {
            left.clone()
        } else {
            std::mem::take(&mut *left)
        }
    }

    fn stream(&self) -> SendableRecordBatchStream {
        let batches = self.take().into_iter().map(Ok);
        Box::pin(RecordBatchStreamAdapter::new(
            Arc::clone(&self.schema),
            futures::stream::iter(batches),
        ))
    }
}

fn ids() -> Vec<RecordBatch> {
    let column = |from: i64| Arc::new(Int64Array::from_iter_values(from..from + 1_000)) as _;
    let batch = |from| RecordBatch::try_from_iter([("id", column(from))]).unwrap();
    (0..ROWS).step_by(1_000).map(batch).collect()
}

#[derive(Debug)]
struct ServiceTable {
    rows: Arc<Rows>,
}

impl ServiceTable {
    fn new(source: Source) -> ServiceTable {
        let left = ids();
        let schema = left[0].schema();
        ServiceTable {
            rows: Arc::new(Rows {
                source,
                schema,
                left: Mutex::new(left),
            }),
        }
    }

    fn plan(&self) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = Arc::clone(&self.rows.schema);
        let in_memory = |batches: Vec<RecordBatch>| -> Result<Arc<dyn ExecutionPlan>> {
            Ok(MemorySourceConfig::try_new_exec(
                &[batches],
                Arc::clone(&schema),
                None,
            )?)
        };
        Ok(match self.rows.source {
            Source::ScanOnce => in_memory(self.rows.take())?,
            Source::DataOnce => Arc::new(DataSourceExec::new(Arc::new(ServiceSource {
                rows: Arc::clone(&self.rows),
            }))),
            source => {
                let input = (source == Source::InnerOnce)
                    .then(|| in_memory(Vec::new()))
                    .transpose()?;
                let properties = PlanProperties::new(
                    EquivalenceProperties::new(schema),
                    Partitioning::UnknownPartitioning(1),
                    EmissionType::Incremental,
                    Boundedness::Bounded,
                );
                Arc::new(ServiceExec {
                    rows: Arc::clone(&self.rows),
                    input,
                    properties: Arc::new(properties),
                })
            }
        })
    }
}

impl TableProvider for ServiceTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.rows.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn scan<'a, 'b, 'c, 'd, 'e>(
        &'a self,
        _session: &'b dyn Session,
        _projection: Option<&'c Vec<usize>>,
        _filters: &'d [Expr],
        _limit: Option<usize>,
    ) -> Pin<Box<dyn Future<Output = Result<Arc<dyn ExecutionPlan>>> + Send + 'e>>
    where
        'a: 'e,
        'b: 'e,
        'c: 'e,
        'd: 'e,
        Self: 'e,
    {
        Box::pin(std::future::ready(self.plan()))
    }
}

#[derive(Debug)]
struct ServiceExec {
    rows: Arc<Rows>,
    input: Option<Arc<dyn ExecutionPlan>>,
    properties: Arc<PlanProperties>,
}

impl DisplayAs for ServiceExec {
    fn fmt_as(&self, _kind: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServiceExec")
    }
}

impl ExecutionPlan for ServiceExec {
    fn name(&self) -> &str {
        "ServiceExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.input.iter().collect()
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
        Ok(Arc::new(ServiceExec {
            rows: Arc::clone(&self.rows),
            input: children.pop(),
            properties: Arc::clone(&self.properties),
        }))
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(ServiceExec {
            rows: Arc::clone(&self.rows),
            input: children.pop(),
            properties: Arc::clone(&self.properties),
        }))
    }

    fn execute(
        &self,
        _partition: usize,
        _context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        Ok(self.rows.stream())
    }
}

#[derive(Debug)]
struct ServiceSource {
    rows: Arc<Rows>,
}

impl DataSource for ServiceSource {
    fn open(
        &self,
        _partition: usize,
        _context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        Ok(self.rows.stream())
    }

    fn fmt_as(&self, _kind: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServiceSource")
    }

    fn output_partitioning(&self) -> Partitioning {
        Partitioning::UnknownPartitioning(1)
    }

    fn eq_properties(&self) -> EquivalenceProperties {
        EquivalenceProperties::new(Arc::clone(&self.rows.schema))
    }

    fn partition_statistics(&self, _partition: Option<usize>) -> Result<Arc<Statistics>> {
        Ok(Arc::new(Statistics::new_unknown(&self.rows.schema)))
    }

    fn with_fetch(&self, _limit: Option<usize>) -> Option<Arc<dyn DataSource>> {
        None
    }

    fn fetch(&self) -> Option<usize> {
        None
    }

    fn try_swapping_with_projection(
        &self,
        _projection: &ProjectionExprs,
    ) -> Result<Option<Arc<dyn DataSource>>> {
        Ok(None)
    }

    fn apply_expressions(
        &self,
        _visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }
}

/// What a query reads, and if the queue runs it again.
#[derive(Clone, Copy, Debug)]
enum Leaf {
    Table(&'static str),
    Service(Source),
    /// A view of a table of the service.
    View(Source),
    /// In a subquery of an expression.
    InExpression(Source),
    /// Behind another table, whose rows come first.
    InUnion(Source),
    Stream,
}

const LEAVES: [(Leaf, bool); 15] = [
    (Leaf::Table("memory"), true),
    (Leaf::Table("csv"), true),
    (Leaf::Table("json"), true),
    (Leaf::Table("a_view"), true),
    (
        Leaf::Table("(SELECT value AS id FROM generate_series(0, 29999))"),
        true,
    ),
    (
        Leaf::Table(
            "(WITH RECURSIVE t AS (SELECT 0 AS id UNION ALL SELECT id + 1 FROM t WHERE id < 99) SELECT id FROM t)",
        ),
        true,
    ),
    (
        Leaf::Table("(SELECT column1 AS id FROM (VALUES (1), (2), (20000)))"),
        true,
    ),
    (Leaf::Service(Source::Anew), true),
    (Leaf::View(Source::Anew), true),
    (Leaf::Service(Source::PlanOnce), false),
    (Leaf::Service(Source::InnerOnce), false),
    (Leaf::Service(Source::ScanOnce), false),
    (Leaf::Service(Source::DataOnce), false),
    (Leaf::View(Source::ScanOnce), false),
    (Leaf::Stream, false),
];

/// The same, where the rows are read by a subquery of an expression, or by a part of a union.
const IN_OTHERS: [(Leaf, bool); 5] = [
    (Leaf::InExpression(Source::Anew), true),
    (Leaf::InExpression(Source::ScanOnce), false),
    (Leaf::InUnion(Source::Anew), true),
    (Leaf::InUnion(Source::PlanOnce), false),
    (Leaf::InUnion(Source::ScanOnce), false),
];

impl Leaf {
    /// Registers the leaf with all its rows, and returns the query that reads it beside a join that
    /// needs some 3 MiB.
    async fn query(self, session: &SessionContext) -> String {
        let of_service = |source| {
            let _ = session.deregister_table("leaf");
            session
                .register_table("leaf", Arc::new(ServiceTable::new(source)))
                .unwrap();
        };
        let from = match self {
            Leaf::Table(from) => from,
            Leaf::Service(source) => {
                of_service(source);
                "leaf"
            }
            Leaf::View(source) => {
                of_service(source);
                let view = "CREATE OR REPLACE VIEW of_leaf AS SELECT id FROM leaf";
                session.sql(view).await.unwrap().collect().await.unwrap();
                "of_leaf"
            }
            Leaf::InExpression(source) => {
                of_service(source);
                "(SELECT id FROM memory WHERE id IN (SELECT id FROM leaf WHERE id % 2 = 0))"
            }
            Leaf::InUnion(source) => {
                of_service(source);
                "(SELECT id FROM memory WHERE id < 99 UNION ALL SELECT id FROM leaf)"
            }
            Leaf::Stream => {
                let _ = session.deregister_table("stream");
                let feed = fed(session, "stream");
                tokio::spawn(async move {
                    for number in 0..30 {
                        if feed.send(batch(number)).await.is_err() {
                            break;
                        }
                    }
                });
                "stream"
            }
        };
        format!(
            "SELECT s.id, a.text, b.text AS other FROM rows a JOIN rows b ON a.key = b.key JOIN {from} s ON s.id = a.id \
             ORDER BY s.id"
        )
    }
}

/// The tables of DataFusion's own kinds, and a folder with their files.
async fn register(session: &SessionContext) -> Folder {
    let batches = ids();
    let table = MemTable::try_new(batches[0].schema(), vec![batches]).unwrap();
    session.register_table("memory", Arc::new(table)).unwrap();
    let folder = Folder::new();
    let mut csv = String::from("id\n");
    let mut json = String::new();
    for id in 0..ROWS {
        csv += &format!("{id}\n");
        json += &format!("{{\"id\": {id}}}\n");
    }
    std::fs::write(folder.0.join("ids.csv"), csv).unwrap();
    std::fs::write(folder.0.join("ids.json"), json).unwrap();
    for sql in [
        format!(
            "CREATE EXTERNAL TABLE csv (id BIGINT) STORED AS CSV LOCATION '{}' OPTIONS ('has_header' 'true')",
            folder.0.join("ids.csv").display()
        ),
        format!(
            "CREATE EXTERNAL TABLE json (id BIGINT) STORED AS JSON LOCATION '{}'",
            folder.0.join("ids.json").display()
        ),
        "CREATE VIEW a_view AS SELECT id FROM memory WHERE id > 3".to_string(),
    ] {
        session.sql(&sql).await.unwrap().collect().await.unwrap();
    }
    folder
}

/// A folder that goes with the value.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new() -> Folder {
        let folder = std::env::temp_dir().join(format!("memcg-repeats-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// For each kind of leaf: a query is refused for what another group holds, which then gives it back.
/// The query has the rows that it has without a limit, or an error. Only what is known to give the
/// same rows is read twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rows_are_those_without_a_limit_or_an_error_comes() {
    let session = session_of(1, 30);
    let _folder = register(&session).await;
    let runtime = runtime();
    let acme = runtime.root().create("acme", limit(MAX)).unwrap();
    let mut ended = 0;
    for (leaf, repeats) in LEAVES.into_iter().chain(IN_OTHERS) {
        let queue = QueryQueue::new(3, Duration::from_secs(3_600));
        let config = PoolConfig::new().queue(&queue);
        let config = if repeats {
            config
                .repeatable::<ServiceTable>()
                .repeatable::<ServiceExec>()
        } else {
            config.patience(Duration::from_secs(10))
        };
        let sql = leaf.query(&session).await;
        let expected = session.sql(&sql).await.unwrap().collect().await.unwrap();
        let sql = leaf.query(&session).await;
        let held = acme.charge(Bytes(HELD)).unwrap();
        let late = session
            .for_query(&acme, "late", Limits::new(), &config)
            .unwrap();
        let before = acme.refused_count();
        let frame = late.sql(&sql).await.unwrap();
        let rows = tokio::spawn(async move { frame.collect().await });
        until("it waits", || {
            let waits = if repeats {
                queue.counts().waiting == 1
            } else {
                acme.refused_count() > before + 2
            };
            rows.is_finished() || waits
        });
        drop(held);
        match rows.await.unwrap() {
            Ok(rows) => {
                ended += 1;
                assert!(lines(&rows) == lines(&expected), "{leaf:?}: other rows");
            }
            Err(error) => assert!(
                !repeats && matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)),
                "{leaf:?}: {error}"
            ),
        }
        drop(late);
        let restarts = queue.counts().restarts;
        assert_eq!(restarts > 0, repeats, "{leaf:?}: {restarts} restarts");
    }
    assert!(ended > LEAVES.len() / 2);
    acme.offline_tree();
    drop(acme);
    assert_empty(&runtime);
}
