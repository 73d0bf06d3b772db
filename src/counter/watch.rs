//! What a level is watched for, in one word: who walks looks once, and where nothing is set that is all.
//!
//! Whoever sets a bit sets it first and looks at usage afterwards; whoever changes usage changes it first and looks at
//! the word afterwards. So one of the two sees the other.
//!
//! Edges: E11 (protection), E23 (soft limit), E25 (a waiter), E26 (somebody who waits for an event).

use std::ptr;

use crate::counter::incarnation::Generation;
use crate::counter::object::Counter;
use crate::sync::{Ordering, fence_after_exchange};
use crate::thread::deferred;

/// min, low or a soft limit has been set in this life: levels above are to be told of changes of usage.
pub(crate) const TOLD: u64 = 1;
/// Charges wait for room here.
pub(crate) const WAITING: u64 = 1 << 1;
/// Charges of this group wait, here or further up.
pub(crate) const WAITS: u64 = 1 << 2;
/// Somebody waits for an event, or listens.
pub(crate) const LISTENS: u64 = 1 << 3;
/// The limits refuse and delay nobody.
pub(crate) const OBSERVED: u64 = 1 << 4;
/// There is a high.
pub(crate) const HIGH: u64 = 1 << 5;
/// In the list of a thread that will serve it: who waits for room or for an event.
const LISTED: u64 = 1 << 6;

impl Counter {
    /// From here on who changes usage sees it. Before a look at usage.
    pub(crate) fn watch(&self, bits: u64) {
        // SeqCst (E11, E23, E25, E26): after what it stands for, before the look at usage.
        self.limits.watched.fetch_or(bits, Ordering::SeqCst);
    }

    pub(crate) fn unwatch(&self, bits: u64) {
        // SeqCst (E11, E23, E25, E26): after what it stood for. Who still sees the mark looks once for nothing.
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

    /// Refused here lately, or somebody waits for room: nothing below opens.
    pub(crate) fn is_tight(&self) -> bool {
        self.limits.tight.load(Ordering::Relaxed) || self.is_watched_for(WAITING)
    }

    /// A walk has added `n` at a watched level, within `max`. Returns the max by which room is to be judged. `None`: it
    /// has taken `n` off again, for it may not barge.
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

    /// A walk that has passed this level takes `n` off it: it barges no more.
    pub(crate) fn undo_barge(&self, n: u64) {
        if self.is_watched_for(WAITING)
            && let Some(policies) = self.tree().policies
        {
            policies.barge_undone(self, n);
        }
    }

    /// Usage has fallen, and the caller keeps the counter.
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

    /// Usage has fallen, and the caller does not keep the counter any more; `of` is the life of `first`, who does.
    #[inline]
    pub(crate) fn fell_if(&self, first: &Counter, of: Generation) {
        if self.is_watched() {
            self.fell_unkept_slow(first, of);
        }
    }

    /// With a handle for the time being: another thread that has told the parent meanwhile may have been the last.
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

    /// Usage above it is in excess; `u64::MAX`: never.
    pub(crate) fn soft_mark(&self) -> u64 {
        self.limits.soft.load(Ordering::Relaxed)
    }

    /// The soft limit of a counter that no thread charges yet.
    pub(crate) fn begin_soft_mark(&self, soft: u64) {
        self.limits.soft.store(soft, Ordering::Relaxed);
        if soft < u64::MAX {
            self.watch(TOLD);
        }
    }

    /// Sets the soft limit. Under the lock of the group's shard.
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

    /// Sets the high. Under the lock of the group's shard, or before any thread charges the group.
    pub(crate) fn set_high_mark(&self, high: u64) {
        self.high.store(high, Ordering::Relaxed);
        if high < u64::MAX { self.watch(HIGH) } else { self.unwatch(HIGH) }
    }

    /// Usage above it delays charges; `u64::MAX`: never.
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

    /// This thread serves the level when it holds nothing any more, unless another one is about to. The caller keeps
    /// it; from here on the list does.
    pub(crate) fn schedule_service(&self) {
        // AcqRel (E25, E26): pairs with `unlist`. Where it is listed already, who serves it sees what came before this.
        if self.limits.watched.fetch_or(LISTED, Ordering::AcqRel) & LISTED == 0 {
            self.first().state().pin();
            let after = deferred::exchange_served(ptr::from_ref(self).cast());
            self.usage.next_served.store(after.cast_mut().cast(), Ordering::Relaxed);
        }
    }

    /// Before it is served.
    pub(crate) fn unschedule_service(&self) {
        // AcqRel (E25, E26): before the look at usage and counts; pairs with `list`.
        self.limits.watched.fetch_and(!LISTED, Ordering::AcqRel);
    }
}
