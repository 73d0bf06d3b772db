//! What a level is watched for, in one word: who walks looks once, and where nothing is set that is all.
//!
//! Whoever sets a bit sets it first and looks at usage afterwards; whoever changes usage changes it first and looks at
//! the word afterwards. So one of the two sees the other.
//!
//! Edges: E11 (protection), E23 (soft limit), E25 (a waiter), E26 (somebody who waits for an event).

use std::ptr;

use crate::counter::incarnation::Generation;
use crate::counter::object::Counter;
use crate::reclaim::Event;
use crate::sync::Ordering;
use crate::thread::context;

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

    /// A walk has brought usage to `new`, within max. Returns the max by which room is to be judged. `None`: it has
    /// taken `n` off again, for it may not pass those who wait.
    #[cold]
    #[inline(never)]
    pub(crate) fn admit_watched(&self, new: i64, n: u64, max: u64) -> Option<u64> {
        let watched = self.watched();
        if watched & WAITING != 0 && !self.may_pass(n) {
            self.take_off(n);
            return None;
        }
        let usage = new.max(0).cast_unsigned();
        let max = if watched & OBSERVED != 0 { self.max() } else { max };
        // What is charged in advance would not have been refused, but for what is needed: that is looked at again.
        if watched & OBSERVED != 0 && usage > max && !context::note_above_observed() {
            self.count_event(Event::Max);
            self.count_event(Event::Observed);
        }
        if watched & HIGH != 0 && usage > self.high.load(Ordering::Relaxed) {
            context::note_over_high(n);
        }
        self.rose();
        Some(max)
    }

    /// Usage has grown.
    #[inline]
    pub(crate) fn rose(&self) {
        if self.is_watched() {
            self.tell_protected();
            self.track_excess();
        }
    }

    /// Usage has fallen, and the caller keeps the counter.
    #[inline]
    pub(crate) fn fell(&self) {
        if self.is_watched() {
            self.fell_watched();
        }
    }

    #[cold]
    #[inline(never)]
    fn fell_watched(&self) {
        self.schedule_waited_for();
        self.tell_protected();
        self.track_excess();
    }

    /// Usage has fallen, and the caller does not keep the counter any more; `of` is the life of who does.
    #[inline]
    pub(crate) fn fell_if(&self, keeper: &Counter, of: Generation) {
        if self.is_watched() {
            self.fell_watched_if(keeper, of);
        }
    }

    #[cold]
    #[inline(never)]
    fn fell_watched_if(&self, keeper: &Counter, of: Generation) {
        if self.is_watched_for(WAITING) && keeper.state().try_pin(of) {
            self.schedule_service();
            if let Some(of) = keeper.unpin() {
                keeper.part(of);
            }
        }
        self.tell_protected_if(keeper, of);
        self.track_excess_if(keeper, of);
    }

    // === Levels to serve ===

    /// This thread serves the level when it holds nothing any more, unless another one is about to. The caller keeps
    /// it; from here on the list does.
    pub(crate) fn schedule_service(&self) {
        // AcqRel (E25, E26): pairs with `unlist`. Where it is listed already, who serves it sees what came before this.
        if self.limits.watched.fetch_or(LISTED, Ordering::AcqRel) & LISTED == 0 {
            self.first().state().pin();
            let after = context::exchange_served(ptr::from_ref(self).cast());
            self.usage.next_served.store(after.cast_mut().cast(), Ordering::Relaxed);
        }
    }

    /// The same where somebody waits for room.
    pub(crate) fn schedule_waited_for(&self) {
        if self.is_watched_for(WAITING) {
            self.schedule_service();
        }
    }

    /// Before it is served.
    pub(crate) fn unschedule_service(&self) {
        // AcqRel (E25, E26): before the look at usage and counts; pairs with `list`.
        self.limits.watched.fetch_and(!LISTED, Ordering::AcqRel);
    }
}
