//! Reasons to watch a level, in one word: a walk loads it once, and where no bit is set the walk
//! does no more.
//!
//! A thread that sets a bit sets it first and reads usage afterwards. A thread that changes usage
//! changes it first and reads the word afterwards. So one of the two threads sees the other's
//! change.
//!
//! Threads of all kinds share the word, so no bit is cleared on a value that was read before and
//! may have moved since. Each bit keeps to one of four rules:
//!
//! | bits | rule |
//! |---|---|
//! | `HIGH`, `RECLAIMS` (set again) | they follow a value: [`follow`](Watched::follow) writes the bit, then reads the value again |
//! | `EXCEEDED`, `PRESSURE_PARTS` | they follow usage and limits, and each change of them is counted: loops of their own (`exceeded_mark`, `pressure_mark`) do what `follow` does |
//! | `DEFERRED`, `DEFERRED_ABOVE`, `DEFERRED_UNDERFLOW`, `RECLAIMS` (taken), `STALLS_LOOKED_AT`, and *listed* of the policies | they hand work over: one thread takes the bit, then reads what the work is about |
//! | `WAITING`, `OBSERVED`, `PRESSURE_KNOWN`, and *listens* and *waits* of the policies | a lock covers the bit and what it stands for |
//!
//! `REPORTED` is never cleared.
//!
//! A mark of usage mostly takes two bits. One says that its figure is set (`HIGH`,
//! `PRESSURE_KNOWN`), so each walk that takes the level looks at it afterwards; for max, which
//! every walk compares with, there is none. The other is the mark: what the last comparison has
//! found (`EXCEEDED`, `PRESSURE_PARTS`). It is one of those [`NOT_OF_WALKS`]: they look for the
//! first bit already. To an uncharge it is a reason to look, since usage that falls may take the
//! mark away. `RECLAIMS` is both at once: the thread that finds usage above the figure takes the
//! bit, and until it is set again no walk looks.
//!
//! Edges: E11 (protection), E23 (soft limit), E25 (a waiter), E26 (a thread that waits for an
//! event), E43 (usage above a limit), E55 (reclaim in the background).

use crate::sync::{AtomicU64, Ordering, fence_after_exchange};

/// min, low or a soft limit has been set in this incarnation: a change of usage is reported to the
/// levels above.
pub(crate) const REPORTED: u64 = 1;
/// Charges wait for room here.
pub(crate) const WAITING: u64 = 1 << 1;
/// The limits refuse and delay no charge.
pub(crate) const OBSERVED: u64 = 1 << 2;
/// The group has a high.
pub(crate) const HIGH: u64 = 1 << 3;
/// Usage is above max or high: see `exceeded_mark`. A walk that raises usage further has nothing to
/// do about it.
pub(crate) const EXCEEDED: u64 = 1 << 4;
/// An allocator has changed usage, and the next slow path looks at the counter: see `look::defer`.
pub(crate) const DEFERRED: u64 = 1 << 5;
/// It has left a level above its max.
pub(crate) const DEFERRED_ABOVE: u64 = 1 << 6;
/// It has found less than it uncharges: see `look::tell_underflow`.
pub(crate) const DEFERRED_UNDERFLOW: u64 = 1 << 31;
/// Usage has not passed the threshold of reclaim in the background since a thread last set the bit:
/// see `thresholds`.
pub(crate) const RECLAIMS: u64 = 1 << 7;
/// The group has thresholds of pressure.
pub(crate) const PRESSURE_KNOWN: u64 = 1 << 23;
/// The pressure of the group: see `pressure_mark`.
pub(crate) const PRESSURE_PARTS: u64 = 0x3f << 24;
/// A thread is to look at the group's stalls.
pub(crate) const STALLS_LOOKED_AT: u64 = 1 << 30;
/// Bits that a walk does not look at.
pub(crate) const NOT_OF_WALKS: u64 =
    EXCEEDED | DEFERRED | DEFERRED_ABOVE | DEFERRED_UNDERFLOW | PRESSURE_PARTS | STALLS_LOOKED_AT;
/// The policies name these bits, and say what they are for.
const OF_POLICIES: u64 = 0x7fff << 8;

/// A bit that the policies name, by its number among theirs.
pub(crate) const fn of_policies(number: u32) -> u64 {
    let bit = 1 << (8 + number);
    assert!(bit & OF_POLICIES != 0, "the policies have 15 bits");
    bit
}

// No bit of this file has two meanings, and none is a policy's. Those from 32 on are free.
const _: () = {
    let all = [
        REPORTED,
        WAITING,
        OBSERVED,
        HIGH,
        EXCEEDED,
        DEFERRED,
        DEFERRED_ABOVE,
        DEFERRED_UNDERFLOW,
        RECLAIMS,
        PRESSURE_KNOWN,
        PRESSURE_PARTS,
        STALLS_LOOKED_AT,
        OF_POLICIES,
    ];
    let (mut taken, mut next) = (0, 0);
    while next < all.len() {
        assert!(taken & all[next] == 0, "a bit has two meanings");
        taken |= all[next];
        next += 1;
    }
};

#[derive(Default)]
pub(crate) struct Watched(AtomicU64);

impl Watched {
    /// Sets bits, before a read of usage. Returns the bits before.
    pub(crate) fn set(&self, bits: u64) -> u64 {
        // SeqCst (E11, E23, E25, E26, E43, E55): after what the bits stand for, before the read of
        // usage. Release (E44): after the count of a mark; pairs with `bits`, after the exchange on
        // usage or on a count.
        self.0.fetch_or(bits, Ordering::SeqCst)
    }

    /// Clears bits. Returns the bits before.
    pub(crate) fn clear(&self, bits: u64) -> u64 {
        // SeqCst (E11, E23, E25, E26, E43, E55): after what the bits stood for. A thread that still
        // sees them checks once in vain. As in `set`.
        self.0.fetch_and(!bits, Ordering::SeqCst)
    }

    /// Sets the bit while `is_meant`, which reads a value that other threads change, and clears it
    /// while not. The thread that writes the bit last reads the value after that, so the bit ends
    /// as the value does, whichever threads follow it at once. Afterwards the caller may read
    /// usage, as after [`set`](Self::set).
    pub(crate) fn follow(&self, bit: u64, is_meant: impl Fn() -> bool) {
        let mut meant = is_meant();
        loop {
            if meant {
                self.set(bit);
            } else {
                self.clear(bit);
            }
            // E55, E43: the value, then the bit, then the value again and usage; pairs with the
            // exchange on usage before `bits`.
            // Mutation: e55-a-mark-is-set-without-a-fence
            fence_after_exchange();
            // Another thread may have changed the value, and written the bit, between this thread's
            // look and its write. Then the bit is this thread's, and out of date: so it looks
            // again.
            let before = std::mem::replace(&mut meant, is_meant());
            // Mutation: e55-a-bit-follows-without-a-second-look
            if meant == before {
                return;
            }
        }
    }

    /// Replaces all bits, if they are still `from`.
    pub(crate) fn exchange(&self, from: u64, to: u64) -> bool {
        // SeqCst (E43): after the read of usage on which `to` rests, and before the next one.
        // All bits and not the meant ones alone: a part of several bits, as the pressure, moves at
        // once, and any other bit that has changed meanwhile makes the caller look again.
        self.0
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    #[inline]
    pub(crate) fn bits_for_figures(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn bits(&self) -> u64 {
        // SeqCst (E11, E23, E25, E26, E43, E55): after the exchange on usage, or on the count of an
        // event. Acquire (E44); pairs with `set`, `clear` and `exchange`.
        self.0.load(Ordering::SeqCst)
    }

    #[inline]
    pub(crate) fn is_for(&self, bits: u64) -> bool {
        self.bits() & bits != 0
    }

    /// No thread uses the counter.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
