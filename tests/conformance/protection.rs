#![cfg(not(loom))]
//! Statements 35 and 39: what min and low add up to in the parent.

use memcg::{CounterConfig, PageCounter};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::{adaptive, assert_sound, bare, fixed};

#[track_caller]
fn assert_sums(parent: &PageCounter, children: &[PageCounter]) {
    let min: u64 = children.iter().map(|child| child.usage().min(child.min())).sum();
    let low: u64 = children.iter().map(|child| child.usage().min(child.low())).sum();
    assert_eq!((parent.children_min_usage(), parent.children_low_usage()), (min, low));
}

fn sums_are_a_recount(config: CounterConfig) {
    let r = PageCounter::root(config);
    let mut children: Vec<PageCounter> = (0..4).map(|_| r.child()).collect();
    for round in 0..200 {
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let children = &children;
                scope.spawn(move || {
                    let mut rng = SmallRng::seed_from_u64(round * 3 + thread);
                    for _ in 0..50 {
                        let child = &children[rng.random_range(0..children.len())];
                        let units = rng.random_range(0..100);
                        match rng.random_range(0..4) {
                            0 => child.set_min(units),
                            1 => child.set_low(units),
                            _ if child.try_charge(units).is_ok() => child.uncharge(units),
                            _ => {}
                        }
                    }
                });
            }
        });
        assert_sums(&r, &children);
        if round % 10 == 9 {
            let last = children.remove(0);
            last.set_min(50);
            drop(last);
            assert_sums(&r, &children);
            children.push(r.child());
        }
    }
    assert_sound(&r);
}

/// children_min_usage is the sum of min(usage, min) over the children after any history that has come to rest. The
/// kernel can lose an update when two charges race; here the exchange is repeated until it holds.
#[test]
fn s035_children_min_usage_is_a_recount() {
    sums_are_a_recount(bare());
    sums_are_a_recount(fixed());
}

#[test]
fn s035_adaptive() {
    sums_are_a_recount(adaptive());
}

/// A counter that goes takes its protection out of the parent at once. In the kernel its charges stay; a bare counter
/// has nobody left to uncharge them, so they leave with it.
#[test]
fn s039_gone_child_protects_nothing() {
    let r = PageCounter::root(fixed());
    let child = r.child();
    child.set_min(40);
    child.set_low(50);
    child.try_charge(60).expect("unlimited");
    assert_eq!((r.children_min_usage(), r.children_low_usage()), (40, 50));
    drop(child);
    assert_eq!((r.children_min_usage(), r.children_low_usage()), (0, 0));
    assert_eq!((r.usage(), r.live()), (0, 0));
    assert_sound(&r);
}
