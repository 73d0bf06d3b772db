//! Counts of a slow path beside usage: units that this thread has uncharged, for a round of
//! reclaim, and the audit.

use crate::counter::object::Counter;
use crate::sync::Ordering;
use crate::thread::block::Block;
use crate::thread::freed;
use crate::thread::tally::Tally;

#[inline]
pub(crate) fn charged(counter: &Counter, block: Option<&Block>, n: u64) {
    note_charged(counter, n);
    audit_charged(counter, block, n);
}

#[inline]
pub(crate) fn audit_charged(counter: &Counter, block: Option<&Block>, n: u64) {
    if counter.tree().config.audit {
        match block.and_then(|block| block.audit.get_or_make(counter.index, Tally::default)) {
            Some(cell) => cell.add(n),
            // Without a block, or without memory for its page: the audit is exact all the same.
            None => _ = counter.usage.audit_shared.fetch_add(n, Ordering::Relaxed),
        }
    }
}

#[inline]
pub(crate) fn audit_uncharged(counter: &Counter, block: Option<&Block>, n: u64) {
    audit_charged(counter, block, n.wrapping_neg());
}

#[inline(always)]
pub(crate) fn note_charged(counter: &Counter, n: u64) {
    if counter.is_memory() {
        freed::note_charged(n);
    }
}

#[inline(always)]
pub(crate) fn note_uncharged(counter: &Counter, n: u64) {
    if counter.is_memory() {
        freed::note_uncharged(n);
    }
}
