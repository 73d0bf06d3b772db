//! Objects and cells are used again: the next group in the same memory has counted nothing, and
//! what the last one counted is with its parent.
//!
//! The pool is the process's, and a group's number, which its id shows, tells whether an object has
//! come back. Each test looks at which numbers are free, so it starts this program again for itself
//! alone.

use std::collections::HashMap;
use std::sync::mpsc::sync_channel;

use memcg::barrier::BarrierMode;
use memcg::{Freshness, Group, Limits, Runtime, RuntimeBuilder, StatKey, Unit};

use crate::support::alone::alone;

fn kinds() -> [RuntimeBuilder; 4] {
    let plain = Runtime::builder;
    [
        plain(),
        plain().audit(true),
        plain().stat_batch(0),
        plain().barrier(BarrierMode::Fence),
    ]
}

fn create(parent: &Group, name: &str) -> Group {
    parent
        .create(name, Limits::new())
        .expect("a name that is free")
}

/// An id prints as `group NUMBER.GENERATION`.
fn number(group: &Group) -> u32 {
    let text = group.id().to_string();
    let number = text
        .strip_prefix("group ")
        .and_then(|numbers| numbers.split('.').next())
        .expect("two numbers");
    number.parse().expect("a number")
}

/// Nothing, whichever thread asks.
#[track_caller]
fn assert_zero(runtime: &Runtime, group: &Group) {
    for stats in [
        group.read(Freshness::Stale),
        group.read(Freshness::Threshold),
        group.read(Freshness::Exact),
        group.read(Freshness::Stale),
    ] {
        let figures = |stat| (stats.get(stat), stats.local(stat));
        let found: Vec<_> = runtime
            .items()
            .filter(|item| figures(item.stat) != (0, 0))
            .collect();
        assert!(found.is_empty(), "{group:?} has counted {found:?}");
        assert_eq!(stats.max_error(), 0, "{group:?}");
    }
}

/// Written by this thread, by another that goes on, and by one that ends.
#[test]
fn the_next_group_in_the_same_memory_reads_zero() {
    alone(
        "stat_recycling::the_next_group_in_the_same_memory_reads_zero",
        &[],
        || {
            for mut builder in kinds() {
                let rows = builder.stat("rows", Unit::Events);
                let runtime = builder.build().expect("a configuration");
                let root = runtime.root();
                let mut seen: HashMap<u32, u32> = HashMap::new();
                let (jobs, inbox) = sync_channel::<Group>(0);
                let (back, done) = sync_channel(0);
                let sum: i64 = std::thread::scope(|scope| {
                    scope.spawn(move || {
                        for group in inbox {
                            group.stat_add(StatKey::ANON, 1 << 40);
                            back.send(group).expect("a thread takes it back");
                        }
                    });
                    let jobs = jobs;
                    let ask = |group: Group| {
                        jobs.send(group).expect("the thread takes them");
                        done.recv().expect("and gives them back")
                    };
                    (0..200)
                        .map(|round| {
                            let mut group = create(&root, "q");
                            *seen.entry(number(&group)).or_default() += 1;
                            assert_zero(&runtime, &group);
                            // Not every thread writes every time.
                            if round % 3 != 1 {
                                group.stat_add(rows, round);
                            }
                            if round % 2 == 0 {
                                group = ask(group);
                            }
                            if round % 5 == 0 {
                                let theirs = group.clone();
                                std::thread::spawn(move || theirs.stat_add(rows, 1_000))
                                    .join()
                                    .expect("no panic");
                            }
                            match round % 7 {
                                0 => group.inspect().flush(),
                                1 => (0..6).for_each(|_| root.inspect().flush()),
                                2 => drop(group.read(Freshness::Exact)),
                                _ => {}
                            }
                            let below = create(&group, "below");
                            assert_zero(&runtime, &below);
                            below.stat_add(rows, 3);
                            group.offline_tree();
                            let others = if round % 5 == 0 { 1_003 } else { 3 };
                            others + if round % 3 != 1 { round } else { 0 }
                        })
                        .sum()
                });
                runtime.settle();
                assert_eq!(runtime.dying_count(), 0);
                assert!(
                    seen.values().any(|&times| times > 50),
                    "objects do not come back: {seen:?}"
                );
                let now = root.read(Freshness::Exact);
                assert_eq!((now.get(rows), now.local(rows)), (sum, 0));
                assert_eq!(now.get(StatKey::ANON), 100 << 40);
            }
        },
    );
}
