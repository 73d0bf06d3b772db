//! Groups above their max or their high: a mark at each, and the tree's word of alerts, which
//! counts the marks.
//!
//! Usage passes max by a charge that was forced or where max has moved below it, and passes high by
//! any charge. A task asks at its next checkpoint. While nothing is wrong, the task loads the
//! tree's word and is done.
//!
//! Whoever may have made the mark wrong compares afterwards. A walk looks where a high is set, or
//! where it has gone above max; an uncharge looks where the mark is set; so does a thread that moves
//! max or high (`look.rs`, whose look ends with [`moved`]). A thread that takes the group offline
//! calls [`moved`] itself. Where the mark is wrong the thread corrects it, and then compares again,
//! until both agree.
//! Where usage is a little below the limits, either mark is right. A thread counts a mark before it
//! sets it. A thread that clears a mark looks at usage again before it uncounts the mark: until
//! then another thread may have found the mark set.
//!
//! Edges: E43 (usage/mark), E44 (count/mark).

use crate::counter::object::{Counter, Object};
use crate::counter::watch::{EXCEEDED, OBSERVED};
use crate::sync::{Ordering, fence_after_exchange};

/// The slack of a mark: this part of the limit, as a shift, and at most so much.
const SLACK_SHIFT: u32 = 5;
const SLACK_MAX: u64 = 1 << 20;

/// Usage is above max, and the limits act.
pub(crate) fn is_above_max(counter: &Object) -> bool {
    // SeqCst (E43): each after the exchange on usage, limit or mark.
    counter.usage() > counter.limits.max.load(Ordering::SeqCst)
        && !counter.limits.watched.is_for(OBSERVED)
        && !counter.state().is_offline()
}

/// Distance of usage below a limit at which the mark goes: a group that stays near its limit does
/// not write the tree's word time and again. A checkpoint looks at usage itself.
fn slack(limit: u64) -> u64 {
    (limit >> SLACK_SHIFT).min(SLACK_MAX)
}

/// Usage has not fallen well below max, so a mark that is set may stay. This also answers for a
/// counter that may be gone.
#[inline]
pub(crate) fn is_near_max(counter: &Object) -> bool {
    let usage = counter.usage();
    // SeqCst (E43): after the exchange on usage. Pairs with `clear` in `correct`.
    let max = counter.limits.max.load(Ordering::SeqCst);
    usage > max - slack(max)
}

/// Usage is above a limit, less `slack` of it: an observed max is none, and an observed high counts
/// its events. Counters beside memory have no mark: no charge and no checkpoint asks for them.
#[inline]
fn is_above(counter: &Object, slack: impl Fn(u64) -> u64) -> bool {
    // SeqCst (E43): each after the exchange on usage, limit or mark. `thresholds::set_high`
    // exchanges the bits after it has stored high: they are read before it.
    let usage = counter.usage();
    let _ = counter.limits.watched.bits();
    let limits = [
        counter.limits.max.load(Ordering::SeqCst),
        counter.high.load(Ordering::Relaxed),
    ];
    limits.into_iter().any(|limit| usage > limit - slack(limit))
        && counter.is_memory()
        && !counter.state().is_offline()
}

/// The mark has to be there.
pub(crate) fn is_exceeded(counter: &Object) -> bool {
    is_above(counter, |_| 0)
}

pub(crate) fn is_marked(counter: &Object) -> bool {
    counter.limits.watched.is_for(EXCEEDED)
}

/// The mark is set above a limit, and clear well below both; in between it may be either.
pub(crate) fn is_mark_right(counter: &Counter) -> bool {
    let has_marks = counter.tree().policies().is_some();
    !has_marks
        || if is_marked(counter) {
            is_above(counter, slack)
        } else {
            !is_exceeded(counter)
        }
}

/// The mark is set, and usage has fallen well below the limits. This also answers for a counter
/// that may be gone.
#[inline]
pub(crate) fn has_fallen(counter: &Object) -> bool {
    is_marked(counter) && !is_above(counter, slack)
}

/// Usage or a limit has moved, or the group is offline.
#[inline]
pub(crate) fn moved(counter: &Counter) {
    // Some loads, which mostly find the mark right: what corrects it is out of line.
    if has_fallen(counter) || (!is_marked(counter) && is_exceeded(counter)) {
        correct(counter);
    }
}

/// Corrects the mark. It takes no lock, allocates nothing, and waits for no thread.
#[cold]
pub(crate) fn correct(counter: &Counter) {
    let tree = counter.tree();
    if tree.policies().is_none() {
        return;
    }
    let watched = &counter.limits.watched;
    loop {
        if !is_marked(counter) && is_exceeded(counter) {
            // E44: counted, then marked. Pairs with `Alerts::any`.
            // Mutation: e44-marked-before-it-is-counted
            tree.alerts.count_exceeded();
            // Mutation: e43-marked-without-a-second-look
            // Mutation: e44-marked-before-it-is-counted
            // Another thread has set it meanwhile, and has counted it, too. One count for one mark.
            if watched.set(EXCEEDED) & EXCEEDED != 0 {
                tree.alerts.uncount_exceeded();
            }
        } else if has_fallen(counter) {
            // E43: the mark, then usage. A thread that has raised usage meanwhile may have found
            // the mark: then its count stays, and so does the mark. Pairs with the exchange on
            // usage before `moved`.
            let cleared = watched.clear(EXCEEDED) & EXCEEDED != 0;
            fence_after_exchange();
            // The count goes with the mark. It stays where usage is above again and this thread has
            // set the mark anew; if another thread was faster, that one has counted it.
            // Mutation: e43-uncounted-without-a-look
            if cleared && (!is_exceeded(counter) || watched.set(EXCEEDED) & EXCEEDED != 0) {
                tree.alerts.uncount_exceeded();
            }
        } else {
            return;
        }
        fence_after_exchange();
    }
}
