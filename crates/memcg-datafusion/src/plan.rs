//! Execution in a group: the root of each plan runs in it, and ends with it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::Stream;
use futures::task::AtomicWaker;
use memcg::{Bytes, OnFull};

use crate::ended::Life;
use crate::pool::failed;
use crate::unreserved::Unreserved;

/// The last rule: it puts the whole plan into a group.
#[derive(Debug)]
pub(crate) struct RunInGroup {
    pub(crate) life: Arc<Life>,
    pub(crate) unreserved: Option<Arc<Unreserved>>,
}

impl RunInGroup {
    pub(crate) const NAME: &'static str = "run_in_group";
}

impl PhysicalOptimizerRule for RunInGroup {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(InGroupExec { input: plan, life: Arc::clone(&self.life), unreserved: self.unreserved.clone() }))
    }

    fn name(&self) -> &str {
        RunInGroup::NAME
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Passes on what its input gives. The input runs in the group, and the stream ends with an error when the group is
/// cancelled or offline, also while it waits, and where it has allocated too much that is not reserved. The drop of the
/// input then ends the tasks below.
#[derive(Debug)]
struct InGroupExec {
    input: Arc<dyn ExecutionPlan>,
    life: Arc<Life>,
    unreserved: Option<Arc<Unreserved>>,
}

impl DisplayAs for InGroupExec {
    fn fmt_as(&self, _kind: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InGroupExec: group={}", self.life.group().path())
    }
}

impl ExecutionPlan for InGroupExec {
    fn name(&self) -> &str {
        "InGroupExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
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
        match (children.pop(), children.is_empty()) {
            (Some(input), true) => {
                Ok(Arc::new(InGroupExec { input, life: Arc::clone(&self.life), unreserved: self.unreserved.clone() }))
            }
            _ => internal_err!("InGroupExec has one child"),
        }
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if let Some(ended) = self.life.ended() {
            return Err(ended.into_error());
        }
        let input = self.life.group().run(|| self.input.execute(partition, context))?;
        Ok(Box::pin(InGroupStream {
            schema: input.schema(),
            input: Some(input),
            waker: self.life.waker(),
            life: Arc::clone(&self.life),
            unreserved: self.unreserved.clone(),
            excess: None,
        }))
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        _arguments: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        match inputs {
            [input] => Ok(Arc::clone(input)),
            _ => internal_err!("InGroupExec has one child"),
        }
    }

    fn supports_limit_pushdown(&self) -> bool {
        true
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}

struct InGroupStream {
    schema: SchemaRef,
    /// `None`: it has ended.
    input: Option<SendableRecordBatchStream>,
    waker: Arc<AtomicWaker>,
    life: Arc<Life>,
    unreserved: Option<Arc<Unreserved>>,
    /// By how much the group was above its max at the last batch.
    excess: Option<u64>,
}

impl Stream for InGroupStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let Some(input) = &mut this.input else { return Poll::Ready(None) };
        // Registered before it looks, so no end is missed.
        this.waker.register(context.waker());
        if let Some(ended) = this.life.ended() {
            this.end();
            return Poll::Ready(Some(Err(ended.into_error())));
        }
        if let Some(error) = this.unreserved.as_ref().and_then(|unreserved| unreserved.error()) {
            this.end();
            return Poll::Ready(Some(Err(error)));
        }
        let polled = this.life.group().run(|| input.as_mut().poll_next(context));
        // An error is the last that comes, also where an operator would go on.
        if let Poll::Ready(None | Some(Err(_))) = polled {
            this.end();
        }
        if let Poll::Ready(Some(Ok(_))) = polled
            && let Err(error) = this.check()
        {
            this.end();
            return Poll::Ready(Some(Err(error)));
        }
        polled
    }
}

impl InGroupStream {
    /// The refusal of a query that allocates above its group's max and reserves nothing: no growth of it is refused. It
    /// ends where the group is above max at two batches, and no less at the second.
    fn check(&mut self) -> Result<()> {
        let group = self.life.group();
        if !group.limits().cover_allocations {
            return Ok(());
        }
        let before = self.excess.take();
        let excess = group.forced();
        if excess == 0 {
            return Ok(());
        }
        self.excess = Some(excess);
        if before.is_none_or(|before| excess < before) {
            return Ok(());
        }
        // What is allocated pays for a reservation of as much: one byte more adds to usage.
        let beyond = Bytes(group.usage().saturating_sub(group.ledger().reserved()).saturating_add(1));
        match group.raw().try_charge_with(beyond, OnFull::Now) {
            Ok(()) => group.uncharge(beyond),
            Err(error) => return failed("query", &error),
        }
        Ok(())
    }

    fn end(&mut self) {
        self.life.group().run(|| self.input = None);
    }
}

impl Drop for InGroupStream {
    fn drop(&mut self) {
        self.end();
    }
}

impl RecordBatchStream for InGroupStream {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}
