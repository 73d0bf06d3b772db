//! A look ahead: a walk looks at all levels of its path before it takes the first, where one of
//! them has refused a walk lately.
//!
//! A walk takes its levels one by one. Where a level refuses, those below have the walk's units
//! until the thread has taken them off again: meanwhile other charges find less room there, and may
//! be refused for what nobody holds. A walk that will be refused, and knows it, takes nothing.
//!
//! Nothing else rests on a look, so it has no edge:
//! * It only refuses. A look that finds room, or no mark, is followed by the walk.
//! * Its refusal is that of the level, made as in a walk ([`Counter::refusal_if_full`]): by the
//!   newest usage, and a max that was read after it, at an instant of the call. So a mark never
//!   refuses by itself, however old it is, and what follows a refusal (the drain, reclaim, the
//!   counts) does not know of looks.
//! * It goes up as the walk does, so the same level refuses: the lowest without room. Where charges
//!   wait at a level that has room, the walk decides there whether it may pass them, and the look
//!   ends.
//! * A walk without a mark at its path is made as ever. So a walk that is refused takes levels
//!   below once for each mark that is set, and where another thread takes the room between the look
//!   and the walk.
//! * In a set of counters it decides the order alone (`group/charge_set.rs`): the one that lacks
//!   room is charged before the others.
//!
//! A refusal sets the mark of its level. Looks that find room there take it away in the end, so a
//! level that has room again costs no look for ever.

use crate::counter::level::ChargeMode;
use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::counter::watch::WAITING;
use crate::sync::Ordering;

/// Looks that find room at a level before its mark goes. So at most one of so many charges that fit
/// there is followed by a walk that is refused there and has taken levels below.
pub(crate) const LOOKS: u32 = 4_096;

/// A level of the counter's path has refused lately. In most trees none has, which one load tells.
#[inline(always)]
pub(crate) fn is_due(counter: &Counter) -> bool {
    counter.tree().refusing.load(Ordering::Relaxed) > 0 && has_refused_on_path(counter)
}

#[inline(always)]
fn has_refused_on_path(counter: &Counter) -> bool {
    let mut level = counter;
    loop {
        if level.limits.refuses.load(Ordering::Relaxed) {
            return true;
        }
        match level.parent() {
            Some(above) => level = above,
            None => return false,
        }
    }
}

/// Returns the refusal that a walk of `n` up to `top` would meet.
#[cold]
#[inline(never)]
pub(crate) fn refusal_slow<'a>(
    counter: &'a Counter,
    n: u64,
    mode: ChargeMode,
    top: Option<&Counter>,
) -> Option<LevelRefusal<'a>> {
    // These go above max, or are refused only where a drain may make room.
    if matches!(mode, ChargeMode::Force | ChargeMode::AdmitOrForce) {
        return None;
    }
    for level in counter.path_below(top) {
        if let Some(refusal) = level.refusal_if_full(n) {
            note_refusal(level);
            return Some(refusal.limited());
        }
        // Where charges wait, room is not all: the walk asks what is left of the budget to barge.
        if level.limits.watched.is_for(WAITING) {
            return None;
        }
        if level.limits.refuses.load(Ordering::Relaxed) {
            found_room(level);
        }
    }
    None
}

/// Marks a level that has refused. Its usage line is this thread's: the refusal has exchanged it.
pub(crate) fn note_refusal(level: &Counter) {
    // Two threads may count as one: the number is a hint as well. Words that are right already are
    // not written, so that threads that are refused send each other no line for them.
    if level.usage.looks_left.load(Ordering::Relaxed) != LOOKS {
        level.usage.looks_left.store(LOOKS, Ordering::Relaxed);
    }
    // The exchange counts each mark once.
    if !level.limits.refuses.load(Ordering::Relaxed)
        && !level.limits.refuses.swap(true, Ordering::Relaxed)
    {
        level.tree().refusing.fetch_add(1, Ordering::Relaxed);
    }
}

/// A marked level has room for the walk that comes, which exchanges the same line.
fn found_room(level: &Counter) {
    let left = level.usage.looks_left.load(Ordering::Relaxed);
    level
        .usage
        .looks_left
        .store(left.saturating_sub(1), Ordering::Relaxed);
    if left <= 1 {
        level.tree().clear_refuses(&level.limits.refuses);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{CounterConfig, PageCounter};

    /// R of 10 above P of 8, without stock.
    fn tree() -> (PageCounter, PageCounter) {
        let root = PageCounter::root(CounterConfig::new().batch(0).max(10));
        let parent = root.child();
        parent.set_max(8).unwrap();
        (root, parent)
    }

    fn marks(levels: [&PageCounter; 2]) -> [bool; 2] {
        levels.map(|level| level.counter().limits.refuses.load(Ordering::Relaxed))
    }

    #[test]
    fn a_refusal_marks_its_level() {
        let (root, parent) = tree();
        let job = parent.child();
        assert!(!is_due(job.counter()));
        job.charge(11).unwrap_err();
        assert_eq!(marks([&parent, &root]), [true, false]);
        assert!(
            is_due(job.counter()) && is_due(parent.child().counter()) && !is_due(root.counter())
        );
        root.charge(5).unwrap();
        job.charge(6).unwrap_err();
        assert_eq!(marks([&parent, &root]), [true, true]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri: thousands of walks take minutes")]
    fn looks_that_find_room_take_the_mark_away() {
        let (root, parent) = tree();
        root.charge(8).unwrap();
        parent.charge(3).unwrap_err();
        let turn = || {
            parent.charge(1).unwrap();
            parent.uncharge(1);
        };
        for _ in 0..LOOKS - 1 {
            turn();
        }
        assert!(is_due(parent.counter()), "not yet");
        parent.charge(3).unwrap_err();
        for _ in 0..LOOKS - 1 {
            turn();
        }
        assert!(is_due(parent.counter()), "it has refused again");
        turn();
        assert!(!is_due(parent.counter()));
        parent.charge(2).unwrap();
        assert_eq!((parent.usage(), root.usage()), (2, 10));
    }

    #[test]
    fn a_mark_refuses_nothing_by_itself() {
        let (root, parent) = tree();
        root.charge(8).unwrap();
        parent.charge(3).unwrap_err();
        parent.charge(2).unwrap();
        root.uncharge(8);
        parent.charge(6).expect("both levels have room again");
        parent.charge(1).unwrap_err();
        parent.set_max(9).unwrap();
        parent.charge(1).expect("the max is raised");
        parent.charge(2).unwrap_err();
        parent.force_charge(2);
        assert_eq!((parent.usage(), root.usage()), (11, 11));
    }

    #[test]
    fn the_lowest_level_without_room_refuses_and_counts() {
        let (root, parent) = tree();
        let job = parent.child();
        root.charge(4).unwrap();
        for turn in 1..=3 {
            let by_parent = job.charge(9).unwrap_err();
            assert_eq!((by_parent.level, by_parent.usage), (parent.id(), 0));
            let by_root = job.charge(7).unwrap_err();
            assert_eq!(
                (by_root.level, by_root.usage, by_root.max),
                (root.id(), 4, 10)
            );
            let counted = [&job, &parent, &root].map(|level| level.refused_count());
            assert_eq!(counted, [0, turn, turn]);
        }
        assert_eq!([&job, &parent].map(|level| level.peak()), [0, 0]);
    }

    #[test]
    fn the_next_counter_with_the_object_has_no_mark() {
        let (root, _parent) = tree();
        for _ in 0..2 {
            let short = root.child();
            assert!(!is_due(short.counter()));
            short.set_max(0).unwrap();
            short.charge(1).unwrap_err();
            assert!(is_due(short.counter()));
        }
        let refusing = &root.counter().tree().refusing;
        assert_eq!(refusing.load(Ordering::Relaxed), 0, "both are gone");
    }
}
