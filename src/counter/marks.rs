//! The numbers that a change of usage is compared with: min, low, soft, high; and what follows where usage has fallen.
//!
//! Edges: E11 (protection), E12 (a report/the next counter with the object), E23 (soft limit), E25 (a waiter), E43 (usage
//! above a limit).

use crate::counter::exceeded;
use crate::counter::handle::Handle;
use crate::counter::incarnation::Generation;
use crate::counter::noted;
use crate::counter::object::{Counter, LimitWords};
use crate::counter::protection::{Protected, Protection};
use crate::counter::watch::{EXCEEDED, HIGH, NOTED, REPORTED, WAITING};
use crate::sync::{Ordering, fence_after_exchange};
use crate::thread::slow_path;

// === Protection ===

fn protected(counter: &Counter, kind: Protection) -> &Protected {
    match kind {
        Protection::Min => &counter.limits.min,
        Protection::Low => &counter.limits.low,
    }
}

/// No thread charges the counter yet.
pub(crate) fn begin_protection(counter: &Counter, kind: Protection, units: u64) {
    protected(counter, kind).begin(units);
    if units > 0 {
        counter.limits.watched.set(REPORTED);
    }
}

pub(crate) fn set_protection(counter: &Counter, kind: Protection, units: u64) {
    protected(counter, kind).set(units);
    if units > 0 {
        counter.limits.watched.set(REPORTED);
    }
    // Mutation: e11-setting-without-fence
    fence_after_exchange();
    report(counter, kind);
}

fn report(counter: &Counter, kind: Protection) {
    if let Some(parent) = counter.incarnation().parent {
        protected(counter, kind).report(|| counter.usage(), protected(parent, kind));
    }
}

/// Report to the parent how much of a changed usage is protected, where a protection is set.
pub(crate) fn report_protected(counter: &Counter) {
    for kind in [Protection::Min, Protection::Low] {
        if protected(counter, kind).is_set() {
            report(counter, kind);
        }
    }
}

pub(crate) fn protection(counter: &Counter, kind: Protection) -> u64 {
    protected(counter, kind).setting()
}

pub(crate) fn children_protected(counter: &Counter, kind: Protection) -> u64 {
    protected(counter, kind).of_children()
}

// === Soft and high ===

pub(crate) fn soft(counter: &Counter) -> u64 {
    counter.limits.soft.load(Ordering::Relaxed)
}

/// No thread charges the counter yet.
pub(crate) fn begin_soft(counter: &Counter, soft: u64) {
    counter.limits.soft.store(soft, Ordering::Relaxed);
    if soft < u64::MAX {
        counter.limits.watched.set(REPORTED);
    }
}

/// The caller holds the lock of the group's shard, and corrects the mark of excess afterwards.
pub(crate) fn set_soft(counter: &Counter, soft: u64) {
    // SeqCst (E23): the limit, then usage; pairs with the exchange on usage before `is_excess_wrong`.
    // Mutation: e23-soft-limit-without-fence
    counter.limits.soft.swap(soft, Ordering::SeqCst);
    if soft < u64::MAX {
        counter.limits.watched.set(REPORTED);
    }
    // Mutation: e23-soft-limit-without-fence
    fence_after_exchange();
}

/// Usage is on the other side of the soft limit than the mark says.
#[inline]
pub(crate) fn is_excess_wrong(counter: &Counter) -> bool {
    // SeqCst (E23): after the exchange on usage or limit.
    let soft = counter.limits.soft.load(Ordering::SeqCst);
    soft < u64::MAX && (counter.usage() > soft) != is_in_excess(counter)
}

pub(crate) fn is_in_excess(counter: &Counter) -> bool {
    // SeqCst (E23): after the exchange on usage; pairs with the mark in `reclaim::excess`.
    counter.limits.in_excess.load(Ordering::SeqCst) != 0
}

#[inline]
pub(crate) fn high(counter: &Counter) -> u64 {
    counter.high.load(Ordering::Relaxed)
}

/// The caller holds the lock of the group's shard, or no thread charges the group yet.
pub(crate) fn set_high(counter: &Counter, high: u64) {
    counter.high.store(high, Ordering::Relaxed);
    // E43: high, then the exchange of the bits, then usage.
    if high < u64::MAX {
        counter.limits.watched.set(HIGH);
    } else {
        counter.limits.watched.clear(HIGH);
    }
    // Mutation: e43-high-moves-without-a-look
    fence_after_exchange();
    // Mutation: e43-high-moves-without-a-look
    exceeded::moved(counter);
}

// === Usage has fallen ===

/// Report to the parent and to the policies that usage has fallen. The caller keeps the counter.
#[inline]
pub(crate) fn fell(counter: &Counter) {
    if counter.limits.watched.bits() != 0 {
        fell_watched_slow(counter);
    }
}

#[cold]
#[inline(never)]
fn fell_watched_slow(counter: &Counter) {
    // Mutation: e11-uncharge-reports-nothing
    report_protected(counter);
    if counter.limits.watched.is_for(WAITING) || is_excess_wrong(counter) {
        notify(counter);
    }
    if exceeded::has_fallen(counter) {
        exceeded::correct(counter);
    }
}

fn notify(counter: &Counter) {
    if slow_path::is_quiet() {
        // Mutation: e45-free-is-not-noted
        noted::note(counter, NOTED);
    } else if let Some(policies) = counter.tree().policies() {
        policies.fell(counter);
    }
}

/// Report that usage has fallen, where the caller no longer keeps the counter. `of` is the generation of its group's
/// `first` counter, which this pins meanwhile.
#[inline]
pub(crate) fn fell_if(counter: &Counter, first: &'static Counter, of: Generation) {
    if counter.limits.watched.bits() != 0 {
        fell_unkept_slow(counter, first, of);
    }
}

/// This thread takes a handle meanwhile: another thread that has reported to the parent may have taken the last step.
#[cold]
#[inline(never)]
fn fell_unkept_slow(counter: &Counter, first: &'static Counter, of: Generation) {
    let LimitWords { watched, min, low, .. } = &counter.limits;
    if watched.bits() == EXCEEDED && exceeded::is_near_max(counter) {
        return;
    }
    // Mutation: e25-uncharge-schedules-no-level
    let reports = watched.is_for(WAITING)
        || min.is_set()
        || low.is_set()
        || is_excess_wrong(counter)
        || exceeded::has_fallen(counter);
    // Mutation: e15-protection-reported-without-a-handle
    // Mutation: e23-crossing-without-a-handle
    // Mutation: e12-a-level-is-listed-that-may-be-gone
    if reports && let Some(_handle) = Handle::try_pin(first, of) {
        fell_watched_slow(counter);
    }
}

/// A limit has moved: charges that wait here may fit now, and usage may be above max or no more.
pub(crate) fn limit_moved(counter: &Counter) {
    exceeded::moved(counter);
    if counter.limits.watched.is_for(WAITING) {
        notify(counter);
    }
}
