//! The state word: what keeps a counter's object alive, and who buries it.
//!
//! ```text
//! generation (32) | offline (1) | handles (31)
//! ```
//!
//! An object is done with when it is offline, nobody has a handle on it and its usage is zero: live charge *is* a reference, so
//! that a charge need not count one. Several threads may take the last step at once, each a different one: subtract the
//! last usage, drop the last handle. Whoever may be the last
//!
//! 1. reads the generation while it still keeps the object alive, 2. takes its step, 3. fence, 4. reads the state: same
//!    generation, offline, no handles, 5. *then* reads usage: zero, 6. moves the state from exactly that to the next generation.
//!    Who wins the exchange buries.
//!
//! State before usage: the other order buries a counter whose usage touched zero earlier and has risen since. The exchange: without it
//! two bury. The object's memory stays what it is (`pool`), so a late look finds a state word, of another generation at worst.
//!
//! Edges: E15 (last uncharge/last handle), E16 (an id/the next generation).

use super::page_counter::Node;
use crate::sync::{AtomicU64, Ordering, fence_after_exchange, per_thread};

const OFFLINE: u64 = 1 << 31;
const HANDLES: u64 = OFFLINE - 1;
const GENERATION: u32 = 32;

/// Handles beyond which the count sticks: the object is never buried, and the count never wraps.
const HANDLES_STUCK: u64 = 1 << 30;

/// The state word of one object.
pub(crate) struct State(AtomicU64);

/// A generation read while its object was alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Generation(pub(crate) u32);

fn generation(word: u64) -> Generation {
    Generation((word >> GENERATION) as u32)
}

fn is_last(word: u64) -> bool {
    word & (OFFLINE | HANDLES) == OFFLINE
}

impl State {
    /// In the pool, in no life yet.
    pub(super) fn new() -> Self {
        State(AtomicU64::new(OFFLINE))
    }

    /// Taken from the pool: online, with one handle. Nobody else has the object.
    pub(super) fn begin(&self) {
        let word = self.0.load(Ordering::Relaxed);
        // Release (E16): whoever pins this generation sees the object made.
        self.0.store((word & !(OFFLINE | HANDLES)) | 1, Ordering::Release);
    }

    /// Back to the pool without a burial: its last user is the caller. False when there is no generation left.
    pub(super) fn end(&self) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        self.0.store(next_life(word), Ordering::Release);
        has_next(word)
    }

    #[inline]
    pub(crate) fn generation(&self) -> Generation {
        generation(self.0.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn is_offline(&self) -> bool {
        // Acquire: what was done before the object went offline is seen by whoever is refused for it.
        self.0.load(Ordering::Acquire) & OFFLINE != 0
    }

    /// No admission from here on. Under the tree's lock.
    pub(crate) fn set_offline(&self) {
        self.0.fetch_or(OFFLINE, Ordering::AcqRel);
    }

    /// One more handle. The caller keeps the object alive meanwhile.
    pub(crate) fn pin(&self) {
        // Relaxed: the caller's own handle, or its charge, orders all that matters.
        if self.0.fetch_add(1, Ordering::Relaxed) & HANDLES >= HANDLES_STUCK {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// One more handle, if the object is still in that life.
    pub(crate) fn try_pin(&self, of: Generation) -> bool {
        let pinned = |word: u64| (generation(word) == of && word & HANDLES < HANDLES_STUCK).then_some(word + 1);
        // AcqRel (E16): pairs with `begin`.
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, pinned).is_ok()
    }

    /// One handle less. Returns the word left.
    fn unpin(&self) -> u64 {
        // SeqCst (E15): a step that may be the last.
        let word = self.0.fetch_sub(1, Ordering::SeqCst);
        if word & HANDLES >= HANDLES_STUCK {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        word - 1
    }
}

/// Free: the next generation, offline, no handles. The last generation is never left again.
fn next_life(word: u64) -> u64 {
    let next = u64::from(generation(word).0.saturating_add(1));
    next << GENERATION | OFFLINE
}

fn has_next(word: u64) -> bool {
    generation(word).0 < u32::MAX - 1
}

// === impl Node ===

impl Node {
    /// Drop a handle. True when it may have been the last thing that kept the object alive: go on with [`Node::part`].
    #[inline]
    pub(crate) fn unpin(&self) -> Option<Generation> {
        let left = self.state().unpin();
        is_last(left).then(|| generation(left))
    }

    /// After a step that may have been the last; `of` was read before it. Whoever is last queues the burial.
    #[inline]
    pub(crate) fn part(&self, of: Generation) {
        fence_after_exchange();
        // SeqCst (E15): state before usage. Pairs with itself on another thread: of two last steps one sees the other.
        let word = self.state().0.load(Ordering::SeqCst);
        if is_last(word) && generation(word) == of && self.usage.units.load(Ordering::SeqCst) == 0 {
            self.die_slow(word);
        }
    }

    #[cold]
    fn die_slow(&self, word: u64) {
        if self.state().0.compare_exchange(word, next_life(word), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.spent.store(!has_next(word), Ordering::Relaxed);
            let after = per_thread::exchange_graves(std::ptr::from_ref(self).cast());
            self.next_grave.store(after.cast_mut().cast(), Ordering::Relaxed);
        }
    }
}
