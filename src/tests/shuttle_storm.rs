//! Everything at once: five threads choose at random what they do to one small tree. What is held
//! is added up at the end, the figures as well, and no charge may be left once all is given back.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Waker};

use shuttle::rand::{Rng as _, thread_rng};

use super::shuttle_reclaim::ChargeCache;
use super::{Threads, assert_adds_up, below, check};
use crate::{
    Bytes, Charge, ChargeFuture, Freshness, Group, Limit, Limits, ReclaimPriority, Runtime, StatKey,
};

const THREADS: usize = 5;
const OPS: usize = 10;
const EVENT: StatKey = StatKey::WORKINGSET_REFAULT;

/// The state that all threads see.
struct World {
    runtime: Runtime,
    tenants: [Group; 2],
    cache: Arc<ChargeCache>,
    /// Additions to [`EVENT`].
    written: AtomicI64,
}

/// The state of one thread.
#[derive(Default)]
struct Hand {
    charges: Vec<Charge>,
    groups: Vec<Group>,
    futures: Vec<Pin<Box<ChargeFuture>>>,
}

impl Hand {
    fn step(&mut self, world: &World, name: &str) {
        let mut rng = thread_rng();
        let tenant = &world.tenants[rng.gen_range(0..2)];
        let bytes: u64 = rng.gen_range(1..4);
        let group = self.groups.last().unwrap_or(tenant).clone();
        match rng.gen_range(0..16) {
            0..4 => self.charges.extend(group.charge(Bytes(bytes))),
            4 => self.charges.push(group.force_charge(Bytes(bytes))),
            5 => self
                .groups
                .extend(tenant.create(name, Limits::new().soft(Limit::Bytes(bytes)))),
            6 => {
                if let Some(gone) = self.groups.pop() {
                    gone.offline().unwrap();
                }
            }
            7 => {
                let mut future = Box::pin(group.charge_async(Bytes(bytes)));
                match future
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
                {
                    std::task::Poll::Ready(charged) => self.charges.extend(charged),
                    std::task::Poll::Pending => self.futures.push(future),
                }
            }
            8 => drop(self.futures.pop()),
            9 => {
                if let Some(charge) = self.charges.last_mut() {
                    let split = charge.split(1).ok();
                    let _ = charge.transfer(tenant);
                    charge.force_grow(1);
                    self.charges.extend(split);
                }
            }
            10 => {
                if let Some(charge) = self.charges.last_mut() {
                    charge.shrink(Bytes(bytes));
                    let _ = charge.grow(1);
                }
            }
            11 => drop(tenant.set_max(Limit::Bytes(bytes * 4))),
            12 => {
                let kept = self.charges.pop();
                world.cache.0.lock().extend(kept);
            }
            13 => {
                group.stat_add(EVENT, bytes as i64);
                world.written.fetch_add(bytes as i64, Ordering::Relaxed);
            }
            14 => match bytes {
                1 => world.runtime.settle(),
                2 => drop(world.runtime.snapshot()),
                _ => assert!(tenant.memory().drain() < 1 << 20),
            },
            _ => drop(self.charges.pop()),
        }
    }
}

fn storm(batch: u64) {
    let builder = Runtime::builder()
        .batch(Bytes(batch))
        .stat_batch(4)
        .audit(true)
        .max(24);
    let runtime = if batch > 0 {
        builder.budget(Bytes(16))
    } else {
        builder
    }
    .build()
    .unwrap();
    let tenants = ["acme", "blue"].map(|name| below(&runtime.root(), name, 12));
    let cache = ChargeCache::of(Vec::new());
    let registration = runtime
        .root()
        .register_reclaimer(cache.clone(), ReclaimPriority::NORMAL);
    let world = Arc::new(World {
        runtime,
        tenants,
        cache,
        written: AtomicI64::new(0),
    });
    let mut threads = Threads::new();
    for thread in 0..THREADS {
        threads.add(world.clone(), move |world| {
            let mut hand = Hand::default();
            (0..OPS).for_each(|op| hand.step(&world, &format!("q{thread}-{op}")));
            hand
        });
    }
    let hands = threads.join();
    let World {
        runtime,
        tenants,
        cache,
        written,
    } = &*world;
    drop(registration);
    assert_eq!(
        runtime.root().read(Freshness::Exact).get(EVENT),
        written.load(Ordering::Relaxed)
    );
    let verdict = runtime.verify();
    assert!(verdict.is_ok(), "{verdict}");
    for hand in hands {
        drop(hand.futures);
        drop(hand.groups);
        drop(hand.charges);
    }
    let kept = std::mem::take(&mut *cache.0.lock());
    drop(kept);
    tenants.iter().for_each(Group::offline_tree);
    assert_eq!(runtime.root().waiting_count(), 0);
    assert_adds_up(runtime, &[]);
    assert_eq!(
        (runtime.group_count(), runtime.dying_count()),
        (1, 2),
        "the tenants have handles"
    );
    assert_eq!(
        (runtime.pools().rows()[0].live, runtime.counts().underflows),
        (3, 0)
    );
    assert_eq!(
        runtime.root().read(Freshness::Exact).get(EVENT),
        written.load(Ordering::Relaxed)
    );
}

#[test]
fn shuttle_everything_at_once() {
    check(400, || storm(0));
}

#[test]
fn shuttle_everything_at_once_with_stock() {
    check(400, || storm(2));
}
