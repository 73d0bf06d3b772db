//! What sorts keep for their merges.
//!
//! A sort reserves memory for merging before it reads, gives it back when it begins to spill, and asks for it again bit
//! by bit while it merges. In a full group another query would take it meanwhile, and the sort would fail while it
//! frees memory. So a merge keeps its first reservation, charged, until it is gone.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

use datafusion_execution::memory_pool::MemoryConsumer;

/// How DataFusion names these consumers, before the partition.
const MERGE: &str = "ExternalSorterMerge";

/// The merges of a pool by the numbers of their consumers.
#[derive(Debug, Default)]
pub(crate) struct Merges(Mutex<HashMap<usize, Merge>>);

#[derive(Debug)]
struct Merge {
    /// What it reserved first: so much stays charged.
    first: u64,
    /// What DataFusion believes to be reserved.
    held: u64,
    /// What is charged beyond that.
    kept: u64,
}

impl Merges {
    pub(crate) fn is_merge(consumer: &MemoryConsumer) -> bool {
        !consumer.can_spill() && consumer.name().starts_with(MERGE)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Merge>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The consumer grows by `bytes`. Returns how many of them are to be charged.
    pub(crate) fn grow(&self, consumer: usize, bytes: u64) -> u64 {
        let mut merges = self.lock();
        let merge = match merges.entry(consumer) {
            Entry::Occupied(merge) => merge.into_mut(),
            Entry::Vacant(new) => new.insert(Merge { first: bytes, held: 0, kept: 0 }),
        };
        let covered = merge.kept.min(bytes);
        merge.kept -= covered;
        merge.held = merge.held.saturating_add(bytes);
        bytes - covered
    }

    /// The consumer gives `bytes` back, or has not got them. Returns how many of them are to be uncharged.
    pub(crate) fn shrink(&self, consumer: usize, bytes: u64) -> u64 {
        let mut merges = self.lock();
        let Some(merge) = merges.get_mut(&consumer) else { return bytes };
        merge.held = merge.held.saturating_sub(bytes);
        let keeps = merge.first.saturating_sub(merge.held.saturating_add(merge.kept)).min(bytes);
        merge.kept += keeps;
        bytes - keeps
    }

    /// A growth by `bytes` was refused, of which `charged` were to be charged.
    pub(crate) fn undo(&self, consumer: usize, bytes: u64, charged: u64) {
        let mut merges = self.lock();
        if let Some(merge) = merges.get_mut(&consumer) {
            merge.held = merge.held.saturating_sub(bytes);
            merge.kept += bytes - charged;
            if merge.held == 0 && merge.kept == 0 {
                merges.remove(&consumer);
            }
        }
    }

    /// The consumer is gone. Returns what it has kept.
    pub(crate) fn end(&self, consumer: usize) -> u64 {
        self.lock().remove(&consumer).map_or(0, |merge| merge.kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is charged for a merge is what it holds, and at least its first reservation.
    #[test]
    fn the_first_reservation_stays() {
        let merges = Merges::default();
        let mut charged = merges.grow(1, 100);
        assert_eq!(charged, 100);
        assert_eq!(merges.shrink(1, 100), 0, "kept");
        assert_eq!(merges.grow(1, 70), 0, "from what it has kept");
        charged += merges.grow(1, 50);
        assert_eq!(charged, 120);
        merges.grow(1, 30);
        merges.undo(1, 30, 30);
        charged -= merges.shrink(1, 90);
        assert_eq!((charged, merges.shrink(2, 9)), (100, 9));
        assert_eq!(merges.grow(1, 80), 10, "it holds 30, and has kept 70");
        merges.undo(1, 80, 10);
        assert_eq!((merges.end(1), merges.end(1)), (70, 0));
    }
}
