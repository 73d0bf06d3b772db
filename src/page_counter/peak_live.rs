//! The peak of live units, as readers get it: a number, or the two that it lies between.

use std::fmt;

use crate::counter::live_peak::{self, LiveBounds};
use crate::counter::object::Counter;
use crate::counter::slow_path::SlowPath;
use crate::page_counter::handle::PageCounter;
use crate::page_counter::reading::PeakWindow;
use crate::sync::Arc;
use crate::sync::stat_atomic::AtomicU64;

/// The highest number of live units that a counter had at any one moment: what callers held,
/// without the credit of threads. [`PageCounter::peak_live`] returns it.
///
/// It is exact while one thread charges and uncharges, through one group or counter. Else it lies
/// between the two figures. They are as far apart as the credit that threads had at the highest
/// usage, which is at most [two batches for each](crate::PageCounter::stocked_bound), and a
/// sixteenth of the peak where threads free beside the one that grows. `Display` prints what is
/// known: `327680`, or `327680 to 409600`.
///
/// ```
/// use memcg::{Limits, Runtime};
///
/// let runtime = Runtime::builder().build()?;
/// let query = runtime.root().create("q17", Limits::new())?;
/// let mut rows = query.charge(0)?;
/// for _ in 0..40 {
///     rows.grow(8 << 10)?;
/// }
/// drop(rows);
/// assert_eq!(query.peak_live().exact(), Some(320 << 10));
/// assert!(query.peak() > 320 << 10, "with the credit of the thread");
/// assert_eq!(query.peak_live().to_string(), "327680");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PeakLive {
    min: u64,
    max: u64,
}

impl PeakLive {
    fn new(LiveBounds { min, max, .. }: LiveBounds) -> PeakLive {
        PeakLive { min, max }
    }

    /// Returns the lower bound: so many units were live at one moment.
    pub fn min(&self) -> u64 {
        self.min
    }

    /// Returns the upper bound: there were never more live units than that. A max set to it would
    /// have refused nothing so far.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the peak if it is known exactly, that is, if both bounds are the same.
    pub fn exact(&self) -> Option<u64> {
        (self.min == self.max).then_some(self.min)
    }
}

impl fmt::Display for PeakLive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.exact() {
            Some(peak) => write!(f, "{peak}"),
            None => write!(f, "{} to {}", self.min, self.max),
        }
    }
}

impl<K> PageCounter<K> {
    /// Returns the highest number of live units that the subtree had at one moment, exactly or by
    /// two bounds.
    ///
    /// It is exact while one thread, through one counter, does all that is done below this one.
    /// From the first slow path of another thread or through another counter on, or the first time
    /// that a [`CentralStock`](crate::CentralStock) opens there, until the counter is released, its
    /// bounds are [`peak`](Self::peak), and the most live units that were counted: at the end of
    /// each slow path that leaves a new peak of usage, and in this call. A count knows the credit of
    /// each thread, or takes the capacity of its slot, two batches, where the thread may have freed
    /// meanwhile. To know, it takes a barrier: each call does, and a slow path where that may raise
    /// the figure by a step, at most 16 times until it has doubled. Where a slow path would visit
    /// more than 64 slots, it takes the published bound as the credit.
    ///
    /// So the bounds lie within the credit at the highest usage, and a sixteenth where threads free
    /// while another grows. A runtime with a batch of 0 keeps no credit, and so knows the peak of
    /// several threads exactly; each charge walks there.
    ///
    /// The call takes the tree's lock where credit lies below, and then visits each slot there.
    /// Where there are several movers it also takes a barrier of the system, some microseconds.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let job = PageCounter::root(CounterConfig::new().batch(64).adaptive(false));
    /// job.charge(10)?; // takes a batch
    /// job.charge(10)?; // paid from it
    /// job.uncharge(20);
    /// assert_eq!((job.peak_live().exact(), job.peak()), (Some(20), 64));
    /// # Ok::<(), memcg::errors::CounterChargeError>(())
    /// ```
    pub fn peak_live(&self) -> PeakLive {
        peak_live(self.counter())
    }

    /// Opens a peak of live units of the caller's own: the highest from now on, or from its last
    /// reset.
    ///
    /// It is exact where [`peak_live`](Self::peak_live) is, and the thread that charges this very
    /// counter opens and resets it. Where another thread does, or where all charges come through a
    /// counter below, this counter and those above it have two bounds from then on. The call
    /// allocates, and takes the lock of the tree and that of its windows.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let job = PageCounter::root(CounterConfig::new().batch(64).adaptive(false));
    /// job.charge(80)?;
    /// job.uncharge(70);
    /// let window = job.peak_live_window();
    /// assert_eq!(window.peak().exact(), Some(10), "a window starts from what it finds");
    /// job.charge(5)?;
    /// assert_eq!((window.peak().exact(), job.peak_live().exact()), (Some(15), Some(80)));
    /// # Ok::<(), memcg::errors::CounterChargeError>(())
    /// ```
    pub fn peak_live_window(&self) -> PeakLiveWindow
    where
        K: Clone + Send + Sync + 'static,
    {
        PeakLiveWindow::open(self.counter(), Box::new(self.clone()))
    }
}

/// The peak of live units of a counter or a group.
pub(crate) fn peak_live(counter: &Counter) -> PeakLive {
    PeakLive::new(live_peak::read(counter))
}

/// A peak of a counter's live units that its owner can reset, which neither other windows nor
/// [`PageCounter::peak_live`] notice. See [`peak_live_window`](PageCounter::peak_live_window) for
/// which thread should reset it.
///
/// A window keeps its counter. The drop closes it.
///
/// ```
/// use memcg::{CounterConfig, PageCounter};
///
/// let job = PageCounter::root(CounterConfig::new().batch(64).adaptive(false));
/// let minute = job.peak_live_window();
/// job.charge(80)?;
/// job.uncharge(80);
/// assert_eq!(minute.peak().exact(), Some(80));
/// minute.reset();
/// assert_eq!(minute.peak().exact(), Some(0));
/// # Ok::<(), memcg::errors::CounterChargeError>(())
/// ```
pub struct PeakLiveWindow {
    /// The window on usage, which bounds this one from above. It keeps the counter.
    usage: PeakWindow,
    value: Arc<AtomicU64>,
}

impl PeakLiveWindow {
    fn open(counter: &Counter, keep: Box<dyn Send + Sync>) -> PeakLiveWindow {
        let usage = PeakWindow::open(counter, keep);
        let path = SlowPath::enter();
        let start = live_peak::begin_window(counter, &path);
        let mut windows = counter.tree().live_windows.lock();
        let value = windows.open(counter.key(), &counter.live_peak, start);
        drop(windows);
        PeakLiveWindow { usage, value }
    }

    /// Returns the highest number of live units since the window was opened or last reset, exactly
    /// or by two bounds. It costs what [`PageCounter::peak_live`] costs.
    pub fn peak(&self) -> PeakLive {
        let counter = self.usage.counter();
        let is_exact = live_peak::has_one_mover(counter) && peak_live(counter).exact().is_some();
        let path = SlowPath::enter();
        let windows = counter.tree().live_windows.lock();
        let min = windows.since(&counter.live_peak, &self.value);
        drop((windows, path));
        let max = if is_exact {
            min
        } else {
            self.usage.peak().max(min)
        };
        PeakLive { min, max }
    }

    /// Starts over from what is live now. The call takes the tree's lock and that of its windows,
    /// and visits those of this counter.
    pub fn reset(&self) {
        let counter = self.usage.counter();
        // Mutation: a-live-peak-that-starts-over-keeps-its-bound
        self.usage.reset();
        let path = SlowPath::enter();
        let start = live_peak::begin_window(counter, &path);
        let mut windows = counter.tree().live_windows.lock();
        windows.reset(counter.key(), &counter.live_peak, &self.value, start);
    }
}

impl Drop for PeakLiveWindow {
    fn drop(&mut self) {
        let counter = self.usage.counter();
        let _path = SlowPath::enter();
        let mut windows = counter.tree().live_windows.lock();
        windows.close(counter.key(), &counter.live_peak, &self.value);
    }
}

debug_figures!(PeakLiveWindow, |window| counter: window.usage.counter().id(), peak: window.peak());
