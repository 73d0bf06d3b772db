//! Threads that end leave everything they counted, and threads past their destructor still count.

use std::cell::RefCell;

use memcg::{Freshness, Group, StatKey};

use super::{assert_exact, assert_honest, build, charge, create, kinds};

/// Counts when its thread ends.
struct AtExit {
    group: Group,
    delta: i64,
}

impl Drop for AtExit {
    fn drop(&mut self) {
        self.group.stat_add(StatKey::KERNEL, self.delta);
        self.group.stat_add(StatKey::ANON, -100);
        let held = charge(&self.group, 3);
        held.stat_add(StatKey::KERNEL, self.delta);
        std::hint::black_box((
            self.group.read(Freshness::Stale),
            self.group.read(Freshness::Threshold),
            self.group.read(Freshness::Within(5)),
        ));
        let below = create(&self.group, "at exit");
        below.stat_add(StatKey::KERNEL, self.delta);
        below.offline().expect("no children");
        assert!(
            self.group.read(Freshness::Exact).get(StatKey::KERNEL) >= 3 * self.delta,
            "its own are there"
        );
        self.group.inspect().flush();
    }
}

/// The last to hold a group that is offline, which takes no charges any more and has no children:
/// it counts.
struct LastAtExit(Group);

impl Drop for LastAtExit {
    fn drop(&mut self) {
        self.0.stat_add(StatKey::KERNEL, 1);
    }
}

thread_local! {
    static LAST: RefCell<Option<LastAtExit>> = const { RefCell::new(None) };
    static EARLIER: RefCell<Option<AtExit>> = const { RefCell::new(None) };
    static LATER: RefCell<Option<AtExit>> = const { RefCell::new(None) };
}

/// One destructor is registered before the thread's first count and one after it, so whatever the
/// order of destructors is, one of them runs when the thread's cells are no longer its own.
#[test]
fn a_thread_counts_in_a_thread_local_destructor() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = create(&runtime.root(), "q");
        let mut sum = 0;
        for round in 1..20_i64 {
            let theirs = group.clone();
            let thread = std::thread::spawn(move || {
                EARLIER.set(Some(AtExit {
                    group: theirs.clone(),
                    delta: round,
                }));
                if round % 3 > 0 {
                    theirs.stat_add(StatKey::KERNEL, 1);
                }
                LATER.set(Some(AtExit {
                    group: theirs,
                    delta: 1_000 * round,
                }));
            });
            thread.join().expect("destructors do not panic");
            sum += 3 * 1_001 * round + i64::from(round % 3 > 0);
            assert_honest(&group.read(Freshness::Stale), StatKey::KERNEL, sum);
            if round % 4 == 0 {
                assert_exact(&group, StatKey::ANON, -200 * round, -200 * round);
            }
        }
        let below = 1_001 * 19 * 20 / 2;
        assert_exact(&group, StatKey::KERNEL, sum, sum - below);
        assert_exact(&runtime.root(), StatKey::KERNEL, sum, 0);
        let theirs = group.clone();
        drop(group);
        // The group itself goes with the destructor of its last holder.
        std::thread::spawn(move || {
            LAST.set(None);
            theirs.stat_add(StatKey::KERNEL, 7);
            theirs.offline().expect("no children");
            LAST.set(Some(LastAtExit(theirs)));
        })
        .join()
        .expect("destructors do not panic");
        runtime.settle();
        assert_eq!(runtime.dying_count(), 0);
        assert_exact(&runtime.root(), StatKey::KERNEL, sum + 8, 0);
    }
}
