//! Any allocations, frees, migrations, transfers and offlines, on any machine, against a naive
//! twin.
//!
//! The twin has for each guard the bytes in each place, and for each group a flag for each node on
//! which it or a group below ever had memory. After each operation: a charge is admitted exactly
//! when there is room; what a guard says it holds is what the twin has; stale figures are off by no
//! more than they say. On reading, and in the end: for every group each node is what the guards
//! have there, the nodes sum to the account, the account is no more than the charge, and the tier
//! holds what lies on it and what is promised. When all is gone all is zero.

mod run;
mod twin;

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::select;

use run::run;

const THREADS: usize = 2;

#[derive(Clone, Debug)]
struct Setup {
    nodes: BTreeSet<u16>,
    batch: u64,
    adaptive: bool,
    stat_batch: Option<u64>,
    max: u64,
    tier_max: u64,
}

/// Nodes by their place in the machine; beyond it none, or one that is not there.
type Spots = Vec<(u8, u64)>;

#[derive(Clone, Debug)]
enum Action {
    Create { max: u64 },
    Offline,
    OfflineTree,
    DropHandle,
    Precharge { bytes: u64, is_within: bool },
    DropPrecharge,
    Account(Spots),
    Migrate { from: u8, to: u8, bytes: u64 },
    TryMigrate { from: u8, to: u8, bytes: u64 },
    Relocate(Spots),
    Shrink(Spots),
    Merge(u8),
    Transfer(u8),
    Free,
    Read,
    Drain,
    Exit,
}

#[derive(Clone, Debug)]
struct Op {
    thread: u8,
    subject: u8,
    action: Action,
}

// === Any operations ===

fn spots() -> impl Strategy<Value = Spots> {
    let bytes = prop_oneof![8 => 0..3_000_u64, 1 => Just(4_096), 1 => 0..100_000_u64];
    prop::collection::vec((0..11_u8, bytes), 0..5)
}

fn actions() -> impl Strategy<Value = Action> {
    let max = prop_oneof![3 => 0..20_000_u64, 4 => Just(u64::MAX)];
    let groups = prop_oneof![
        4 => max.prop_map(|max| Action::Create { max }),
        2 => Just(Action::Offline),
        1 => Just(Action::OfflineTree),
        2 => Just(Action::DropHandle),
        2 => Just(Action::Read),
        1 => Just(Action::Drain),
        1 => Just(Action::Exit),
    ];
    let bytes = || prop_oneof![6 => 0..4_000_u64, 1 => Just(u64::MAX)];
    let moves = || (0..11_u8, 0..11_u8, bytes());
    let kmem = prop_oneof![
        8 => (1..8_000_u64, any::<bool>()).prop_map(|(bytes, is_within)| Action::Precharge { bytes, is_within }),
        1 => Just(Action::DropPrecharge),
        8 => spots().prop_map(Action::Account),
        3 => moves().prop_map(|(from, to, bytes)| Action::Migrate { from, to, bytes }),
        3 => moves().prop_map(|(from, to, bytes)| Action::TryMigrate { from, to, bytes }),
        2 => spots().prop_map(Action::Relocate),
        2 => spots().prop_map(Action::Shrink),
        2 => any::<u8>().prop_map(Action::Merge),
        3 => any::<u8>().prop_map(Action::Transfer),
        3 => Just(Action::Free),
    ];
    prop_oneof![1 => groups, 3 => kmem]
}

fn ops(length: usize) -> impl Strategy<Value = Vec<Op>> {
    let op = (0..THREADS as u8, any::<u8>(), actions()).prop_map(|(thread, subject, action)| Op {
        thread,
        subject,
        action,
    });
    prop::collection::vec(op, 0..length)
}

fn setups() -> impl Strategy<Value = Setup> {
    let nodes = prop_oneof![
        1 => Just(BTreeSet::from([0])),
        4 => prop::collection::btree_set(0..200_u16, 1..9),
        1 => (1..9_u16).prop_map(|nodes| (0..nodes).collect()),
    ];
    let max = || prop_oneof![3 => Just(u64::MAX >> 1), 2 => 1_000..60_000_u64];
    let batches = select(&[None, Some(0), Some(2), Some(64)][..]);
    (
        nodes,
        select(&[0_u64, 512, 4_096, 65_536][..]),
        any::<bool>(),
        batches,
        max(),
        max(),
    )
        .prop_map(
            |(nodes, batch, adaptive, stat_batch, max, tier_max)| Setup {
                nodes,
                batch,
                adaptive,
                stat_batch,
                max,
                tier_max,
            },
        )
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        max_shrink_iters: 8_192,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(160))]

    #[test]
    fn any_operations_agree_with_the_twin(setup in setups(), ops in ops(80)) {
        run(&setup, &ops);
    }
}

proptest! {
    #![proptest_config(config(8))]

    #[test]
    fn a_long_run_agrees_with_the_twin(setup in setups(), ops in ops(800)) {
        run(&setup, &ops);
    }
}
