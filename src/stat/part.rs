//! The statistics of one group: what has been published, and how much may be missing from it.

use super::cells::Bits;
use super::flush::Row;
use super::item::Stat;
use crate::sync::stat_atomic::AtomicPtr as StatPtr;
use crate::sync::{AtomicU64, Ordering};

/// So much at once is flushed at once: what is announced and not flushed must not wrap.
pub(super) const ENDLESS: u64 = 1 << 56;

/// A group's part of the statistics, made when it, or a group below it, is first written. The coordinator keeps it, and
/// whoever keeps the group may look at it.
pub(crate) struct Part {
    /// Grains announced here and below.
    announced: AtomicU64,
    /// How many of those have been flushed.
    base: AtomicU64,
    /// Listed cells here and below.
    writers: AtomicU64,
    /// Items that have been published here, a bit each.
    touched: AtomicU64,
    /// Group of the coordinator.
    pub(super) number: u32,
    /// Kept by its children.
    parent: StatPtr<Part>,
    /// Published: the group and all below it, and the group alone.
    subtree: Box<[AtomicU64]>,
    local: Box<[AtomicU64]>,
}

/// What may be missing from published figures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) grains: u64,
    /// Beyond this a read of the kernel's kind flushes: a batch for each writer.
    pub(crate) threshold: u64,
}

impl Part {
    pub(super) fn new(number: u32, items: usize) -> Part {
        let zeros = || (0..items).map(|_| AtomicU64::new(0)).collect();
        Part {
            announced: AtomicU64::new(0),
            base: AtomicU64::new(0),
            writers: AtomicU64::new(0),
            touched: AtomicU64::new(0),
            number,
            parent: StatPtr::new(std::ptr::null_mut()),
            subtree: zeros(),
            local: zeros(),
        }
    }

    /// Clean, below `parent`. Nobody else has it.
    pub(super) fn begin(&self, parent: Option<&Part>) {
        let parent = parent.map_or(std::ptr::null(), std::ptr::from_ref);
        self.parent.store(parent.cast_mut(), Ordering::Relaxed);
        let words = [&self.announced, &self.base, &self.writers, &self.touched];
        for word in words.into_iter().chain(&self.subtree).chain(&self.local) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// From here to the root.
    #[allow(unsafe_code)]
    pub(super) fn levels(&self) -> impl Iterator<Item = &Part> {
        // SAFETY: a group keeps its ancestors, and so their parts, for as long as it is there itself.
        let above = |part: &&Part| unsafe { part.parent.load(Ordering::Relaxed).as_ref() };
        std::iter::successors(Some(self), above)
    }

    // === What may be missing ===

    /// So much has been written below, and is not known to be in a published figure. True where that comes to more than
    /// may be.
    pub(super) fn announce(&self, grains: u64) -> bool {
        // Release (E20): pairs with `bound`, by way of whoever counts it as flushed.
        let announced = self.announced.fetch_add(grains, Ordering::Release);
        announced.wrapping_add(grains).wrapping_sub(self.base.load(Ordering::Relaxed)) >= ENDLESS
    }

    pub(super) fn add_writer(&self) {
        self.writers.fetch_add(1, Ordering::Relaxed);
    }

    /// After what they wrote was published.
    pub(super) fn remove_writers(&self, gone: u64) {
        // Release (E21): pairs with `bound`.
        self.writers.fetch_sub(gone, Ordering::Release);
    }

    /// What may be missing from what is read of the figures after this: all that was announced, and what each writer
    /// may have written without.
    #[inline]
    pub(super) fn bound(&self, quantum: u64) -> Bound {
        // Acquire (E21): pairs with `publish` and `remove_writers`. What they took off the bound is in the figures that
        // are read after this. `base` first: what it counts has been announced.
        let base = self.base.load(Ordering::Acquire);
        let announced = self.announced.load(Ordering::Acquire).wrapping_sub(base);
        let writers = self.writers.load(Ordering::Acquire);
        let unannounced = writers.saturating_mul(quantum);
        Bound { grains: announced.saturating_add(unannounced), threshold: unannounced.saturating_mul(2) }
    }

    // === What is published ===

    /// Add a row to what is published. Under the coordinator's lock, parents before their children.
    pub(super) fn publish(&self, row: &Row, local: &[i64], subtree: &[i64]) {
        // Release (E22): a reader that sees a figure of a child sees those of its parents, which were stored before.
        self.touched.fetch_or(row.touched, Ordering::Release);
        for item in Bits(row.touched) {
            for (figures, change) in [(&self.subtree[item], subtree[item]), (&self.local[item], local[item])] {
                if change != 0 {
                    figures.fetch_add(change.cast_unsigned(), Ordering::Release);
                }
            }
        }
        // Release (E21): after the figures; pairs with `bound`.
        self.base.fetch_add(row.announced, Ordering::Release);
    }

    /// Add to what is published of the group and of all above it: for a thread that can neither make cells nor wait for
    /// the lock. From the root down, as a flush does; no allocation, so each level is found from below.
    pub(crate) fn publish_one(&self, stat: Stat, delta: i64) {
        let depth = self.levels().count();
        for above in (0..depth).rev() {
            let Some(level) = self.levels().nth(above) else { continue };
            // Release (E22): as in `publish`.
            level.touched.fetch_or(1 << stat.number(), Ordering::Release);
            let figures = [Some(&level.subtree), (above == 0).then_some(&level.local)];
            for figures in figures.into_iter().flatten() {
                figures[stat.number()].fetch_add(delta.cast_unsigned(), Ordering::Release);
            }
        }
    }

    /// Items that have figures.
    pub(super) fn published(&self) -> Bits {
        // Acquire (E22): pairs with `publish`.
        Bits(self.touched.load(Ordering::Acquire))
    }

    /// Of the subtree, and of the group alone.
    #[inline]
    pub(crate) fn figures(&self, item: usize) -> [i64; 2] {
        // Acquire (E22): pairs with `publish`.
        [&self.subtree[item], &self.local[item]].map(|figure| figure.load(Ordering::Acquire).cast_signed())
    }
}
