//! Peaks: the highest usage that admitted charges left behind, credit included.
//!
//! One for the counter's whole life, and private windows that each reader may reset without disturbing the others, as the
//! kernel's `memory.peak` does per open file. Windows share one running peak; resetting one folds what the running peak
//! holds into all the others first.

use crate::sync::stat_atomic::AtomicU64;
use crate::sync::{Arc, Mutex, Ordering};

/// Peak words of one level.
pub(crate) struct Peaks {
    ever: AtomicU64,
    /// Highest usage since a window was last reset.
    running: AtomicU64,
    windows: Mutex<Vec<Arc<AtomicU64>>>,
}

impl Peaks {
    pub(crate) fn new() -> Self {
        Peaks { ever: AtomicU64::new(0), running: AtomicU64::new(0), windows: Mutex::new(Vec::new()) }
    }

    /// Whether `usage` is a new peak. The running one is never above the other, so one look is enough.
    #[inline]
    pub(crate) fn rises(&self, usage: u64) -> bool {
        usage > self.running.load(Ordering::Relaxed)
    }

    /// A charge was admitted and left `usage`.
    pub(crate) fn record(&self, usage: u64) {
        self.ever.fetch_max(usage, Ordering::Relaxed);
        self.running.fetch_max(usage, Ordering::Relaxed);
    }

    pub(crate) fn ever(&self) -> u64 {
        self.ever.load(Ordering::Relaxed)
    }

    pub(crate) fn open_window(&self, usage: u64) -> Arc<AtomicU64> {
        let window = Arc::new(AtomicU64::new(0));
        self.reset(&window, usage);
        self.windows.lock().push(Arc::clone(&window));
        window
    }

    pub(crate) fn close_window(&self, window: &Arc<AtomicU64>) {
        self.windows.lock().retain(|other| !Arc::ptr_eq(other, window));
    }

    pub(crate) fn reset(&self, window: &Arc<AtomicU64>, usage: u64) {
        let windows = self.windows.lock();
        // Never above the other peak: `rises` relies on it.
        let before = self.running.swap(usage.min(self.ever()), Ordering::Relaxed);
        for other in windows.iter().filter(|other| !Arc::ptr_eq(other, window)) {
            other.fetch_max(before, Ordering::Relaxed);
        }
        window.store(0, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, window: &AtomicU64) -> u64 {
        window.load(Ordering::Relaxed).max(self.running.load(Ordering::Relaxed))
    }
}
