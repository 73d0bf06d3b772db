//! Statistics against their naive twin, over random operations of threads that take turns.
//!
//! After every operation: no stale read of any group, of any item, is off by more than it says, and
//! what only grows is no less above than it is below. What is asked for more exactly is; in the end
//! everything is exact.

use proptest::prelude::*;
use proptest::sample::select;

use crate::oracle::stats::ITEMS;
use crate::oracle::stats::ops::{Action, BATCHES, DELTAS, Op, Setup};
use crate::oracle::stats::run::run;

fn deltas() -> impl Strategy<Value = i64> {
    let delta = prop_oneof![3 => select(&DELTAS[..]), 1 => 0..200_i64];
    (delta, any::<bool>()).prop_map(|(delta, down)| if down { -delta } else { delta })
}

fn actions() -> impl Strategy<Value = Action> {
    let groups = prop_oneof![
        8 => (0..6_u8).prop_map(Action::Create),
        2 => Just(Action::CloneHandle),
        6 => Just(Action::DropHandle),
        4 => Just(Action::Offline),
        1 => Just(Action::OfflineTree),
        1 => Just(Action::Settle),
        2 => Just(Action::Exit),
        1 => (0..ITEMS, deltas()).prop_map(|(item, delta)| Action::AtExit { item, delta }),
    ];
    let writes = prop_oneof![
        20 => (0..ITEMS, deltas()).prop_map(|(item, delta)| Action::Add { item, delta, times: 1 }),
        4 => (0..ITEMS, any::<u8>()).prop_map(|(item, times)| Action::Add { item, delta: 1, times }),
        1 => Just(Action::AddForeign),
        3 => (0..200_u64).prop_map(Action::Hold),
        4 => (0..ITEMS, deltas()).prop_map(|(item, delta)| Action::AddByCharge { item, delta }),
        3 => Just(Action::DropCharge),
    ];
    let reads = prop_oneof![
        6 => Just(Action::Flush),
        2 => (1..7_u8).prop_map(Action::FlushAll),
        1 => Just(Action::FlushRatelimited),
        1 => Just(Action::ReadStale),
        4 => Just(Action::Read),
        3 => (0..400_u64).prop_map(Action::ReadWithin),
        2 => Just(Action::ReadExact),
        1 => Just(Action::Idle),
    ];
    prop_oneof![30 => groups, 50 => writes, 20 => reads, 1 => Just(Action::DropRuntime)]
}

fn ops(length: usize) -> impl Strategy<Value = Vec<Op>> {
    let op = (0..3_u8, any::<u8>(), actions()).prop_map(|(thread, subject, action)| Op {
        thread,
        subject,
        action,
    });
    prop::collection::vec(op, 0..length)
}

fn setups() -> impl Strategy<Value = Setup> {
    (select(&BATCHES[..]), any::<bool>(), any::<bool>(), 0..49_u8).prop_map(
        |(batch, fence, audit, more)| Setup {
            batch,
            fence,
            audit,
            more,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..crate::config() })]

    #[test]
    fn statistics_agree_with_the_twin(setup in setups(), ops in ops(120)) {
        run(&setup, &ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..crate::config() })]

    #[test]
    fn statistics_of_a_long_run_agree_with_the_twin(setup in setups(), ops in ops(1_000)) {
        run(&setup, &ops);
    }
}
