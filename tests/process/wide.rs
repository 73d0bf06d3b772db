//! Stocks that get wider for large charges. How wide follows the threads of the process, so each test
//! starts this program again for itself alone.

use std::sync::Barrier;
use std::thread;

use memcg::{Bytes, Charge, ChargeError, Freshness, Group, Limit, Limits, Runtime, StatKey};

use crate::support::alone;
use crate::support::workers::Other;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The batch of a runtime, if nothing is configured.
const BATCH: u64 = 256 * KIB;

/// Charges before which a stock need not have the width for them: the first opens none, two ask, and
/// one refills.
const WARM: usize = 4;

fn alone(name: &str, body: impl FnOnce()) {
    alone::alone(&format!("wide::{name}"), &[], body);
}

fn tenant(root_max: Limit, max: Limit) -> (Runtime, Group) {
    let runtime = Runtime::builder()
        .max(root_max)
        .audit(false)
        .build()
        .unwrap();
    let group = runtime
        .root()
        .create("acme", Limits::new().max(max))
        .unwrap();
    (runtime, group)
}

fn refills(group: &Group) -> i64 {
    group.read(Freshness::Exact).get(StatKey::STOCK_REFILL)
}

type Verb = fn(&Group, u64) -> Result<Charge, ChargeError>;

/// Whether charges of `n` bytes hit once some have gone before: usage does not move then.
fn hits(
    group: &Group,
    n: u64,
    charge: impl Fn(&Group, u64) -> Result<Charge, ChargeError>,
) -> bool {
    for _ in 0..WARM {
        drop(charge(group, n).expect("room"));
    }
    let before = (group.usage(), refills(group));
    let moved = (0..100).any(|_| {
        let held = charge(group, n).expect("room");
        let moved = group.usage() != before.0;
        drop(held);
        moved || group.usage() != before.0
    });
    assert!(moved || refills(group) == before.1, "a refill moves usage");
    !moved
}

#[test]
fn charges_of_a_mebibyte_hit_in_a_tenant_of_gigabytes() {
    alone("charges_of_a_mebibyte_hit_in_a_tenant_of_gigabytes", || {
        let verbs: [Verb; 3] = [
            |group, n| group.charge(Bytes(n)),
            |group, n| group.try_charge(Bytes(n)),
            |group, n| Ok(group.force_charge(Bytes(n))),
        ];
        for charge in verbs {
            for n in [257 * KIB, MIB, 3 * MIB, 4 * MIB] {
                let (_runtime, group) = tenant(Limit::gib(16), Limit::gib(4));
                assert!(hits(&group, n, charge), "{n}");
                assert!(group.memory().stocked_bound() <= 2 * 16 * BATCH);
            }
            let (_runtime, group) = tenant(Limit::gib(16), Limit::gib(4));
            assert!(!hits(&group, 5 * MIB, charge), "above the widest batch");
            // Without a max anywhere.
            let runtime = Runtime::builder().build().unwrap();
            let group = runtime.root().create("acme", Limits::new()).unwrap();
            assert!(hits(&group, MIB, charge));
        }
        // A tenant of 64 MiB has no such room, and neither has one below its high.
        let (_runtime, small) = tenant(Limit::gib(16), Limit::mib(64));
        assert!(!hits(&small, MIB, |group, n| group.charge(Bytes(n))));
        let (_runtime, slow) = tenant(Limit::gib(16), Limit::gib(4));
        slow.set_limits(Limits::new().high(Limit::mib(64))).unwrap();
        assert!(!hits(&slow, MIB, |group, n| group.charge(Bytes(n))));
        // The kernel's stock does not adapt.
        let runtime = Runtime::builder()
            .max(Limit::gib(64))
            .adaptive(false)
            .build()
            .unwrap();
        let group = runtime.root().create("acme", Limits::new()).unwrap();
        assert!(!hits(&group, MIB, |group, n| group.charge(Bytes(n))));
    });
}

/// A stock that small charges have opened gets wider at the second large one, and small charges take
/// no more in advance than before.
#[test]
fn small_charges_of_a_wide_stock_take_a_batch_at_most() {
    alone("small_charges_of_a_wide_stock_take_a_batch_at_most", || {
        let (runtime, group) = tenant(Limit::gib(64), Limit::gib(32));
        let mut held: Vec<Charge> = (0..100)
            .map(|_| group.charge(Bytes(KIB)).unwrap())
            .collect();
        assert!(
            group.charge(Bytes(MIB)).is_ok() && group.usage() < MIB,
            "walks"
        );
        assert!(hits(&group, MIB, |group, n| group.charge(Bytes(n))));
        runtime.release_thread_credit();
        let other = Other::spawn();
        let live = group.live();
        let charges = other.with(&group, |group| {
            (0..2_000)
                .map(|_| group.charge(Bytes(KIB)).unwrap())
                .collect::<Vec<_>>()
        });
        held.extend(charges);
        let stocked = group.memory().stocked();
        assert!(stocked <= BATCH, "{stocked} beside {live}");
        assert!(runtime.verify().is_ok());
    });
}

/// The bound on credit below a root with many groups: a 32nd of its room, where stocks get wider.
#[test]
fn many_groups_below_a_root_strand_a_part_of_its_room() {
    alone("many_groups_below_a_root_strand_a_part_of_its_room", || {
        const GROUPS: u64 = 500;
        for max in [None, Some(16 << 30)] {
            let builder = Runtime::builder();
            let runtime = max
                .map_or(builder.clone(), |max| builder.max(Limit::bytes(max)))
                .build()
                .unwrap();
            let root = runtime.root();
            let room = max.unwrap_or(BATCH << 14);
            let others = [Other::spawn(), Other::spawn()];
            let mut wide = 0;
            for number in 0..GROUPS {
                let group = root.create(number, Limits::new()).unwrap();
                let is_wide = hits(&group, MIB, |group, n| group.charge(Bytes(n)));
                for other in &others {
                    other.with(&group, |group| {
                        (0..WARM).for_each(|_| drop(group.charge(Bytes(MIB)).unwrap()));
                    });
                }
                wide += u64::from(is_wide);
                let memory = root.memory();
                let (stocked, bound) = (memory.stocked(), memory.stocked_bound());
                // Beside what wide stocks may have, each other one has what it had before.
                let narrow = (number + 1 - wide) * 3 * 2 * BATCH;
                assert!(
                    stocked <= bound && bound <= room / 32 + narrow,
                    "{stocked} {bound} {wide}"
                );
                assert_eq!(root.live(), 0);
            }
            assert!(
                wide > 4 && wide < GROUPS / 2,
                "{wide} of {GROUPS} at {max:?}"
            );
            assert!(runtime.verify().is_ok());
            // They give way: what nothing asks for is closed, and the next ones find its room.
            others.iter().for_each(|other| {
                other.with(&root, |root| _ = root.live());
            });
            for _ in 0..4 {
                runtime.release_idle_credit();
            }
            assert!(root.memory().stocked() == 0);
            let next = root.create("next", Limits::new()).unwrap();
            assert!(hits(&next, MIB, |group, n| group.charge(Bytes(n))));
        }
    });
}

/// Credit refuses no charge, however much of it lies in wide stocks; and a max that falls takes it.
#[test]
fn a_refusal_finds_no_credit_in_a_wide_stock() {
    alone("a_refusal_finds_no_credit_in_a_wide_stock", || {
        let (runtime, group) = tenant(Limit::gib(4), Limit::gib(2));
        let sibling = runtime.root().create("sibling", Limits::new()).unwrap();
        let others = [Other::spawn(), Other::spawn()];
        let strand = || {
            for other in &others {
                other.with(&group, |group| {
                    (0..WARM).for_each(|_| drop(group.charge(Bytes(MIB)).unwrap()));
                });
            }
            assert!(hits(&group, MIB, |group, n| group.charge(Bytes(n))));
            let stocked = group.memory().stocked();
            assert!(stocked >= 3 * MIB, "{stocked}");
        };
        strand();
        // All of the group's, then all of the root's.
        drop(group.charge(Bytes::gib(2)).expect("credit makes room"));
        assert_eq!((group.usage(), group.live()), (0, 0));
        strand();
        drop(
            sibling
                .charge(Bytes(4 << 30))
                .expect("credit of a sibling makes room"),
        );
        assert_eq!(runtime.root().usage(), 0);
        strand();
        group
            .set_max(Limit::bytes(10 * MIB))
            .expect("only credit is above");
        assert_eq!(group.usage(), 0);
        let all: Vec<Charge> = (0..10)
            .map(|_| group.charge(Bytes(MIB)).expect("room"))
            .collect();
        assert!(group.charge(1).is_err());
        drop(all);
        assert!(runtime.verify().is_ok());
        assert_eq!(runtime.counts().refused_in_transit, 0);
    });
}

/// Threads that charge large and small amounts while the max falls and rises: no bound is broken, and
/// nothing is left.
#[test]
fn wide_stocks_open_and_close_under_load() {
    alone("wide_stocks_open_and_close_under_load", || {
        let (runtime, group) = tenant(Limit::gib(8), Limit::gib(4));
        let ready = Barrier::new(4);
        thread::scope(|scope| {
            for thread in 0..3_u64 {
                let (group, ready) = (&group, &ready);
                scope.spawn(move || {
                    ready.wait();
                    let mut held = Vec::new();
                    for turn in 0..20_000_u64 {
                        let n = [KIB, MIB, 300 * KIB, 2 * MIB][(turn + thread) as usize % 4];
                        held.extend(group.charge(Bytes(n)));
                        if turn % 8 == 7 {
                            held.clear();
                        }
                    }
                });
            }
            ready.wait();
            for turn in 0..300_u64 {
                let max = if turn % 3 == 0 { 200 * MIB } else { 4 << 30 };
                let _ = group.set_max(Limit::bytes(max));
                let memory = runtime.root().memory();
                let bound = memory.stocked_bound();
                assert!(bound <= (8 << 30) / 16, "the budget: {bound}");
            }
        });
        assert_eq!(group.live(), 0);
        let memory = group.memory();
        assert!(memory.stocked() <= memory.stocked_bound());
        assert!(runtime.verify().is_ok(), "{}", runtime.verify());
        drop(group.charge(Bytes(group.max())).expect("all of it"));
        assert_eq!(runtime.root().usage(), 0);
    });
}
