//! A counter's figures: usage, history, event counts, peak windows.

use crate::counter::object::tree::Tree;
use crate::counter::object::{Counter, CounterRef};
use crate::counter::protection::Protection;
use crate::counter::slow_path::SlowPath;
use crate::counter::verify::{KnownOutside, VerifyReport, verify};
use crate::counter::{credit, effective, thresholds};
use crate::page_counter::handle::PageCounter;
use crate::sync::barrier::BarrierState;
use crate::sync::stat_atomic::AtomicU64;
use crate::sync::{Arc, Ordering};

impl<K> PageCounter<K> {
    /// Returns live charge and credit of the subtree together, in units, which is what limits are
    /// compared with. One load.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let job = PageCounter::root(CounterConfig::new().batch(64).adaptive(false));
    /// job.charge(10)?; // takes a batch
    /// assert_eq!((job.usage(), job.live(), job.stocked()), (64, 10, 54));
    /// job.charge(10)?; // paid from it
    /// assert_eq!((job.usage(), job.live(), job.stocked()), (64, 20, 44));
    /// # Ok::<(), memcg::errors::CounterChargeError>(())
    /// ```
    pub fn usage(&self) -> u64 {
        self.counter().usage()
    }

    /// Returns [`usage`](Self::usage) minus [`stocked`](Self::stocked): the units that users hold.
    ///
    /// It costs what `stocked` costs. It is exact as long as no thread charges meanwhile, otherwise
    /// an estimate, and never negative.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let job = PageCounter::root(CounterConfig::new().batch(64).adaptive(false));
    /// job.charge(10)?;
    /// job.drain();
    /// assert_eq!(job.live(), 10, "what is held does not drain");
    /// # Ok::<(), memcg::errors::CounterChargeError>(())
    /// ```
    pub fn live(&self) -> u64 {
        credit::live(self.counter())
    }

    /// Returns the units of credit in the stocks of the subtree.
    ///
    /// The call takes the tree's lock and looks at one slot for each thread and counter. It is
    /// exact as long as no thread charges meanwhile, otherwise an estimate.
    pub fn stocked(&self) -> u64 {
        credit::stocked(self.counter())
    }

    /// Returns the published bound on [`stocked`](Self::stocked), in units: two batches for each
    /// open stock of the subtree and each thread that has used it. One load.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let job = PageCounter::root(CounterConfig::new().batch(64).adaptive(false));
    /// assert_eq!(job.stocked_bound(), 0, "no thread has charged yet");
    /// job.charge(10)?;
    /// assert_eq!(job.stocked_bound(), 2 * 64);
    /// # Ok::<(), memcg::errors::CounterChargeError>(())
    /// ```
    pub fn stocked_bound(&self) -> u64 {
        self.counter().usage.bound.load(Ordering::Relaxed)
    }

    /// Returns the units that a charge to this counter could ask for now: the least room, max minus
    /// usage, of this counter and its ancestors. If no level has a max, it is what usage can still
    /// count.
    ///
    /// A few loads for each level, one after the other, so it is an estimate while other threads
    /// charge. Credit counts as used: a charge that drains it may find more room.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let machine = PageCounter::root(CounterConfig::new().batch(0).max(100));
    /// let job = machine.child();
    /// machine.charge(70)?;
    /// assert_eq!((machine.headroom(), job.headroom()), (30, 30));
    /// # Ok::<(), memcg::errors::CounterChargeError>(())
    /// ```
    pub fn headroom(&self) -> u64 {
        self.counter().headroom()
    }

    /// Returns the units by which forced charges have taken usage above max. Two loads.
    ///
    /// It is usage minus max, or 0, so it falls as units are uncharged.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let job = PageCounter::root(CounterConfig::new().max(100));
    /// job.force_charge(130);
    /// job.uncharge(20);
    /// assert_eq!((job.usage(), job.forced(), job.forced_total()), (110, 10, 30));
    /// ```
    pub fn forced(&self) -> u64 {
        self.counter().forced()
    }

    /// Returns all units that forced charges have ever put above max. One load. It may be too high:
    /// a little if forced charges raced, and by a charge that was above max here, taken back for a
    /// drain below a level further up, and then forced again.
    pub fn forced_total(&self) -> u64 {
        self.counter().forced_total()
    }

    // === History ===

    /// Returns the highest usage that charges have brought the counter to, in units, credit
    /// included. One load.
    ///
    /// A refused charge leaves no trace in it.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let job = PageCounter::root(CounterConfig::new().max(100));
    /// job.charge(80)?;
    /// assert!(job.charge(21).is_err());
    /// job.uncharge(80);
    /// assert_eq!((job.peak(), job.usage()), (80, 0));
    /// # Ok::<(), memcg::errors::CounterChargeError>(())
    /// ```
    pub fn peak(&self) -> u64 {
        self.counter().peaks().ever()
    }

    /// Opens a peak of your own: the highest usage from now on, or from its last reset.
    ///
    /// The call allocates, and takes the lock of this counter's windows. A charge pays for windows
    /// only when it reaches a new peak.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let job = PageCounter::root(CounterConfig::new().batch(0));
    /// job.force_charge(80);
    /// job.uncharge(70);
    /// let window = job.peak_window();
    /// assert_eq!(window.peak(), 10, "a window starts from the usage it finds");
    /// job.force_charge(5);
    /// assert_eq!((window.peak(), job.peak()), (15, 80));
    /// ```
    pub fn peak_window(&self) -> PeakWindow
    where
        K: Clone + Send + Sync + 'static,
    {
        PeakWindow::open(self.counter(), Box::new(self.clone()))
    }

    /// Returns the number of charges that this level has refused. Forced charges are never among
    /// them. One load.
    ///
    /// Source: `failcnt` of `struct page_counter`.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let machine = PageCounter::root(CounterConfig::new().max(10));
    /// let job = machine.child();
    /// assert!(job.charge(11).is_err());
    /// job.force_charge(11);
    /// assert_eq!((machine.refused_count(), job.refused_count()), (1, 0));
    /// ```
    pub fn refused_count(&self) -> u64 {
        self.counter().refusals()
    }

    /// Returns the barrier pair that the tree runs on, as
    /// [`CounterConfig::barrier`](crate::CounterConfig::barrier) chose it. Export it as a metric:
    /// once `Degraded`, it stays so.
    pub fn barrier(&self) -> BarrierState {
        self.counter().tree().barrier.state()
    }
}

impl PageCounter {
    /// Returns the event counts of the whole tree. One load for each, so they are not all of the
    /// same instant.
    pub fn counts(&self) -> TreeCounts {
        let tree = self.counter().tree();
        let of_stats = tree
            .config
            .extension
            .as_ref()
            .map(|extension| extension.stat_counts(self.header().header()));
        counts(tree, of_stats.unwrap_or_default())
    }

    /// Checks that the counts of the subtree agree with each other, and with the second count if
    /// [`CounterConfig::audit`](crate::CounterConfig::audit) is on.
    ///
    /// The call holds the tree's lock, so that the tree does not change. It looks at one slot for
    /// each thread and counter, and allocates. It is exact as long as no thread charges; charges in
    /// flight show up as faults.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter};
    /// let machine = PageCounter::root(CounterConfig::new().audit(true));
    /// let job = machine.child();
    /// job.charge(10)?;
    /// assert_eq!(machine.verify().to_string(), "2 counters verified against the audited count: all add up");
    /// # Ok::<(), memcg::errors::CounterChargeError>(())
    /// ```
    pub fn verify(&self) -> VerifyReport {
        verify(
            self.counter().tree(),
            self.counter(),
            &KnownOutside::NOTHING,
        )
    }
}

/// How often things have happened in a tree of counters. The counts only rise.
///
/// ```
/// use memcg::{CounterConfig, PageCounter};
///
/// let job = PageCounter::root(CounterConfig::new().batch(0));
/// let before = job.counts();
/// job.force_charge(10);
/// job.uncharge(11);
/// assert_eq!(job.counts().underflows - before.underflows, 1, "a double free somewhere");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TreeCounts {
    /// Times a thread drained credit: for a refusal, a lowered max, a forced excess, a switch of
    /// the stock (by hand or near a limit), a first child, idle credit, a call of `drain`.
    pub drains: u64,
    /// Units that drains brought back.
    pub drained: u64,
    /// Heavy barriers: of drains, of lowered limits, and for statistics that were unlisted.
    pub barriers: u64,
    /// Charges refused although credit may have been out of their reach: beside a thread that did
    /// not come out of transit, after a failed barrier, inside another slow path, or where limits
    /// moved all the time. The page of guarantees, in the book, has the whole list.
    pub refused_in_transit: u64,
    /// Times more was uncharged from a level than it held.
    pub underflows: u64,
    /// Times a forced charge would have passed [`PageCounter::USAGE_MAX`].
    pub overflows: u64,
    /// Units of credit that a drain discarded, because after an underflow usage did not contain
    /// them.
    pub discarded: u64,
    /// Flushes of the statistics; those that several readers shared count once. From here on, of
    /// trees that have statistics.
    pub flushes: u64,
    /// Cells that flushes visited. Cells hold what one thread has written for one group. The last
    /// visit to cells that are unlisted or released is not counted.
    pub flush_visits: u64,
    /// Times a thread listed its cells of a group, when it wrote them first or for the first time
    /// in a while.
    pub stat_lists: u64,
    /// Cells that flushes took off the lists because their thread did not write them.
    pub stat_unlists: u64,
    /// Additions to items of another runtime, which were not counted.
    pub foreign_stats: u64,
    /// Additions that were not counted: an allocator made them inside another slow path, and had no
    /// cells yet.
    pub nested_stats: u64,
}

/// A peak of one counter that its owner can reset, which neither other windows nor
/// [`PageCounter::peak`] notice: [`PageCounter::peak_window`] opens one.
///
/// A window keeps its counter. The drop closes it.
///
/// ```
/// use memcg::{CounterConfig, PageCounter};
///
/// let job = PageCounter::root(CounterConfig::new().batch(0));
/// let minute = job.peak_window();
/// let hour = job.peak_window();
/// job.force_charge(80);
/// job.uncharge(80);
/// minute.reset();
/// assert_eq!((minute.peak(), hour.peak()), (0, 80));
/// ```
pub struct PeakWindow {
    counter: CounterRef,
    value: Arc<AtomicU64>,
    /// A handle that keeps `counter`.
    _keep: Box<dyn Send + Sync>,
}

impl PeakWindow {
    #[allow(unsafe_code)]
    pub(crate) fn open(counter: &Counter, keep: Box<dyn Send + Sync>) -> PeakWindow {
        let _path = SlowPath::enter();
        let value = counter
            .tree()
            .windows
            .lock()
            .open(counter.key(), counter.peaks(), || counter.usage());
        // SAFETY: `keep` keeps it, and lives as long.
        let counter = unsafe { CounterRef::new(counter) };
        PeakWindow {
            counter,
            value,
            _keep: keep,
        }
    }

    pub(super) fn counter(&self) -> &Counter {
        &self.counter
    }

    /// Returns the highest usage since the window was opened or last reset, in units, credit
    /// included. Two loads.
    pub fn peak(&self) -> u64 {
        self.counter.peaks().read(&self.value)
    }

    /// Starts over from the present usage. The call takes the lock of the tree's windows, and
    /// visits those of this counter.
    pub fn reset(&self) {
        let PeakWindow { counter, value, .. } = self;
        let _path = SlowPath::enter();
        counter
            .tree()
            .windows
            .lock()
            .reset(counter.key(), counter.peaks(), value, || counter.usage());
    }
}

impl Drop for PeakWindow {
    fn drop(&mut self) {
        let _path = SlowPath::enter();
        // Mutation: a-peak-of-a-while-stays-in-its-list
        self.counter
            .tree()
            .windows
            .lock()
            .close(self.counter.key(), &self.value);
    }
}

debug_figures!(PeakWindow, |window| counter: window.counter.id(), peak: window.peak());

/// Reads the counts of a tree, with one load for each. Those of its statistics are the caller's.
pub(crate) fn counts(tree: &Tree, of_stats: [u64; 6]) -> TreeCounts {
    let [
        flushes,
        flush_visits,
        stat_lists,
        stat_unlists,
        foreign_stats,
        nested_stats,
    ] = of_stats;
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    TreeCounts {
        drains: read(&tree.counts.drains),
        drained: read(&tree.counts.drained),
        barriers: read(&tree.barrier.heavies),
        refused_in_transit: read(&tree.counts.refused_in_transit),
        underflows: read(&tree.counts.underflows),
        overflows: read(&tree.counts.overflows),
        discarded: read(&tree.counts.discarded),
        flushes,
        flush_visits,
        stat_lists,
        stat_unlists,
        foreign_stats,
        nested_stats,
    }
}

/// # Protection
impl<K> PageCounter<K> {
    /// Returns how much of the usage of the children their own min protects: the sum of min(usage,
    /// min), in units. One load, which is exact as long as no thread charges meanwhile.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter};
    ///
    /// let machine = PageCounter::root(CounterConfig::new().batch(0));
    /// let tenants = [machine.child(), machine.child()];
    /// tenants.each_ref().map(|tenant| tenant.set_min(10));
    /// tenants[0].force_charge(4);
    /// tenants[1].force_charge(40);
    /// assert_eq!((machine.children_min_usage(), tenants[1].effective_min(&machine)), (4 + 10, 10));
    /// ```
    pub fn children_min_usage(&self) -> u64 {
        thresholds::children_protected(self.counter(), Protection::Min)
    }

    /// Returns how much of the usage of the children their own low protects: the sum of min(usage,
    /// low), in units. One load, which is exact as long as no thread charges meanwhile.
    pub fn children_low_usage(&self) -> u64 {
        thresholds::children_protected(self.counter(), Protection::Low)
    }

    /// Returns the units of usage that min protects against pressure on `root`: this counter's part
    /// of what the levels between the two protect. 0 for `root` itself. The call works it out from
    /// the counters as they are, with a few loads for each level.
    ///
    /// Source: `effective_protection` in `mm/page_counter.c`.
    ///
    /// ```
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().batch(memcg::Bytes(0)).build()?;
    /// let acme = runtime.root().create("acme", Limits::new().min(50))?;
    /// let [a, b] = ["a", "b"].map(|name| acme.create(name, Limits::new().min(100)).unwrap());
    /// let _held = [a.charge(100)?, b.charge(100)?];
    /// assert_eq!(a.memory().effective_min(&runtime.root().memory()), 25, "acme has 50 for both");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn effective_min(&self, root: &Self) -> u64 {
        effective::protected(self.counter(), Protection::Min, root.counter())
    }

    /// Returns the units of usage that low protects against pressure on `root`, as
    /// [`effective_min`](Self::effective_min) does for min.
    ///
    /// ```
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().low(50))?;
    /// let _held = acme.charge(100)?;
    /// let [acme, root] = [acme, runtime.root()].map(|group| group.memory());
    /// assert_eq!((acme.effective_low(&root), acme.effective_low(&acme)), (50, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn effective_low(&self, root: &Self) -> u64 {
        effective::protected(self.counter(), Protection::Low, root.counter())
    }
}
