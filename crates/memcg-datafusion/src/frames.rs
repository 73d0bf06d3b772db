//! Frames of a query that a session outside of its group reads.
//!
//! `base_frame.join(query_frame)` runs in the session of `base_frame`, and would be charged to no
//! group. So the plan of a query's frame has a mark at its root. A session of a group takes the
//! mark off, and its group is charged for the rows. A session outside of all groups finds the mark
//! in a plan that it is to run, and refuses the plan.

use std::fmt;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchemaRef, Result, internal_err, plan_err};
use datafusion::dataframe::DataFrame;
use datafusion::logical_expr::{
    Expr, Extension, InvariantLevel, LogicalPlan, UserDefinedLogicalNodeCore,
};
use datafusion::optimizer::AnalyzerRule;

/// A mark: the logical node above the plan of a query's frame.
#[derive(PartialEq, Eq, Hash, PartialOrd)]
struct OfGroup {
    input: LogicalPlan,
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
            node: Arc::new(OfGroup { input, path }),
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
            return plan_err!(
                "rows of {} are part of a frame of a session outside of the group: begin with the query's frame, as in \
                 query_frame.join(other_frame)",
                self.path
            );
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
                input,
                path: self.path.clone(),
            }),
            _ => internal_err!("OfGroup has one input"),
        }
    }
}

/// Rule of a group's sessions that takes marks off a plan: the plan runs in the group.
#[derive(Debug)]
pub(crate) struct TakeMarksOff;

impl AnalyzerRule for TakeMarksOff {
    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        let off = |plan: LogicalPlan| {
            let LogicalPlan::Extension(Extension { node }) = &plan else {
                return Ok(Transformed::no(plan));
            };
            Ok(match node.as_any().downcast_ref::<OfGroup>() {
                Some(mark) => Transformed::yes(mark.input.clone()),
                None => Transformed::no(plan),
            })
        };
        Ok(plan.transform_up_with_subqueries(off)?.data)
    }

    fn name(&self) -> &str {
        "take_marks_off"
    }
}
