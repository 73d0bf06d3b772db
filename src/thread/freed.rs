//! What a thread frees on its slow paths: a round of reclaim compares it before and after.

use std::cell::Cell;

use crate::sync::per_thread;

per_thread! {
    /// Units that this thread has uncharged on slow paths beyond those that it has charged there; wraps.
    with_uncharged: Cell<u64> = Cell::new(0)
}

/// Count what this thread uncharges on a slow path.
pub(crate) fn note_uncharged(units: u64) {
    with_uncharged(|all| all.set(all.get().wrapping_add(units)));
}

/// Count what this thread charges on a slow path, against what it uncharges.
pub(crate) fn note_charged(units: u64) {
    note_uncharged(units.wrapping_neg());
}

/// What this thread has uncharged on slow paths since it was `before`, less what it has charged.
pub(crate) fn uncharged_since(before: u64) -> u64 {
    uncharged().wrapping_sub(before).cast_signed().max(0).cast_unsigned()
}

/// What has been counted: to compare with later.
pub(crate) fn uncharged() -> u64 {
    with_uncharged(Cell::get)
}
