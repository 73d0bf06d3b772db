//! Units that go back up the tree and are nobody's live charge: surplus, and credit that has left
//! its stock.

use crate::counter::cover;
use crate::counter::object::Counter;
use crate::counter::spare_word::Side;
use crate::sync::Ordering;

impl Counter {
    /// Uncharge `n` at all levels. False: a level had less. In a group that covers, the units are
    /// credit, or an allocator's. Afterwards the counter may be gone.
    pub(crate) fn uncharge_levels(&self, n: u64) -> bool {
        if self.cover().is_some() {
            cover::go_below(self, n, Side::Allocated, None);
            return true;
        }
        self.uncharge(n, None) == n
    }

    /// Uncharge credit that came out of slots, and return how much.
    pub(crate) fn uncharge_settled(&self) -> u64 {
        self.uncharge_drained(self.usage.settled.swap(0, Ordering::Relaxed))
    }

    /// Uncharge credit that a drain has taken out, and return how much. What a poisoned counter
    /// holds beyond its usage was never charged.
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
