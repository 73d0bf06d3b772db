//! The stock slot: pre-charged credit of one thread for one counter, in two single-writer words.
//!
//! ```text
//! credit = filled - drained        (wrapping, read as signed)
//!          filled   stored by the owner: consume lowers it, put raises it
//!          drained  stored by the holder of the tree's lock: claims raise it, a cut claim lowers it
//! ```
//!
//! Neither side ever writes the other's word, so neither needs a read-modify-write instruction.
//! Both store, then read what the other has stored; the light/heavy pair in between makes sure that
//! at least one of the two sees the other. A slot starts *vacant*: far below zero, so that every
//! operation on it misses. It is vacant until its owner has added the slot's share to the published
//! bound and [activates](Slot::activate) it.
//!
//! Edges: E2 (consume/drain), E3 (put/close). `src/counter/README.md` has the steps. The caller
//! decides what to do on a miss.
//!
//! Two more words are figures, for the peak of what is live: the least that `filled` was, and since
//! when. Credit is least right before a put, so a put compares, and no other step does.

use crate::sync::barrier::light_side;
use crate::sync::stat_atomic::AtomicU64 as StatU64;
use crate::sync::{
    AtomicU64, Ordering, figures_were_loaded, figures_were_stored, loads_for_figures,
};

/// Distance of a vacant slot below zero.
const VACANT: u64 = 1 << 62;

/// The least of a slot of which no put has noted any.
const NOTHING_NOTED: u64 = u64::MAX;

/// Two lie on a line, and none on two lines.
#[derive(Debug)]
#[repr(C, align(32))]
pub(crate) struct Slot {
    /// Owner only.
    filled: AtomicU64,
    /// Holder of the tree's lock only.
    drained: AtomicU64,
    /// The least `filled` that a put has found since the owner has begun again. Owner only, but for
    /// [`begin_again`](Slot::begin_again).
    least: StatU64,
    /// What `drained` was then. Owner only.
    drained_then: StatU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consume {
    Hit,
    /// Not enough credit; nothing was written.
    Miss,
    /// A drainer claimed the credit meanwhile: `filled` must be raised again, see [`Slot::undo`].
    Undone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// The credit is in the slot of an open counter.
    Kept,
    /// Closed, vacant or full; nothing was written.
    Full,
    /// The credit is in the slot of a stock that has closed meanwhile: it must be taken back.
    Closed,
}

#[inline(always)]
fn credit(filled: u64, drained: u64) -> i64 {
    filled.wrapping_sub(drained).cast_signed()
}

// === impl Slot: the owner's side ===

impl Slot {
    pub(crate) fn vacant() -> Self {
        Slot {
            filled: AtomicU64::new(0),
            drained: AtomicU64::new(VACANT),
            least: StatU64::new(NOTHING_NOTED),
            drained_then: StatU64::new(VACANT),
        }
    }

    /// Pays `n` units from the credit.
    #[inline(always)]
    pub(crate) fn consume(&self, n: u64, fenced: bool) -> Consume {
        self.consume_unless(n, fenced, 0)
    }

    /// [`consume`](Self::consume), or a miss where `miss_mask` is below zero: its test costs
    /// nothing beside that of the credit.
    #[inline(always)]
    pub(crate) fn consume_unless(&self, n: u64, fenced: bool, miss_mask: i64) -> Consume {
        // Relaxed: only this thread writes `filled`.
        let filled = self.filled.load(Ordering::Relaxed);
        // Acquire (E2): an owner that sees a cut claim sees what its drainer saw; pairs with
        // `settle_claim`.
        let drained = self.drained.load(Ordering::Acquire);
        let credit = credit(filled, drained);
        // One test for three ways to miss: no credit (claimed, vacant), less than n, or an n beyond
        // any credit, whose difference to a slot far below zero would wrap.
        if (n.cast_signed() | credit | credit.wrapping_sub_unsigned(n) | miss_mask) < 0 {
            return Consume::Miss;
        }
        self.lower_to(filled.wrapping_sub(n), fenced)
    }

    /// [`consume`](Self::consume) for units within some stock's capacity, as the caller has tested.
    /// That is far below what a vacant slot lacks, so no difference wraps, and one sign tells a
    /// miss.
    #[inline(always)]
    pub(crate) fn consume_within_capacity(&self, n: u64) -> Consume {
        // Relaxed and Acquire (E2): as in `consume_unless`.
        let left = self.filled.load(Ordering::Relaxed).wrapping_sub(n);
        if credit(left, self.drained.load(Ordering::Acquire)) < 0 {
            return Consume::Miss;
        }
        self.lower_to(left, false)
    }

    #[inline(always)]
    fn lower_to(&self, left: u64, fenced: bool) -> Consume {
        // Release (E2): the drainer that reads it sees what this thread did before; pairs with
        // `available` and `settle_claim`.
        self.filled.store(left, Ordering::Release);
        // light (E2): pairs with the heavy between `claim` and `settle_claim`. Either the owner
        // sees the claim, or the drainer sees this word and takes these units off its claim.
        // Mutation: e2-consume-without-light
        light_side(fenced);
        // Mutation: e2-consume-does-not-look-again
        if credit(left, self.drained.load(Ordering::Acquire)) >= 0 {
            Consume::Hit
        } else {
            Consume::Undone
        }
    }

    /// Raises the word again after [`Consume::Undone`]. As every raise this is a put: the caller
    /// takes back what no longer fits.
    pub(crate) fn undo(&self, n: u64, capacity: &AtomicU64, fenced: bool) -> Put {
        self.raise(n, fenced);
        // Acquire (E3): as in `put`.
        if self.owned() > capacity.load(Ordering::Acquire).cast_signed() {
            Put::Closed
        } else {
            Put::Kept
        }
    }

    /// Keeps `n` units as credit if the slot stays within `capacity`.
    #[inline(always)]
    pub(crate) fn put(&self, n: u64, capacity: &AtomicU64, fenced: bool) -> Put {
        // Relaxed: a first look, there is another below.
        let most = capacity.load(Ordering::Relaxed);
        let filled = self.filled.load(Ordering::Relaxed);
        // Before the test, which needs no copy of the word then. A slow path finds the same.
        self.note_least(filled);
        // Acquire (E2): as in `consume_unless`.
        let drained = self.drained.load(Ordering::Acquire);
        // A slot below zero, vacant or claimed, wraps to a huge credit: full. A put of 0 units
        // wraps likewise: it is not for the hit path.
        if n.wrapping_sub(1) >= most || filled.wrapping_sub(drained).wrapping_add(n) > most {
            return Put::Full;
        }
        self.raise(n, fenced);
        // Acquire (E3): another capacity was stored under the lock of a drain, behind which the
        // owner must leave no credit. A smaller capacity would not hold what the owner has put.
        // Pairs with `Tree::close_all`.
        // Mutation: e3-put-does-not-look-again
        // Mutation: e3-put-ignores-a-smaller-batch
        if capacity.load(Ordering::Acquire) == most {
            Put::Kept
        } else {
            Put::Closed
        }
    }

    /// [`put`](Self::put) for units that are fewer than a vacant slot lacks, as the caller has
    /// tested. It compares with `>=`, so a slot with a capacity of 0 keeps nothing.
    #[inline(always)]
    pub(crate) fn put_tested(&self, n: u64, capacity: &AtomicU64) -> Put {
        // Relaxed and Acquire (E2): as in `put`.
        let most = capacity.load(Ordering::Relaxed);
        let filled = self.filled.load(Ordering::Relaxed);
        self.note_least(filled);
        if filled
            .wrapping_sub(self.drained.load(Ordering::Acquire))
            .wrapping_add(n)
            >= most
        {
            return Put::Full;
        }
        self.raise(n, false);
        // Acquire (E3): as in `put`.
        if capacity.load(Ordering::Acquire) == most {
            Put::Kept
        } else {
            Put::Closed
        }
    }

    #[inline(always)]
    fn raise(&self, n: u64, fenced: bool) {
        let filled = self.filled.load(Ordering::Relaxed);
        // Release (E3): the drainer that reads it sees what this thread did before; pairs with
        // `available`.
        self.filled.store(filled.wrapping_add(n), Ordering::Release);
        // light (E3): pairs with the heavy in `take_out`. Either the owner sees the stock closed
        // and takes the units back, or the drain that follows the closing sees this credit.
        // Mutation: e3-put-without-light
        light_side(fenced);
    }

    /// A put has found `filled`: credit was never less since, so live units were never more.
    #[inline(always)]
    fn note_least(&self, filled: u64) {
        // Relaxed: before the put raises `filled`, which a reader loads first. A claim moves the
        // other word, so it changes nothing here. The word wraps, by 2^62 each time that another
        // counter gets the slot, but then it starts there and only grows.
        if filled < self.least.load(Ordering::Relaxed) {
            // Mutation: live-peak-of-a-put-is-not-noted
            self.least.store(filled, Ordering::Relaxed);
        }
    }

    /// Takes up to `most` units of credit out of the slot. They belong to the caller, which must
    /// give them back to the tree.
    pub(crate) fn take_back(&self, most: u64, fenced: bool) -> u64 {
        loop {
            let filled = self.filled.load(Ordering::Relaxed);
            // Acquire (E2): as in `consume_unless`.
            let available = credit(filled, self.drained.load(Ordering::Acquire));
            if available <= 0 || most == 0 {
                return 0;
            }
            let n = most.min(available.cast_unsigned());
            // Mutation: e2-own-release-keeps-what-a-drain-claimed
            match self.consume(n, fenced) {
                Consume::Hit => return n,
                // A drainer has claimed since the look: what is left now, if anything, is less.
                Consume::Miss => {}
                Consume::Undone => {
                    // Release (E2): as in `raise`.
                    self.filled.store(filled, Ordering::Release);
                    // light (E2): pairs with the heavy after a cut. Either the owner sees the cut
                    // and looks again with success, or the drainer sees this word.
                    // Mutation: e2-taken-back-and-undone-without-light
                    light_side(fenced);
                }
            }
        }
    }

    /// Credit as the owner sees it; negative while claimed or vacant.
    #[inline]
    pub(crate) fn owned(&self) -> i64 {
        // Acquire (E2): as in `consume_unless`.
        credit(
            self.filled.load(Ordering::Relaxed),
            self.drained.load(Ordering::Acquire),
        )
    }

    pub(crate) fn is_vacant(&self) -> bool {
        self.owned() < -(VACANT.cast_signed() / 2)
    }

    /// Makes a vacant slot ready for use, with no credit. Owner only, in transit.
    pub(crate) fn activate(&self) {
        self.forget_least();
        // Acquire (E12): after the counter before was vacated. Release (E2): as in `raise`.
        self.filled
            .store(self.drained.load(Ordering::Acquire), Ordering::Release);
    }
}

// === impl Slot: the figure of the least credit ===

impl Slot {
    /// The least credit since the owner has begun again, less what was drained since: below zero
    /// where a drain has taken more. Live units of the slot's counter were most at usage less this,
    /// as both are now: a drain takes the same off either. Exact for the owner, and beside it where
    /// the owner moves no credit; while no drain is under way.
    pub(crate) fn least(&self) -> i64 {
        // Acquire (E3): a put that has raised the word has noted the least before; pairs with
        // `put`.
        let filled = self.filled.load(Ordering::Acquire);
        let least = self.noted().min(filled);
        // Acquire (E2): as in `consume_unless`.
        credit(least, self.drained.load(Ordering::Acquire))
    }

    fn noted(&self) -> u64 {
        let noted = self.least.load(Ordering::Relaxed);
        // A reader that finds that the owner has begun again finds what it has recorded before, and
        // its transit.
        figures_were_loaded();
        noted
    }

    /// A put has come since the owner has begun again.
    #[inline(always)]
    pub(crate) fn has_noted(&self) -> bool {
        self.least.load(Ordering::Relaxed) != NOTHING_NOTED
    }

    /// No drain has claimed any of the credit since the owner has begun again. Owner only.
    pub(crate) fn is_undrained(&self) -> bool {
        // Acquire (E2): as in `consume_unless`.
        self.drained.load(Ordering::Acquire) == self.drained_then.load(Ordering::Relaxed)
    }

    /// The owner begins again.
    pub(crate) fn forget_least(&self) {
        if !loads_for_figures() {
            return;
        }
        // Acquire (E2): as in `consume_unless`.
        let drained = self.drained.load(Ordering::Acquire);
        self.drained_then.store(drained, Ordering::Relaxed);
        figures_were_stored();
        self.least.store(NOTHING_NOTED, Ordering::Relaxed);
    }

    /// What the owner has noted, for [`begin_again`](Self::begin_again).
    pub(crate) fn noted_so_far(&self) -> u64 {
        self.least.load(Ordering::Relaxed)
    }

    /// Has the next put note what it finds, for [`credit_since`](Self::credit_since) alone. Not by
    /// the owner, and it holds after a heavy barrier: a put that has compared before has raised
    /// `filled` by then, unless its thread was stopped between the two. Returns whether it has
    /// forgotten a note of the owner: nothing where the owner has noted less than `noted`
    /// meanwhile.
    pub(crate) fn begin_again(&self, noted: u64) -> bool {
        // An exchange: what the owner notes meanwhile stays.
        noted != NOTHING_NOTED
            && self
                .least
                .compare_exchange(noted, NOTHING_NOTED, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// The credit that the slot had at each moment since `filled` was read from it, where the owner
    /// has put nothing there since. `None`: it may have.
    ///
    /// It had less than it has ever noted then, and each put would have noted that.
    pub(crate) fn credit_since(&self, filled: u64) -> Option<u64> {
        // Acquire (E3): as in `least`.
        let now = self.filled.load(Ordering::Acquire);
        let has_put = now > filled || self.noted() <= filled;
        // Acquire (E2): as in `consume_unless`.
        let drained = self.drained.load(Ordering::Acquire);
        (!has_put).then(|| credit(filled, drained).max(0).cast_unsigned())
    }
}

// === impl Slot: the drainer's side, under the tree's lock ===

impl Slot {
    /// Credit as other threads see it: an estimate while the owner runs.
    pub(crate) fn available(&self) -> u64 {
        let drained = self.drained.load(Ordering::Relaxed);
        // Acquire (E2, E3): what the owner did before it stored the word; pairs with the owner's
        // stores in `consume` and `put`.
        credit(self.filled.load(Ordering::Acquire), drained)
            .max(0)
            .cast_unsigned()
    }

    /// The owner's word as another thread sees it: where it differs from an earlier look, the owner
    /// has moved credit.
    pub(crate) fn filled(&self) -> u64 {
        // No edge: an estimate; a claim is settled whatever the owner does meanwhile.
        self.filled.load(Ordering::Relaxed)
    }

    /// Claims all credit in sight. The claim holds only after a heavy barrier and
    /// [`settle_claim`](Self::settle_claim).
    pub(crate) fn claim(&self) -> u64 {
        let available = self.available();
        if available > 0 {
            let drained = self.drained.load(Ordering::Relaxed);
            // Release (E2): pairs with the owner's Acquire.
            self.drained
                .store(drained.wrapping_add(available), Ordering::Release);
        }
        available
    }

    /// Returns what of a claim is really the drainer's, after the heavy barrier. The owner has
    /// consumed the rest meanwhile.
    pub(crate) fn settle_claim(&self, claimed: u64) -> u64 {
        let drained = self.drained.load(Ordering::Relaxed);
        // Acquire (E2): after the barrier every consume that did not see the claim is in this word;
        // pairs with `consume`.
        let credit = credit(self.filled.load(Ordering::Acquire), drained);
        // Mutation: e2-settle-takes-the-whole-claim
        // Mutation: e2-settle-loses-what-was-put
        // The owner has consumed nothing of the claim, or has put as much since.
        if credit >= 0 {
            return claimed;
        }
        // What the owner has consumed is live charge by now, so the drainer gives way.
        let cut = credit.unsigned_abs().min(claimed);
        self.drained
            .store(drained.wrapping_sub(cut), Ordering::Release);
        claimed - cut
    }

    /// Gives a whole claim back, where no heavy barrier happened.
    pub(crate) fn undo_claim(&self, claimed: u64) {
        let drained = self.drained.load(Ordering::Relaxed);
        // Release (E2): as in `claim`.
        self.drained
            .store(drained.wrapping_sub(claimed), Ordering::Release);
    }

    /// Vacates the slot of a counter that no thread uses any more; returns the credit that was in
    /// it.
    ///
    /// It needs no barrier: the drop of the counter's last handle ordered every owner's last store
    /// before this (E12).
    pub(crate) fn vacate(&self) -> u64 {
        if self.is_vacant() {
            return 0;
        }
        // So far below zero that each consume and each put misses: the hit path needs no test of
        // its own for a slot that belongs to nobody.
        let left = self.available();
        let filled = self.filled.load(Ordering::Acquire);
        // Mutation: e12-index-reused-with-credit
        self.drained
            .store(filled.wrapping_add(VACANT), Ordering::Release);
        left
    }
}
