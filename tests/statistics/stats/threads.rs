//! Threads that end leave everything they counted, and threads past their destructor still count.

use std::cell::RefCell;

use memcg::{Freshness, Group, Runtime, Stat, Unit};

use super::{Other, assert_exact, assert_honest, build, charge, create, kinds};

/// One thread after the other: each may come by the number, and the cells, of one before it.
#[test]
fn a_thread_that_ends_loses_nothing() {
    for mut builder in kinds() {
        let rows = builder.stat("rows", Unit::Events);
        let runtime = build(builder);
        let group = create(&runtime.root(), "q");
        let mut sum = 0;
        for round in 1..100_i64 {
            let held = charge(&group, 1);
            let theirs = group.clone();
            let writer = std::thread::spawn(move || {
                theirs.stat_add(rows, round);
                held.stat_add(rows, -1);
            });
            writer.join().expect("no panic");
            sum += round - 1;
            assert_honest(&group.read(Freshness::Stale), rows, sum);
            match round % 10 {
                3 => assert_exact(&group, rows, sum, sum),
                7 => assert_honest(&runtime.root().read(Freshness::Threshold), rows, sum),
                9 => group.flush(),
                _ => {}
            }
        }
        assert_exact(&runtime.root(), rows, sum, 0);
        assert_exact(&group, rows, sum, sum);
    }
}

/// Many at once, each in many groups, and all of them over before any thread reads.
#[test]
fn many_threads_end_at_once() {
    const THREADS: i64 = 48;
    for builder in kinds() {
        let runtime = build(builder);
        let groups: Vec<Group> = (0..9).map(|number| create(&runtime.root(), &number.to_string())).collect();
        for round in 1..=3_i64 {
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let groups = &groups;
                    scope.spawn(move || {
                        for (number, group) in (0..).zip(groups) {
                            group.stat_add(Stat::SLAB, number * thread);
                            group.stat_add(Stat::FILE, -1);
                        }
                    });
                }
            });
            let sum = THREADS * (THREADS - 1) / 2;
            for (number, group) in (0..).zip(&groups) {
                assert_exact(group, Stat::SLAB, round * number * sum, round * number * sum);
            }
            assert_exact(&runtime.root(), Stat::FILE, -9 * THREADS * round, 0);
        }
    }
}

/// The writer of a group is gone before the group is, and the next thread in its place writes to the next group.
#[test]
fn the_next_thread_writes_to_the_next_group() {
    for builder in kinds() {
        let runtime = build(builder);
        let root = runtime.root();
        for round in 1..100 {
            let group = create(&root, "q");
            let theirs = group.clone();
            std::thread::spawn(move || theirs.stat_add(Stat::SOCK, round)).join().expect("no panic");
            assert_honest(&group.read(Freshness::Stale), Stat::SOCK, round);
            if round % 2 == 0 {
                assert_exact(&group, Stat::SOCK, round, round);
            }
            group.offline().expect("no children");
        }
        assert_exact(&root, Stat::SOCK, 99 * 100 / 2, 0);
        assert_eq!(runtime.counts().foreign_stats, 0);
    }
}

/// Counts when its thread ends.
struct AtExit {
    group: Group,
    delta: i64,
}

impl Drop for AtExit {
    fn drop(&mut self) {
        self.group.stat_add(Stat::KERNEL, self.delta);
        self.group.stat_add(Stat::ANON, -100);
        let held = charge(&self.group, 3);
        held.stat_add(Stat::KERNEL, self.delta);
        std::hint::black_box((
            self.group.read(Freshness::Stale),
            self.group.read(Freshness::Threshold),
            self.group.read(Freshness::Within(5)),
        ));
        let below = create(&self.group, "at exit");
        below.stat_add(Stat::KERNEL, self.delta);
        below.offline().expect("no children");
        assert!(self.group.read(Freshness::Exact).get(Stat::KERNEL) >= 3 * self.delta, "its own are there");
        self.group.flush();
    }
}

/// The last to hold a group that is offline, which takes no charges any more and has no children: it counts.
struct LastAtExit(Group);

impl Drop for LastAtExit {
    fn drop(&mut self) {
        self.0.stat_add(Stat::KERNEL, 1);
    }
}

thread_local! {
    static LAST: RefCell<Option<LastAtExit>> = const { RefCell::new(None) };
    static EARLIER: RefCell<Option<AtExit>> = const { RefCell::new(None) };
    static LATER: RefCell<Option<AtExit>> = const { RefCell::new(None) };
}

/// One destructor is registered before the thread's first count and one after it, so whatever the order of destructors
/// is, one of them runs when the thread's cells are no longer its own.
#[test]
fn a_thread_counts_in_a_thread_local_destructor() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = create(&runtime.root(), "q");
        let mut sum = 0;
        for round in 1..20_i64 {
            let theirs = group.clone();
            let thread = std::thread::spawn(move || {
                EARLIER.set(Some(AtExit { group: theirs.clone(), delta: round }));
                if round % 3 > 0 {
                    theirs.stat_add(Stat::KERNEL, 1);
                }
                LATER.set(Some(AtExit { group: theirs, delta: 1_000 * round }));
            });
            thread.join().expect("destructors do not panic");
            sum += 3 * 1_001 * round + i64::from(round % 3 > 0);
            assert_honest(&group.read(Freshness::Stale), Stat::KERNEL, sum);
            if round % 4 == 0 {
                assert_exact(&group, Stat::ANON, -200 * round, -200 * round);
            }
        }
        let below = 1_001 * 19 * 20 / 2;
        assert_exact(&group, Stat::KERNEL, sum, sum - below);
        assert_exact(&runtime.root(), Stat::KERNEL, sum, 0);
        let theirs = group.clone();
        drop(group);
        // The group itself goes with the destructor of its last holder.
        std::thread::spawn(move || {
            LAST.set(None);
            theirs.stat_add(Stat::KERNEL, 7);
            theirs.offline().expect("no children");
            LAST.set(Some(LastAtExit(theirs)));
        })
        .join()
        .expect("destructors do not panic");
        runtime.settle();
        assert_eq!(runtime.dying_count(), 0);
        assert_exact(&runtime.root(), Stat::KERNEL, sum + 8, 0);
    }
}

/// A thread that has never counted, and goes on where another has.
#[test]
fn threads_take_turns_in_one_group() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = create(&runtime.root(), "q");
        let mut others: Vec<Other> = (0..3).map(|_| Other::spawn()).collect();
        let mut sum = 0;
        for turn in 0..300_usize {
            let at = turn % others.len();
            if turn % 31 == 30 {
                others[at] = Other::spawn();
            }
            others[at].add(&group, Stat::WORKINGSET_REFAULT, 3);
            sum += 3;
            assert_honest(&group.read(Freshness::Stale), Stat::WORKINGSET_REFAULT, sum);
            if turn % 17 == 0 {
                others[(at + 1) % 3].run({
                    let group = group.clone();
                    move || assert_exact(&group, Stat::WORKINGSET_REFAULT, sum, sum)
                });
            }
        }
        drop(others);
        assert_exact(&group, Stat::WORKINGSET_REFAULT, sum, sum);
        let counts = Runtime::builder().build().expect("defaults").counts();
        assert_eq!(counts.flushes, 0, "a runtime's counts are its own");
    }
}
