//! Units that a thread frees on its slow paths.
//!
//! A round of reclaim calls a reclaimer and wants to know what it has freed. Usage does not tell
//! it: other threads charge meanwhile. So each thread counts what it uncharges itself, and the
//! round compares the count before the call and after it.

use std::cell::Cell;

use crate::sync::per_thread;

per_thread! {
    /// Units that this thread has uncharged on slow paths beyond those that it has charged there;
    /// wraps.
    with_uncharged: Cell<u64> = Cell::new(0)
}

/// Counts what this thread uncharges on a slow path.
#[inline]
pub(crate) fn note_uncharged(units: u64) {
    with_uncharged(|all| all.set(all.get().wrapping_add(units)));
}

/// Counts what this thread charges on a slow path, against what it uncharges: a reclaimer that
/// frees and charges as much has freed nothing.
#[inline]
pub(crate) fn note_charged(units: u64) {
    note_uncharged(units.wrapping_neg());
}

/// Returns what this thread has uncharged on slow paths since the count was `before`, less what it
/// has charged.
pub(crate) fn uncharged_since(before: u64) -> u64 {
    // A reclaimer that has charged more than it has freed is below zero, and has freed nothing.
    uncharged()
        .wrapping_sub(before)
        .cast_signed()
        .max(0)
        .cast_unsigned()
}

/// Returns the count, for a later [`uncharged_since`].
pub(crate) fn uncharged() -> u64 {
    with_uncharged(Cell::get)
}
