//! The slot of two single-writer words, as the baselines need it: the owner's side whole, and no
//! thread that drains.

#![cfg(not(loom))]

use std::sync::atomic::{AtomicU64, Ordering};

/// Credit of one thread for one counter: `level - drained`.
#[derive(Default)]
pub(crate) struct Slot {
    level: AtomicU64,
    drained: AtomicU64,
}

impl Slot {
    #[inline(always)]
    pub(crate) fn credit(&self) -> i64 {
        self.level
            .load(Ordering::Relaxed)
            .wrapping_sub(self.drained.load(Ordering::Acquire))
            .cast_signed()
    }

    /// Pay `n` units from the credit.
    #[inline(always)]
    pub(crate) fn consume(&self, n: u64) -> bool {
        if self.credit() < n.cast_signed() {
            return false;
        }
        let level = self.level.load(Ordering::Relaxed);
        self.level.store(level.wrapping_sub(n), Ordering::Release);
        light();
        if self.credit() >= 0 {
            return true;
        }
        self.undo(level)
    }

    /// No thread drains a baseline's slot, but the code for it stands in the way as it would.
    #[cold]
    #[inline(never)]
    fn undo(&self, level: u64) -> bool {
        self.level.store(level, Ordering::Release);
        false
    }

    /// Add `n` units of credit. False when `capacity` has become zero meanwhile.
    #[inline(always)]
    pub(crate) fn put(&self, n: u64, capacity: &AtomicU64) -> bool {
        let level = self.level.load(Ordering::Relaxed);
        self.level.store(level.wrapping_add(n), Ordering::Release);
        light();
        capacity.load(Ordering::Acquire) != 0
    }

    /// [`put`](Self::put) that first tests, as the library does, whether the slot stays within
    /// `capacity`.
    #[inline(always)]
    pub(crate) fn put_within(&self, n: u64, capacity: &AtomicU64) -> bool {
        let most = capacity.load(Ordering::Relaxed);
        let fits =
            n.wrapping_sub(1) < most && self.credit().cast_unsigned().wrapping_add(n) <= most;
        fits && self.put(n, capacity)
    }

    /// Set the credit to `units`.
    pub(crate) fn set(&self, units: u64) {
        self.level.store(
            self.drained.load(Ordering::Acquire).wrapping_add(units),
            Ordering::Release,
        );
    }
}

/// The cheap half of the asymmetric barrier: keeps the compiler from reordering, costs no
/// instruction.
#[inline(always)]
#[allow(
    unsafe_code,
    reason = "an empty asm block is how the library's own light barrier is made"
)]
fn light() {
    // SAFETY: no instruction, no operand, no stack; what it clobbers is memory, as the default
    // says.
    unsafe { std::arch::asm!("", options(nostack, preserves_flags)) }
}
