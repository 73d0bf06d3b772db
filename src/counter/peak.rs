//! Peaks: the highest usage that admitted charges left behind, credit included.
//!
//! Each counter has one peak for its whole incarnation, and private windows. A reader may reset its
//! window without changing the others, as the kernel's `memory.peak` does per open file. Windows
//! share one running peak; a reset of one folds the running peak into all the others. Few counters
//! ever have a window, so the tree keeps them and not the counter.
//!
//! Edge: E13 (charge/reset).

use std::collections::BTreeMap;

use crate::sync::stat_atomic::AtomicU64 as StatU64;
use crate::sync::{Arc, AtomicU64, Ordering, fence_after_exchange};

#[derive(Default)]
pub(crate) struct Peaks {
    ever: StatU64,
    /// Highest usage since a window was last reset.
    running: AtomicU64,
}

/// The windows of a tree, by their counter.
#[derive(Default)]
pub(crate) struct Windows(BTreeMap<u64, Vec<Arc<StatU64>>>);

impl Peaks {
    /// True if `usage` is a new peak. The running peak is never above the other one, so one load is
    /// enough.
    #[inline]
    pub(crate) fn rises(&self, usage: u64) -> bool {
        // SeqCst (E13): after the exchange on usage; pairs with `reset`.
        usage > self.running.load(Ordering::SeqCst)
    }

    pub(crate) fn record(&self, usage: u64) {
        if self.rises(usage) {
            self.ever.fetch_max(usage, Ordering::Relaxed);
            self.running.fetch_max(usage, Ordering::Relaxed);
        }
    }

    /// No thread uses the counter, and no reader has a window on it.
    pub(crate) fn forget(&self) {
        self.ever.store(0, Ordering::Relaxed);
        self.running.store(0, Ordering::Relaxed);
    }

    pub(crate) fn ever(&self) -> u64 {
        self.ever.load(Ordering::Relaxed)
    }

    /// Reset `window`, one of this level's `windows`. The caller holds the lock of the windows.
    fn reset(&self, windows: &[Arc<StatU64>], window: &Arc<StatU64>, usage: impl Fn() -> u64) {
        let fold = |peak: u64| {
            for other in windows.iter().filter(|other| !Arc::ptr_eq(other, window)) {
                other.fetch_max(peak, Ordering::Relaxed);
            }
        };
        // Before the running peak falls, so that no reader sees another window fall.
        fold(self.running.load(Ordering::Relaxed));
        // SeqCst (E13): pairs with the read in `rises`. Either a charge sees the running peak
        // lowered, or this thread sees the charge's usage.
        let before = self.running.swap(0, Ordering::SeqCst);
        fence_after_exchange();
        // Never above the other peak: `rises` relies on it.
        // Mutation: e13-reset-does-not-look-at-usage
        self.running
            .fetch_max(usage().min(self.ever()), Ordering::Relaxed);
        fold(before);
        window.store(0, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, window: &StatU64) -> u64 {
        window
            .load(Ordering::Relaxed)
            .max(self.running.load(Ordering::Relaxed))
    }
}

impl Windows {
    /// A window on the counter of that key, which starts from `usage`.
    pub(crate) fn open(
        &mut self,
        key: u64,
        peaks: &Peaks,
        usage: impl Fn() -> u64,
    ) -> Arc<StatU64> {
        let window = Arc::new(StatU64::new(0));
        let here = self.0.entry(key).or_default();
        peaks.reset(here, &window, usage);
        here.push(Arc::clone(&window));
        window
    }

    pub(crate) fn close(&mut self, key: u64, window: &Arc<StatU64>) {
        let Some(here) = self.0.get_mut(&key) else {
            return;
        };
        here.retain(|other| !Arc::ptr_eq(other, window));
        if here.is_empty() {
            self.0.remove(&key);
        }
    }

    pub(crate) fn reset(
        &mut self,
        key: u64,
        peaks: &Peaks,
        window: &Arc<StatU64>,
        usage: impl Fn() -> u64,
    ) {
        let here = self.0.get(&key).map_or(&[][..], Vec::as_slice);
        peaks.reset(here, window, usage);
    }
}
