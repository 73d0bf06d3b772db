//! Charges without a guard: the counts of them, and the object that stays because guards hold what
//! they do not show.

use super::common::{end, group};
use super::loom_lifecycle::{assert_released_once, bare, stocked};
use super::{beside, build, model, model_without_pair, race, with_group};
use crate::{Group, Limits};

/// E2, E3. As `loom_offline_vs_charge`, for a charge without a guard: it looks at capacity in a
/// test of its own.
#[test]
fn loom_offline_vs_charge_without_guard() {
    model(|| {
        let (runtime, gone) = with_group(stocked(), "gone");
        let charge = |gone: Group| {
            let first = gone.raw().charge(1);
            if gone.is_offline() {
                gone.raw().charge(1).expect_err("the group is offline");
            }
            if first.is_ok() {
                gone.raw().uncharge(1);
            }
        };
        race(gone.clone(), charge, || end(gone));
        runtime.settle();
        assert_eq!(runtime.counts().underflows, 0);
        assert_released_once(&runtime);
    });
}

/// E15. An uncharge without a guard takes what a guard holds, and with the last handle nothing
/// keeps the group: the guard's drop does not reach the next group.
#[test]
fn loom_uncharge_without_guard_vs_guard() {
    model_without_pair(|| {
        let (runtime, gone) = with_group(bare(), "gone");
        let guard = gone.charge(1).unwrap();
        gone.offline().unwrap();
        let wrong = beside(gone, |gone| {
            gone.raw().uncharge(1);
            drop(gone);
        });
        let next = group(&runtime.root(), "next");
        let held = next.charge(1).unwrap();
        drop(guard);
        wrong.join().unwrap();
        assert_eq!(
            (
                next.usage(),
                runtime.root().usage(),
                runtime.counts().underflows
            ),
            (1, 1, 1)
        );
        drop(held);
    });
}

/// E15. The group covers, and its guard's drop is in transit: the thread has a block from its first
/// charge with a stock on.
#[test]
fn loom_uncharge_without_guard_vs_guard_that_reserves() {
    model_without_pair(|| {
        let (runtime, root) = build(stocked());
        let other = group(&root, "other");
        drop([other.charge(1), other.charge(1)]);
        let gone = root
            .create("gone", Limits::new().cover_allocations())
            .unwrap();
        let guard = gone.charge(1).unwrap();
        gone.offline().unwrap();
        gone.raw().uncharge(1);
        race(gone, drop, || drop(guard));
        assert_eq!((root.live(), runtime.counts().underflows), (0, 1));
    });
}

/// E15. Of two threads that drop the last handles one has given back what a guard holds: whichever
/// claims the object keeps it, and the guard's drop does not let it go.
#[test]
fn loom_uncharge_without_guard_vs_handle_drop() {
    model_without_pair(|| {
        let (runtime, gone) = with_group(bare(), "gone");
        let id = gone.id();
        let guard = gone.charge(1).unwrap();
        gone.offline().unwrap();
        let wrong = |gone: Group| {
            gone.raw().uncharge(1);
            drop(gone);
        };
        race(gone.clone(), wrong, || drop(gone));
        assert_eq!(
            (runtime.dying_count(), runtime.find(id).is_some()),
            (1, true),
            "the guard has its group"
        );
        drop(guard);
        assert_eq!(
            (runtime.dying_count(), runtime.counts().underflows),
            (1, 1),
            "kept for ever, and counted"
        );
        assert_ne!(runtime.find(id).unwrap(), group(&runtime.root(), "next"));
    });
}

/// E15. A hit counts after its last store that another thread waits for: only the drop of its
/// handle shows the count to the thread that claims the object.
#[test]
fn loom_hit_without_guard_vs_claim() {
    model(|| {
        let (runtime, gone) = with_group(stocked(), "gone");
        let guard = gone.charge(1).unwrap();
        gone.raw().charge(1).unwrap();
        // The first finds no cell and misses. The second hits, and takes what the guard holds.
        let wrong = |gone: Group| {
            gone.raw().uncharge(1);
            gone.raw().uncharge(1);
            drop(gone);
        };
        race(gone.clone(), wrong, || {
            end(gone);
            runtime.settle();
        });
        runtime.settle();
        assert_eq!(
            (runtime.dying_count(), runtime.root().usage()),
            (1, 0),
            "the guard has its group"
        );
        drop(guard);
        assert_eq!(
            (runtime.dying_count(), runtime.counts().underflows),
            (1, 1),
            "kept for ever, and counted"
        );
    });
}

/// E15. Between the claim and the exchange that keeps the object a handle comes by id and makes
/// good what was given back too much: nothing is hidden any more, and the object goes.
#[test]
fn loom_keep_vs_handle_by_id() {
    model_without_pair(|| {
        let (runtime, gone) = with_group(bare(), "gone");
        let id = gone.id();
        let guard = gone.charge(1).unwrap();
        gone.offline().unwrap();
        gone.raw().uncharge(1);
        let dropper = beside(gone, drop);
        let found = runtime.find(id).expect("the guard keeps it");
        let between = found.first().state().is_claimed();
        found.raw().force_charge(1);
        drop(guard);
        drop(found);
        dropper.join().unwrap();
        assert_eq!(
            (runtime.root().usage(), runtime.counts().underflows),
            (0, 0)
        );
        if between {
            assert_released_once(&runtime);
        }
    });
}
