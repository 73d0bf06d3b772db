//! Plans that give the same rows each time they run: the queue runs no other plan again.
//!
//! Nothing in a plan says if it can be read twice: a source may hand out its batches once, and give
//! no row the second time, without an error. So a query runs again only if each part of it is of a
//! type that is known to read anew: those of DataFusion in the lists below, and those that the
//! service has declared. A type that a new DataFusion adds is unknown until a list has it.

use std::any::{Any, TypeId};

use datafusion::common::Result;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::cte_worktable::CteWorkTable;
use datafusion::datasource::empty::EmptyTable;
use datafusion::datasource::listing::ListingTable;
use datafusion::datasource::memory::{DataSourceExec, MemorySourceConfig};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::{MemTable, ViewTable, source_as_provider};
use datafusion::functions_table::generate_series::GenerateSeriesTable;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::async_func::AsyncFuncExec;
use datafusion::physical_plan::buffer::BufferExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::execution_plan::Boundedness;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, PiecewiseMergeJoinExec, SortMergeJoinExec,
    SymmetricHashJoinExec,
};
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::memory::LazyMemoryExec;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::scalar_subquery::ScalarSubqueryExec;
use datafusion::physical_plan::sorts::partial_sort::PartialSortExec;
use datafusion::physical_plan::sorts::partitioned_topk::PartitionedTopKExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::work_table::WorkTableExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

/// Operators whose rows follow from those of their inputs, and sources that hold or make their rows
/// themselves.
fn is_known_plan(id: TypeId) -> bool {
    let known = [
        TypeId::of::<AggregateExec>(),
        TypeId::of::<AsyncFuncExec>(),
        TypeId::of::<BoundedWindowAggExec>(),
        TypeId::of::<BufferExec>(),
        TypeId::of::<CoalescePartitionsExec>(),
        TypeId::of::<CooperativeExec>(),
        TypeId::of::<CrossJoinExec>(),
        TypeId::of::<EmptyExec>(),
        TypeId::of::<FilterExec>(),
        TypeId::of::<GlobalLimitExec>(),
        TypeId::of::<HashJoinExec>(),
        TypeId::of::<InterleaveExec>(),
        // A generator promises a copy of itself that begins anew, which each run takes.
        TypeId::of::<LazyMemoryExec>(),
        TypeId::of::<LocalLimitExec>(),
        TypeId::of::<NestedLoopJoinExec>(),
        TypeId::of::<PartialSortExec>(),
        TypeId::of::<PartitionedTopKExec>(),
        TypeId::of::<PiecewiseMergeJoinExec>(),
        TypeId::of::<PlaceholderRowExec>(),
        TypeId::of::<ProjectionExec>(),
        TypeId::of::<RecursiveQueryExec>(),
        TypeId::of::<RepartitionExec>(),
        TypeId::of::<ScalarSubqueryExec>(),
        TypeId::of::<SortExec>(),
        TypeId::of::<SortMergeJoinExec>(),
        TypeId::of::<SortPreservingMergeExec>(),
        TypeId::of::<SymmetricHashJoinExec>(),
        TypeId::of::<UnionExec>(),
        TypeId::of::<UnnestExec>(),
        TypeId::of::<WindowAggExec>(),
        TypeId::of::<WorkTableExec>(),
    ];
    known.contains(&id)
}

/// Tables whose scan may be planned again. A scan of any other may fetch its rows while it is
/// planned, and leave none for the next one.
fn is_known_table(id: TypeId) -> bool {
    let known = [
        TypeId::of::<CteWorkTable>(),
        TypeId::of::<EmptyTable>(),
        TypeId::of::<GenerateSeriesTable>(),
        TypeId::of::<ListingTable>(),
        TypeId::of::<MemTable>(),
        TypeId::of::<ViewTable>(),
    ];
    known.contains(&id)
}

/// Sources of a `DataSourceExec`: batches in memory, and files, of whatever format.
fn is_known_source(id: TypeId) -> bool {
    id == TypeId::of::<MemorySourceConfig>() || id == TypeId::of::<FileScanConfig>()
}

/// The types that a service has declared to give the same rows each time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Repeatable {
    declared: Vec<TypeId>,
}

impl Repeatable {
    pub(crate) fn declare(&mut self, id: TypeId) {
        if !self.declared.contains(&id) {
            self.declared.push(id);
        }
    }

    fn is_declared(&self, id: TypeId) -> bool {
        self.declared.contains(&id)
    }

    /// A part of the plan that is not known to give the same rows again. `None`: the plan may run
    /// again.
    pub(crate) fn unknown_part(&self, plan: &dyn ExecutionPlan) -> Option<String> {
        if plan.boundedness() != Boundedness::Bounded {
            return Some(plan.name().to_string());
        }
        // The type of the node itself: one that wraps another may delegate a downcast to it.
        let any: &dyn Any = plan;
        let id = any.type_id();
        let is_known = match any.downcast_ref::<DataSourceExec>() {
            Some(scan) => {
                let source: &dyn Any = &**scan.data_source();
                is_known_source(source.type_id()) || self.is_declared(source.type_id())
            }
            None => is_known_plan(id),
        };
        if !is_known && !self.is_declared(id) {
            return Some(plan.name().to_string());
        }
        plan.children()
            .into_iter()
            .find_map(|child| self.unknown_part(&**child))
    }

    /// A part of the query whose plan is not known to give the same rows where it is made again:
    /// also one that writes.
    pub(crate) fn unknown_table(&self, plan: &LogicalPlan) -> Result<Option<String>> {
        let mut unknown = None;
        plan.apply_with_subqueries(|node| {
            unknown = match node {
                LogicalPlan::TableScan(scan) => match source_as_provider(&scan.source) {
                    Ok(table) => {
                        let any: &dyn Any = &*table;
                        let id = any.type_id();
                        if is_known_table(id) || self.is_declared(id) {
                            // A view reads other tables.
                            table
                                .get_logical_plan()
                                .map(|view| self.unknown_table(&view))
                                .transpose()?
                                .flatten()
                        } else {
                            Some(scan.table_name.to_string())
                        }
                    }
                    Err(_) => Some(scan.table_name.to_string()),
                },
                LogicalPlan::Extension(extension) => {
                    let id = extension.node.as_any().type_id();
                    (!self.is_declared(id)).then(|| extension.node.name().to_string())
                }
                _ => None,
            };
            Ok(if unknown.is_some() {
                TreeNodeRecursion::Stop
            } else {
                TreeNodeRecursion::Continue
            })
        })?;
        Ok(unknown)
    }
}
