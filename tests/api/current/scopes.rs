//! Closures and guards: nested, out of order, forgotten, panicking.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use memcg::{EnterGuard, Group, Limits};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{groups, here, runtime};

#[test]
fn a_panic_leaves_the_thread_as_it_was() {
    let runtime = runtime();
    let [a, b] = groups(&runtime, ["a", "b"]);
    let _a = a.enter();
    let panics = || {
        b.run(|| {
            let _guard = a.enter();
            mem::forget(b.enter());
            panic!("on purpose")
        })
    };
    catch_unwind(AssertUnwindSafe(panics)).expect_err("it panics");
    assert_eq!(here(), "/a");
}

/// The thread stays in the group, and the group keeps its object: no next group is taken for it.
#[test]
fn a_forgotten_guard_keeps_its_group() {
    let runtime = runtime();
    let acme = runtime.root().create("acme", Limits::new()).unwrap();
    let [other] = groups(&runtime, ["other"]);
    thread::spawn(move || {
        let query = acme.create("query", Limits::new()).unwrap();
        let id = query.id();
        other.run(|| {
            mem::forget(query.enter());
            assert_eq!(here(), "/acme/query");
        });
        assert_eq!(here(), "", "it ended with the closure");
        mem::forget(query.enter());
        other.run(|| assert_eq!(here(), "/other"));
        assert_eq!(here(), "/acme/query");
        query.offline().unwrap();
        drop(query);
        let next: Vec<Group> = (0..100)
            .map(|n| acme.create(n, Limits::new()).unwrap())
            .collect();
        assert_eq!(here(), "/acme", "offline: the group above");
        assert!(next.iter().all(|group| group.id() != id) && acme.live() == 0);
        // A guard further out is not made to wait for it.
        let guard = other.enter();
        drop(guard);
        assert_eq!(here(), "/acme");
    })
    .join()
    .unwrap();
}

#[test]
fn a_group_that_goes_offline_is_the_next_above() {
    let runtime = runtime();
    let acme = runtime.root().create("acme", Limits::new()).unwrap();
    let query = acme.create("query", Limits::new()).unwrap();
    query.run(|| {
        query.offline().unwrap();
        assert_eq!(here(), "/acme");
        assert!(
            Group::current().unwrap().charge(100).is_ok(),
            "the group above takes charges"
        );
        acme.offline_tree();
        assert_eq!(here(), "/");
        runtime.root().offline_tree();
        assert_eq!(here(), "/", "the root is the last, online or not");
    });
    drop((runtime, acme));
    query.run(|| assert_eq!(here(), "/", "after the runtime"));
}

/// Switches move no credit: each group's stock stays where it is.
#[test]
fn a_switch_moves_no_credit() {
    let runtime = runtime();
    let all = groups(&runtime, ["a", "b", "c"]);
    let charge = || drop(Group::current().unwrap().charge(64).unwrap());
    // The second charge of a group opens its stock.
    (0..2).for_each(|_| all.iter().for_each(|group| group.run(charge)));
    let usage = runtime.root().usage();
    let counts = runtime.counts();
    assert!(all.iter().all(|group| group.memory().stocked() > 0));
    for _ in 0..1_000 {
        all.iter().for_each(|group| group.run(charge));
    }
    assert_eq!((runtime.root().usage(), runtime.counts()), (usage, counts));
}

/// The groups that the thread should be in: guards by number, newest last; `None` is the bottom of
/// a closure.
type Oracle = Vec<(Option<usize>, usize)>;

struct Random<'a> {
    rng: SmallRng,
    groups: &'a [Group],
    /// Guards that are there, with their numbers.
    guards: Vec<(usize, EnterGuard)>,
    numbers: usize,
    oracle: Oracle,
}

impl Random<'_> {
    fn assert_here(&self) {
        let expected = self
            .oracle
            .last()
            .map(|&(_, group)| self.groups[group].path());
        assert_eq!(here(), expected.unwrap_or_default(), "{:?}", self.oracle);
    }

    /// So many steps, some in closures of their own.
    fn steps(&mut self, depth: usize, count: usize) {
        for _ in 0..count {
            let group = self.rng.random_range(0..self.groups.len());
            match self.rng.random_range(0..10) {
                0..4 => {
                    self.oracle.push((Some(self.numbers), group));
                    self.guards.push((self.numbers, self.groups[group].enter()));
                    self.numbers += 1;
                }
                4 if self.rng.random_ratio(1, 4) => {
                    self.oracle.push((Some(self.numbers), group));
                    mem::forget(self.groups[group].enter());
                    self.numbers += 1;
                }
                4..8 if !self.guards.is_empty() => {
                    let at = self.rng.random_range(0..self.guards.len());
                    let (number, guard) = self.guards.swap_remove(at);
                    drop(guard);
                    self.oracle.retain(|&(entered, _)| entered != Some(number));
                }
                _ if depth < 5 => {
                    let marked = self.numbers;
                    self.numbers += 1;
                    // A closure is an entry that no guard ends.
                    self.oracle.push((Some(usize::MAX - marked), group));
                    self.groups[group].clone().run(|| {
                        self.assert_here();
                        self.steps(depth + 1, 6);
                    });
                    let bottom = self
                        .oracle
                        .iter()
                        .position(|&(entered, _)| entered == Some(usize::MAX - marked));
                    self.oracle.truncate(bottom.expect("the closure"));
                }
                _ => {}
            }
            self.assert_here();
        }
    }
}

/// Against a plain list, in which the newest entry that is left counts.
#[test]
fn any_order_of_guards_and_closures() {
    let runtime = runtime();
    let all = groups(&runtime, ["a", "b", "c", "d"]);
    for seed in 0..200 {
        let all = all.clone();
        // A thread of its own: what is forgotten stays there.
        thread::spawn(move || {
            let rng = SmallRng::seed_from_u64(seed);
            let mut random = Random {
                rng,
                groups: &all,
                guards: Vec::new(),
                numbers: 0,
                oracle: Vec::new(),
            };
            random.steps(0, 40);
        })
        .join()
        .unwrap();
    }
}
