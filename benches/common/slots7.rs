//! The kernel's stock: seven slots for each processor, whichever counters they serve. Here for each
//! thread.
//!
//! A charge consumes from the counter's slot or asks the tree for a batch and refills the slot with
//! the rest; an uncharge refills, as frees of kernel and socket memory do. A slot that comes to
//! more than a batch is emptied whole, a counter that finds no free slot has a victim's emptied.
//!
//! Left out, in this baseline's favour: the lock against interrupts, the reference that a used slot
//! holds on its counter, and the look-up of the calling thread's slots, which the caller simply
//! has.

#![cfg(not(loom))]

use memcg::PageCounter;
use memcg::errors::CounterChargeError;

use super::{BATCH, Policy};

/// The kernel's NR_MEMCG_STOCK: pointers and counts of seven fill one cache line.
pub(crate) const SLOTS: usize = 7;

/// Which slot makes room.
pub(crate) trait Victim: Default {
    fn next(&mut self) -> usize;
}

/// As the kernel had it until May 2026.
pub(crate) struct Random(u32);

impl Default for Random {
    fn default() -> Self {
        Random(0x9E37_79B9)
    }
}

impl Victim for Random {
    #[inline]
    fn next(&mut self) -> usize {
        // Xorshift, then the high half of a product in place of a division.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        ((u64::from(self.0) * SLOTS as u64) >> 32) as usize
    }
}

/// As the kernel has it since.
#[derive(Default)]
pub(crate) struct RoundRobin(usize);

impl Victim for RoundRobin {
    #[inline]
    fn next(&mut self) -> usize {
        let victim = self.0;
        self.0 = if victim + 1 == SLOTS { 0 } else { victim + 1 };
        victim
    }
}

/// The slots of one thread.
pub(crate) struct Slots7<'a, V> {
    leaves: &'a [PageCounter],
    cached: [Option<&'a PageCounter>; SLOTS],
    units: [u8; SLOTS],
    victim: V,
}

impl<'a, V: Victim> Slots7<'a, V> {
    /// The bytes of one thread's slots, for any number of counters.
    pub(crate) const BYTES: usize = SLOTS * (size_of::<&PageCounter>() + size_of::<u8>());

    /// `leaves` have no stock of their own.
    pub(crate) fn new(leaves: &'a [PageCounter]) -> Self {
        Slots7 {
            leaves,
            cached: [None; SLOTS],
            units: [0; SLOTS],
            victim: V::default(),
        }
    }

    /// Credit in all slots.
    pub(crate) fn stocked(&self) -> u64 {
        self.units.iter().map(|&units| u64::from(units)).sum()
    }

    #[inline(always)]
    fn slot_of(&self, counter: &PageCounter) -> Option<usize> {
        self.cached
            .iter()
            .position(|cached| cached.is_some_and(|cached| std::ptr::eq(cached, counter)))
    }

    /// Partial use is not made: a slot that holds 40 does not help a charge of 41.
    #[inline(always)]
    fn consume(&mut self, counter: &PageCounter, n: u64) -> bool {
        if n > BATCH {
            return false;
        }
        match self.slot_of(counter) {
            Some(slot) if u64::from(self.units[slot]) >= n => {
                self.units[slot] -= n as u8;
                true
            }
            _ => false,
        }
    }

    #[inline(never)]
    fn try_charge_slow(
        &mut self,
        counter: &'a PageCounter,
        n: u64,
    ) -> Result<(), CounterChargeError> {
        let batch = n.max(BATCH);
        if counter.charge(batch).is_ok() {
            if batch > n {
                self.refill(counter, batch - n);
            }
            return Ok(());
        }
        counter.charge(n)
    }

    #[inline(always)]
    fn refill(&mut self, counter: &'a PageCounter, n: u64) {
        if n > BATCH {
            return counter.uncharge(n);
        }
        match self.slot_of(counter) {
            Some(slot) => {
                self.units[slot] += n as u8;
                if u64::from(self.units[slot]) > BATCH {
                    self.drain(slot);
                }
            }
            None => self.claim(counter, n),
        }
    }

    #[inline(never)]
    fn claim(&mut self, counter: &'a PageCounter, n: u64) {
        let slot = self
            .cached
            .iter()
            .position(Option::is_none)
            .unwrap_or_else(|| {
                let victim = self.victim.next();
                self.drain(victim);
                victim
            });
        self.cached[slot] = Some(counter);
        self.units[slot] = n as u8;
    }

    #[inline(never)]
    fn drain(&mut self, slot: usize) {
        let units = std::mem::take(&mut self.units[slot]);
        if let Some(counter) = self.cached[slot].take()
            && units > 0
        {
            counter.uncharge(units.into());
        }
    }
}

impl<V: Victim> Policy for Slots7<'_, V> {
    #[inline(always)]
    fn charge(&mut self, leaf: usize, n: u64) -> Result<(), CounterChargeError> {
        let counter = &self.leaves[leaf];
        if self.consume(counter, n) {
            Ok(())
        } else {
            self.try_charge_slow(counter, n)
        }
    }

    #[inline(always)]
    fn uncharge(&mut self, leaf: usize, n: u64) {
        self.refill(&self.leaves[leaf], n);
    }
}

impl<V> Drop for Slots7<'_, V> {
    fn drop(&mut self) {
        for (counter, units) in self.cached.iter().zip(self.units) {
            if let Some(counter) = counter {
                counter.uncharge(units.into());
            }
        }
    }
}
