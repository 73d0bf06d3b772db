//! Rules of a group's session: those of its session, which run in the group, between two for marks.
//!
//! A session of a group hands out plans at three stages: as they are made, analyzed and optimized.
//! At each stage the marks go before the first rule, and those of tables come back after the last
//! one. So a rule of the service finds its own tables, and a plan of no stage leaves the group.

use std::iter;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::{
    Analyzer, AnalyzerRule, ApplyOrder, Optimizer, OptimizerConfig, OptimizerRule,
};
use memcg::Group;

use crate::frames::unmarked;
use crate::tables::with_marks;

type AnalyzerRuleRef = Arc<dyn AnalyzerRule + Send + Sync>;
type OptimizerRuleRef = Arc<dyn OptimizerRule + Send + Sync>;

/// The rules of a session, and the same as they run in a group.
pub(crate) struct Rules {
    analyzer: Vec<InGroupRule<AnalyzerRuleRef>>,
    optimizer: Vec<InGroupRule<OptimizerRuleRef>>,
}

/// A rule of the session, and what runs it in the group.
struct InGroupRule<R> {
    of_session: R,
    in_group: R,
}

impl Rules {
    /// The rules of a session, for one in a group that is made from it. `before`: the session is in
    /// a group already, and these are its rules.
    pub(crate) fn of(state: &SessionState, before: Option<&Rules>, group: &Group) -> Rules {
        let path = group.path().into();
        let [take_off, put_on] = [Arc::new(Marks::Off), Arc::new(Marks::On(path))];
        let analyzer = in_group(
            &state.analyzer().rules,
            before.map_or(&[], |rules| &rules.analyzer),
            [Arc::clone(&take_off) as _, Arc::clone(&put_on) as _],
            |rule| rule.name(),
            |rule| Arc::new(RuleInGroup::over(rule, group)),
        );
        let optimizer = in_group(
            state.optimizers(),
            before.map_or(&[], |rules| &rules.optimizer),
            [take_off, put_on],
            |rule| rule.name(),
            |rule| Arc::new(RuleInGroup::over(rule, group)),
        );
        Rules {
            analyzer,
            optimizer,
        }
    }

    /// The session's analyzer, with the rules in the group.
    pub(crate) fn analyzer(&self, of_session: &Analyzer) -> Analyzer {
        let rules = self.analyzer.iter();
        let rules = rules.map(|rule| Arc::clone(&rule.in_group)).collect();
        let function_rewrites = of_session.function_rewrites.clone();
        Analyzer {
            function_rewrites,
            rules,
        }
    }

    /// The same of the optimizer.
    pub(crate) fn optimizer(&self) -> Optimizer {
        let rules = self.optimizer.iter();
        Optimizer::with_rules(rules.map(|rule| Arc::clone(&rule.in_group)).collect())
    }
}

/// The rules of a session between the first and the last one, each with what runs it in a group.
/// `before`: those of a session that is in a group already.
fn in_group<R: ?Sized>(
    rules: &[Arc<R>],
    before: &[InGroupRule<Arc<R>>],
    [first, last]: [Arc<R>; 2],
    name: fn(&R) -> &str,
    over: impl Fn(&Arc<R>) -> Arc<R>,
) -> Vec<InGroupRule<Arc<R>>> {
    let of_session = |rule: &Arc<R>| {
        let known = |known: &&InGroupRule<Arc<R>>| Arc::ptr_eq(&known.in_group, rule);
        let known = before.iter().find(known);
        Arc::clone(known.map_or(rule, |known| &known.of_session))
    };
    let is_for_marks = |rule: &Arc<R>| [Marks::OFF, Marks::ON].contains(&name(rule));
    let own = rules
        .iter()
        .map(of_session)
        .filter(|rule| !is_for_marks(rule));
    let all = iter::once(first).chain(own).chain(iter::once(last));
    all.map(|of_session| InGroupRule {
        in_group: over(&of_session),
        of_session,
    })
    .collect()
}

/// A rule that runs in a group: what it allocates is the group's.
#[derive(Debug)]
struct RuleInGroup<R> {
    rule: R,
    group: Group,
}

impl<R> RuleInGroup<Arc<R>>
where
    R: ?Sized,
{
    fn over(rule: &Arc<R>, group: &Group) -> RuleInGroup<Arc<R>> {
        RuleInGroup {
            rule: Arc::clone(rule),
            group: group.clone(),
        }
    }
}

impl AnalyzerRule for RuleInGroup<AnalyzerRuleRef> {
    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        self.group.run(|| self.rule.analyze(plan, config))
    }

    fn name(&self) -> &str {
        self.rule.name()
    }
}

impl OptimizerRule for RuleInGroup<OptimizerRuleRef> {
    fn name(&self) -> &str {
        self.rule.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.rule.apply_order()
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        self.group.run(|| self.rule.rewrite(plan, config))
    }
}

/// The first rule, which takes the marks off a plan, and the last one, which puts marks on its
/// tables.
#[derive(Debug)]
enum Marks {
    Off,
    /// The path of the group.
    On(Arc<str>),
}

impl Marks {
    const OFF: &str = "take_marks_off";
    const ON: &str = "put_marks_on";

    fn name(&self) -> &str {
        match self {
            Marks::Off => Marks::OFF,
            Marks::On(_) => Marks::ON,
        }
    }

    fn rewrite(&self, plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        match self {
            Marks::Off => unmarked(plan),
            Marks::On(path) => with_marks(plan, path),
        }
    }
}

impl AnalyzerRule for Marks {
    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(self.rewrite(plan)?.data)
    }

    fn name(&self) -> &str {
        self.name()
    }
}

impl OptimizerRule for Marks {
    fn name(&self) -> &str {
        self.name()
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        self.rewrite(plan)
    }
}
