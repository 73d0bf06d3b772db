//! A group goes offline in the middle of what another thread does with its stock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;

use memcg::{Bytes, Group, Limits, Runtime};

use super::{assert_empty, build, create};

const ROUNDS: u64 = if cfg!(debug_assertions) { 5_000 } else { 60_000 };

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

/// Who begins a charge and knows that the group is offline is refused, whatever was put into the stock meanwhile.
#[test]
fn a_late_put_admits_nobody() {
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
                guard.grow(1);
            }
            assert_eq!((guard.group().usage(), guard.group().path().as_str()), (1, "/q"));
        }
        drop(groups);
    });
    assert_empty(&runtime);
}

/// Percentages follow, charges move, guards of zero bytes are made: nothing of it is left when all are gone.
#[test]
fn everything_at_once_on_one_group() {
    let runtime = build(Runtime::builder().audit(true).batch(Bytes(64)).max(memcg::Limit::Bytes(100_000)));
    let root = runtime.root();
    let home = create(&root, "home");
    let stay = create(&home, "stay");
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (home, stay) = (&home, &stay);
            scope.spawn(move || {
                for round in 0..ROUNDS / 3 {
                    let name = format!("{}", round % 2);
                    let limits = Limits::new().max("10%".parse().expect("a percentage"));
                    let group = match home.create(&name, limits) {
                        Ok(group) => group,
                        Err(_) => match home.children().into_iter().find(|group| group.name() == name) {
                            Some(group) => group,
                            None => continue,
                        },
                    };
                    let mut held = group.charge(thread + round % 70);
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
