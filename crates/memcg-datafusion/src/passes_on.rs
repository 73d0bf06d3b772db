//! Common part of plans that pass on what their input gives.

/// The methods of an `ExecutionPlan` that passes on what its field `input` gives, but for `execute`
/// and `metrics`. The plan `$with` has another input, `$input`, and else what `$own` has. `$shown` is
/// the input to show, where that is another one. The adapter of Ballista has such a plan, too.
#[doc(hidden)]
#[macro_export]
macro_rules! passes_on {
    ($name:literal, |$own:ident, $input:ident| $with:expr) => {
        $crate::passes_on!($name, |$own, $input| $with, |own| &own.input);
    };
    ($name:literal, |$own:ident, $input:ident| $with:expr, |$this:ident| $shown:expr) => {
        fn name(&self) -> &str {
            $name
        }

        fn properties(&self) -> &::std::sync::Arc<::datafusion::physical_plan::PlanProperties> {
            self.input.properties()
        }

        fn maintains_input_order(&self) -> ::std::vec::Vec<bool> {
            ::std::vec![true]
        }

        fn benefits_from_input_partitioning(&self) -> ::std::vec::Vec<bool> {
            ::std::vec![false]
        }

        fn children(
            &self,
        ) -> ::std::vec::Vec<&::std::sync::Arc<dyn ::datafusion::physical_plan::ExecutionPlan>> {
            let $this = self;
            ::std::vec![$shown]
        }

        fn apply_expressions(
            &self,
            _visit: &mut dyn FnMut(
                &::std::sync::Arc<dyn ::datafusion::physical_expr::PhysicalExpr>,
            ) -> ::datafusion::common::Result<
                ::datafusion::common::tree_node::TreeNodeRecursion,
            >,
        ) -> ::datafusion::common::Result<::datafusion::common::tree_node::TreeNodeRecursion> {
            Ok(::datafusion::common::tree_node::TreeNodeRecursion::Continue)
        }

        fn replace_children(
            self: ::std::sync::Arc<Self>,
            mut children: ::std::vec::Vec<
                ::std::sync::Arc<dyn ::datafusion::physical_plan::ExecutionPlan>,
            >,
            _options: ::datafusion::physical_plan::execution_plan::ReplaceChildrenOptions,
        ) -> ::datafusion::common::Result<
            ::std::sync::Arc<dyn ::datafusion::physical_plan::ExecutionPlan>,
        > {
            let $own = self;
            match (children.pop(), children.is_empty()) {
                (Some($input), true) => Ok($with),
                _ => ::datafusion::common::internal_err!("{} has one child", $name),
            }
        }

        fn with_new_children(
            self: ::std::sync::Arc<Self>,
            children: ::std::vec::Vec<
                ::std::sync::Arc<dyn ::datafusion::physical_plan::ExecutionPlan>,
            >,
        ) -> ::datafusion::common::Result<
            ::std::sync::Arc<dyn ::datafusion::physical_plan::ExecutionPlan>,
        > {
            use ::datafusion::physical_plan::execution_plan::{
                ChildrenPropertiesMode, ReplaceChildrenOptions,
            };
            self.replace_children(
                children,
                ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
            )
        }

        fn child_stats_requests(
            &self,
            partition: Option<usize>,
        ) -> ::std::vec::Vec<::datafusion::physical_plan::statistics::ChildStats> {
            ::std::vec![::datafusion::physical_plan::statistics::ChildStats::At(
                partition
            )]
        }

        fn statistics_from_inputs(
            &self,
            inputs: &[::std::sync::Arc<::datafusion::common::Statistics>],
            _arguments: &::datafusion::physical_plan::statistics::StatisticsArgs,
        ) -> ::datafusion::common::Result<::std::sync::Arc<::datafusion::common::Statistics>> {
            match inputs {
                [input] => Ok(::std::sync::Arc::clone(input)),
                _ => ::datafusion::common::internal_err!("{} has one child", $name),
            }
        }

        fn supports_limit_pushdown(&self) -> bool {
            true
        }

        fn cardinality_effect(
            &self,
        ) -> ::datafusion::physical_plan::execution_plan::CardinalityEffect {
            ::datafusion::physical_plan::execution_plan::CardinalityEffect::Equal
        }
    };
}
