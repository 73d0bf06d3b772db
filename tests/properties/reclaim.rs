//! Which groups are in excess after any history.

use memcg::{Bytes, Charge, Group, Limit, Limits, Runtime};
use proptest::prelude::*;
use proptest::sample::select;

/// One step of a history of excess.
#[derive(Clone, Debug)]
enum Step {
    Create(u8, u64),
    Offline(u8),
    OfflineTree(u8),
    Charge(u8, u64),
    Force(u8, u64),
    Uncharge(u8, u64),
    Transfer(u8, u8),
    Soft(u8, u64),
    SoftOfMax(u8, u64),
    Drain(u8),
    Batch(u64),
}

fn soft_limits() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0), 4 => 0..2_000_u64, 2 => Just(u64::MAX)]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = any::<u8>;
    let amounts = || prop_oneof![3 => 0..200_u64, 1 => 0..3_000_u64];
    let step = prop_oneof![
        4 => (at(), soft_limits()).prop_map(|(at, soft)| Step::Create(at, soft)),
        1 => at().prop_map(Step::Offline),
        1 => at().prop_map(Step::OfflineTree),
        8 => (at(), amounts()).prop_map(|(at, bytes)| Step::Charge(at, bytes)),
        2 => (at(), amounts()).prop_map(|(at, bytes)| Step::Force(at, bytes)),
        6 => (at(), amounts()).prop_map(|(at, bytes)| Step::Uncharge(at, bytes)),
        2 => (at(), at()).prop_map(|(at, to)| Step::Transfer(at, to)),
        4 => (at(), soft_limits()).prop_map(|(at, soft)| Step::Soft(at, soft)),
        2 => (at(), 0..3_000_u64).prop_map(|(at, max)| Step::SoftOfMax(at, max)),
        1 => at().prop_map(Step::Drain),
        1 => select(&[0, 1, 64, 300][..]).prop_map(Step::Batch),
    ];
    prop::collection::vec(step, 0..100)
}

/// `is_in_excess` and `descendants_in_excess` agree with usage and soft limits at every group.
fn recount(groups: &[Group]) {
    for group in groups.iter().filter(|group| !group.is_offline()) {
        assert_eq!(
            group.inspect().is_in_excess(),
            group.usage() > group.inspect().soft(),
            "{}",
            group.path()
        );
        let below = group
            .inspect()
            .descendants()
            .filter(|below| below.usage() > below.inspect().soft())
            .count() as u64;
        assert_eq!(
            group.inspect().descendants_in_excess(),
            below,
            "{}",
            group.path()
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 160, ..crate::config() })]

    #[test]
    fn excess_is_a_recount(batch in select(&[0_u64, 64, 300][..]), adaptive in any::<bool>(), steps in steps()) {
        let runtime = Runtime::builder().audit(true).batch(Bytes(batch)).adaptive(adaptive).build().expect("it holds");
        let root = runtime.root();
        let mut groups = vec![root.clone()];
        let mut held: Vec<Charge> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            let online: Vec<&Group> = groups.iter().filter(|group| !group.is_offline()).collect();
            let group = |at: u8| online[usize::from(at) % online.len()].clone();
            match step {
                Step::Create(at, soft) => {
                    let limits = Limits::new().soft(if soft == u64::MAX { Limit::Unlimited } else { Limit::Bytes(soft) });
                    let made = group(at).create(&number.to_string(), limits).expect("a name that is free");
                    groups.push(made);
                }
                Step::Offline(at) => drop(Some(group(at)).filter(|group| *group != root).map(|group| group.offline())),
                Step::OfflineTree(at) => {
                    if group(at) != root {
                        group(at).offline_tree();
                    }
                }
                Step::Charge(at, bytes) => held.extend(group(at).charge(Bytes(bytes)).ok()),
                Step::Force(at, bytes) => held.push(group(at).force_charge(Bytes(bytes))),
                Step::Soft(at, soft) => {
                    let limit = if soft == u64::MAX { Limit::Unlimited } else { Limit::Bytes(soft) };
                    group(at).set_limits(Limits::new().soft(limit)).expect("a number");
                }
                Step::SoftOfMax(at, max) => {
                    root.set_max(Limit::Bytes(max)).expect("a number");
                    let of = group(at);
                    if of != root {
                        of.set_limits(Limits::new().soft(Limit::percent(40))).expect("the root has a max");
                    }
                }
                Step::Drain(at) => drop(group(at).memory().drain()),
                Step::Batch(bytes) => root.memory().set_batch(bytes),
                Step::Uncharge(..) | Step::Transfer(..) if held.is_empty() => {}
                Step::Uncharge(at, bytes) => {
                    let at = usize::from(at) % held.len();
                    held[at].shrink(Bytes(bytes));
                    if held[at].bytes() == 0 {
                        drop(held.swap_remove(at));
                    }
                }
                Step::Transfer(at, to) => {
                    let at = usize::from(at) % held.len();
                    drop(held[at].transfer(&group(to)));
                }
            }
            recount(&groups);
            if number % 8 == 0 {
                let verdict = runtime.verify();
                prop_assert!(verdict.is_ok(), "{}", verdict);
            }
        }
        drop(held);
        root.memory().drain();
        recount(&groups);
        prop_assert_eq!(root.inspect().descendants_in_excess(), 0);
        prop_assert!(runtime.verify().is_ok());
    }
}
