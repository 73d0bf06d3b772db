//! Spare: one word of a group that covers, which tells what the larger of its two sums moves by.
//! `cover.md` is the protocol.
//!
//! Edge: E49 (usage rises, then spare moves/spare moves, then usage falls).

use crate::sync::{AtomicI64, AtomicU64, Ordering};

/// The two words that a covering counter has beside its usage. Spare decides what usage moves by;
/// the reserved bytes are counted apart, so that nobody gives back more of them than there are.
#[derive(Default)]
pub(crate) struct Cover {
    /// Reserved less allocated, of the subtree. Below zero: so many bytes are unpaid.
    spare: AtomicI64,
    pub(super) reserved: AtomicU64,
}

/// From which of the two sums bytes come or go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CoverSide {
    Reserved,
    /// By an allocator, or credit for it.
    Allocated,
}

/// Returns by how much the larger of the two sums exceeds what is allocated: the reserved bytes
/// that no object uses yet.
pub(super) fn above_zero(spare: i64) -> u64 {
    spare.max(0).cast_unsigned()
}

impl CoverSide {
    /// The new spare after `n` more bytes, and what the larger of the two sums rises by.
    pub(super) fn come(self, spare: i64, n: u64) -> (i64, u64) {
        match self {
            CoverSide::Reserved => {
                // Bytes that fill up a spare below zero pay for objects that are in usage already.
                let next = spare.wrapping_add(n.cast_signed());
                (next, above_zero(next) - above_zero(spare))
            }
            CoverSide::Allocated => {
                // What spare has above zero pays for the objects. The rest is unpaid, and raises
                // usage.
                let next = spare.wrapping_sub(n.cast_signed());
                (next, n - (above_zero(spare) - above_zero(next)))
            }
        }
    }

    /// What the larger sum falls by when `n` bytes go, where `spare` is from before they went: the
    /// reverse of [`come`](Self::come).
    pub(super) fn fall(self, spare: i64, n: u64) -> u64 {
        match self {
            CoverSide::Reserved => {
                // Mutation: reserved-bytes-that-pay-are-given-back
                above_zero(spare) - above_zero(spare.wrapping_sub(n.cast_signed()))
            }
            CoverSide::Allocated => {
                n - (above_zero(spare.wrapping_add(n.cast_signed())) - above_zero(spare))
            }
        }
    }
}

impl Cover {
    /// The bytes that are reserved in the subtree.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    pub(crate) fn spare(&self) -> i64 {
        // SeqCst (E25): a thread that waits for room reads it after its mark; pairs with `come` and
        // `go`.
        self.spare.load(Ordering::SeqCst)
    }

    /// The unpaid bytes: those that are allocated beyond the reserved ones, credit included.
    pub(crate) fn unpaid(&self) -> u64 {
        self.spare().min(0).unsigned_abs()
    }

    /// Moves spare for `n` bytes that come, after `charge` has raised usage by what the larger sum
    /// rises by. Where another thread moves spare meanwhile it may be asked for more, or may have
    /// charged too much: usage is never below the larger sum, and the caller uncharges the
    /// difference. Returns what the sum has risen by.
    pub(super) fn come<E>(
        &self,
        n: u64,
        side: CoverSide,
        mut charge: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<u64, E> {
        let mut charged = 0;
        // Acquire (E49): what made spare is charged. Pairs with the exchange below, and with `go`.
        let mut spare = self.spare.load(Ordering::Acquire);
        loop {
            let (next, rise) = side.come(spare, n);
            // Usage first, then spare: a thread that finds these bytes in spare must find them paid
            // for. In a further turn only the difference is charged.
            // Mutation: e49-spare-moves-before-the-charge
            if rise > charged {
                charge(rise - charged)?;
                charged = rise;
            }
            // SeqCst (E49): after usage has risen; pairs with `go`. E25: before the mark of a
            // waiter is read.
            // Mutation: e49-spare-moves-before-the-charge
            // Mutation: e49-spare-moves-whatever-it-was
            match self
                .spare
                .compare_exchange(spare, next, Ordering::SeqCst, Ordering::Acquire)
            {
                Ok(_) => return Ok(rise),
                Err(now) => spare = now,
            }
        }
    }

    /// Moves spare for `n` bytes that go. Returns what the larger sum falls by: the caller
    /// uncharges it afterwards. One exchange will do, without a loop: bytes that go are never
    /// refused, and the exchange tells what spare was before.
    pub(super) fn go(&self, n: u64, side: CoverSide) -> u64 {
        // SeqCst (E49): before usage falls, and after it has risen for what made spare; pairs with
        // `come`. E25: as there.
        let spare = match side {
            CoverSide::Reserved => self.spare.fetch_sub(n.cast_signed(), Ordering::SeqCst),
            CoverSide::Allocated => self.spare.fetch_add(n.cast_signed(), Ordering::SeqCst),
        };
        side.fall(spare, n)
    }

    /// Takes up to `n` of the reserved bytes, and returns how many there were. Never more than
    /// there are: the difference is an underflow, and would be taken from other holders.
    pub(super) fn take_reserved(&self, n: u64) -> u64 {
        let less = |reserved: u64| Some(reserved.saturating_sub(n));
        self.reserved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .map_or(0, |reserved| reserved.min(n))
    }
}
