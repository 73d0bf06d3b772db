//! Frames of a query that a session outside of its group reads.
//!
//! `base_frame.join(query_frame)` runs in the session of `base_frame`, and would be charged to no
//! group. So the tables of a group's session have marks (`tables.rs`), and the plan of a query's
//! frame has one at its root, for plans that read no table. A session of a group takes the marks
//! off, and its group is charged for the rows. A session outside of all groups finds a mark in a
//! plan that it is to run, and refuses the plan.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchemaRef, Result, internal_err};
use datafusion::dataframe::DataFrame;
use datafusion::logical_expr::{
    Expr, Extension, InvariantLevel, LogicalPlan, UserDefinedLogicalNodeCore,
};

use crate::tables::{is_outside, without_marks};

/// A mark: the logical node above the plan of a query's frame. Each call of the frame copies its
/// root, and the rest of the plan is copied in the group, by the first rule.
#[derive(PartialEq, Eq, Hash, PartialOrd)]
struct OfGroup {
    input: Arc<LogicalPlan>,
    path: String,
}

/// Puts a mark at the root of a frame. A plan that gives no rows of a group, as `EXPLAIN` or
/// `COPY`, gets none.
pub(crate) fn marked(frame: DataFrame, path: String) -> DataFrame {
    let (state, plan) = frame.into_parts();
    let plan = match plan {
        plan @ (LogicalPlan::Analyze(_)
        | LogicalPlan::Copy(_)
        | LogicalPlan::Ddl(_)
        | LogicalPlan::DescribeTable(_)
        | LogicalPlan::Dml(_)
        | LogicalPlan::EmptyRelation(_)
        | LogicalPlan::Explain(_)
        | LogicalPlan::Statement(_)) => plan,
        input => LogicalPlan::Extension(Extension {
            node: Arc::new(OfGroup {
                input: Arc::new(input),
                path,
            }),
        }),
    };
    DataFrame::new(state, plan)
}

impl fmt::Debug for OfGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OfGroup: group={}", self.path)
    }
}

impl UserDefinedLogicalNodeCore for OfGroup {
    fn name(&self) -> &str {
        "OfGroup"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        self.input.schema()
    }

    fn check_invariants(&self, check: InvariantLevel) -> Result<()> {
        if check == InvariantLevel::Executable {
            return is_outside(&self.path);
        }
        Ok(())
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }

    fn with_exprs_and_inputs(
        &self,
        _expressions: Vec<Expr>,
        mut inputs: Vec<LogicalPlan>,
    ) -> Result<OfGroup> {
        match (inputs.pop(), inputs.is_empty()) {
            (Some(input), true) => Ok(OfGroup {
                input: Arc::new(input),
                path: self.path.clone(),
            }),
            _ => internal_err!("OfGroup has one input"),
        }
    }
}

/// Takes all marks off a plan: it runs in a group.
pub(crate) fn unmarked(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let off = |plan: LogicalPlan| {
        let LogicalPlan::Extension(Extension { node }) = &plan else {
            return Ok(Transformed::no(plan));
        };
        Ok(match node.as_any().downcast_ref::<OfGroup>() {
            Some(mark) => Transformed::yes(LogicalPlan::clone(&mark.input)),
            None => Transformed::no(plan),
        })
    };
    plan.transform_up_with_subqueries(off)?
        .transform_data(without_marks)
}
