//! Excess, registrations and reclaim: marks that agree with usage, calls that end before a registration is dropped,
//! bytes that reach the charge that waits for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::loom_lifecycle::{beside, group};
use super::{model, model_without_pair};
use crate::sync::AtomicU64;
use crate::{Bytes, Charge, Limit, Limits, Priority, Reclaim, ReclaimContext, Runtime, RuntimeBuilder};

/// Units go up the tree one by one.
fn bare() -> RuntimeBuilder {
    Runtime::builder().batch(Bytes(0))
}

fn soft(bytes: u64) -> Limits {
    Limits::new().soft(Limit::Bytes(bytes))
}

/// E23. Up by one, down by another: the mark ends where usage does.
#[test]
fn loom_crossing_vs_crossing() {
    model_without_pair(|| {
        let runtime = bare().build().unwrap();
        let group = runtime.root().create("group", soft(1)).unwrap();
        let first = group.try_charge(1).unwrap();
        let other = beside(first, drop);
        let second = group.try_charge(1).unwrap();
        other.join().unwrap();
        assert_eq!((group.is_in_excess(), runtime.root().children_in_excess()), (false, 0));
        drop(second);
    });
}

/// E23. The limit moves below usage, or above it, while usage passes.
#[test]
fn loom_crossing_vs_soft_limit() {
    model_without_pair(|| {
        let runtime = bare().build().unwrap();
        let group = runtime.root().create("group", soft(4)).unwrap();
        let other = beside(group.clone(), |group| group.set_soft(Limit::Bytes(1)).unwrap());
        let held = group.try_charge(2).unwrap();
        other.join().unwrap();
        assert_eq!((group.is_in_excess(), runtime.root().children_in_excess()), (true, 1));
        drop(held);
        assert_eq!(runtime.root().children_in_excess(), 0);
    });
}

/// E23. A group that goes offline is not in excess, although another thread charges it meanwhile.
#[test]
fn loom_crossing_vs_offline() {
    model_without_pair(|| {
        let runtime = bare().build().unwrap();
        let gone = runtime.root().create("gone", soft(0)).unwrap();
        let charger = beside(gone.clone(), |gone| gone.charge(1));
        gone.offline().unwrap();
        let held = charger.join().unwrap();
        assert_eq!(runtime.root().children_in_excess(), 0);
        drop(held);
        assert_eq!(runtime.root().children_in_excess(), 0);
    });
}

/// E23. The last uncharge crosses, and the object is the next group's by then: that one is not in excess.
#[test]
fn loom_crossing_vs_last_uncharge() {
    model_without_pair(|| {
        let runtime = bare().build().unwrap();
        let gone = runtime.root().create("gone", soft(0)).unwrap();
        let held = gone.try_charge(1).unwrap();
        let dropper = beside(held, drop);
        gone.offline().unwrap();
        drop(gone);
        let next = runtime.root().create("next", soft(0)).unwrap();
        dropper.join().unwrap();
        assert_eq!((next.is_in_excess(), runtime.root().children_in_excess()), (false, 0));
        let held = next.try_charge(1).unwrap();
        assert_eq!((next.is_in_excess(), runtime.root().children_in_excess()), (true, 1));
        drop(held);
    });
}

/// Notes whether it is called after its registration is gone.
#[derive(Default)]
struct Watched {
    at_work: AtomicU64,
    gone: AtomicBool,
    late: AtomicBool,
}

impl Reclaim for Watched {
    fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
        self.at_work.store(1, Ordering::SeqCst);
        if self.gone.load(Ordering::SeqCst) {
            self.late.store(true, Ordering::SeqCst);
        }
        self.at_work.store(0, Ordering::SeqCst);
        0
    }
}

/// E24. A walk finds a registration that is being dropped: the call ends before the drop does, or no call begins.
#[test]
fn loom_registration_vs_walk() {
    model_without_pair(|| {
        let runtime = bare().build().unwrap();
        let root = runtime.root();
        let held = root.try_charge(1).unwrap();
        let watched = Arc::new(Watched::default());
        let registration = root.register_reclaimer(watched.clone(), Priority::NORMAL);
        let walker = beside(root, |root| root.reclaim(1).unwrap());
        drop(registration);
        watched.gone.store(true, Ordering::SeqCst);
        assert_eq!(watched.at_work.load(Ordering::SeqCst), 0, "a call is under way");
        walker.join().unwrap();
        assert!(!watched.late.load(Ordering::SeqCst), "a call began");
        drop(held);
    });
}

/// A group goes offline while a thread registers with it: the reclaimer is found from above.
#[test]
fn loom_registration_vs_offline() {
    model(|| {
        let runtime = bare().build().unwrap();
        let root = runtime.root();
        let held = root.try_charge(1).unwrap();
        let gone = group(&root, "gone");
        let other = beside(gone.clone(), |gone| gone.offline().unwrap());
        let registration = gone.register_reclaimer(Arc::new(Watched::default()), Priority::NORMAL);
        other.join().unwrap();
        drop(gone);
        assert!(root.reclaim(1).unwrap().visited > 0, "the parent has it");
        drop((registration, held));
    });
}

/// A cache with one charge to give.
struct One(std::sync::Mutex<Option<Charge>>);

impl Reclaim for One {
    fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
        let given = self.0.lock().unwrap().take();
        given.map_or(0, |charge| charge.bytes())
    }
}

/// What reclaim frees reaches the charge that it is freed for, although another thread keeps credit in its stock.
#[test]
fn loom_reclaim_vs_uncharge() {
    model(|| {
        let builder = Runtime::builder().batch(Bytes(1)).budget(Bytes(3)).adaptive(false);
        let runtime = builder.max(Limit::Bytes(3)).build().unwrap();
        let root = runtime.root();
        let [cache, busy] = ["cache", "busy"].map(|name| group(&root, name));
        let one = Arc::new(One(std::sync::Mutex::new(Some(cache.try_charge(2).unwrap()))));
        let _registration = cache.register_reclaimer(one, Priority::NORMAL);
        let other = beside(busy, |busy| drop(busy.try_charge(1)));
        let held = root.try_charge(2);
        assert!(held.is_ok(), "2 for it, and 1 for the other thread");
        other.join().unwrap();
        assert!(root.usage() <= 3);
    });
}

/// A cache with several charges to give.
struct Many(std::sync::Mutex<Vec<Charge>>);

impl Reclaim for Many {
    fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
        let given = self.0.lock().unwrap().pop();
        given.map_or(0, |charge| charge.bytes())
    }
}

/// Two rounds at once, and enough for both: a round that finds all turns taken by the other round still makes room.
#[test]
fn loom_reclaim_vs_reclaim() {
    model(|| {
        let runtime = bare().build().unwrap();
        let root = runtime.root();
        let entries = (0..8).map(|_| root.try_charge(1).unwrap()).collect();
        let registration = root.register_reclaimer(Arc::new(Many(std::sync::Mutex::new(entries))), Priority::NORMAL);
        let other = beside(root.clone(), |root| root.reclaim(3).unwrap().freed);
        let ours = root.reclaim(1).unwrap().freed;
        let theirs = other.join().unwrap();
        drop(registration);
        assert_eq!((ours, theirs), (1, 3));
    });
}
