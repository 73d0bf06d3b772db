//! The state word: what keeps a group object alive, and which thread releases it.
//!
//! ```text
//! generation (32) | offline (1) | claimed (1) | moved (1) | handles (29)
//! ```
//!
//! A group object is released when the group is offline, has no handles, and the usage of all its
//! counters is zero. Live charge *is* a reference, so a charge need not count one. The word is that
//! of the first counter; the other counters are kept and released with it. Several threads may take
//! the last step at once, each a different one: one subtracts the last usage, another drops the
//! last handle. A thread whose step may be the last
//!
//! 1. reads the generation while it still keeps the object alive,
//! 2. takes its step,
//! 3. fence (its own exchange is one),
//! 4. reads the state: same generation, offline, no handles, not claimed,
//! 5. claims the object: an exchange from exactly that,
//! 6. reads the usage of all counters: zero,
//! 7. moves the state from exactly what it has claimed to the next generation. The thread that wins
//!    this exchange releases the object.
//!
//! The thread reads usage after the claim. A read before the claim proves nothing: a guard of zero
//! bytes may have grown since and dropped its handle, and the word looks as before. After the claim
//! a handle that comes and goes leaves *moved*. A word that is still exactly as claimed had no
//! handle in between, no thread could bring usage back, and zero stays zero. A thread that takes a
//! last step and finds the object claimed leaves it to the claimer. The claimer checks again when
//! it has to undo the claim. The object's memory keeps its type (`pool`), so a late read finds a
//! state word, of another generation at worst.
//!
//! Edges: E15 (last uncharge/last handle), E16 (an id/the next generation).

use crate::sync::{AtomicU64, Ordering, prefetch};

const OFFLINE: u64 = 1 << 31;
/// A thread checks whether the object can be released.
const CLAIMED: u64 = 1 << 30;
/// A handle has come and gone since the claim.
const MOVED: u64 = 1 << 29;
const HANDLES: u64 = MOVED - 1;
const GENERATION: u32 = 32;

/// From this many handles on the count sticks: the object is never released, and the count never
/// wraps.
const HANDLES_STUCK: u64 = 1 << 28;

/// Value that a stuck count is set to: in the middle, because threads may add one or take one off
/// before they set it.
const HANDLES_SET: u64 = HANDLES_STUCK + HANDLES_STUCK / 2;

/// The state word of an object: its generation, its handles, and who has claimed it.
pub(crate) struct ObjectState(AtomicU64);

/// A generation that a thread read while the object was alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Generation(pub(crate) u32);

/// A word without references: offline, no handles, not claimed.
#[derive(Clone, Copy)]
pub(crate) struct Unreferenced(u64);

fn generation(word: u64) -> Generation {
    Generation((word >> GENERATION) as u32)
}

fn is_last(word: u64) -> bool {
    word & (OFFLINE | CLAIMED | HANDLES) == OFFLINE
}

fn is_stuck(word: u64) -> bool {
    word & HANDLES >= HANDLES_STUCK
}

impl Default for ObjectState {
    /// The word of an object in the pool, in no incarnation yet.
    fn default() -> Self {
        ObjectState(AtomicU64::new(OFFLINE))
    }
}

impl ObjectState {
    /// Starts an incarnation: online, with one handle. The caller took the object from the pool; no
    /// other thread has it.
    pub(crate) fn begin(&self) {
        // Relaxed: no other thread writes the word of an object in the pool; the pool's locks
        // handed the object over.
        let word = self.0.load(Ordering::Relaxed);
        // Release (E16): a thread that pins this generation sees the object initialised; pairs with
        // `try_pin`.
        self.0
            .store((word & !(OFFLINE | HANDLES)) | 1, Ordering::Release);
    }

    /// Returns the object to the pool without a release: the caller is the last user.
    pub(crate) fn end(&self) {
        // Relaxed: as in `begin`. Release (E16): from here on an id of the incarnation that ends
        // finds another generation.
        let word = self.0.load(Ordering::Relaxed);
        self.0.store(next_life(word), Ordering::Release);
    }

    #[inline]
    pub(crate) fn generation(&self) -> Generation {
        // Relaxed: the caller keeps the object, and the generation does not change within an
        // incarnation.
        generation(self.0.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn is_offline(&self) -> bool {
        // Acquire: a thread that is refused because the object is offline sees what was done
        // before. SeqCst (E27): after the mark of a thread that waits in line; pairs with
        // `set_offline`.
        self.0.load(Ordering::SeqCst) & OFFLINE != 0
    }

    /// Refuse every admission from here on. The caller holds the lock of the group's shard.
    pub(crate) fn set_offline(&self) {
        // Release: pairs with `is_offline`. An exchange, because handles come and go meanwhile.
        // SeqCst (E27): before the check whether a thread waits in line.
        self.0.fetch_or(OFFLINE, Ordering::SeqCst);
    }

    /// Adds a handle. The caller keeps the object alive meanwhile.
    pub(crate) fn pin(&self) {
        // Relaxed: the caller's own handle, or its charge, orders all that matters.
        if is_stuck(self.0.fetch_add(1, Ordering::Relaxed)) {
            self.stick();
        }
    }

    /// Adds a handle, if the object is still in that incarnation. An object whose count has stuck
    /// always is: its incarnation never ends.
    pub(crate) fn try_pin(&self, of: Generation) -> bool {
        // Mutation: e16-id-of-another-life
        let pinned = |word: u64| {
            (generation(word) == of).then(|| if is_stuck(word) { word } else { word + 1 })
        };
        // AcqRel (E16): pairs with `begin`.
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, pinned)
            .is_ok()
    }

    /// Drops a handle. Where it may have been the last reference, returns the generation that the
    /// caller passes to [`try_release_last`](crate::counter::claim::try_release_last).
    #[inline]
    pub(crate) fn unpin(&self) -> Option<Generation> {
        let left = self.take_handle();
        is_last(left).then(|| generation(left))
    }

    /// Returns the word left.
    fn take_handle(&self) -> u64 {
        // For the exchange: a word that children of several threads write comes once.
        prefetch(&raw const self.0);
        // No thread claims an object that has a handle. Where this load comes before the claim, it
        // sees none, and no thread claims before the handle goes.
        if self.0.load(Ordering::Relaxed) & CLAIMED != 0 {
            return self.take_handle_claimed();
        }
        // SeqCst (E15): a step that may be the last. Pairs with `unreferenced` on the thread of
        // another last step.
        // Mutation: e15-handle-goes-and-shows-no-count
        let word = self.0.fetch_sub(1, Ordering::SeqCst);
        if is_stuck(word) {
            // Mutation: a-stuck-count-gets-back-what-was-taken-off
            self.stick();
        }
        word - 1
    }

    /// Sets a stuck count back to the middle. To put back the one that this thread has taken off is
    /// not enough: the next thread finds the count below the limit and takes its own off for good.
    #[cold]
    fn stick(&self) {
        let set = |word: u64| Some(word & !HANDLES | HANDLES_SET);
        // Relaxed: the count alone; no thread takes the last step of this incarnation any more.
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
    }

    #[cold]
    fn take_handle_claimed(&self) -> u64 {
        // Mutation: e15-a-handle-leaves-no-mark
        let less = |word: u64| (word - 1) | if word & CLAIMED != 0 { MOVED } else { 0 };
        // SeqCst (E15): as in `take_handle`.
        let left = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::Relaxed, |word| Some(less(word)));
        left.map_or_else(less, less)
    }

    // === The claim: see `claim` ===

    /// The word, where the object is in generation `of` and may be claimed.
    #[inline]
    pub(crate) fn unreferenced(&self, of: Generation) -> Option<Unreferenced> {
        // SeqCst (E15): pairs with itself on another thread: of two threads with last steps one
        // sees the other's.
        let word = self.0.load(Ordering::SeqCst);
        (is_last(word) && generation(word) == of).then_some(Unreferenced(word))
    }

    /// Claims the object. A handle from now on leaves its mark.
    pub(crate) fn claim(&self, Unreferenced(word): Unreferenced) -> bool {
        // SeqCst (E15): before usage, and after what the last handle saw; pairs with `unreferenced`
        // and with the subtraction of another last step.
        // Mutation: e15-claimed-without-exchange
        self.0
            .compare_exchange(word, word | CLAIMED, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    }

    /// Moves a claimed object to the next generation, where the word is exactly as claimed.
    pub(crate) fn end_claimed(&self, Unreferenced(word): Unreferenced) -> bool {
        // AcqRel (E15): after usage; a thread that finds the next generation comes after all of
        // this incarnation; pairs with `try_pin` and `unreferenced`.
        self.0
            .compare_exchange(
                word | CLAIMED,
                next_life(word),
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Keeps a claimed object for ever, where the word is exactly as claimed: guards may still
    /// uncharge it, and no usage shows that.
    pub(crate) fn keep_claimed(&self, Unreferenced(word): Unreferenced) -> bool {
        // AcqRel (E15): as in `end_claimed`. The handle is no value's.
        // Mutation: e15-kept-object-has-no-handle
        // Mutation: e15-kept-whatever-came-since-the-claim
        self.0
            .compare_exchange(
                word | CLAIMED,
                word + 1,
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    pub(crate) fn unclaim(&self) {
        // SeqCst (E15): a thread that took a last step meanwhile has seen the claim gone and checks
        // the usage itself, or the claimer, which checks again after this, sees that step; pairs
        // with `unreferenced`.
        self.0.fetch_and(!(CLAIMED | MOVED), Ordering::SeqCst);
    }

    /// No generation is left: the object is never used again. The caller owns the object.
    pub(crate) fn is_spent(&self) -> bool {
        self.generation() == Generation(u32::MAX)
    }
}

/// The word of a free object: the next generation, offline, no handles. The last generation never
/// ends.
fn next_life(word: u64) -> u64 {
    let next = u64::from(generation(word).0.saturating_add(1));
    next << GENERATION | OFFLINE
}

/// For tests and models, which cannot create so many handles.
#[cfg(test)]
#[allow(dead_code)]
impl ObjectState {
    /// Online, with `handles` left before the count sticks.
    pub(crate) fn before_it_sticks(handles: u64) -> Self {
        ObjectState(AtomicU64::new(HANDLES_STUCK - handles))
    }

    /// Sets the count as if so many handles had been forgotten.
    pub(crate) fn forget_handles(&self) {
        self.0.fetch_add(HANDLES_STUCK, Ordering::Relaxed);
    }

    pub(crate) fn is_claimed(&self) -> bool {
        self.0.load(Ordering::Relaxed) & CLAIMED != 0
    }

    pub(crate) fn has_stuck(&self) -> bool {
        is_stuck(self.0.load(Ordering::Relaxed))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_sticks_is_that_of_an_object_in_use() {
        for (handles, offline) in [(0, false), (1, false), (2, false), (0, true)] {
            let state = ObjectState::before_it_sticks(handles);
            state.0.fetch_or(
                7 << GENERATION | if offline { OFFLINE } else { 0 },
                Ordering::Relaxed,
            );
            let of = Generation(7);
            for _ in 0..5 {
                assert!(state.try_pin(of), "alive");
                assert!(
                    !state.try_pin(Generation(of.0 + 1)),
                    "of another incarnation"
                );
                state.pin();
            }
            for _ in 0..20 {
                assert!(state.unpin().is_none() && state.try_pin(of));
                state.unpin();
            }
            assert!(state.has_stuck(), "for ever");
            assert_eq!((state.generation(), state.is_offline()), (of, offline));
        }
    }
}
