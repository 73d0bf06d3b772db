//! Looks: the marks of a level against its usage. A change of usage or of a limit is followed by
//! one.
//!
//! A look reads usage anew and leaves the marks as that usage has them. So a second look finds
//! nothing to do, and of two threads the one that looks last leaves the level right.
//!
//! Edges: E11 (protection), E12 (a report/the next counter with the object), E23 (soft limit), E25
//! (a waiter), E43 (usage above a limit), E45 (usage changes/the counter is looked at), E55
//! (reclaim in the background).

use std::ptr;

use crate::counter::handle::{Handle, WeakCounter};
use crate::counter::object::tree::LookFinding;
use crate::counter::object::{Counter, LimitWords, Object};
use crate::counter::protection::ProtectionWords;
use crate::counter::slow_path::LazySlowPath;
use crate::counter::watch::{DEFERRED, DEFERRED_ABOVE, DEFERRED_UNDERFLOW, EXCEEDED, WAITING};
use crate::counter::{exceeded_mark, pressure_mark, thresholds};
use crate::sync::{Ordering, fence_after_exchange};
use crate::thread::deferred::{LISTS, deferred};
use crate::thread::slow_path::is_no_alloc;

/// Compares a level with its marks, by loads alone, for mostly there is nothing to do. With
/// `serves`, usage has fallen or max has moved: else charges that wait fit no better than before.
/// This also answers for a counter that may be gone.
#[inline]
fn find(level: &Object, serves: bool) -> LookFinding {
    LookFinding {
        crosses_soft: thresholds::is_excess_wrong(level),
        // Mutation: e55-crossing-is-not-looked-for
        is_to_reclaim: thresholds::is_to_reclaim(level),
        moves_pressure: pressure_mark::is_wrong(level),
        may_be_credit: pressure_mark::may_be_credit(level),
        serves_line: serves && level.limits.watched.is_for(WAITING),
    }
}

/// Corrects the marks of a level. With `serves`, usage has fallen or max has moved, so charges that
/// wait may fit now. The caller may hold the tree's lock, and may be in transit.
#[cold]
pub(crate) fn look(level: &Counter, serves: bool, path: &LazySlowPath) {
    correct(level, find(level, serves), path);
}

/// Corrects the marks of a level, of which this has been found.
fn correct(level: &Counter, found: LookFinding, path: &LazySlowPath) {
    thresholds::report_protected(level);
    // Policies take locks, so they are called only where there is something to do.
    if found.is_any() {
        if is_no_alloc() {
            // An allocator may call no policy, for that may take a lock that its own caller holds:
            // the next slow path of any thread looks again.
            // Mutation: e45-free-is-not-deferred
            defer(level, DEFERRED);
        } else if let Some(policies) = level.tree().policies() {
            // What policies schedule is served at the end of a slow path, so there has to be one.
            path.enter();
            policies.usage_moved(level, found);
        }
    }
    // Last, and not one of the findings: this mark is corrected here, without a policy and without
    // a lock, for charges inside an allocator, too.
    exceeded_mark::moved(level);
}

/// Tells the policies of the levels that a charge has left above their max: from `lowest` on, below
/// `top`. The caller keeps them; in no slow path, it is not in transit: listeners may run.
#[cold]
pub(crate) fn tell_above_max(lowest: &Counter, top: Option<&Counter>) {
    if is_no_alloc() {
        defer(lowest, DEFERRED | DEFERRED_ABOVE);
    } else if let Some(policies) = lowest.tree().policies() {
        lowest
            .path_below(top)
            .filter(|level| level.forced() > 0)
            .for_each(|level| policies.above_max(level));
    }
}

/// Tells the policies that more was uncharged than charged at a level. The caller keeps it, and is
/// in a slow path; it may hold the tree's lock, and may be in transit.
#[cold]
pub(crate) fn tell_underflow(level: &Counter) {
    if is_no_alloc() {
        defer(level, DEFERRED | DEFERRED_UNDERFLOW);
    } else if let Some(policies) = level.tree().policies() {
        policies.underflowed(level);
    }
}

/// Looks at a level whose usage has fallen.
#[inline]
pub(crate) fn fell(level: &Counter, path: &LazySlowPath) {
    // One load answers for levels without limit, protection or waiters, as most are.
    if level.limits.watched.bits() != 0 {
        look(level, true, path);
    }
}

/// Does what [`fell`] does, where the caller no longer keeps the level. This thread takes a handle
/// meanwhile: another thread that has reported to the parent may have taken the last step.
pub(crate) fn fell_unkept(level: WeakCounter) {
    let object = level.object;
    let LimitWords {
        watched, protected, ..
    } = &object.limits;
    let bits = watched.bits();
    // Near max either mark is right, so usage that goes up and down there does not write the mark.
    if bits == 0 || (bits == EXCEEDED && exceeded_mark::is_near_max(object)) {
        return;
    }
    // To keep the level costs a write to its state word, which others share: only where there is
    // something to correct.
    let found = find(object, true);
    // Mutation: e11-uncharge-reports-nothing
    // Mutation: e25-uncharge-schedules-no-level
    let reports = found.is_any()
        || protected.iter().any(ProtectionWords::is_set)
        || exceeded_mark::has_fallen(object);
    // Mutation: e15-protection-reported-without-a-handle
    // Mutation: e23-crossing-without-a-handle
    // Mutation: e12-a-level-is-listed-that-may-be-gone
    if reports && let Some(level) = level.try_pin() {
        correct(&level, found, &LazySlowPath::inside());
    }
}

// === Looks that an allocator leaves to the next slow path: see `allocator.md` ===

/// Queues a look at `counter` and its ancestors for the next outermost slow path, on any thread.
/// The caller keeps the counter; from here on a handle of the list does.
#[cold]
#[inline(never)]
pub(crate) fn defer(counter: &Counter, what: u64) {
    fence_after_exchange();
    // A bare counter has no policy that a look would call.
    if counter.tree().policies().is_none() {
        return;
    }
    let watched = &counter.limits.watched;
    // SeqCst (E45), in both: after the exchange on usage; pairs with `take_deferred`. Where the
    // look is deferred already, the thread that takes the mark reads that usage.
    if watched.bits() & what == what {
        return;
    }
    // The thread that sets the mark lists the counter, so it is on the list once: one link of the
    // object serves for it.
    if watched.set(what) & DEFERRED == 0 {
        let counter = Handle::pin(counter).into_raw();
        let all = deferred();
        all.looks.push(ptr::from_ref(counter).cast(), |next| {
            counter
                .usage
                .next_to_release
                .store(next.cast_mut().cast(), Ordering::Relaxed);
        });
        all.announce(LISTS);
    }
}

/// Takes the marks of a counter that a thread has taken off the list, and returns them: a level was
/// left above its max, or has less than was uncharged. The thread reads usage afterwards.
pub(crate) fn take_deferred(counter: &Counter) -> u64 {
    let all = DEFERRED | DEFERRED_ABOVE | DEFERRED_UNDERFLOW;
    // SeqCst (E45): before the read of usage; pairs with `defer`.
    let bits = counter.limits.watched.clear(all);
    fence_after_exchange();
    bits & all
}
