//! The numbers that a change of usage is compared with: min, low, soft, high, and the threshold of
//! reclaim in the background. What a comparison finds is kept as a bit of the level, its *mark*:
//! soft's here, those of max and high in `exceeded_mark`, pressure's in `pressure_mark`.
//!
//! Edges: E11 (protection), E23 (soft limit), E43 (usage above a limit), E55 (reclaim in the
//! background).

use crate::counter::object::{Counter, Object};
use crate::counter::protection::{Protection, ProtectionWords};
use crate::counter::watch::{HIGH, RECLAIMS, REPORTED};
use crate::sync::{Ordering, fence_after_exchange};

// === Protection ===

fn protected(counter: &Counter, kind: Protection) -> &ProtectionWords {
    &counter.limits.protected[kind as usize]
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

/// Nothing of the counter is protected from here on.
pub(crate) fn unprotect(counter: &Counter) {
    Protection::ALL
        .into_iter()
        .for_each(|kind| set_protection(counter, kind, 0));
}

fn report(counter: &Counter, kind: Protection) {
    if let Some(parent) = counter.parent() {
        protected(counter, kind).report(|| counter.usage(), protected(parent, kind));
    }
}

/// Reports to the parent how much of a changed usage is protected, where a protection is set.
pub(crate) fn report_protected(counter: &Counter) {
    for kind in Protection::ALL {
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

/// The caller holds the lock of the group's shard, or the group is not linked yet. It corrects the
/// mark of excess afterwards.
pub(crate) fn set_soft(counter: &Counter, soft: u64) {
    // SeqCst (E23): the limit, then usage; pairs with the exchange on usage before
    // `is_excess_wrong`.
    // Mutation: e23-soft-limit-without-fence
    counter.limits.soft.swap(soft, Ordering::SeqCst);
    // Never cleared: a limit that is taken away and set again is no reason to write the word that
    // all walks read.
    if soft < u64::MAX {
        // Mutation: a-soft-limit-is-not-watched
        counter.limits.watched.set(REPORTED);
    }
    // Mutation: e23-soft-limit-without-fence
    fence_after_exchange();
}

/// Usage is on the other side of the soft limit than the mark says.
#[inline]
pub(crate) fn is_excess_wrong(counter: &Object) -> bool {
    // SeqCst (E23): after the exchange on usage or limit. Pairs with the mark in `reclaim::excess`.
    let soft = counter.limits.soft.load(Ordering::SeqCst);
    (counter.usage() > soft) != is_in_excess(counter)
}

pub(crate) fn is_in_excess(counter: &Object) -> bool {
    // SeqCst (E23): after the exchange on usage; pairs with the mark in `reclaim::excess`.
    counter.limits.in_excess.load(Ordering::SeqCst) != 0
}

#[inline]
pub(crate) fn high(counter: &Counter) -> u64 {
    counter.high.load(Ordering::Relaxed)
}

/// As [`set_soft`], for the mark that usage is above a limit.
pub(crate) fn set_high(counter: &Counter, high: u64) {
    counter.high.store(high, Ordering::Relaxed);
    // E43: high, then the exchange of the bits, then usage; pairs with the exchange on usage before
    // `exceeded_mark::moved`.
    counter
        .limits
        .watched
        .follow(HIGH, || self::high(counter) < u64::MAX);
}

// === Reclaim in the background ===

/// Distance of the second threshold below the one that was set: this part of it, as a shift.
/// Without it usage would sit at the threshold, and each charge there wake the thread for itself
/// alone.
const BELOW_SHIFT: u32 = 4;

#[inline]
pub(crate) fn reclaim_above(counter: &Object) -> u64 {
    counter.usage.reclaim_above.load(Ordering::Relaxed)
}

/// The second threshold: reclaim in the background goes down to it.
pub(crate) fn reclaim_down_to(counter: &Counter) -> u64 {
    let above = reclaim_above(counter);
    above - (above >> BELOW_SHIFT)
}

/// Usage is above the threshold, and no thread reclaims yet. The thread that then takes the bit has
/// a thread reclaim.
#[inline]
pub(crate) fn is_to_reclaim(counter: &Object) -> bool {
    // E55: after the exchange on usage, or on the bits. Pairs with `watch_again`.
    counter.limits.watched.is_for(RECLAIMS) && counter.usage() > reclaim_above(counter)
}

/// The caller holds the lock of the group's shard, or no thread charges the group yet. It looks at
/// usage afterwards.
pub(crate) fn set_reclaim_above(counter: &Counter, bytes: u64) {
    counter.usage.reclaim_above.store(bytes, Ordering::Relaxed);
    // E55: the threshold, then the exchange of the bits, then usage; pairs with the exchange on
    // usage before `is_to_reclaim`.
    watch_again(counter);
}

/// Has walks look at usage again, where a threshold is set.
pub(crate) fn watch_again(counter: &Counter) {
    // Mutation: e55-armed-without-a-mark
    let is_set = || reclaim_above(counter) < u64::MAX;
    counter.limits.watched.follow(RECLAIMS, is_set);
}

/// Usage is no longer to be reclaimed. True: it is, for it has passed the threshold meanwhile, and
/// this thread has the bit.
pub(crate) fn arm(counter: &Counter) -> bool {
    // E55: the bit, then usage; a thread that raises usage exchanges it before it reads the bit;
    // pairs with `is_to_reclaim`.
    watch_again(counter);
    // Mutation: e55-armed-without-a-look
    // Of this thread and those whose walks have passed the threshold meanwhile, the one that takes
    // the bit goes on.
    is_to_reclaim(counter) && take_bit(counter)
}

/// True for one thread of those that find usage above the threshold.
pub(crate) fn take_bit(counter: &Counter) -> bool {
    counter.limits.watched.clear(RECLAIMS) & RECLAIMS != 0
}
