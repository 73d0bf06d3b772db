//! What a level is watched for, in one word: a walk loads it once, and where no bit is set the walk does no more.
//!
//! A thread that sets a bit sets it first and reads usage afterwards. A thread that changes usage changes it first and
//! reads the word afterwards. So one of the two threads sees the other's change.
//!
//! Edges: E11 (protection), E23 (soft limit), E25 (a waiter), E26 (a thread that waits for an event).

use std::ptr;

use crate::counter::incarnation::Generation;
use crate::counter::object::Counter;
use crate::sync::{Ordering, fence_after_exchange};
use crate::thread::deferred;

/// min, low or a soft limit has been set in this incarnation: a change of usage is reported to the levels above.
pub(crate) const TOLD: u64 = 1;
/// Charges wait for room here.
pub(crate) const WAITING: u64 = 1 << 1;
/// Charges of this group wait, here or further up.
pub(crate) const WAITS: u64 = 1 << 2;
/// A thread waits for an event, or a listener is registered.
pub(crate) const LISTENS: u64 = 1 << 3;
/// The limits refuse and delay no charge.
pub(crate) const OBSERVED: u64 = 1 << 4;
/// The group has a high.
pub(crate) const HIGH: u64 = 1 << 5;
/// The level is in the list of a thread that serves it: its waiters for room or for an event.
const LISTED: u64 = 1 << 6;

impl Counter {
    /// Set bits. From here on a thread that changes usage sees them. Called before a read of usage.
    pub(crate) fn watch(&self, bits: u64) {
        // SeqCst (E11, E23, E25, E26): after what the bits stand for, before the read of usage.
        self.limits.watched.fetch_or(bits, Ordering::SeqCst);
    }

    pub(crate) fn unwatch(&self, bits: u64) {
        // SeqCst (E11, E23, E25, E26): after what the bits stood for. A thread that still sees them checks once in
        // vain.
        self.limits.watched.fetch_and(!bits, Ordering::SeqCst);
    }

    #[inline]
    fn watched(&self) -> u64 {
        // SeqCst (E11, E23, E25, E26): after the exchange on usage, or on the count of an event.
        self.limits.watched.load(Ordering::SeqCst)
    }

    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.watched() != 0
    }

    #[inline]
    pub(crate) fn is_watched_for(&self, bits: u64) -> bool {
        self.watched() & bits != 0
    }

    /// A charge was refused here lately, or a charge waits for room: no stock below opens.
    pub(crate) fn is_tight(&self) -> bool {
        self.limits.tight.load(Ordering::Relaxed) || self.is_watched_for(WAITING)
    }

    /// Admit a walk that has added `n` at a watched level, within `max`. Returns the max by which room is judged.
    /// `None`: the walk may not barge, and this function has subtracted `n` again.
    #[cold]
    #[inline(never)]
    pub(crate) fn admit_watched_slow(&self, n: u64, max: u64) -> Option<u64> {
        let watched = self.watched();
        if watched & WAITING != 0 && self.tree().policies.is_some_and(|policies| !policies.may_barge(self, n)) {
            self.take_off(n);
            return None;
        }
        Some(if watched & OBSERVED != 0 { self.max() } else { max })
    }

    /// Give back the barging budget of a walk that has passed this level and subtracts `n` from it.
    pub(crate) fn undo_barge(&self, n: u64) {
        if self.is_watched_for(WAITING)
            && let Some(policies) = self.tree().policies
        {
            policies.barge_undone(self, n);
        }
    }

    /// Report to the parent and to the policies that usage has fallen. The caller keeps the counter.
    #[inline]
    pub(crate) fn fell(&self) {
        if self.is_watched() {
            self.fell_watched_slow();
        }
    }

    #[cold]
    #[inline(never)]
    fn fell_watched_slow(&self) {
        self.tell_protected();
        if self.is_watched_for(WAITING) || self.is_excess_wrong() {
            self.tell_fall();
        }
    }

    fn tell_fall(&self) {
        if let Some(policies) = self.tree().policies {
            policies.fell(self);
        }
    }

    /// Report that usage has fallen, where the caller no longer keeps the counter. `of` is the generation of `first`,
    /// which this pins meanwhile.
    #[inline]
    pub(crate) fn fell_if(&self, first: &Counter, of: Generation) {
        if self.is_watched() {
            self.fell_unkept_slow(first, of);
        }
    }

    /// This thread takes a handle meanwhile: another thread that has reported to the parent may have taken the last
    /// step.
    #[cold]
    #[inline(never)]
    fn fell_unkept_slow(&self, first: &Counter, of: Generation) {
        let told = self.is_watched_for(WAITING) || self.is_protected() || self.is_excess_wrong();
        if told && first.state().try_pin(of) {
            self.fell_watched_slow();
            if let Some(of) = first.unpin() {
                first.part(of);
            }
        }
    }

    /// A limit has moved: charges that wait here may fit now.
    pub(crate) fn limit_moved(&self) {
        if self.is_watched_for(WAITING) {
            self.tell_fall();
        }
    }

    // === Marks that are numbers ===

    /// Usage above this is in excess; `u64::MAX`: never.
    pub(crate) fn soft_mark(&self) -> u64 {
        self.limits.soft.load(Ordering::Relaxed)
    }

    /// Set the soft limit of a counter that no thread charges yet.
    pub(crate) fn begin_soft_mark(&self, soft: u64) {
        self.limits.soft.store(soft, Ordering::Relaxed);
        if soft < u64::MAX {
            self.watch(TOLD);
        }
    }

    /// Set the soft limit. The caller holds the lock of the group's shard.
    pub(crate) fn set_soft_mark(&self, soft: u64) {
        // SeqCst (E23): the limit, then usage; pairs with the exchange on usage before `is_excess_wrong`.
        self.limits.soft.swap(soft, Ordering::SeqCst);
        if soft < u64::MAX {
            self.watch(TOLD);
        }
        fence_after_exchange();
        if let Some(policies) = self.tree().policies {
            policies.soft_moved(self);
        }
    }

    /// Set the high. The caller holds the lock of the group's shard, or no thread charges the group yet.
    pub(crate) fn set_high_mark(&self, high: u64) {
        self.high.store(high, Ordering::Relaxed);
        if high < u64::MAX { self.watch(HIGH) } else { self.unwatch(HIGH) }
    }

    /// Usage above this delays charges; `u64::MAX`: never.
    #[inline]
    pub(crate) fn high_mark(&self) -> u64 {
        self.high.load(Ordering::Relaxed)
    }

    /// The counter's limits refuse and delay no charge.
    pub(crate) fn is_observed(&self) -> bool {
        self.is_watched_for(OBSERVED)
    }

    /// Usage is on the other side of the soft limit than the mark says.
    #[inline]
    pub(crate) fn is_excess_wrong(&self) -> bool {
        // SeqCst (E23): after the exchange on usage or limit.
        let soft = self.limits.soft.load(Ordering::SeqCst);
        soft < u64::MAX && (self.usage() > soft) != self.is_in_excess()
    }

    pub(crate) fn is_in_excess(&self) -> bool {
        // SeqCst (E23): after the exchange on usage; pairs with the mark in `reclaim::excess`.
        self.limits.in_excess.load(Ordering::SeqCst) != 0
    }

    // === Levels to serve ===

    /// Have this thread serve the level at the end of its slow path, unless another thread has scheduled that. The
    /// caller keeps the counter; from here on a handle of the list does.
    pub(crate) fn schedule_service(&self) {
        // AcqRel (E25, E26): pairs with `unschedule_service`. Where the level is listed already, the thread that serves
        // it sees all before this.
        if self.limits.watched.fetch_or(LISTED, Ordering::AcqRel) & LISTED == 0 {
            self.first().state().pin();
            let after = deferred::exchange_served(ptr::from_ref(self).cast());
            self.usage.next_served.store(after.cast_mut().cast(), Ordering::Relaxed);
        }
    }

    /// Take the level off the list, before the thread serves it.
    pub(crate) fn unschedule_service(&self) {
        // AcqRel (E25, E26): before the read of usage and counts; pairs with `schedule_service`.
        self.limits.watched.fetch_and(!LISTED, Ordering::AcqRel);
    }
}
