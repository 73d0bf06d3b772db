//! The statistics of one group: what has been published, and how much may be missing from it.

use super::cells::Bits;
use crate::sync::stat_atomic::AtomicPtr as StatPtr;
use crate::sync::{AtomicU64, Ordering};

/// From here on what was announced counts as without end: it must never wrap.
const ENDLESS: u64 = 1 << 62;

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

    /// So much has been written below, and is in no published figure.
    pub(super) fn announce(&self, grains: u64) {
        let pending = self.announced.load(Ordering::Relaxed).wrapping_sub(self.base.load(Ordering::Relaxed));
        if pending < ENDLESS {
            // Release (E20): whoever takes it as flushed has read what it tells of.
            self.announced.fetch_add(grains.min(ENDLESS), Ordering::Release);
        }
    }

    /// To be passed to [`settle`](Self::settle) once everything below has been read.
    pub(super) fn announced(&self) -> u64 {
        // Acquire (E20): pairs with `announce`. What is announced is in the cells that are read after this.
        self.announced.load(Ordering::Acquire)
    }

    /// What had been announced then is published.
    pub(super) fn settle(&self, announced: u64) {
        // Release (E21): after what was published; pairs with `bound`.
        self.base.store(announced, Ordering::Release);
    }

    pub(super) fn add_writer(&self) {
        self.writers.fetch_add(1, Ordering::Relaxed);
    }

    /// After what they wrote was published.
    pub(super) fn remove_writers(&self, gone: u64) {
        // Release (E21): as in `settle`.
        self.writers.fetch_sub(gone, Ordering::Release);
    }

    /// Grains that may be missing from what is read of the figures after this: all that was announced, and what
    /// each writer may have written without.
    pub(super) fn bound(&self, quantum: u64) -> u64 {
        // Acquire (E21): pairs with `settle` and `remove_writers`. What they took off the bound is in the figures that
        // are read after this. `base` first: it never passes what was announced before.
        let base = self.base.load(Ordering::Acquire);
        let announced = self.announced.load(Ordering::Acquire).wrapping_sub(base);
        let writers = self.writers.load(Ordering::Acquire);
        if announced >= ENDLESS { u64::MAX } else { announced.saturating_add(writers.saturating_mul(quantum)) }
    }

    /// Beyond this bound a read of the kernel's kind flushes.
    pub(super) fn threshold(&self, quantum: u64) -> u64 {
        self.writers.load(Ordering::Relaxed).saturating_mul(2 * quantum)
    }

    // === What is published ===

    /// Add to what is published, under the coordinator's lock. Parents before their children.
    pub(super) fn publish(&self, touched: Bits, local: &[i64], subtree: &[i64]) {
        // Relaxed: nobody else stores these words. Release (E22): a reader that sees a figure of a child sees those of
        // its parents, which were stored before.
        let published = self.touched.load(Ordering::Relaxed);
        if touched.0 & !published != 0 {
            self.touched.store(published | touched.0, Ordering::Release);
        }
        for item in touched {
            for (figures, change) in [(&self.subtree[item], subtree[item]), (&self.local[item], local[item])] {
                if change != 0 {
                    figures.store(figures.load(Ordering::Relaxed).wrapping_add_signed(change), Ordering::Release);
                }
            }
        }
    }

    /// The published figures, of the items that have any.
    pub(super) fn read(&self, subtree: &mut [i64], local: &mut [i64]) {
        // Acquire (E22): pairs with `publish`.
        for item in Bits(self.touched.load(Ordering::Acquire)) {
            subtree[item] = self.subtree[item].load(Ordering::Acquire).cast_signed();
            local[item] = self.local[item].load(Ordering::Acquire).cast_signed();
        }
    }
}
