//! A limit on a statistic: each writer looks at the exact figure before it adds. Nothing holds it
//! but that look, so all that look at one time may go over it together, and no more than those.

use std::sync::atomic::{AtomicU64, Ordering};

use memcg::{Freshness, Group, Limits, Runtime, StatKey};

use crate::support::turns::turn;

const WRITERS: u64 = 4;

/// Adds `delta` as long as the figure of `all` is below the limit. Tells how often it did.
fn add_up_to(limit: i64, all: &Group, own: &Group, stat: StatKey, delta: i64) -> u64 {
    let mut added = 0;
    while all.read(Freshness::Exact).get(stat) < limit {
        own.stat_add(stat, delta);
        added += 1;
    }
    added
}

/// As `zswap` does it in the kernel: `do_flush_stats`, whatever the threshold says, since it
/// charges by the figure.
#[test]
fn a_limit_on_a_statistic_overshoots_by_the_writers_in_flight_at_most() {
    let _turn = turn(module_path!());
    let rounds = if cfg!(debug_assertions) { 40 } else { 400 };
    let mut overshot = 0;
    for (round, delta) in (0..rounds).zip([1, 10, 4_096, 100_000].into_iter().cycle()) {
        let runtime = Runtime::builder().build().expect("defaults hold");
        let all = runtime.root().create("all", Limits::new()).expect("a name");
        let own: Vec<Group> = (0..WRITERS)
            .map(|number| {
                all.create(&number.to_string(), Limits::new())
                    .expect("a name")
            })
            .collect();
        let stat = [StatKey::ANON, StatKey::WORKINGSET_REFAULT][round % 2];
        let limit = 300 * delta + delta / 2;
        let added = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for own in &own {
                // Half of them in the same group.
                let all = &all;
                let own = if round % 3 == 0 { all } else { own };
                let added = &added;
                scope.spawn(move || {
                    added.fetch_add(add_up_to(limit, all, own, stat, delta), Ordering::SeqCst)
                });
            }
        });
        let sum = all.read(Freshness::Exact).get(stat);
        assert_eq!(sum, added.load(Ordering::SeqCst) as i64 * delta);
        assert!(
            sum >= limit && sum - limit <= WRITERS as i64 * delta,
            "{sum} of {limit}, {WRITERS} writers of {delta}"
        );
        overshot += (sum - limit) / delta;
    }
    println!("{rounds} rounds, {overshot} additions too many of {WRITERS} writers");
}

/// With no other thread in flight there is nothing to overshoot by, whichever thread wrote before.
#[test]
fn one_writer_at_a_time_keeps_a_limit_exactly() {
    let _turn = turn(module_path!());
    let runtime = Runtime::builder().build().expect("defaults hold");
    let all = runtime.root().create("all", Limits::new()).expect("a name");
    let stat = StatKey::ANON;
    for round in 1..=100_i64 {
        let limit = round * 1_000;
        let group = all.clone();
        let top = all.clone();
        let child = std::thread::spawn(move || {
            let child = group
                .create("child", Limits::new())
                .expect("a name that is free again");
            while top.read(Freshness::Exact).get(stat) + 90 <= limit {
                child.stat_add(stat, 90);
            }
            child.offline().expect("no children");
        });
        child.join().expect("no panic");
        while all.read(Freshness::Exact).get(stat) < limit {
            all.stat_add(stat, 1);
        }
        assert_eq!(all.read(Freshness::Exact).get(stat), limit);
    }
}
