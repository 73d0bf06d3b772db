//! Objects of a counter's group: the sums over all threads' counts. `cover.md` has the words.
//!
//! Each count only grows, so two readings bound what lies between them. At one moment between the
//! first and the second reading, what was allocated is between the two counts of that, and what was
//! freed between the two counts of that. What is reserved in a group that covers is read between
//! them.

use std::ops::AddAssign;

use crate::counter::object::Counter;
use crate::thread::deferred::deferred;

/// The ledger of a counter, or of a subtree. Live is what is reserved and allocated, less what is
/// paid.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LedgerSums {
    pub(crate) allocated: u64,
    /// Of what is allocated, what reserved bytes pay for.
    pub(crate) paid: u64,
    /// Allocated beyond what is reserved, in groups that cover.
    pub(crate) unpaid: u64,
    /// Of what is allocated, what groups own that went offline.
    pub(crate) left_behind: u64,
    /// The most by which each of these may be wrong.
    pub(crate) error: u64,
}

impl AddAssign for LedgerSums {
    fn add_assign(&mut self, other: LedgerSums) {
        self.allocated = self.allocated.saturating_add(other.allocated);
        self.paid = self.paid.saturating_add(other.paid);
        self.unpaid = self.unpaid.saturating_add(other.unpaid);
        self.left_behind = self.left_behind.saturating_add(other.left_behind);
        self.error = self.error.saturating_add(other.error);
    }
}

/// Bytes of objects, ever.
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
        let there = self
            .allocated
            .wrapping_sub(self.freed)
            .cast_signed()
            .max(0)
            .cast_unsigned();
        let allocated = self.allocated.wrapping_sub(earlier.allocated);
        (there, allocated.max(self.freed.wrapping_sub(earlier.freed)))
    }
}

/// Bytes that are allocated in a counter's group alone. It visits each thread's counts twice.
pub(crate) fn own(counter: &Counter) -> LedgerSums {
    if !counter.is_memory() {
        return LedgerSums::default();
    }
    let earlier = counts(counter);
    let (allocated, error) = counts(counter).since(earlier);
    let is_left = counter.state().is_offline();
    LedgerSums {
        allocated,
        left_behind: if is_left { allocated } else { 0 },
        error,
        ..LedgerSums::default()
    }
}

/// The ledger of a counter's subtree, where `below` has the sums of it all: a group that covers
/// compares them.
pub(crate) fn compare(counter: &Counter, below: LedgerSums) -> LedgerSums {
    counter
        .cover()
        .map_or(below, |cover| below.compared_with(cover.reserved()))
}

impl LedgerSums {
    /// The same, where so many bytes are reserved.
    pub(crate) fn compared_with(self, reserved: u64) -> LedgerSums {
        LedgerSums {
            paid: self.allocated.min(reserved),
            unpaid: self.allocated.saturating_sub(reserved),
            ..self
        }
    }
}

fn counts(counter: &Counter) -> ObjectCounts {
    let mut owned = ObjectCounts::default();
    owned.add(counter.header.owned.counts());
    let blocks = counter.tree().registry.blocks();
    blocks
        .filter_map(|block| block.owned(counter.index))
        .for_each(|cell| owned.add(cell.counts()));
    owned
}

/// True if an allocator may have counted anything.
pub(crate) fn any() -> bool {
    deferred().charges()
}
