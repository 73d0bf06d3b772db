//! The library's slot, found through the `thread_local` crate: each counter holds a `ThreadLocal`
//! of slots.
//!
//! The rules are the library's (capacity of two batches, cut to one), the place is not: here a
//! counter has a table of its own, there a thread has one block for all counters behind one
//! thread-local pointer.

#![cfg(not(loom))]

use std::sync::atomic::{AtomicU64, Ordering};

use memcg::PageCounter;
use memcg::errors::CounterChargeError;
use thread_local::ThreadLocal;

use super::slot::Slot;
use super::{BATCH, Policy};

/// A counter without stock of its own, and its slots.
pub(crate) struct CrateStocked {
    counter: PageCounter,
    capacity: AtomicU64,
    slots: ThreadLocal<Slot>,
}

impl CrateStocked {
    pub(crate) fn new(counter: PageCounter) -> Self {
        CrateStocked {
            counter,
            capacity: AtomicU64::new(2 * BATCH),
            slots: ThreadLocal::new(),
        }
    }

    #[inline(always)]
    fn charge(&self, n: u64) -> Result<(), CounterChargeError> {
        if n <= BATCH && self.slots.get_or(Slot::default).consume(n) {
            Ok(())
        } else {
            self.try_charge_slow(n)
        }
    }

    #[inline(never)]
    fn try_charge_slow(&self, n: u64) -> Result<(), CounterChargeError> {
        let batch = n.max(BATCH);
        if self.counter.charge(batch).is_ok() {
            if batch > n {
                self.slots
                    .get_or(Slot::default)
                    .put(batch - n, &self.capacity);
            }
            return Ok(());
        }
        self.counter.charge(n)
    }

    #[inline(always)]
    fn uncharge(&self, n: u64) {
        let capacity = self.capacity.load(Ordering::Relaxed);
        let slot = self.slots.get_or(Slot::default);
        if n > capacity || slot.credit() + n.cast_signed() > capacity.cast_signed() {
            self.cut(n);
        } else if !slot.put(n, &self.capacity) {
            self.take_back();
        }
    }

    /// Too much: what exceeds one batch goes up the tree.
    #[inline(never)]
    fn cut(&self, n: u64) {
        let slot = self.slots.get_or(Slot::default);
        let credit = slot.credit().max(0).cast_unsigned().saturating_add(n);
        let kept = credit.min(BATCH);
        slot.set(kept);
        self.counter.uncharge(credit - kept);
    }

    /// No thread closes a baseline's counter; the code stands in the way as it would.
    #[cold]
    #[inline(never)]
    fn take_back(&self) {
        let slot = self.slots.get_or(Slot::default);
        let credit = slot.credit().max(0).cast_unsigned();
        slot.set(0);
        self.counter.uncharge(credit);
    }
}

/// The policy over a whole set of leaves.
pub(crate) struct StockCrate<'a> {
    pub(crate) leaves: &'a [CrateStocked],
}

impl Policy for StockCrate<'_> {
    #[inline(always)]
    fn charge(&mut self, leaf: usize, n: u64) -> Result<(), CounterChargeError> {
        self.leaves[leaf].charge(n)
    }

    #[inline(always)]
    fn uncharge(&mut self, leaf: usize, n: u64) {
        self.leaves[leaf].uncharge(n);
    }
}
