//! Groups and charges against their naive twin, over random operations.
//!
//! After every operation: which groups exist, are online, their names and parents; what each is
//! charged and refuses, and why; that a charge is admitted exactly when there is room for what is
//! live; that a group is gone exactly when nothing keeps it.

use proptest::prelude::*;
use proptest::sample::select;

use crate::oracle::groups::ops::{Action, BATCHES, GROUPS_MAX, Op, SIZES, Setup, Size};
use crate::oracle::groups::run::run;

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..300_u64, 2 => select(&SIZES[..12]), 1 => select(&SIZES[..])]
}

fn limits() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..2_000_u64, 1 => select(&SIZES[..]), 2 => Just(u64::MAX)]
}

fn actions() -> impl Strategy<Value = Action> {
    let groups = prop_oneof![
        12 => (0..8_u8, limits()).prop_map(|(name, max)| Action::Create { name, max }),
        2 => Just(Action::CloneHandle),
        8 => Just(Action::DropHandle),
        6 => Just(Action::Offline),
        1 => Just(Action::OfflineTree),
        4 => limits().prop_map(Action::SetMax),
        4 => (0..2_000_u64).prop_map(Action::SetMaxAbove),
        2 => limits().prop_map(Action::SetFurtherMax),
        2 => bytes().prop_map(Action::SetMin),
        2 => select(&BATCHES[..]).prop_map(Action::SetBatch),
        2 => any::<u8>().prop_map(Action::Find),
        1 => any::<u8>().prop_map(Action::FindByPath),
        1 => Just(Action::Drain),
        1 => Just(Action::Settle),
        2 => (0..4_u8).prop_map(Action::ReleaseIdle),
        2 => Just(Action::ReleaseOwn),
        1 => Just(Action::Look),
        2 => Just(Action::Exit),
    ];
    let charges = prop_oneof![
        12 => bytes().prop_map(|bytes| Action::TryCharge(Size::Units(bytes))),
        2 => Just(Action::TryCharge(Size::Margin)),
        2 => Just(Action::TryCharge(Size::Beyond)),
        3 => bytes().prop_map(Action::Charge),
        4 => (bytes(), bytes()).prop_map(|(memory, further)| Action::ChargeBoth(memory, further)),
        2 => bytes().prop_map(Action::Grow),
        3 => bytes().prop_map(|bytes| Action::TryGrow(Size::Units(bytes))),
        1 => Just(Action::TryGrow(Size::Margin)),
        3 => bytes().prop_map(Action::Shrink),
        2 => bytes().prop_map(Action::Resize),
        3 => bytes().prop_map(Action::Split),
        2 => Just(Action::Take),
        3 => any::<u8>().prop_map(Action::Merge),
        5 => any::<u8>().prop_map(Action::Transfer),
        8 => Just(Action::DropCharge),
        4 => bytes().prop_map(|bytes| Action::TryChargeRaw(Size::Units(bytes))),
        1 => Just(Action::TryChargeRaw(Size::Margin)),
        1 => Just(Action::TryChargeRaw(Size::Beyond)),
        1 => bytes().prop_map(Action::ChargeRaw),
        5 => bytes().prop_map(Action::Uncharge),
        2 => Just(Action::IntoRaw),
        2 => Just(Action::FromRaw),
    ];
    prop_oneof![40 => groups, 60 => charges, 1 => Just(Action::DropRuntime)]
}

fn ops(length: usize) -> impl Strategy<Value = Vec<Op>> {
    let op = (0..3_u8, any::<u8>(), actions()).prop_map(|(thread, subject, action)| Op {
        thread,
        subject,
        action,
    });
    prop::collection::vec(op, 0..length)
}

fn setups(adaptive: bool) -> impl Strategy<Value = Setup> {
    let budgets = prop_oneof![4 => Just(None), 1 => (0..300_u64).prop_map(Some)];
    let max = prop_oneof![3 => Just(u64::MAX), 2 => 300..5_000_u64, 1 => Just(1 << 40)];
    let flags = (any::<bool>(), prop::bool::weighted(0.7), any::<bool>());
    (
        select(&BATCHES[..]),
        flags,
        budgets,
        max,
        select(&GROUPS_MAX[..]),
    )
        .prop_map(
            move |(batch, (fence, audit, packed), budget, max, groups_max)| Setup {
                batch,
                adaptive,
                audit,
                fence,
                budget: budget.filter(|&budget| budget <= max),
                max,
                groups_max,
                packed,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..crate::config() })]

    #[test]
    fn groups_with_a_fixed_stock_agree_with_the_twin(setup in setups(false), ops in ops(100)) {
        run(&setup, &ops);
    }

    #[test]
    fn groups_with_an_adaptive_stock_agree_with_the_twin(setup in setups(true), ops in ops(100)) {
        run(&setup, &ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..crate::config() })]

    #[test]
    fn groups_of_a_long_run_agree_with_the_twin(setup in setups(true), ops in ops(800)) {
        run(&setup, &ops);
    }
}
