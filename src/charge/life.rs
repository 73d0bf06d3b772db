//! The state word: what keeps a group's object alive, and who buries it.
//!
//! ```text
//! generation (32) | offline (1) | claimed (1) | moved (1) | handles (29)
//! ```
//!
//! A group is done with when it is offline, nobody has a handle on it and the usage of all its counters is zero: live
//! charge *is* a reference, so that a charge need not count one. The word is that of the first counter; the others are
//! kept and buried with it. Several threads may take the last step at once, each a different one: subtract the last
//! usage, drop the last handle. Whoever may be the last
//!
//! 1. reads the generation while it still keeps the object alive,
//! 2. takes its step,
//! 3. fence (its own exchange is one),
//! 4. reads the state: same generation, offline, no handles, not claimed,
//! 5. claims the object: an exchange from exactly that,
//! 6. reads the usage of all counters: zero,
//! 7. moves the state from exactly what it has claimed to the next generation. Who wins this exchange buries.
//!
//! Usage after the claim: what was read before tells nothing, for a guard of zero bytes may have grown since and let go
//! of its handle, and the word looks as before. From the claim on a handle that comes and goes leaves *moved*, so a
//! word that is still exactly as claimed had no handle in between, nobody could bring usage back, and zero stays zero.
//! Whoever takes a last step and finds the object claimed leaves it to the claimer, who looks again when it has to give
//! the claim back. The object's memory stays what it is (`pool`), so a late look finds a state word, of another
//! generation at worst.
//!
//! Edges: E15 (last uncharge/last handle), E16 (an id/the next generation).

use std::ptr;

use super::page_counter::Node;
use crate::sync::{AtomicU64, Ordering, fence_after_exchange, pause_point, per_thread};

const OFFLINE: u64 = 1 << 31;
/// Somebody finds out whether it is done with.
const CLAIMED: u64 = 1 << 30;
/// A handle has come and gone since.
const MOVED: u64 = 1 << 29;
const HANDLES: u64 = MOVED - 1;
const GENERATION: u32 = 32;

/// Handles beyond which the count sticks: the object is never buried, and the count never wraps.
const HANDLES_STUCK: u64 = 1 << 28;

/// The state word of one object.
pub(crate) struct State(AtomicU64);

/// A generation read while its object was alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Generation(pub(crate) u32);

fn generation(word: u64) -> Generation {
    Generation((word >> GENERATION) as u32)
}

fn is_last(word: u64) -> bool {
    word & (OFFLINE | CLAIMED | HANDLES) == OFFLINE
}

impl State {
    /// In the pool, in no life yet.
    pub(super) fn new() -> Self {
        State(AtomicU64::new(OFFLINE))
    }

    /// Taken from the pool: online, with one handle. Nobody else has the object.
    pub(super) fn begin(&self) {
        // Relaxed: nobody else writes the word of an object in the pool; its locks handed the object over.
        let word = self.0.load(Ordering::Relaxed);
        // Release (E16): whoever pins this generation sees the object made.
        self.0.store((word & !(OFFLINE | HANDLES)) | 1, Ordering::Release);
    }

    /// Back to the pool without a burial: its last user is the caller. False when there is no generation left.
    pub(super) fn end(&self) -> bool {
        // Relaxed: as in `begin`. Release (E16): an id of the life that ends finds another generation from here on.
        let word = self.0.load(Ordering::Relaxed);
        self.0.store(next_life(word), Ordering::Release);
        has_next(word)
    }

    #[inline]
    pub(crate) fn generation(&self) -> Generation {
        // Relaxed: the caller keeps the object, and in its life the generation does not change.
        generation(self.0.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn is_offline(&self) -> bool {
        // Acquire: what was done before the object went offline is seen by whoever is refused for it. SeqCst (E27): after
        // the mark of who stands in line.
        self.0.load(Ordering::SeqCst) & OFFLINE != 0
    }

    /// No admission from here on. Under the lock of its shard.
    pub(crate) fn set_offline(&self) {
        // Release: pairs with `is_offline`. An exchange, for handles come and go meanwhile. SeqCst (E27): before the look
        // whether somebody stands in line.
        self.0.fetch_or(OFFLINE, Ordering::SeqCst);
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
        // Nobody claims what has a handle: where this one came before no claim is seen, none comes before it goes.
        if self.0.load(Ordering::Relaxed) & CLAIMED != 0 {
            return self.unpin_claimed();
        }
        // SeqCst (E15): a step that may be the last.
        let word = self.0.fetch_sub(1, Ordering::SeqCst);
        if word & HANDLES >= HANDLES_STUCK {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        word - 1
    }

    #[cold]
    fn unpin_claimed(&self) -> u64 {
        let less = |word: u64| (word - 1) | if word & CLAIMED != 0 { MOVED } else { 0 };
        // SeqCst (E15): as in `unpin`.
        let left = self.0.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |word| Some(less(word)));
        left.map_or_else(less, less)
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
    /// Drop a handle. Where it may have been the last thing that kept the object alive, the life to go on with in
    /// [`Node::part`].
    #[inline]
    pub(crate) fn unpin(&self) -> Option<Generation> {
        let left = self.state().unpin();
        is_last(left).then(|| generation(left))
    }

    /// The counter that has the state word of the group that this is one of.
    #[inline]
    pub(crate) fn keeper(&self) -> &'static Node {
        self.first()
    }

    /// After a step that may have been the last, and a fence; `of` was read before it. Whoever is last queues the
    /// burial.
    #[inline]
    pub(crate) fn part(&self, of: Generation) {
        // SeqCst (E15): pairs with itself on another thread: of two last steps one sees the other.
        let word = self.state().0.load(Ordering::SeqCst);
        if is_last(word) && generation(word) == of {
            self.claim_slow(word);
        }
    }

    #[cold]
    fn claim_slow(&self, mut word: u64) {
        let (of, state) = (generation(word), &self.state().0);
        // SeqCst (E15): before usage, and after whatever the last handle saw. A handle from now on leaves its mark.
        while is_last(word)
            && generation(word) == of
            && state.compare_exchange(word, word | CLAIMED, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        {
            pause_point("claimed");
            // Nobody else buries it now: the list of its counters is there.
            let used = self.keeper().group().find(|counter| !counter.usage_is_zero());
            pause_point("usage read");
            if used.is_none()
                && state.compare_exchange(word | CLAIMED, next_life(word), Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                // Relaxed: from here on the object is this thread's; the pool's locks hand it on.
                self.usage.spent.store(!has_next(word), Ordering::Relaxed);
                let after = per_thread::exchange_graves(ptr::from_ref(self).cast());
                self.usage.next_grave.store(after.cast_mut().cast(), Ordering::Relaxed);
                return;
            }
            // SeqCst (E15): who took a last step meanwhile has seen the claim gone and looks itself, or we see that
            // step.
            state.fetch_and(!(CLAIMED | MOVED), Ordering::SeqCst);
            fence_after_exchange();
            if used.is_some_and(|counter| !counter.usage_is_zero()) {
                return;
            }
            word = state.load(Ordering::SeqCst);
        }
    }

    fn usage_is_zero(&self) -> bool {
        // SeqCst (E15): after the state word.
        self.usage.units.load(Ordering::SeqCst) == 0
    }
}
