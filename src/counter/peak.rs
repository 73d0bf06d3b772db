//! Peaks: the highest usage that admitted charges left behind, credit included, and the highest
//! number of live units: see `live_peak`.
//!
//! Each counter has one peak for its whole incarnation, and private windows. A reader may reset its
//! window without changing the others, as the kernel's `memory.peak` does per open file. Windows
//! share one running peak; a reset of one folds the running peak into all the others. Few counters
//! ever have a window, so the tree keeps them and not the counter.
//!
//! Edge: E13 (charge/reset).

use crate::counter::by_number::{ByNumber, take_out};
use crate::sync::stat_atomic::AtomicU64 as StatU64;
use crate::sync::{Arc, AtomicU64, Ordering, fence_after_exchange};

#[derive(Default)]
pub(crate) struct Peaks {
    ever: StatU64,
    /// Highest usage since a window was last reset.
    running: AtomicU64,
}

/// Live units that a level is known to have had at one moment since a window of it was last reset;
/// where it has none, ever. `live_peak` says when they are known.
#[derive(Default)]
pub(crate) struct LivePeak(StatU64);

/// Nobody has moved units of a level yet.
pub(crate) const NO_MOVER: u32 = 0;

/// More than one thread or counter moves units of a level.
pub(crate) const MOVERS: u32 = u32::MAX;

impl LivePeak {
    pub(crate) fn rises(&self, live: u64) -> bool {
        live > self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn record(&self, live: u64) {
        if self.rises(live) {
            self.0.fetch_max(live, Ordering::Relaxed);
        }
    }

    /// Live units that are known since a window was last reset.
    pub(crate) fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// No thread uses the counter, and no reader has a window on it.
    pub(crate) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Nobody has charged the level.
    pub(crate) fn is_new(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

/// The windows of a tree on live units, by their counter.
#[derive(Default)]
pub(crate) struct LiveWindows(ByNumber<LiveWindowsOfCounter>);

#[derive(Default)]
struct LiveWindowsOfCounter {
    /// The peak before a window was last reset.
    earlier: u64,
    windows: Vec<Arc<StatU64>>,
}

impl LiveWindows {
    /// A window on the counter of that key, which starts from `now`.
    pub(crate) fn open(&mut self, key: u64, peak: &LivePeak, now: u64) -> Arc<StatU64> {
        let window = Arc::new(StatU64::new(0));
        let here = self.0.entry(key).or_default();
        here.windows.push(Arc::clone(&window));
        here.reset(peak, &window, now);
        window
    }

    pub(crate) fn reset(&mut self, key: u64, peak: &LivePeak, window: &Arc<StatU64>, now: u64) {
        if let Some(here) = self.0.get_mut(&key) {
            here.reset(peak, window, now);
        }
    }

    pub(crate) fn close(&mut self, key: u64, peak: &LivePeak, window: &Arc<StatU64>) {
        let Some(here) = self.0.get_mut(&key) else {
            return;
        };
        here.windows.retain(|other| !Arc::ptr_eq(other, window));
        if here.windows.is_empty() {
            peak.record(here.earlier);
            take_out(&mut self.0, key);
        }
    }

    /// The peak over the counter's whole time.
    pub(crate) fn ever(&self, key: u64, peak: &LivePeak) -> u64 {
        let earlier = self.0.get(&key).map_or(0, |here| here.earlier);
        earlier.max(peak.0.load(Ordering::Relaxed))
    }

    /// The peak since the window was last reset.
    pub(crate) fn since(&self, peak: &LivePeak, window: &StatU64) -> u64 {
        let folded = window.load(Ordering::Relaxed);
        folded.max(peak.0.load(Ordering::Relaxed))
    }
}

impl LiveWindowsOfCounter {
    fn reset(&mut self, peak: &LivePeak, window: &Arc<StatU64>, now: u64) {
        let before = peak.0.swap(0, Ordering::Relaxed);
        peak.0.fetch_max(now, Ordering::Relaxed);
        self.earlier = self.earlier.max(before);
        for other in &self.windows {
            other.fetch_max(before, Ordering::Relaxed);
        }
        window.store(0, Ordering::Relaxed);
    }
}

/// The windows of a tree, by their counter.
#[derive(Default)]
pub(crate) struct PeakWindows(ByNumber<Vec<Arc<StatU64>>>);

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

    /// Resets `window`, one of this level's `windows`. The caller holds the lock of the windows.
    fn reset(&self, windows: &[Arc<StatU64>], window: Option<&StatU64>, usage: impl Fn() -> u64) {
        let is_meant = |other: &StatU64| window.is_some_and(|window| std::ptr::eq(window, other));
        let fold = |peak: u64| {
            for other in windows.iter().filter(|other| !is_meant(other)) {
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
        if let Some(window) = window {
            window.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn read(&self, window: &StatU64) -> u64 {
        window
            .load(Ordering::Relaxed)
            .max(self.running.load(Ordering::Relaxed))
    }
}

impl PeakWindows {
    /// A window on the counter of that key, which starts from `usage`.
    pub(crate) fn open(
        &mut self,
        key: u64,
        peaks: &Peaks,
        usage: impl Fn() -> u64,
    ) -> Arc<StatU64> {
        let window = Arc::new(StatU64::new(0));
        let here = self.0.entry(key).or_default();
        peaks.reset(here, Some(&window), usage);
        here.push(Arc::clone(&window));
        window
    }

    pub(crate) fn close(&mut self, key: u64, window: &Arc<StatU64>) {
        let Some(here) = self.0.get_mut(&key) else {
            return;
        };
        here.retain(|other| !Arc::ptr_eq(other, window));
        if here.is_empty() {
            take_out(&mut self.0, key);
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
        peaks.reset(here, Some(window), usage);
    }

    /// Walks look at each usage above the present one again. No window changes.
    pub(crate) fn lower_running(&self, key: u64, peaks: &Peaks, usage: impl Fn() -> u64) {
        if peaks.rises(usage()) {
            return;
        }
        let here = self.0.get(&key).map_or(&[][..], Vec::as_slice);
        // All windows take the running peak.
        peaks.reset(here, None, usage);
    }
}
