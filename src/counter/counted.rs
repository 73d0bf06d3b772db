//! What a slow path counts beside usage: for a round of reclaim what this thread has uncharged, and the audit.

use crate::counter::object::Counter;
use crate::thread::audit::Cell as AuditCell;
use crate::thread::block::Block;
use crate::thread::freed;

#[inline]
pub(crate) fn charged(counter: &Counter, block: Option<&Block>, n: u64) {
    charged_without_audit(counter, n);
    audit_charged(counter, block, n);
}

#[inline]
pub(crate) fn uncharged(counter: &Counter, block: Option<&Block>, n: u64) {
    uncharged_without_audit(counter, n);
    audit_uncharged(counter, block, n);
}

#[inline]
pub(crate) fn audit_charged(counter: &Counter, block: Option<&Block>, n: u64) {
    if counter.tree().audited {
        cell(counter, block).map_or_else(|| counter.usage.audit_shared.charged(n), |cell| cell.charged(n));
    }
}

#[inline]
pub(crate) fn audit_uncharged(counter: &Counter, block: Option<&Block>, n: u64) {
    if counter.tree().audited {
        cell(counter, block).map_or_else(|| counter.usage.audit_shared.uncharged(n), |cell| cell.uncharged(n));
    }
}

fn cell<'a>(counter: &Counter, block: Option<&'a Block>) -> Option<&'a AuditCell> {
    block?.audit.get_or_make(counter.index, AuditCell::default)
}

#[inline(always)]
pub(crate) fn charged_without_audit(counter: &Counter, n: u64) {
    if counter.is_memory() {
        freed::note_charged(n);
    }
}

#[inline(always)]
pub(crate) fn uncharged_without_audit(counter: &Counter, n: u64) {
    if counter.is_memory() {
        freed::note_uncharged(n);
    }
}
