//! Excess, registrations and reclaim: marks that agree with usage, calls that end before a
//! registration is dropped, bytes that reach the charge that waits for them. A max that moves: what
//! is set apart, and what reclaim may use.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::common::{end, group};
use super::loom_lifecycle::bare;
use super::{beside, build, model, model_without_pair, race};
use crate::reclaim::excess;
use crate::sync::AtomicU64;
use crate::{
    Bytes, Charge, Group, Limit, Limits, Reclaim, ReclaimContext, ReclaimPriority, Runtime,
};

fn soft(bytes: u64) -> Limits {
    Limits::new().soft(Limit::Bytes(bytes))
}

fn with_soft(name: &str, bytes: u64) -> (Runtime, Group, Group) {
    let (runtime, root) = build(bare());
    let group = root.create(name, soft(bytes)).unwrap();
    (runtime, root, group)
}

/// E23. Up by one, down by another: the mark ends where usage does.
#[test]
fn loom_crossing_vs_crossing() {
    model_without_pair(|| {
        let (_runtime, root, group) = with_soft("group", 1);
        let first = group.charge(1).unwrap();
        let second = race(first, drop, || group.charge(1).unwrap()).1;
        assert_eq!(
            (
                group.inspect().is_in_excess(),
                root.inspect().descendants_in_excess()
            ),
            (false, 0)
        );
        drop(second);
    });
}

/// E23. The limit moves below usage, or above it, while usage passes.
#[test]
fn loom_crossing_vs_soft_limit() {
    model_without_pair(|| {
        let (_runtime, root, group) = with_soft("group", 4);
        let held = race(
            group.clone(),
            |group| group.set_limits(Limits::new().soft(1)).unwrap(),
            || group.charge(2).unwrap(),
        )
        .1;
        assert_eq!(
            (
                group.inspect().is_in_excess(),
                root.inspect().descendants_in_excess()
            ),
            (true, 1)
        );
        drop(held);
        assert_eq!(root.inspect().descendants_in_excess(), 0);
    });
}

/// A share changes beside a look: the parts end as the shares are, whichever look comes last.
#[test]
fn loom_share_vs_looks() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare().max(Limit::Bytes(8)));
        let [a, b] = ["a", "b"].map(|name| root.create(name, Limits::new().share(1)).unwrap());
        let change = |a: Group| {
            a.set_limits(Limits::new().share(3)).unwrap();
            a.inspect().soft()
        };
        assert_eq!(race(a.clone(), change, || b.inspect().soft()).0, 6);
        assert_eq!([a.inspect().soft(), b.inspect().soft()], [6, 2]);
    });
}

/// A share and a soft limit are set at once: the group has one of the two.
#[test]
fn loom_share_vs_soft_limit() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare().max(Limit::Bytes(8)));
        let [a, b] = ["a", "b"].map(|name| root.create(name, Limits::new().share(1)).unwrap());
        let divide = || {
            a.set_limits(Limits::new().share(3)).unwrap();
            b.inspect().soft()
        };
        race(
            a.clone(),
            |a| a.set_limits(Limits::new().soft(7)).unwrap(),
            divide,
        );
        let figures = (a.limits().share, a.inspect().soft(), b.inspect().soft());
        assert!(
            [(Some(3), 6, 2), (None, 7, 8)].contains(&figures),
            "{figures:?}"
        );
    });
}

/// A group that goes offline beside a look leaves its part to its sibling, and has no soft limit.
#[test]
fn loom_share_vs_offline() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare().max(Limit::Bytes(8)));
        let [gone, stays] =
            ["gone", "stays"].map(|name| root.create(name, Limits::new().share(1)).unwrap());
        race(
            gone.clone(),
            |gone| gone.offline().unwrap(),
            || stays.inspect().soft(),
        );
        assert_eq!(
            [gone.inspect().soft(), stays.inspect().soft()],
            [u64::MAX, 8]
        );
    });
}

/// E23. A group that goes offline is not in excess, although another thread charges it meanwhile.
#[test]
fn loom_crossing_vs_offline() {
    model_without_pair(|| {
        let (_runtime, root, gone) = with_soft("gone", 0);
        let held = race(
            gone.clone(),
            |gone| gone.force_charge(1),
            || gone.offline().unwrap(),
        )
        .0;
        assert_eq!(
            (
                root.inspect().descendants_in_excess(),
                excess::children(root.first())
            ),
            (0, 0)
        );
        drop(held);
        assert_eq!(
            (
                root.inspect().descendants_in_excess(),
                excess::children(root.first())
            ),
            (0, 0)
        );
    });
}

/// E23. The last uncharge crosses, and the object is the next group's by then: that one is not in
/// excess.
#[test]
fn loom_crossing_vs_last_uncharge() {
    model_without_pair(|| {
        let (runtime, root, gone) = with_soft("gone", 0);
        let held = gone.charge(1).unwrap();
        let dropper = beside(held, drop);
        end(gone);
        let next = runtime.root().create("next", soft(0)).unwrap();
        dropper.join().unwrap();
        let children = || excess::children(root.first());
        assert_eq!(
            (
                next.inspect().is_in_excess(),
                root.inspect().descendants_in_excess(),
                children()
            ),
            (false, 0, 0)
        );
        let held = next.charge(1).unwrap();
        assert_eq!(
            (
                next.inspect().is_in_excess(),
                root.inspect().descendants_in_excess()
            ),
            (true, 1)
        );
        drop(held);
    });
}

/// Notes whether it is called after its registration is gone.
#[derive(Default)]
struct WatchedReclaimer {
    at_work: AtomicU64,
    gone: AtomicBool,
    late: AtomicBool,
}

impl Reclaim for WatchedReclaimer {
    fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
        self.at_work.store(1, Ordering::SeqCst);
        if self.gone.load(Ordering::SeqCst) {
            self.late.store(true, Ordering::SeqCst);
        }
        self.at_work.store(0, Ordering::SeqCst);
        0
    }
}

/// E24. A walk finds a registration that is being dropped: the call ends before the drop does, or
/// no call begins.
#[test]
fn loom_registration_vs_walk() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare());
        let held = root.charge(1).unwrap();
        let watched = Arc::new(WatchedReclaimer::default());
        let registration = root.register_reclaimer(watched.clone(), ReclaimPriority::NORMAL);
        let walker = beside(root, |root| root.reclaim(1).unwrap());
        drop(registration);
        watched.gone.store(true, Ordering::SeqCst);
        assert_eq!(
            watched.at_work.load(Ordering::SeqCst),
            0,
            "a call is under way"
        );
        walker.join().unwrap();
        assert!(!watched.late.load(Ordering::SeqCst), "a call began");
        drop(held);
    });
}

/// E47. A group goes offline while a thread registers with it: the reclaimer is found from above.
#[test]
fn loom_registration_vs_offline() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare());
        let held = root.charge(1).unwrap();
        let gone = group(&root, "gone");
        let registration = race(
            gone.clone(),
            |gone| gone.offline().unwrap(),
            || {
                gone.register_reclaimer(
                    Arc::new(WatchedReclaimer::default()),
                    ReclaimPriority::NORMAL,
                )
            },
        )
        .1;
        drop(gone);
        assert!(root.reclaim(1).unwrap().visited > 0, "the parent has it");
        drop((registration, held));
    });
}

/// A cache that gives one charge back for each call, as long as it has any.
pub(super) struct ChargeCache(Mutex<Vec<Charge>>);

impl ChargeCache {
    pub(super) fn of(charges: impl IntoIterator<Item = Charge>) -> Arc<ChargeCache> {
        Arc::new(ChargeCache(Mutex::new(charges.into_iter().collect())))
    }
}

impl Reclaim for ChargeCache {
    fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
        let given = self.0.lock().unwrap().pop();
        given.map_or(0, |charge| charge.bytes())
    }
}

/// Memory that reclaim frees reaches the charge that it is freed for, although another thread keeps
/// credit in its stock.
#[test]
fn loom_reclaim_vs_uncharge() {
    model(|| {
        let builder = Runtime::builder()
            .batch(Bytes(1))
            .budget(Bytes(3))
            .adaptive(false);
        let (_runtime, root) = build(builder.max(3));
        let [cache, busy] = ["cache", "busy"].map(|name| group(&root, name));
        let kept = ChargeCache::of([cache.charge(2).unwrap()]);
        let _registration = cache.register_reclaimer(kept, ReclaimPriority::NORMAL);
        let other = beside(busy, |busy| drop(busy.charge(1)));
        let held = root.charge(2);
        assert!(held.is_ok(), "2 for it, and 1 for the other thread");
        other.join().unwrap();
        assert!(root.usage() <= 3);
    });
}

/// Two rounds at once, and enough for both: a round that finds all turns taken by the other round
/// still makes room.
#[test]
fn loom_reclaim_vs_reclaim() {
    model(|| {
        let (_runtime, root) = build(bare());
        let entries = ChargeCache::of((0..3).map(|_| root.charge(1).unwrap()));
        let registration = root.register_reclaimer(entries, ReclaimPriority::NORMAL);
        let (theirs, ours) = race(
            root.clone(),
            |root| root.reclaim(2).unwrap().freed,
            || root.reclaim(1).unwrap().freed,
        );
        drop(registration);
        assert_eq!((ours, theirs), (1, 2));
    });
}

/// E5. What `set_max` returns as above the new max has no units of a walk that is undone for it.
#[test]
fn loom_walk_vs_imposed_max() {
    model(|| {
        let (_runtime, root) = build(bare().max(4));
        let set = || root.set_max(1).unwrap();
        let (charge, above) = race(root.clone(), |root| root.charge(2).ok(), set);
        assert_eq!(
            above,
            root.usage().saturating_sub(1),
            "usage {}",
            root.usage()
        );
        drop(charge);
    });
}

/// A refusal names the max that refused, though another thread sets a larger one meanwhile.
#[test]
fn loom_refusal_vs_raised_max() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare().max(1));
        let set = || root.set_max(4).unwrap();
        match race(root.clone(), |root| root.charge(2), set).0 {
            Err(error) if error.is_over_limit() => {
                let refusal = error.over_limit().expect("a refusal");
                assert_eq!((refusal.max(), refusal.usage()), (1, 0), "{refusal}")
            }
            charged => drop(charged.unwrap()),
        }
    });
}
