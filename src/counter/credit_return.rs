//! Units that go back up the tree and are nobody's live charge: surplus, and credit that has left
//! its stock.

use crate::counter::cover;
use crate::counter::object::Counter;
use crate::counter::spare_word::CoverSide;
use crate::sync::Ordering;

impl Counter {
    /// Uncharges `n` at all levels. False: a level had less. Afterwards the counter may be gone.
    pub(crate) fn uncharge_levels(&self, n: u64) -> bool {
        // Charges of a group that covers take no credit, so these units are an allocator's: they go
        // as allocated bytes do, and usage falls by what spare says.
        if self.cover().is_some() {
            cover::go_below(self, n, CoverSide::Allocated, None);
            return true;
        }
        self.uncharge(n, None) == n
    }

    /// Uncharges the credit that settled claims have taken out of slots, and returns how much.
    pub(crate) fn uncharge_settled(&self) -> u64 {
        self.uncharge_drained(self.usage.settled.swap(0, Ordering::Relaxed))
    }

    /// Uncharges credit that a drain has taken out, and returns how much. A poisoned counter, of
    /// which more was uncharged than charged, may hold credit beyond its usage. That was never
    /// charged: it is discarded and counted.
    pub(crate) fn uncharge_drained(&self, units: u64) -> u64 {
        if units == 0 {
            return 0;
        }
        let backed = if self.poisoned.load(Ordering::Relaxed) {
            units.min(self.usage())
        } else {
            units
        };
        let counts = &self.tree().counts;
        self.uncharge_levels(backed);
        counts
            .discarded
            .fetch_add(units - backed, Ordering::Relaxed);
        counts.drained.fetch_add(backed, Ordering::Relaxed);
        backed
    }
}
