//! What objects a counter's group has: the sums over all threads' counts. `cover.md` has the words.
//!
//! Each count only grows, so two readings bound what lies between them. At one moment between the first and the second
//! reading, what was allocated is between the two counts of that, and what was freed between the two counts of that. What
//! charges hold is read between them. Unpaid is derived from these, not read: so it agrees with them while a look is under
//! way on another thread.

use std::ops::AddAssign;

use crate::counter::cover;
use crate::counter::object::Counter;
use crate::thread::left::left;

/// The ledger of a counter, or of a subtree.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LedgerSums {
    pub(crate) covered: u64,
    pub(crate) uncovered: u64,
    pub(crate) held: u64,
    /// What is covered beyond what is held, by this reading.
    pub(crate) unpaid: u64,
    /// What the records are charged with. Another thread's look may be about to correct it.
    pub(crate) charged: u64,
    /// What `covered`, `uncovered`, `held` and `unpaid` may be off by, each.
    pub(crate) error: u64,
}

impl AddAssign for LedgerSums {
    fn add_assign(&mut self, other: LedgerSums) {
        self.covered = self.covered.saturating_add(other.covered);
        self.uncovered = self.uncovered.saturating_add(other.uncovered);
        self.held = self.held.saturating_add(other.held);
        self.unpaid = self.unpaid.saturating_add(other.unpaid);
        self.charged = self.charged.saturating_add(other.charged);
        self.error = self.error.saturating_add(other.error);
    }
}

/// Bytes of objects of one kind, ever.
#[derive(Clone, Copy, Default)]
struct ObjectCounts {
    freed: u64,
    allocated: u64,
}

impl ObjectCounts {
    fn add(&mut self, (freed, allocated): (u64, u64)) {
        self.freed = self.freed.wrapping_add(freed);
        self.allocated = self.allocated.wrapping_add(allocated);
    }

    /// The bytes there are, and how far that may be off, by an earlier reading.
    fn since(self, earlier: ObjectCounts) -> (u64, u64) {
        let there = self.allocated.wrapping_sub(self.freed).cast_signed().max(0).cast_unsigned();
        let allocated = self.allocated.wrapping_sub(earlier.allocated);
        (there, allocated.max(self.freed.wrapping_sub(earlier.freed)))
    }
}

/// The ledger of a counter alone. It visits each thread's counts twice. The caller keeps the counter.
pub(crate) fn own(counter: &Counter) -> LedgerSums {
    if !counter.is_memory() {
        return LedgerSums::default();
    }
    let earlier = counts(counter);
    let cover::CoverFigures { held, error: held_error, charged } = cover::figures(counter);
    let [owned, covers] = counts(counter);
    let ((uncovered, owned_error), (covered, covered_error)) = (owned.since(earlier[0]), covers.since(earlier[1]));
    let error = owned_error.max(covered_error.saturating_add(held_error));
    // Mutation: ledger-shows-what-was-charged
    LedgerSums { covered, uncovered, held, unpaid: covered.saturating_sub(held), charged, error }
}

/// Owned bytes that are not covered, and covered ones.
fn counts(counter: &Counter) -> [ObjectCounts; 2] {
    let [mut owned, mut covered] = [ObjectCounts::default(); 2];
    owned.add(counter.header.owned_counts());
    covered.add(cover::counts(counter));
    for block in counter.tree().registry.blocks() {
        if let Some(cell) = block.owned(counter.index) {
            owned.add(cell.counts());
        }
        if let Some(cell) = block.covered(counter.index) {
            covered.add((cell.sum_freed(), cell.sum_allocated()));
        }
    }
    [owned, covered]
}

/// Whether an allocator may have counted anything.
pub(crate) fn any() -> bool {
    left().charges()
}
