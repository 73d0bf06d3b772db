//! The visits of a flush, and two decisions that follow: is a barrier for idle cells worth its
//! cost, and does a later read flush within its error bound.

use crate::sync::Ordering;
use crate::sync::stat_atomic::AtomicU32;

/// So many visits to idle cells cost as much as a barrier, which ends them: four visits to eight
/// cells, or 32 to one. So the barriers of all flushes cost no more than the visits to idle cells
/// do.
pub(super) const WASTED_MAX: u64 = 32;

/// Reads within the bound from one flush to the next: at first, and where the writers write on.
const READS_FIRST: u32 = 2;
const READS_MAX: u32 = 64;

/// The policy of a flush for the cells that it has found idle: to unlist them takes a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnlistPolicy {
    /// It unlists none. No visit of this flush counts as one that has found cells idle, either.
    Never,
    /// It unlists cells where the visits to idle cells have come to cost as much as the barrier.
    Many,
    Always,
}

/// The visits of a flush, or of a slice of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlushVisits {
    pub(super) all: usize,
    /// Visits to cells that are as the visit before has left them.
    pub(super) unchanged: usize,
    /// Visits in a row, this one included, to cells that are idle by now.
    pub(super) wasted: u64,
}

impl FlushVisits {
    pub(crate) fn add(&mut self, more: FlushVisits) {
        self.all += more.all;
        self.unchanged += more.unchanged;
        self.wasted += more.wasted;
    }
}

/// The cadence of flushes by reads within their error bound. The cells of a writer that has stopped
/// stay in the bound until flushes have found them idle, and without a flusher only reads flush.
#[derive(Default)]
pub(crate) struct ReadCadence {
    /// Reads within the bound until one flushes.
    left: AtomicU32,
    /// Number of such reads from one flush to the next.
    between: AtomicU32,
}

impl ReadCadence {
    /// The cadence of a group that has not been read yet.
    pub(super) fn reset(&self) {
        self.set(READS_FIRST);
    }

    fn set(&self, between: u32) {
        self.between.store(between, Ordering::Relaxed);
        self.left.store(between, Ordering::Relaxed);
    }

    /// Counts a read within the bound. Returns whether it flushes.
    pub(crate) fn is_flush_due(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if left > 1 {
            // Two readers at once may count as one: no guarantee depends on the number.
            self.left.store(left - 1, Ordering::Relaxed);
        }
        left <= 1
    }

    /// Notes that a read has flushed because its bound asked for it.
    pub(crate) fn note_due_flush(&self) {
        self.set(self.between.load(Ordering::Relaxed));
    }

    /// Notes that a read has flushed though its bound allowed it not to. Where most writers have
    /// stopped the next read flushes too, so that they are soon unlisted. Where most write on the
    /// number of reads doubles, so that such a flush costs each read little.
    pub(crate) fn note_extra_flush(&self, visits: FlushVisits) {
        let between = self.between.load(Ordering::Relaxed);
        self.set(match visits {
            // Another reader's flush has made all visits.
            FlushVisits { all: 0, .. } => between,
            FlushVisits { all, unchanged, .. } if unchanged > all / 2 => 1,
            _ => (2 * between).min(READS_MAX),
        });
    }
}
