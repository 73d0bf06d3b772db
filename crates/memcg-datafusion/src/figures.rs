//! Figures of groups as tables: `memcg.groups` and `memcg.queries`, for SQL of an operator.
//!
//! Tenants share the catalogs of the service, so the tables are in none of them. A session shows
//! them where the service asks for it, and no session of a group that is made from it does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use async_trait::async_trait;
use datafusion::arrow::array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::{
    CatalogProvider, CatalogProviderList, SchemaProvider, Session, TableProvider,
};
use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;
use futures::future::{BoxFuture, ready};
use memcg::Group;

use crate::ended::Life;

/// Name of the schema in the default catalog.
const SCHEMA: &str = "memcg";
const GROUPS: &str = "groups";
const QUERIES: &str = "queries";

// === Queries that run ===

/// The plans of the process that run in groups.
static RUNNING: Mutex<Vec<Weak<RunningPlan>>> = Mutex::new(Vec::new());

fn running() -> MutexGuard<'static, Vec<Weak<RunningPlan>>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A plan that runs in a group.
#[derive(Debug)]
pub(crate) struct RunningPlan {
    life: Arc<Life>,
    since: Instant,
    /// Partitions that run. Relaxed: a figure.
    partitions: AtomicUsize,
}

/// A partition of a plan that runs, for as long as its stream.
#[derive(Debug)]
pub(crate) struct RunningPartition(Arc<RunningPlan>);

impl RunningPartition {
    /// A partition of a plan that begins in the group of `life`. `plan` has those that run already,
    /// and is shown until the last of them is dropped.
    pub(crate) fn begins(life: &Arc<Life>, plan: &mut Weak<RunningPlan>) -> RunningPartition {
        let is_same = |plan: &Arc<RunningPlan>| Arc::ptr_eq(&plan.life, life);
        let running_plan = plan.upgrade().filter(is_same).unwrap_or_else(|| {
            let begins = Arc::new(RunningPlan {
                life: Arc::clone(life),
                since: Instant::now(),
                partitions: AtomicUsize::new(0),
            });
            *plan = Arc::downgrade(&begins);
            let mut running = running();
            running.retain(|plan| plan.strong_count() > 0);
            running.push(Weak::clone(plan));
            begins
        });
        running_plan.partitions.fetch_add(1, Ordering::Relaxed);
        RunningPartition(running_plan)
    }
}

impl Drop for RunningPartition {
    fn drop(&mut self) {
        self.0.partitions.fetch_sub(1, Ordering::Relaxed);
    }
}

// === Tables ===

/// The figures of a group and of all below it.
#[derive(Clone, Copy, Debug)]
enum Figures {
    Groups,
    Queries,
}

impl Figures {
    fn of(name: &str) -> Option<Figures> {
        match name {
            GROUPS => Some(Figures::Groups),
            QUERIES => Some(Figures::Queries),
            _ => None,
        }
    }

    fn schema(self) -> SchemaRef {
        let figure = |name: &&str| Field::new(*name, DataType::UInt64, false);
        let path = Field::new("path", DataType::Utf8, false);
        let mut fields = vec![path];
        match self {
            Figures::Groups => {
                fields.extend(["usage", "live"].iter().map(figure));
                fields.push(Field::new("max", DataType::UInt64, true));
                fields.extend(["low", "refused", "waiting"].iter().map(figure));
                fields.push(Field::new("waited_seconds", DataType::Float64, false));
                fields.extend(["peak_live_min", "peak_live_max"].iter().map(figure));
            }
            Figures::Queries => {
                fields.push(Field::new("seconds", DataType::Float64, false));
                let rest = ["partitions", "refused", "waits", "usage"];
                fields.extend(rest.iter().map(figure));
            }
        }
        Arc::new(Schema::new(fields))
    }

    fn rows(self, below: &Group) -> Result<RecordBatch> {
        let columns = match self {
            Figures::Groups => groups(below),
            Figures::Queries => queries(below),
        };
        Ok(RecordBatch::try_new(self.schema(), columns)?)
    }
}

fn figures<T>(of: &[T], figure: impl Fn(&T) -> u64) -> ArrayRef {
    Arc::new(UInt64Array::from_iter_values(of.iter().map(figure)))
}

fn texts<T>(of: &[T], text: impl Fn(&T) -> String) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(of.iter().map(text)))
}

fn groups(below: &Group) -> Vec<ArrayRef> {
    let mut groups = vec![below.clone()];
    groups.extend(below.inspect().descendants());
    let max = |group: &Group| Some(group.max()).filter(|max| *max < u64::MAX);
    let waited = |group: &Group| group.pressure().some.total.as_secs_f64();
    vec![
        texts(&groups, Group::path),
        figures(&groups, Group::usage),
        figures(&groups, Group::live),
        Arc::new(UInt64Array::from_iter(groups.iter().map(max))),
        figures(&groups, |group| group.inspect().low()),
        figures(&groups, Group::refused_count),
        figures(&groups, |group| group.waiting_count() as u64),
        Arc::new(Float64Array::from_iter_values(groups.iter().map(waited))),
        figures(&groups, |group| group.peak_live().min()),
        figures(&groups, |group| group.peak_live().max()),
    ]
}

fn queries(below: &Group) -> Vec<ArrayRef> {
    // Without the lock: the last handle of a group may call listeners.
    let running: Vec<_> = running().iter().filter_map(Weak::upgrade).collect();
    let is_below = |plan: &&Arc<RunningPlan>| {
        let group = plan.life.group();
        group == below || group.ancestors().any(|above| &above == below)
    };
    // One whose last partition has ended may be on its way out.
    let plans = running.iter().filter(is_below);
    let plans: Vec<_> = plans
        .filter(|plan| plan.partitions.load(Ordering::Relaxed) > 0)
        .collect();
    let seconds = plans.iter().map(|plan| plan.since.elapsed().as_secs_f64());
    let count = |count: &AtomicUsize| count.load(Ordering::Relaxed) as u64;
    vec![
        texts(&plans, |plan| plan.life.group().path()),
        Arc::new(Float64Array::from_iter_values(seconds)),
        figures(&plans, |plan| count(&plan.partitions)),
        figures(&plans, |plan| count(&plan.life.refusals)),
        figures(&plans, |plan| count(&plan.life.waits)),
        figures(&plans, |plan| plan.life.group().usage()),
    ]
}

/// A table whose rows are read at each scan.
#[derive(Debug)]
struct FiguresTable {
    figures: Figures,
    below: Group,
}

impl TableProvider for FiguresTable {
    fn schema(&self) -> SchemaRef {
        self.figures.schema()
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    // Written out, as those of a marked table.
    fn scan<'table, 'session, 'columns, 'filters, 'future>(
        &'table self,
        session: &'session dyn Session,
        projection: Option<&'columns Vec<usize>>,
        _: &'filters [Expr],
        _: Option<usize>,
    ) -> BoxFuture<'future, Result<Arc<dyn ExecutionPlan>>>
    where
        'table: 'future,
        'session: 'future,
        'columns: 'future,
        'filters: 'future,
    {
        Box::pin(ready(self.rows(session, projection)))
    }
}

impl FiguresTable {
    fn rows(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let rows = vec![self.figures.rows(&self.below)?];
        let source = MemorySourceConfig::try_new(&[rows], self.schema(), projection.cloned())?
            .with_show_sizes(session.config_options().explain.show_sizes);
        Ok(DataSourceExec::from_data_source(source))
    }
}

// === Catalogs ===

/// The catalogs of a session, with the schema `memcg` in its default catalog.
#[derive(Debug)]
pub(crate) struct WithFigures {
    pub(crate) catalogs: Arc<dyn CatalogProviderList>,
    default: String,
    below: Group,
}

impl WithFigures {
    pub(crate) fn over(state: &SessionState, below: &Group) -> Arc<dyn CatalogProviderList> {
        let catalogs = state.catalog_list();
        let catalogs = match catalogs.downcast_ref::<WithFigures>() {
            Some(with) => &with.catalogs,
            None => catalogs,
        };
        Arc::new(WithFigures {
            catalogs: Arc::clone(catalogs),
            default: state.config_options().catalog.default_catalog.clone(),
            below: below.clone(),
        })
    }
}

impl CatalogProviderList for WithFigures {
    fn register_catalog(
        &self,
        name: String,
        catalog: Arc<dyn CatalogProvider>,
    ) -> Option<Arc<dyn CatalogProvider>> {
        let catalog = match catalog.downcast_ref::<CatalogWithFigures>() {
            Some(with) => Arc::clone(&with.catalog),
            None => catalog,
        };
        self.catalogs.register_catalog(name, catalog)
    }

    fn catalog_names(&self) -> Vec<String> {
        self.catalogs.catalog_names()
    }

    fn catalog(&self, name: &str) -> Option<Arc<dyn CatalogProvider>> {
        let catalog = self.catalogs.catalog(name)?;
        if name != self.default {
            return Some(catalog);
        }
        let below = self.below.clone();
        Some(Arc::new(CatalogWithFigures { catalog, below }))
    }
}

#[derive(Debug)]
struct CatalogWithFigures {
    catalog: Arc<dyn CatalogProvider>,
    below: Group,
}

impl CatalogProvider for CatalogWithFigures {
    fn schema_names(&self) -> Vec<String> {
        let mut names = self.catalog.schema_names();
        names.retain(|name| name != SCHEMA);
        names.push(SCHEMA.to_string());
        names
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        if name == SCHEMA {
            let below = self.below.clone();
            return Some(Arc::new(FiguresSchema { below }));
        }
        self.catalog.schema(name)
    }

    fn register_schema(
        &self,
        name: &str,
        schema: Arc<dyn SchemaProvider>,
    ) -> Result<Option<Arc<dyn SchemaProvider>>> {
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
struct FiguresSchema {
    below: Group,
}

#[async_trait]
impl SchemaProvider for FiguresSchema {
    fn table_names(&self) -> Vec<String> {
        vec![GROUPS.to_string(), QUERIES.to_string()]
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>, DataFusionError> {
        Ok(Figures::of(name).map(|figures| {
            let below = self.below.clone();
            Arc::new(FiguresTable { figures, below }) as Arc<dyn TableProvider>
        }))
    }

    fn table_exist(&self, name: &str) -> bool {
        Figures::of(name).is_some()
    }
}
