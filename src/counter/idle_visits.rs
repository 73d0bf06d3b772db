//! Memory of visits of idle credit: the slots that had credit at the last visit, and their owners'
//! words then.
//!
//! A list in the order in which a visit finds slots: older blocks first, in each the lower index
//! first. A visit merges it with what it finds, so a slot has no word for this, and one without
//! credit takes no memory here.

use std::mem;

use crate::sync::Ordering;
use crate::sync::lock::{Lock, LockGuard, Rank};
use crate::sync::stat_atomic::AtomicU64;
use crate::thread::directory::SlotIndex;

/// The visits of one tree.
pub(crate) struct IdleVisits {
    pub(super) seen: Lock<SeenCredit>,
    bytes: AtomicU64,
}

impl IdleVisits {
    pub(crate) fn new() -> IdleVisits {
        IdleVisits {
            seen: Lock::new(Rank::Visit, SeenCredit::default()),
            bytes: AtomicU64::new(0),
        }
    }

    /// The visit is over: the next one compares with what this one has seen.
    pub(crate) fn end(&self, mut seen: LockGuard<'_, SeenCredit>) {
        seen.last = mem::take(&mut seen.now);
        seen.at = 0;
        self.bytes.store(
            (seen.last.capacity() * size_of::<SeenSlot>()) as u64,
            Ordering::Relaxed,
        );
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

#[derive(Clone, Copy)]
struct SeenSlot {
    block: u32,
    index: SlotIndex,
    /// The low 31 bits of the owner's word, then whether the visit before found the same. A slot
    /// that has moved by a multiple of 2^31 looks idle, which costs a refill.
    filled: u32,
}

impl SeenSlot {
    fn place(&self) -> (u32, SlotIndex) {
        (self.block, self.index)
    }
}

#[derive(Default)]
pub(crate) struct SeenCredit {
    last: Vec<SeenSlot>,
    /// Entries of `last` that the visit has passed.
    at: usize,
    now: Vec<SeenSlot>,
}

impl SeenCredit {
    /// Notes a slot with credit, which comes after those noted before. Whether it has not moved for
    /// two periods: the last two visits found the same word.
    pub(crate) fn has_stood(&mut self, block: u32, index: SlotIndex, filled: u64) -> bool {
        let mut slot = SeenSlot {
            block,
            index,
            filled: (filled as u32) << 1,
        };
        let passed = self.last[self.at..]
            .iter()
            .take_while(|seen| seen.place() < slot.place())
            .count();
        self.at += passed;
        let before = self
            .last
            .get(self.at)
            .filter(|seen| seen.place() == slot.place());
        let mut stood = false;
        let mut twice = false;
        if let Some(before) = before {
            stood = before.filled >> 1 == slot.filled >> 1;
            twice = stood && before.filled & 1 == 1;
        }
        slot.filled |= u32::from(stood);
        // Without memory the next visit finds the slot as if for the first time.
        if self.now.try_reserve(1).is_ok() {
            self.now.push(slot);
        }
        twice
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// One visit: what it says of each slot, as (block, word) at the first index.
    fn visit(visits: &IdleVisits, slots: &[(u32, u64)]) -> Vec<bool> {
        let mut seen = visits.seen.lock();
        let stood = slots
            .iter()
            .map(|&(block, filled)| seen.has_stood(block, SlotIndex::FIRST, filled))
            .collect();
        visits.end(seen);
        stood
    }

    #[test]
    fn a_slot_has_stood_at_the_third_visit_that_finds_its_word() {
        let visits = IdleVisits::new();
        for (filled, stood) in [
            (7, false),
            (7, false),
            (7, true),
            (7, true),
            (8, false),
            (8, false),
            (8, true),
        ] {
            assert_eq!(visit(&visits, &[(0, filled)]), [stood]);
        }
    }

    #[test]
    fn visits_compare_slots_of_one_place() {
        let visits = IdleVisits::new();
        visit(&visits, &[(1, 7), (3, 7)]);
        // A newer block comes, and one has no credit any more.
        visit(&visits, &[(1, 7), (4, 7)]);
        assert_eq!(
            visit(&visits, &[(0, 7), (1, 7), (3, 7), (4, 7)]),
            [false, true, false, false]
        );
        assert_eq!(visit(&visits, &[(4, 7)]), [true]);
        assert!(visit(&visits, &[]).is_empty());
        assert_eq!(
            visits.bytes(),
            0,
            "a visit that finds no credit leaves no memory behind"
        );
    }
}
