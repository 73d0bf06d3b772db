//! The bytes of a charge with a guard, and whether it covers: see `cover.md`.

use crate::error::USAGE_MAX;
use crate::sync::Ordering;
use crate::sync::stat_atomic::AtomicU64 as StatU64;

/// The bytes of a charge, and whether the charge covers. As one number a covering charge's hit no stock, so its drop is
/// the slow one, and the drop of any other charge makes no test.
pub(crate) struct ChargedBytes(StatU64);

const COVERING: u64 = 1 << 63;

const _: () = assert!(USAGE_MAX < COVERING);

impl ChargedBytes {
    #[inline(always)]
    pub(crate) fn new(bytes: u64) -> ChargedBytes {
        ChargedBytes(StatU64::new(bytes))
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed) & !COVERING
    }

    #[inline]
    pub(crate) fn is_covering(&self) -> bool {
        self.0.load(Ordering::Relaxed) & COVERING != 0
    }

    /// The bytes where the charge does not cover; else no number of bytes that a stock takes.
    #[inline(always)]
    pub(crate) fn for_stock(&mut self) -> u64 {
        *self.0.get_mut()
    }

    /// Adds what of `bytes` a charge can hold: not all where a caller has uncharged by amount what it holds. Returns the
    /// bytes added.
    #[inline]
    #[must_use]
    pub(crate) fn add(&mut self, bytes: u64) -> u64 {
        let added = bytes.min(USAGE_MAX - self.get());
        *self.0.get_mut() += added;
        added
    }

    #[inline]
    pub(crate) fn subtract(&mut self, bytes: u64) {
        *self.0.get_mut() -= bytes;
    }

    /// Takes bytes out, for another charge that covers where this one does.
    pub(crate) fn split(&mut self, bytes: u64) -> ChargedBytes {
        self.subtract(bytes);
        ChargedBytes::new(bytes | *self.0.get_mut() & COVERING)
    }

    /// The charge covers from here on. The bytes, where it has not covered before: of two threads that begin at once, one
    /// is told.
    pub(crate) fn begin_to_cover(&self) -> Option<u64> {
        let before = self.0.fetch_or(COVERING, Ordering::Relaxed);
        (before & COVERING == 0).then_some(before)
    }

    /// The charge covers no longer. Whether it has.
    pub(crate) fn end_to_cover(&mut self) -> bool {
        let covered = self.is_covering();
        *self.0.get_mut() &= !COVERING;
        covered
    }
}
