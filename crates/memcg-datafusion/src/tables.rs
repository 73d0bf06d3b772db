//! Tables of a group's session, which say at each read in which session it is.
//!
//! A frame is a plan whose leaves are tables. `base_frame.join(group_frame)` runs in the session of
//! `base_frame`, whoever has made the other one, and by whatever call. So the catalogs and the
//! table functions of a group's session give tables with a mark. A session of a group takes the
//! marks off before its rules see the plan, so they find their own tables. A session outside of all
//! groups scans the table with its mark, which refuses.

use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{
    CatalogProvider, CatalogProviderList, ScanArgs, ScanResult, SchemaProvider, Session,
    TableFunction, TableFunctionArgs, TableFunctionImpl, TableProvider,
};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Constraints, DFSchemaRef, DataFusionError, Result, Statistics, plan_err};
use datafusion::datasource::{ViewTable, provider_as_source, source_as_provider};
use datafusion::logical_expr::dml::{InsertOp, MergeIntoClause};
use datafusion::logical_expr::{
    Expr, LogicalPlan, TableProviderFilterPushDown, TableSource, TableType,
};
use datafusion::physical_plan::ExecutionPlan;
use futures::future::{BoxFuture, ready};

use crate::figures::WithFigures;
use crate::pool::GroupPool;

/// The error of a session outside of all groups that is to read rows of a group.
pub(crate) fn is_outside<T>(path: &str) -> Result<T> {
    plan_err!(
        "rows of {path} are part of a frame of a session outside of the group: begin with the query's frame, as in \
         query_frame.join(other_frame)"
    )
}

/// Puts a mark on a table, in the place of one that it has.
pub(crate) fn marked(table: Arc<dyn TableProvider>, path: &Arc<str>) -> Arc<dyn TableProvider> {
    Arc::new(MarkedTable {
        table: unmarked(table),
        path: Arc::clone(path),
    })
}

fn unmarked(table: Arc<dyn TableProvider>) -> Arc<dyn TableProvider> {
    match table.downcast_ref::<MarkedTable>() {
        Some(marked) => Arc::clone(&marked.table),
        None => table,
    }
}

/// A table that a plan is to keep: that of a view that SQL makes has no mark below it.
fn kept(table: Arc<dyn TableProvider>) -> Result<Arc<dyn TableProvider>> {
    let table = unmarked(table);
    Ok(match table.downcast_ref::<ViewTable>() {
        Some(view) => Arc::new(ViewTable::new(
            without_marks(view.logical_plan().clone())?.data,
            view.definition().cloned(),
        )),
        None => table,
    })
}

/// Puts a mark on each table of a plan.
pub(crate) fn with_marks(plan: LogicalPlan, path: &Arc<str>) -> Result<Transformed<LogicalPlan>> {
    with_tables(plan, &|table| {
        let has = |marked: &MarkedTable| marked.path == *path;
        let is_marked = table.downcast_ref().is_some_and(has);
        (!is_marked).then(|| marked(Arc::clone(table), path))
    })
}

/// Takes the marks off the tables of a plan.
pub(crate) fn without_marks(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    with_tables(plan, &|table| {
        let marked = table.downcast_ref::<MarkedTable>();
        marked.map(|marked| Arc::clone(&marked.table))
    })
}

fn with_tables(
    plan: LogicalPlan,
    other: &impl Fn(&Arc<dyn TableProvider>) -> Option<Arc<dyn TableProvider>>,
) -> Result<Transformed<LogicalPlan>> {
    // A source of another kind is planned by its own planner.
    let other = |source: &Arc<dyn TableSource>| {
        let table = source_as_provider(source).ok()?;
        other(&table).map(provider_as_source)
    };
    plan.transform_down_with_subqueries(|mut node| {
        let source = match &mut node {
            LogicalPlan::TableScan(scan) => &mut scan.source,
            LogicalPlan::Dml(written) => &mut written.target,
            _ => return Ok(Transformed::no(node)),
        };
        Ok(match other(source) {
            Some(with) => {
                *source = with;
                Transformed::yes(node)
            }
            None => Transformed::no(node),
        })
    })
}

/// A table that a session of a group has given.
#[derive(Debug)]
struct MarkedTable {
    table: Arc<dyn TableProvider>,
    /// Path of the group.
    path: Arc<str>,
}

impl MarkedTable {
    /// The table, for a session that charges a group.
    fn of(&self, session: &dyn Session) -> Result<&Arc<dyn TableProvider>> {
        if session.runtime_env().memory_pool.is::<GroupPool>() {
            Ok(&self.table)
        } else {
            is_outside(&self.path)
        }
    }
}

#[async_trait]
impl TableProvider for MarkedTable {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn constraints(&self) -> Option<&Constraints> {
        self.table.constraints()
    }

    fn table_type(&self) -> TableType {
        self.table.table_type()
    }

    fn get_table_definition(&self) -> Option<&str> {
        self.table.get_table_definition()
    }

    /// The plan of a view takes its place in a frame, so its tables have marks.
    fn get_logical_plan(&self) -> Option<Cow<'_, LogicalPlan>> {
        let plan = self.table.get_logical_plan()?;
        let with_marks = with_marks(plan.into_owned(), &self.path).ok()?;
        Some(Cow::Owned(with_marks.data))
    }

    fn get_column_default(&self, column: &str) -> Option<&Expr> {
        self.table.get_column_default(column)
    }

    // Futures of `async fn` would hold the arguments. That such a future is `Send` the compiler proves
    // anew for each: an expression reaches all of SQL's syntax, and each would take it seconds.
    fn scan<'table, 'session, 'columns, 'filters, 'future>(
        &'table self,
        session: &'session dyn Session,
        projection: Option<&'columns Vec<usize>>,
        filters: &'filters [Expr],
        limit: Option<usize>,
    ) -> BoxFuture<'future, Result<Arc<dyn ExecutionPlan>>>
    where
        'table: 'future,
        'session: 'future,
        'columns: 'future,
        'filters: 'future,
    {
        match self.of(session) {
            Ok(table) => table.scan(session, projection, filters, limit),
            Err(outside) => refused(outside),
        }
    }

    fn scan_with_args<'args, 'table, 'session, 'future>(
        &'table self,
        session: &'session dyn Session,
        args: ScanArgs<'args>,
    ) -> BoxFuture<'future, Result<ScanResult>>
    where
        'args: 'future,
        'table: 'future,
        'session: 'future,
    {
        match self.of(session) {
            Ok(table) => table.scan_with_args(session, args),
            Err(outside) => refused(outside),
        }
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        self.table.supports_filters_pushdown(filters)
    }

    fn statistics(&self) -> Option<Statistics> {
        self.table.statistics()
    }

    async fn insert_into(
        &self,
        session: &dyn Session,
        input: Arc<dyn ExecutionPlan>,
        insert: InsertOp,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.of(session)?.insert_into(session, input, insert).await
    }

    fn delete_from<'table, 'session, 'future>(
        &'table self,
        session: &'session dyn Session,
        filters: Vec<Expr>,
    ) -> BoxFuture<'future, Result<Arc<dyn ExecutionPlan>>>
    where
        'table: 'future,
        'session: 'future,
    {
        match self.of(session) {
            Ok(table) => table.delete_from(session, filters),
            Err(outside) => refused(outside),
        }
    }

    fn update<'table, 'session, 'future>(
        &'table self,
        session: &'session dyn Session,
        assignments: Vec<(String, Expr)>,
        filters: Vec<Expr>,
    ) -> BoxFuture<'future, Result<Arc<dyn ExecutionPlan>>>
    where
        'table: 'future,
        'session: 'future,
    {
        match self.of(session) {
            Ok(table) => table.update(session, assignments, filters),
            Err(outside) => refused(outside),
        }
    }

    async fn truncate(&self, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
        self.of(session)?.truncate(session).await
    }

    fn merge_into<'table, 'session, 'future>(
        &'table self,
        session: &'session dyn Session,
        source: Arc<dyn ExecutionPlan>,
        schema: DFSchemaRef,
        on: Expr,
        clauses: Vec<MergeIntoClause>,
    ) -> BoxFuture<'future, Result<Arc<dyn ExecutionPlan>>>
    where
        'table: 'future,
        'session: 'future,
    {
        match self.of(session) {
            Ok(table) => table.merge_into(session, source, schema, on, clauses),
            Err(outside) => refused(outside),
        }
    }
}

fn refused<'future, T: Send + 'future>(outside: DataFusionError) -> BoxFuture<'future, Result<T>> {
    Box::pin(ready(Err(outside)))
}

/// The catalogs of a session, whose tables have marks. What is registered has none.
#[derive(Debug)]
pub(crate) struct MarkedCatalogs {
    catalogs: Arc<dyn CatalogProviderList>,
    path: Arc<str>,
}

impl MarkedCatalogs {
    pub(crate) fn over(
        catalogs: &Arc<dyn CatalogProviderList>,
        path: &Arc<str>,
    ) -> Arc<dyn CatalogProviderList> {
        // An operator's figures are for no session that is made from the operator's.
        let catalogs = catalogs
            .downcast_ref::<WithFigures>()
            .map_or(catalogs, |with| &with.catalogs);
        let catalogs = catalogs
            .downcast_ref::<MarkedCatalogs>()
            .map_or(catalogs, |marked| &marked.catalogs);
        Arc::new(MarkedCatalogs {
            catalogs: Arc::clone(catalogs),
            path: Arc::clone(path),
        })
    }
}

impl CatalogProviderList for MarkedCatalogs {
    fn register_catalog(
        &self,
        name: String,
        catalog: Arc<dyn CatalogProvider>,
    ) -> Option<Arc<dyn CatalogProvider>> {
        let catalog = match catalog.downcast_ref::<MarkedCatalog>() {
            Some(marked) => Arc::clone(&marked.catalog),
            None => catalog,
        };
        self.catalogs.register_catalog(name, catalog)
    }

    fn catalog_names(&self) -> Vec<String> {
        self.catalogs.catalog_names()
    }

    fn catalog(&self, name: &str) -> Option<Arc<dyn CatalogProvider>> {
        let catalog = self.catalogs.catalog(name)?;
        let path = Arc::clone(&self.path);
        Some(Arc::new(MarkedCatalog { catalog, path }))
    }
}

#[derive(Debug)]
struct MarkedCatalog {
    catalog: Arc<dyn CatalogProvider>,
    path: Arc<str>,
}

impl CatalogProvider for MarkedCatalog {
    fn schema_names(&self) -> Vec<String> {
        self.catalog.schema_names()
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        let schema = self.catalog.schema(name)?;
        let path = Arc::clone(&self.path);
        Some(Arc::new(MarkedSchema { schema, path }))
    }

    fn register_schema(
        &self,
        name: &str,
        schema: Arc<dyn SchemaProvider>,
    ) -> Result<Option<Arc<dyn SchemaProvider>>> {
        let schema = match schema.downcast_ref::<MarkedSchema>() {
            Some(marked) => Arc::clone(&marked.schema),
            None => schema,
        };
        self.catalog.register_schema(name, schema)
    }

    fn deregister_schema(
        &self,
        name: &str,
        cascade: bool,
    ) -> Result<Option<Arc<dyn SchemaProvider>>> {
        self.catalog.deregister_schema(name, cascade)
    }
}

#[derive(Debug)]
struct MarkedSchema {
    schema: Arc<dyn SchemaProvider>,
    path: Arc<str>,
}

#[async_trait]
impl SchemaProvider for MarkedSchema {
    fn owner_name(&self) -> Option<&str> {
        self.schema.owner_name()
    }

    fn table_names(&self) -> Vec<String> {
        self.schema.table_names()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>, DataFusionError> {
        let table = self.schema.table(name).await?;
        Ok(table.map(|table| marked(table, &self.path)))
    }

    async fn table_type(&self, name: &str) -> Result<Option<TableType>> {
        self.schema.table_type(name).await
    }

    fn register_table(
        &self,
        name: String,
        table: Arc<dyn TableProvider>,
    ) -> Result<Option<Arc<dyn TableProvider>>> {
        self.schema.register_table(name, kept(table)?)
    }

    fn deregister_table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        self.schema.deregister_table(name)
    }

    fn table_exist(&self, name: &str) -> bool {
        self.schema.table_exist(name)
    }
}

/// A function of a session that gives a table with a mark.
#[derive(Debug)]
struct MarkedFunction {
    function: Arc<dyn TableFunctionImpl>,
    path: Arc<str>,
}

/// The function of a session, for one of a group that is made from it.
pub(crate) fn marked_function(function: &TableFunction, path: &Arc<str>) -> Arc<TableFunction> {
    let any: &dyn Any = &**function.function();
    let own = match any.downcast_ref::<MarkedFunction>() {
        Some(marked) => &marked.function,
        None => function.function(),
    };
    let marked = MarkedFunction {
        function: Arc::clone(own),
        path: Arc::clone(path),
    };
    let name = function.name().to_string();
    Arc::new(TableFunction::new(name, Arc::new(marked)))
}

impl TableFunctionImpl for MarkedFunction {
    fn call_with_args(&self, args: TableFunctionArgs<'_, '_>) -> Result<Arc<dyn TableProvider>> {
        let table = self.function.call_with_args(args)?;
        Ok(marked(table, &self.path))
    }
}
