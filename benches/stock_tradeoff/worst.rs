//! The worst case: every thread touches every counter, and leaves as much credit behind as the
//! policy lets it.

#![cfg(not(loom))]

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::Setup;
use crate::common::slots7::{Random, Slots7};
use crate::common::tree::fan;
use crate::common::{BATCH, Library, Policy};

/// Units stocked under seven slots, of a batch each.
pub(crate) fn slots7(setup: &Setup, counters: usize) -> u64 {
    let (_root, leaves) = fan(setup.unstocked(), counters);
    let stocked = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..setup.threads {
            scope.spawn(|| {
                let mut policy = Slots7::<Random>::new(&leaves);
                fill(&mut policy, counters, 1);
                stocked.fetch_add(policy.stocked(), Ordering::Relaxed);
            });
        }
    });
    stocked.into_inner()
}

/// Units stocked by the library, where a slot holds two batches.
pub(crate) fn stock(setup: &Setup, counters: usize) -> u64 {
    let (root, leaves) = fan(setup.config(), counters);
    let filled = Barrier::new(setup.threads + 1);
    let read = Barrier::new(setup.threads + 1);
    thread::scope(|scope| {
        for _ in 0..setup.threads {
            scope.spawn(|| {
                fill(&mut Library { leaves: &leaves }, counters, 2);
                filled.wait();
                read.wait();
            });
        }
        filled.wait();
        let stocked = root.stocked();
        let bound = root.stocked_bound();
        read.wait();
        assert!(
            stocked <= bound,
            "{stocked} units stocked, {bound} published as the bound"
        );
        stocked
    })
}

/// Charge so many batches, then free them: what a slot can hold stays in it.
pub(crate) fn fill(policy: &mut impl Policy, counters: usize, batches: usize) {
    for leaf in 0..counters {
        // The first pair opens the stock. Whole batches only, so that no odd unit stands in the way
        // of the last.
        policy.charge(leaf, BATCH).expect("below the limit");
        policy.uncharge(leaf, BATCH);
        for _ in 0..batches {
            policy.charge(leaf, BATCH).expect("below the limit");
        }
        for _ in 0..batches {
            policy.uncharge(leaf, BATCH);
        }
    }
}
