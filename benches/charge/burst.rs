//! `counter/burst/…`: so many charges of one size, then as many uncharges. One iteration is one
//! charge and one uncharge.
//!
//! Beside the time stand the walks per operation: on a tree that no other thread uses, a walk is
//! what changes the usage of the counter, and nothing else does.

#![cfg(not(loom))]

use std::hint::black_box;
use std::time::Instant;

use memcg::{CounterConfig, PageCounter};

use crate::common::no_return::NoReturn;
use crate::common::rows::Rows;
use crate::common::slots7::{Random, Slots7};
use crate::common::team::Team;
use crate::common::tree::{fan, unstocked};
use crate::common::{Library, Policy};

/// Bursts over which walks are counted, and those before, which fill the stock.
const BURSTS: u64 = 512;
const BURSTS_BEFORE: u64 = 16;

pub(crate) fn rows(rows: &mut Rows) {
    for size in [1, 8, 16, 32, 33, 64] {
        for outstanding in [1, 4, 16, 64] {
            let id = format!("counter/burst/size{size}/outstanding{outstanding}");
            rows.timed(&id, || team(size, outstanding));
            if rows.ran(&id) {
                print_walks(&id, size, outstanding);
            }
        }
    }
}

fn team(size: u64, outstanding: u64) -> Team {
    let (_, leaves) = fan(CounterConfig::new(), 1);
    Team::new(1, move |station| {
        let mut policy = Library { leaves: &leaves };
        for _ in 0..BURSTS_BEFORE {
            burst(&mut policy, size, outstanding);
        }
        station.serve_timed(|iters| {
            // Whole bursts only, and their time scaled to the iterations asked for.
            let bursts = iters.div_ceil(outstanding);
            let start = Instant::now();
            for _ in 0..bursts {
                burst(&mut policy, size, outstanding);
            }
            start
                .elapsed()
                .mul_f64(iters as f64 / (bursts * outstanding) as f64)
        });
    })
}

fn burst(policy: &mut impl Policy, size: u64, outstanding: u64) {
    for _ in 0..outstanding {
        policy.charge(0, black_box(size)).expect("no limit is set");
    }
    for _ in 0..outstanding {
        policy.uncharge(0, black_box(size));
    }
}

fn print_walks(id: &str, size: u64, outstanding: u64) {
    let (_, stocked) = fan(CounterConfig::new(), 1);
    let ours = walks(
        &mut Library { leaves: &stocked },
        &stocked[0],
        size,
        outstanding,
    );
    let (_, leaves) = fan(unstocked(), 1);
    let slots7 = walks(
        &mut Slots7::<Random>::new(&leaves),
        &leaves[0],
        size,
        outstanding,
    );
    let (_, leaves) = fan(unstocked(), 1);
    let no_return = walks(&mut NoReturn::new(&leaves), &leaves[0], size, outstanding);
    println!(
        "{id}: walks per operation {ours:.3} (slots7 {slots7:.3}, no_return {no_return:.3})\n"
    );
}

fn walks(policy: &mut impl Policy, counter: &PageCounter, size: u64, outstanding: u64) -> f64 {
    for _ in 0..BURSTS_BEFORE {
        burst(policy, size, outstanding);
    }
    let mut walks = 0;
    let mut usage = counter.usage();
    let mut look = || {
        let now = counter.usage();
        walks += u64::from(now != usage);
        usage = now;
    };
    for _ in 0..BURSTS {
        for _ in 0..outstanding {
            policy.charge(0, size).expect("no limit is set");
            look();
        }
        for _ in 0..outstanding {
            policy.uncharge(0, size);
            look();
        }
    }
    walks as f64 / (2 * BURSTS * outstanding) as f64
}
