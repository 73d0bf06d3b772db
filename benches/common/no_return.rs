//! A stock for each counter that frees do not return to: versions 2 to 4 of the patches that moved
//! the kernel's stock into the page counter.
//!
//! Charges as the library makes them, from a slot of the same shape; an uncharge walks the tree.
//! The slots of the calling thread are found by index for nothing.

#![cfg(not(loom))]

use std::sync::atomic::AtomicU64;

use memcg::PageCounter;
use memcg::errors::CounterChargeError;

use super::slot::Slot;
use super::{BATCH, Policy};

/// One thread's slots, one for each leaf.
pub(crate) struct NoReturn<'a> {
    leaves: &'a [PageCounter],
    slots: Vec<Slot>,
    capacity: AtomicU64,
}

impl<'a> NoReturn<'a> {
    /// `leaves` have no stock of their own.
    pub(crate) fn new(leaves: &'a [PageCounter]) -> Self {
        let slots = leaves.iter().map(|_| Slot::default()).collect();
        NoReturn {
            leaves,
            slots,
            capacity: AtomicU64::new(BATCH),
        }
    }

    #[inline(never)]
    fn try_charge_slow(&self, leaf: usize, n: u64) -> Result<(), CounterChargeError> {
        let batch = n.max(BATCH);
        if self.leaves[leaf].charge(batch).is_ok() {
            if batch > n {
                self.slots[leaf].put(batch - n, &self.capacity);
            }
            return Ok(());
        }
        self.leaves[leaf].charge(n)
    }
}

impl Policy for NoReturn<'_> {
    #[inline(always)]
    fn charge(&mut self, leaf: usize, n: u64) -> Result<(), CounterChargeError> {
        if n <= BATCH && self.slots[leaf].consume(n) {
            Ok(())
        } else {
            self.try_charge_slow(leaf, n)
        }
    }

    #[inline(always)]
    fn uncharge(&mut self, leaf: usize, n: u64) {
        self.leaves[leaf].uncharge(n);
    }
}
