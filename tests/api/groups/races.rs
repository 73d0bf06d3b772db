//! A group goes offline in the middle of what another thread does with its stock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};

use memcg::expert::{FixedBatch, Inspect};
use memcg::{Bytes, Group, Limits, Priority, Reclaim, ReclaimContext, Runtime};

use super::{assert_empty, build, create};
use crate::support::crowds::pair;

const ROUNDS: u64 = if cfg!(debug_assertions) { 2_000 } else { 60_000 };

/// Hits, and stocks that are open whatever happens.
fn open() -> Runtime {
    build(Runtime::builder().batch(Bytes(64)).adaptive(false))
}

/// Writes to memory that no cache has, so that the next store of this thread is late for all others.
struct Cold {
    memory: Vec<u8>,
    at: u64,
}

impl Cold {
    fn new() -> Self {
        Self { memory: vec![0; 256 << 20], at: 1 }
    }

    fn write(&mut self) {
        for _ in 0..6 {
            self.at = self.at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (self.at >> 33) as usize % self.memory.len();
            self.memory[at] = 1;
        }
    }
}

/// A thread that knows that the group is offline is refused, whatever was put into the stock meanwhile.
#[test]
fn a_late_put_admits_no_group() {
    let runtime = open();
    let root = runtime.root();
    let gone = AtomicU64::new(0);
    let (groups, inbox) = sync_channel::<(u64, Group)>(1);
    std::thread::scope(|scope| {
        let charger = scope.spawn(|| {
            let mut cold = Cold::new();
            let mut late = 0;
            for (round, group) in inbox {
                loop {
                    let known = gone.load(Ordering::Acquire) >= round;
                    let held = group.try_charge(3);
                    if known {
                        late += u64::from(held.is_ok());
                        break;
                    }
                    cold.write();
                    drop(held);
                }
            }
            std::hint::black_box(&cold.memory);
            late
        });
        for round in 1..=ROUNDS {
            let group = create(&root, "q");
            drop(group.try_charge(1));
            groups.send((round, group.clone())).expect("the charger takes groups");
            (0..round % 5_000).for_each(|_| std::hint::spin_loop());
            group.offline().expect("no children");
            gone.store(round, Ordering::Release);
        }
        drop(groups);
        assert_eq!(charger.join().expect("no panic"), 0, "charges that began after offline, of {ROUNDS}");
    });
    assert_empty(&runtime);
}

/// The charger takes all credit that there is, to the byte, and frees it: the group goes before its barrier comes.
#[test]
fn a_group_goes_before_its_barrier() {
    let runtime = open();
    let root = runtime.root();
    let (groups, inbox) = sync_channel::<Group>(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (round, group) in inbox.into_iter().enumerate() {
                let Ok(one) = group.try_charge(1) else { continue };
                (0..round % 300).for_each(|_| std::hint::spin_loop());
                let rest = group.try_charge(63);
                drop(group);
                drop((one, rest));
            }
        });
        for round in 1..=4 * ROUNDS {
            let group = create(&root, "q");
            groups.send(group.clone()).expect("the charger takes groups");
            (0..round % 500).for_each(|_| std::hint::spin_loop());
            group.offline().expect("no children");
        }
        drop(groups);
    });
    let counts = runtime.counts();
    assert_eq!((counts.underflows, counts.discarded), (0, 0));
    assert_empty(&runtime);
}

/// A guard loses its last byte and grows again, over and over, while the last handle goes.
#[test]
fn a_guard_that_turns_over_keeps_its_group() {
    let runtime = build(Runtime::builder().batch(Bytes(0)));
    let root = runtime.root();
    let (groups, inbox) = sync_channel::<Group>(0);
    std::thread::scope(|scope| {
        scope.spawn(|| inbox.into_iter().for_each(drop));
        for round in 0..ROUNDS / 2 {
            let group = create(&root, "q");
            let mut guard = group.try_charge(1).expect("room");
            group.offline().expect("no children");
            groups.send(group).expect("the other thread takes it");
            for _ in 0..round % 16 {
                guard.shrink(1);
                guard.force_grow(1);
            }
            assert_eq!((guard.group().usage(), guard.group().path().as_str()), (1, "/q"));
        }
        drop(groups);
    });
    assert_empty(&runtime);
}

/// A stock opens with the first charge, closes near the max, and opens again, while the group goes offline alone or
/// with all above it: no group finds it open afterwards.
#[test]
fn a_stock_that_opens_while_its_group_goes_offline_is_closed() {
    for builder in [Runtime::builder().audit(true).batch(Bytes(64)), Runtime::builder().batch(Bytes(16))] {
        let mut builder = builder;
        let further = builder.counter("further").independent();
        let runtime = build(builder);
        let root = runtime.root();
        let max = Limits::new().max(1_000);
        pair(
            ROUNDS / 20,
            |round| {
                let parent = create(&root, "parent");
                let group = parent.create("q", max).expect("a name");
                (parent, group, round)
            },
            |(parent, group, round)| {
                if round % 2 == 0 {
                    group.offline().expect("no children")
                } else {
                    parent.offline_tree()
                }
                assert!(group.try_charge(1).is_err());
            },
            |(_, group, round)| {
                let mut held = Vec::new();
                while let Ok(set) = group.try_charge_set(&[(memcg::Counter::MEMORY, 1), (further, 2)]) {
                    held.push(set);
                    if held.len() as u64 > round % 7 {
                        held.clear();
                        drop(group.try_charge(990));
                    }
                }
                held
            },
            |round, (parent, group, _), (), held| {
                assert!(group.is_offline(), "round {round}");
                assert_eq!(group.live(), held.len() as u64, "round {round}");
                drop((group, held));
                parent.offline_tree();
                drop(parent);
                runtime.settle();
                assert_eq!((runtime.dying_count(), root.usage(), root.stocked_bound()), (0, 0, 0), "round {round}");
            },
        );
        assert_empty(&runtime);
    }
}

/// The last thing that keeps a group goes while its credit is settled, drained, read or switched off.
#[test]
fn a_group_is_released_while_its_credit_goes_back() {
    let runtime = build(Runtime::builder().batch(Bytes(64)).adaptive(false));
    let root = runtime.root();
    let other = super::Other::spawn();
    pair(
        ROUNDS / 4,
        |round| {
            let parent = create(&root, "parent");
            let groups: Vec<Group> = (0..3).map(|number| create(&parent, &number.to_string())).collect();
            for group in &groups {
                drop(group.try_charge(1));
                other.with(group, |group| drop(group.try_charge(1)));
            }
            // The last of one is a handle, that of another a charge.
            let held = groups[0].try_charge(70).expect("no limit");
            groups.iter().for_each(|group| group.offline().expect("no children"));
            (Mutex::new(Some((groups, held))), parent, round)
        },
        |(last, ..)| drop(last.lock().expect("no thread panics with it").take()),
        |(_, parent, round)| match round % 5 {
            0 => runtime.settle(),
            1 => drop(root.drain()),
            2 => parent.set_batch(32),
            3 => drop((root.stocked(), parent.usage_local(), runtime.snapshot())),
            _ => parent.offline_tree(),
        },
        |round, (_, parent, _), (), ()| {
            parent.offline_tree();
            drop(parent);
            runtime.settle();
            assert_eq!((runtime.group_count(), runtime.dying_count(), root.live()), (1, 0, 0), "round {round}");
        },
    );
    assert_empty(&runtime);
}

/// A cache of one byte.
struct Cache(Mutex<Option<memcg::Charge>>);

impl Reclaim for Cache {
    fn reclaim(&self, _want: u64, _context: &ReclaimContext<'_>) -> u64 {
        let held = self.0.lock().expect("no thread panics with it").take();
        held.map_or(0, |charge| charge.bytes())
    }
}

/// A group and its parent go offline one right after the other: its reclaimers go to the group that stays, and to none
/// in between.
#[test]
fn reclaimers_of_groups_that_go_at_once_go_to_the_one_that_stays() {
    let runtime = build(Runtime::builder().batch(Bytes(0)));
    let root = runtime.root();
    pair(
        ROUNDS / 4,
        |_| {
            let parent = create(&root, "parent");
            let child = create(&parent, "child");
            let cache = Arc::new(Cache(Mutex::new(Some(child.try_charge(1).expect("no limit")))));
            let registration = child.register_reclaimer(cache, Priority::NORMAL);
            (parent, child, registration)
        },
        |(_, child, _)| child.offline().expect("no children"),
        |(parent, ..)| {
            while parent.offline().is_err() {
                std::hint::spin_loop();
            }
        },
        |round, (parent, child, registration), (), ()| {
            assert_eq!(root.live(), 1, "round {round}");
            assert_eq!(root.reclaim(1).expect("not inside reclaim").freed, 1, "round {round}: no group was asked");
            drop((parent, child, registration));
            assert_eq!((root.live(), runtime.dying_count()), (0, 0), "round {round}");
        },
    );
    assert_empty(&runtime);
}

/// Percentages follow, charges move, guards of zero bytes are made: nothing of it is left when all are gone.
#[test]
fn everything_at_once_on_one_group() {
    let runtime = build(Runtime::builder().audit(true).batch(Bytes(64)).max(100_000));
    let root = runtime.root();
    let home = create(&root, "home");
    let stay = create(&home, "stay");
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (home, stay) = (&home, &stay);
            scope.spawn(move || {
                for round in 0..ROUNDS / 3 {
                    let name = format!("{}", round % 2);
                    let limits = Limits::new().max(memcg::Limit::percent(10));
                    let group = match home.create(&name, limits) {
                        Ok(group) => group,
                        Err(_) => match home.children().into_iter().find(|group| group.name() == name) {
                            Some(group) => group,
                            None => continue,
                        },
                    };
                    let mut held = group.force_charge(Bytes(thread + round % 70));
                    let mut none = held.take();
                    std::mem::swap(&mut held, &mut none);
                    drop(held.transfer(stay));
                    drop(none.transfer(&group));
                    drop(group.set_min("5%".parse::<memcg::Limit>().expect("a percentage")));
                    if round % 3 == thread {
                        group.offline().expect("no children");
                    }
                    drop(none);
                    drop(group);
                    drop(held);
                }
            });
        }
    });
    home.offline_tree();
    drop((home, stay));
    assert_empty(&runtime);
}
