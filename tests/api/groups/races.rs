//! A group goes offline in the middle of what another thread does with its stock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;

use memcg::{Bytes, Group, Runtime};

use super::{build, create, left_empty};

const ROUNDS: u64 = if cfg!(debug_assertions) {
    2_000
} else {
    60_000
};

/// Hits, and stocks that are open whatever happens.
fn open() -> Runtime {
    build(Runtime::builder().batch(Bytes(64)).adaptive(false))
}

/// Writes to memory that no cache has, so that the next store of this thread is late for all
/// others.
struct Cold {
    memory: Vec<u8>,
    at: u64,
}

impl Cold {
    fn new() -> Self {
        Self {
            memory: vec![0; 256 << 20],
            at: 1,
        }
    }

    fn write(&mut self) {
        for _ in 0..6 {
            self.at = self
                .at
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let at = (self.at >> 33) as usize % self.memory.len();
            self.memory[at] = 1;
        }
    }
}

/// A thread that knows that the group is offline is refused, whatever was put into the stock
/// meanwhile.
#[test]
fn a_late_put_admits_no_group() {
    let runtime = left_empty(open());
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
                    let held = group.charge(3);
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
            drop(group.charge(1));
            groups
                .send((round, group.clone()))
                .expect("the charger takes groups");
            (0..round % 5_000).for_each(|_| std::hint::spin_loop());
            group.offline().expect("no children");
            gone.store(round, Ordering::Release);
        }
        drop(groups);
        assert_eq!(
            charger.join().expect("no panic"),
            0,
            "charges that began after offline, of {ROUNDS}"
        );
    });
}

/// A guard loses its last byte and grows again, over and over, while the last handle goes.
#[test]
fn a_guard_that_turns_over_keeps_its_group() {
    let runtime = left_empty(build(Runtime::builder().batch(Bytes(0))));
    let root = runtime.root();
    let (groups, inbox) = sync_channel::<Group>(0);
    std::thread::scope(|scope| {
        scope.spawn(|| inbox.into_iter().for_each(drop));
        for round in 0..ROUNDS / 2 {
            let group = create(&root, "q");
            let mut guard = group.charge(1).expect("room");
            group.offline().expect("no children");
            groups.send(group).expect("the other thread takes it");
            for _ in 0..round % 16 {
                guard.shrink(1);
                guard.force_grow(1);
            }
            assert_eq!(
                (guard.group().usage(), guard.group().path().as_str()),
                (1, "/q")
            );
        }
        drop(groups);
    });
}
