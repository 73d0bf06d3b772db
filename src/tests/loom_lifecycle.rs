//! Groups that come and go: each object is released once, after its last use, and no thread reaches
//! the next group in it.

use std::sync::Arc;

use super::common::{end, group};
use super::schedules::EVER;
use super::{beside, build, large_model_without_pair, model, model_without_pair, race, with_group};
use crate::counter::incarnation::ObjectState;
use crate::lifecycle::unowned;
use crate::thread;
use crate::{Bytes, Charge, CounterKey, Group, Limits, Percent, Runtime, RuntimeBuilder};

/// Units go up the tree one by one: these models explore the end of a group, not its stock.
pub(super) fn bare() -> RuntimeBuilder {
    Runtime::builder().batch(Bytes(0)).reclaim_time(EVER)
}

/// A batch of two units, never closed by margin.
pub(super) fn stocked() -> RuntimeBuilder {
    Runtime::builder()
        .batch(Bytes(2))
        .budget(Bytes(64))
        .adaptive(false)
}

/// No unit is charged, no group is dying, and every object that the pool has is there once: the
/// next groups have one each.
#[track_caller]
pub(super) fn assert_released_once(runtime: &Runtime) {
    assert_eq!((runtime.root().usage(), runtime.dying_count()), (0, 0));
    let [first, second] = ["first", "second"].map(|name| group(&runtime.root(), name));
    assert_ne!(first, second, "an object released twice is two groups'");
}

/// E15. The last uncharge and the last handle at once: one of the two threads releases the group.
#[test]
fn loom_last_uncharge_vs_handle_drop() {
    model_without_pair(|| {
        let (runtime, gone) = with_group(bare(), "gone");
        let charge = gone.charge(1).unwrap();
        gone.offline().unwrap();
        race(charge, drop, || drop(gone));
        assert_released_once(&runtime);
    });
}

/// A thread finds a new group once it is linked, and sets what it has: that stays.
#[test]
fn loom_created_vs_set() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare());
        let limits = |rank: u8| {
            Limits::new()
                .max(4)
                .importance(rank)
                .pressure_levels(rank, 100)
                .share(rank.into())
        };
        let set = move |root: Group| {
            root.children()
                .pop()
                .map(|found| found.set_limits(limits(2)).unwrap())
        };
        let (found, created) = race(root.clone(), set, || root.create("q", limits(1)).unwrap());
        let rank = if found.is_some() { 2 } else { 1 };
        let now = created.limits();
        assert_eq!((now.importance, now.share), (Some(rank), Some(rank.into())));
        assert_eq!(now.elevated.map(Percent::get), Some(rank));
    });
}

/// E15. Two charges, no handle: one of the two threads that give back releases the group.
#[test]
fn loom_last_uncharge_vs_last_uncharge() {
    model_without_pair(|| {
        let (runtime, gone) = with_group(bare(), "gone");
        let [here, there] = [1, 1].map(|bytes| gone.charge(bytes).unwrap());
        end(gone);
        race(there, drop, || drop(here));
        assert_released_once(&runtime);
    });
}

/// E15. Usage that touches zero and rises again is not the end: the claimer reads usage after the
/// claim.
#[test]
fn loom_usage_touches_zero_vs_handle_drop() {
    model_without_pair(|| {
        let (runtime, gone) = with_group(bare(), "gone");
        let early = gone.charge(1).unwrap();
        gone.offline().unwrap();
        let dropper = beside(early, drop);
        // For memory that exists already: also an offline group takes it.
        let charger = beside(gone, |gone| gone.force_charge(1));
        dropper.join().unwrap();
        let late = charger.join().unwrap();
        assert_eq!(
            (runtime.root().usage(), runtime.dying_count()),
            (1, 1),
            "the late charge keeps the group"
        );
        drop(late);
        assert_released_once(&runtime);
    });
}

/// E15. A zero-byte guard grows while another guard's last bytes go: it gives its handle up only
/// once its bytes are there.
#[test]
fn loom_zero_guard_grows_vs_last_uncharge() {
    model_without_pair(|| {
        let (runtime, gone) = with_group(bare(), "gone");
        let mut empty = gone.charge(1).unwrap();
        let full = empty.take();
        end(gone);
        race(full, drop, || empty.force_grow(1));
        assert_eq!(
            (runtime.root().usage(), runtime.dying_count()),
            (1, 1),
            "the guard that grew keeps the group"
        );
        drop(empty);
        assert_released_once(&runtime);
    });
}

/// E15. A guard that shrinks to zero bytes takes its handle before its last bytes go.
#[test]
fn loom_zero_guard_shrinks_vs_last_uncharge() {
    model_without_pair(|| {
        let (runtime, gone) = with_group(bare(), "gone");
        let mut guard = gone.charge(1).unwrap();
        let other = gone.charge(1).unwrap();
        end(gone);
        race(other, drop, || guard.shrink(1));
        assert_eq!(runtime.dying_count(), 1, "the empty guard keeps the group");
        guard.force_grow(1);
        assert_eq!(runtime.root().usage(), 1);
        drop(guard);
        assert_released_once(&runtime);
    });
}

/// E15. A guard loses its last byte and grows again while the last handle goes: a word that looks
/// as before, and a usage that was zero in between. Without *moved* it fails where loads count as
/// exchanges, and only there (`docs::orderings`); `races::a_guard_that_turns_over_keeps_its_group`
/// tries it with real threads.
#[test]
fn loom_guard_turns_over_vs_last_handle() {
    model_without_pair(|| {
        let (runtime, gone) = with_group(bare(), "gone");
        let guard = gone.charge(1).unwrap();
        gone.offline().unwrap();
        let turn_over = |mut guard: Charge| {
            guard.shrink(1);
            guard.force_grow(1);
            guard
        };
        let guard = race(guard, turn_over, || drop(gone)).0;
        assert_eq!(
            (runtime.root().usage(), runtime.dying_count()),
            (1, 1),
            "the guard keeps the group"
        );
        drop(guard);
        assert_released_once(&runtime);
    });
}

/// E15. The last bytes of two counters of one group go at once: one of the two threads releases
/// both.
#[test]
fn loom_last_of_two_counters() {
    model_without_pair(|| {
        let mut builder = bare();
        let spill = builder.counter("spill", crate::Unit::Bytes);
        let runtime = builder.build().unwrap();
        let gone = group(&runtime.root(), "gone");
        let [memory, spilt] = gone
            .charge_set(&[(CounterKey::MEMORY, 1), (spill, 1)])
            .unwrap();
        end(gone);
        race(spilt, drop, || drop(memory));
        assert_released_once(&runtime);
    });
}

/// E11, E15. The thread that adds what is protected to the parent keeps the group meanwhile: in the
/// end the parent has no protected bytes of it.
#[test]
fn loom_protection_vs_last_uncharge() {
    model_without_pair(|| {
        let runtime = bare().build().unwrap();
        let gone = runtime.root().create("gone", Limits::new().min(2)).unwrap();
        let [here, there] = [1, 1].map(|bytes| gone.charge(bytes).unwrap());
        let dropper = beside(there, drop);
        drop(here);
        end(gone);
        dropper.join().unwrap();
        assert_eq!(runtime.root().memory().children_min_usage(), 0);
        assert_released_once(&runtime);
    });
}

/// E11. Two threads that give back at once, each without a handle, leave the parent with what is
/// protected.
#[test]
fn loom_protection_vs_uncharge() {
    model_without_pair(|| {
        let runtime = bare().build().unwrap();
        let group = runtime
            .root()
            .create("index", Limits::new().min(2))
            .unwrap();
        let [here, there] = [1, 1].map(|bytes| group.charge(bytes).unwrap());
        race(there, drop, || drop(here));
        assert_eq!(runtime.root().memory().children_min_usage(), 0);
    });
}

/// E2, E3. A thread that knows that a group is offline is refused there, whatever credit it had;
/// and that credit goes back up the tree.
#[test]
fn loom_offline_vs_charge() {
    model(|| {
        let (runtime, gone) = with_group(stocked(), "gone");
        let charge = |gone: Group| {
            let first = gone.charge(1);
            if gone.is_offline() {
                gone.charge(1).expect_err("the group is offline");
            }
            drop(first);
        };
        race(gone.clone(), charge, || end(gone));
        runtime.settle();
        assert_released_once(&runtime);
    });
}

/// E14. The only charger takes its group offline without a barrier, while a second thread charges
/// the group.
#[test]
fn loom_offline_vs_second_charger() {
    model_without_pair(|| {
        let (runtime, gone) = with_group(stocked(), "gone");
        drop(gone.charge(1).unwrap());
        race(gone.clone(), |gone| drop(gone.charge(1)), || end(gone));
        runtime.settle();
        assert_released_once(&runtime);
    });
}

/// E14. A third charger finds the mark of the second: it, too, reads capacity 0, or the thread that
/// takes the group offline sees that mark.
#[test]
fn loom_offline_vs_third_charger() {
    large_model_without_pair(|| {
        let (runtime, gone) = with_group(stocked(), "gone");
        drop(gone.charge(1).unwrap());
        let chargers = [(); 2].map(|()| beside(gone.clone(), |gone| gone.charge(1)));
        gone.offline().unwrap();
        drop(chargers.map(|charger| charger.join().unwrap()));
        runtime.settle();
        assert_eq!(
            (gone.memory().stocked(), gone.memory().stocked_bound()),
            (0, 0)
        );
        assert_eq!(
            runtime.root().memory().stocked_bound(),
            0,
            "the bound goes with the stock"
        );
        drop(gone);
        assert_released_once(&runtime);
    });
}

/// E3. Credit that comes back to a group that goes offline does not stay there, and the thread that
/// brings it touches no other group's words.
#[test]
fn loom_offline_vs_put() {
    model(|| {
        let (runtime, gone) = with_group(stocked(), "gone");
        // Here first: the other thread's charge makes two chargers.
        drop(gone.charge(1).unwrap());
        race(
            gone.clone(),
            |gone| drop(gone.charge(1)),
            || {
                end(gone);
                runtime.settle();
            },
        );
        assert_released_once(&runtime);
    });
}

/// E16. A stale id never reaches the next group in its object.
#[test]
fn loom_id_reuse() {
    model_without_pair(|| {
        let runtime = Arc::new(bare().build().unwrap());
        let old = group(&runtime.root(), "old");
        let id = old.id();
        let finder = beside(runtime.clone(), move |runtime| {
            if let Some(found) = runtime.find(id) {
                assert_eq!((found.id(), &*found.name()), (id, "old"));
            }
        });
        end(old);
        let next = group(&runtime.root(), "next");
        finder.join().unwrap();
        assert_ne!(next.id(), id);
        assert_eq!(runtime.find(id), None);
    });
}

/// E12. The next group in an object finds its slots vacant and its figures clean, on every thread.
fn object_reuse(first: fn(&Group)) {
    let (runtime, old) = with_group(stocked(), "old");
    first(&old);
    end(old);
    runtime.settle();
    let next = group(&runtime.root(), "next");
    let (there, here) = race(
        next.clone(),
        |next| next.charge(1).unwrap(),
        || next.charge(1).unwrap(),
    );
    assert_eq!(next.usage(), 2 + next.memory().stocked());
    assert!(
        next.memory().stocked() <= next.memory().stocked_bound(),
        "each thread has set its share aside"
    );
    drop((here, there));
    end(next);
    runtime.settle();
    assert_released_once(&runtime);
}

#[test]
fn loom_object_reuse() {
    model(|| {
        object_reuse(|old| {
            _ = race(
                old.clone(),
                |old| drop(old.charge(1)),
                || drop(old.charge(1)),
            )
        })
    });
}

/// [`object_reuse`] without the pair: no thread runs a barrier for a slot that is vacated. The
/// first charges come in turn, which leaves time for the others.
#[test]
fn loom_object_reuse_without_pair() {
    large_model_without_pair(|| {
        object_reuse(|old| {
            beside(old.clone(), |old| drop(old.charge(1)))
                .join()
                .unwrap();
            drop(old.charge(1));
        });
    });
}

/// E15. The runtime goes while the last charge does: the whole tree is released, the root last, and
/// the pool has it all.
#[test]
#[cfg_attr(miri, ignore = "Miri: it counts or leaves groups of the process")]
fn loom_runtime_drop_vs_last_charge() {
    model_without_pair(|| {
        let (runtime, query) = with_group(bare(), "query");
        let charge = query.charge(1).unwrap();
        drop(query);
        race(charge, drop, || drop(runtime));
        let next = bare().build().unwrap();
        let query = group(&next.root(), "query");
        assert_eq!(
            next.pools().rows()[0].live,
            2,
            "no group of the first runtime is left"
        );
        drop(query);
    });
}

/// Another group gets the charge for what no group owns while a thread brings that charge up to
/// date: it has it afterwards, and the group before has nothing.
#[test]
fn loom_unowned_moves_vs_settle() {
    model_without_pair(|| {
        let (runtime, shared) = with_group(bare(), "shared");
        let other = group(&runtime.root(), "other");
        unowned::charge_to(Some(shared.first()));
        thread::unowned::count(thread::unowned::UnownedCount::Allocated, 4);
        race(
            (),
            |()| unowned::follow_exactly(),
            || unowned::charge_to(Some(other.first())),
        );
        unowned::follow_exactly();
        assert_eq!((shared.usage(), other.usage(), unowned::sum()), (0, 4, 4));
        unowned::charge_to(None);
        assert_eq!(runtime.root().usage(), 0);
    });
}

/// E5, E6, E10. A transfer that fits is not refused for credit of another thread, in a slot or in
/// transit.
#[test]
fn loom_transfer_vs_stranded_credit() {
    model(|| {
        let (runtime, from) = with_group(stocked(), "from");
        let to = runtime.root().create("to", Limits::new().max(2)).unwrap();
        let mut moved = from.charge(1).unwrap();
        let charged = race(
            to.clone(),
            |to| to.charge(1).expect("one of two"),
            || moved.transfer(&to).expect("the other of two"),
        )
        .0;
        assert_eq!(to.usage(), moved.bytes() + charged.bytes());
    });
}

/// E15. A transfer out of an offline group may be its end.
#[test]
fn loom_transfer_vs_last_handle() {
    model_without_pair(|| {
        let runtime = bare().build().unwrap();
        let [from, to] = ["from", "to"].map(|name| group(&runtime.root(), name));
        let mut moved = from.charge(1).unwrap();
        from.offline().unwrap();
        race(from, drop, || moved.transfer(&to).unwrap());
        assert_eq!(
            (to.usage(), runtime.root().usage(), runtime.dying_count()),
            (1, 1, 0)
        );
        drop(moved);
        drop(to);
        assert_released_once(&runtime);
    });
}

/// A count of handles that has stuck stays stuck, though two handles go at once and another handle
/// comes.
#[test]
fn loom_stuck_handles() {
    model(|| {
        let state = Arc::new(ObjectState::before_it_sticks(0));
        let other = beside(Arc::clone(&state), |state| _ = state.unpin());
        state.unpin();
        state.pin();
        state.unpin();
        other.join().unwrap();
        assert!(
            state.has_stuck(),
            "it comes down to zero while there are handles"
        );
    });
}
