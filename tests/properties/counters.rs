//! The tree against its naive twin, over random operations.
//!
//! After every operation, for every counter: `live()` is what was charged and not uncharged; usage
//! is that and the stock; the stock is within its published bound and the budget; a charge is
//! admitted exactly when there is room for what is live, and refused at the first level without; a
//! limit is busy exactly when more is live; usage without the forced excess is within the limit;
//! the protection sums are a recount; the peak of live units lies between its bounds, which one
//! thread makes one number. Concurrency is the business of the models and of the stress
//! test: the threads here take turns.

use memcg::PageCounter;
use proptest::prelude::*;
use proptest::sample::select;

use crate::oracle::counters::ops::{Action, BATCHES, Op, SIZES, Setup, Size};
use crate::oracle::counters::run::run;

fn units() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..300_u64, 2 => select(&SIZES[..12]), 1 => select(&SIZES[..])]
}

fn limits() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..2_000_u64, 1 => select(&SIZES[..]), 1 => Just(PageCounter::UNLIMITED)]
}

fn actions() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => Just(Action::Child),
        2 => Just(Action::DropHandle),
        16 => units().prop_map(|units| Action::TryCharge(Size::Units(units))),
        8 => Just(Action::TryCharge(Size::Units(1))),
        2 => Just(Action::TryCharge(Size::Margin)),
        2 => Just(Action::TryCharge(Size::Beyond)),
        3 => units().prop_map(Action::Charge),
        12 => units().prop_map(Action::Uncharge),
        3 => limits().prop_map(Action::SetMax),
        3 => (0..3_000_u64).prop_map(Action::SetMaxAbove),
        2 => units().prop_map(Action::SetMin),
        2 => units().prop_map(Action::SetLow),
        2 => select(&BATCHES[..]).prop_map(Action::SetBatch),
        1 => Just(Action::Drain),
        2 => Just(Action::Exit),
    ]
}

fn ops(length: usize) -> impl Strategy<Value = Vec<Op>> {
    let op = (0..3_u8, any::<u8>(), actions()).prop_map(|(thread, subject, action)| Op {
        thread,
        subject,
        action,
    });
    prop::collection::vec(op, 0..length)
}

/// Fences, declarations, audits, batches, budgets and root limits of all kinds; whether the stock
/// adapts is the caller's.
fn setups(adaptive: bool) -> impl Strategy<Value = Setup> {
    let budgets = prop_oneof![
        4 => Just(None),
        1 => (0..300_u64).prop_map(Some),
        1 => Just(Some(1 << 20)),
    ];
    let max = prop_oneof![3 => Just(PageCounter::UNLIMITED), 2 => 0..5_000_u64, 1 => Just(1 << 40)];
    (
        select(&BATCHES[..]),
        any::<[bool; 2]>(),
        prop::bool::weighted(0.8),
        budgets,
        max,
    )
        .prop_map(
            move |(batch, [fence, declares], audit, budget, max)| Setup {
                batch,
                adaptive,
                audit,
                fence,
                declares,
                budget,
                max,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..crate::config() })]

    #[test]
    fn a_fixed_stock_agrees_with_the_twin(setup in setups(false), ops in ops(80)) {
        run(&setup, &ops);
    }

    #[test]
    fn one_thread_knows_its_peaks(
        [adaptive, fence] in any::<[bool; 2]>(),
        audit in any::<bool>(),
        batch in select(&BATCHES[..]),
        mut ops in ops(200),
    ) {
        ops.retain_mut(|op| {
            op.thread = 0;
            !matches!(op.action, Action::Exit)
        });
        let max = PageCounter::UNLIMITED;
        let setup = Setup { batch, adaptive, audit, fence, declares: false, budget: None, max };
        run(&setup, &ops);
    }

    #[test]
    fn an_adaptive_stock_agrees_with_the_twin(setup in setups(true), ops in ops(80)) {
        run(&setup, &ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..crate::config() })]

    #[test]
    fn a_long_run_agrees_with_the_twin([adaptive, declares] in any::<[bool; 2]>(), ops in ops(600)) {
        let fence = false;
        let max = PageCounter::UNLIMITED;
        let setup = Setup { batch: 64, adaptive, audit: true, fence, declares, budget: None, max };
        run(&setup, &ops);
    }
}
