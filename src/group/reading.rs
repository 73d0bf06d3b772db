//! A group's figures and limits. Names without a suffix are of the subtree. Names that end in `_local` are of what no
//! child that is online accounts for.

use super::error::LimitError;
use super::handle::Group;
use super::limits::Limits;
use crate::admission::lowered;
use crate::counter::config::BATCH_MAX;
use crate::counter::credit;
use crate::hierarchy::limits;
use crate::page_counter::PeakWindow;
use crate::pressure::observe;
use crate::state::limits::LimitKind;
use crate::units::Bytes;
use crate::units::Limit;

// === impl Group: limits ===

/// # Limits
impl Group {
    /// Sets the most bytes that charges may bring usage to. It may block: in async code use
    /// [`set_max_now`](Self::set_max_now). Returns the bytes that are above it now, 0 where usage fits.
    ///
    /// The call stores the max whatever usage is. Then it drains the credit below and asks reclaimers for what is above
    /// the max ([`Reclaim`](crate::Reclaim): foreign code runs, for at most
    /// [`reclaim_time`](crate::RuntimeBuilder::reclaim_time)). Where the group [chooses](crate::OomPolicy), the call
    /// cancels other groups, one after another, and waits for each. It serves the charges that wait in line and fit,
    /// and refuses those that can never fit any more. [`set_max_now`](Self::set_max_now) asks no reclaimer and cancels
    /// no group.
    ///
    /// [`forced`](Self::forced) counts the usage above max, and charges are refused until enough is given back.
    /// Percentages below follow. A percentage below that has no limited ancestor any more keeps the bytes it had. The
    /// call takes the tree's lock; lowering costs a heavy barrier, and another where credit is drained. From the return
    /// on no charge is admitted above the new max.
    ///
    /// Source: `memory_max_write` in `mm/memcontrol.c`.
    ///
    /// # Errors
    ///
    /// [`LimitError::NoLimitedAncestor`] for a percentage where no ancestor has a max. The old max holds.
    ///
    /// ```
    /// # use memcg::{Limits, Runtime};
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// let held = acme.try_charge(60)?;
    /// assert_eq!(acme.set_max(50)?, 10);
    /// assert_eq!((acme.max(), acme.usage(), acme.forced()), (50, 60, 10));
    /// assert!(acme.try_charge(1).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_max(&self, limit: impl Into<Limit>) -> Result<u64, LimitError> {
        self.set_max_now(limit.into())?;
        Ok(lowered::shrink_to_max(self.first()))
    }

    /// Sets the bytes that reclaim never touches. The parent sums what its children protect; charges do not look at it.
    /// The call does nothing on a group that is offline.
    ///
    /// # Errors
    ///
    /// As [`set_max`](Self::set_max).
    ///
    /// ```
    /// # use memcg::expert::ProtectionFigures as _;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// acme.set_min(100)?;
    /// let _held = acme.try_charge(30)?;
    /// assert_eq!((acme.min(), runtime.root().children_min_usage()), (100, 30), "30 bytes need protection");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_min(&self, limit: impl Into<Limit>) -> Result<(), LimitError> {
        self.set_limit(self.first(), LimitKind::Min, limit.into()).map(drop)
    }

    /// Sets the bytes that reclaim touches last. The parent sums what its children protect; charges do not look at it.
    /// The call does nothing on a group that is offline.
    ///
    /// # Errors
    ///
    /// As [`set_max`](Self::set_max).
    ///
    /// ```
    /// # use memcg::expert::ProtectionFigures as _;
    /// # let runtime = memcg::Runtime::builder().max(1_000).build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// acme.set_low("25%".parse::<memcg::Limit>()?)?;
    /// assert_eq!(acme.low(), 250);
    /// runtime.root().set_max(2_000)?;
    /// assert_eq!(acme.low(), 500, "worked out again");
    /// assert_eq!(runtime.root().children_low_usage(), 0, "acme uses nothing");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_low(&self, limit: impl Into<Limit>) -> Result<(), LimitError> {
        self.set_limit(self.first(), LimitKind::Low, limit.into()).map(drop)
    }

    /// [`set_max`](Self::set_max) that asks no reclaimer and cancels no group, and so returns at once. What is above
    /// the max stays until it is given back.
    ///
    /// Source: a write to `memory.max` with `O_NONBLOCK`.
    ///
    /// # Errors
    ///
    /// As [`set_max`](Self::set_max).
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// # let root = runtime.root();
    /// let _held = root.try_charge(10)?;
    /// assert_eq!(root.set_max_now(4)?, root.usage() - 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_max_now(&self, limit: impl Into<Limit>) -> Result<u64, LimitError> {
        self.set_limit(self.first(), LimitKind::Max, limit.into())
    }

    /// Sets the usage in bytes above which this group, and all groups below it, is reclaimed before others. 0: whenever
    /// it holds anything. [`Limit::Unlimited`], the default: never. The call does nothing on a group that is offline.
    ///
    /// A charge that walks compares usage with it, and reports each crossing to the groups above. A charge from the
    /// stock does not, because credit is usage already.
    ///
    /// # Errors
    ///
    /// As [`set_max`](Self::set_max).
    ///
    /// ```
    /// # use memcg::expert::Inspect as _;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let root = runtime.root();
    /// let _held = root.try_charge(10)?;
    /// root.set_soft(0)?;
    /// assert!(root.soft() == 0 && root.is_in_excess());
    /// root.set_soft(memcg::Limit::Unlimited)?;
    /// assert!(!root.is_in_excess());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_soft(&self, limit: impl Into<Limit>) -> Result<(), LimitError> {
        self.set_limit(self.first(), LimitKind::Soft, limit.into()).map(drop)
    }

    /// Returns the limits as they were set, percentages as percentages; and whether the group covers, as it or one above it
    /// has [asked](Limits::cover_allocations).
    ///
    /// ```
    /// # use memcg::{Limit, Limits, Runtime};
    /// let runtime = Runtime::builder().max(1_000).build()?;
    /// let acme = runtime.root().create("acme", Limits::new().max(Limit::percent(25)))?;
    /// assert_eq!(acme.limits().max, Some("25%".parse()?));
    /// assert_eq!(acme.limits().low, Some(Limit::Bytes(0)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limits(&self) -> Limits {
        let set = |kind| limits::set_to(self.first(), kind);
        let limits = Limits::new().max(set(LimitKind::Max)).min(set(LimitKind::Min)).low(set(LimitKind::Low));
        let limits = limits.soft(set(LimitKind::Soft)).high(set(LimitKind::High));
        Limits { cover_allocations: self.first().cover().is_some(), ..limits }
    }

    /// Returns the soft limit in bytes, `u64::MAX` where there is none. One load.
    pub fn soft(&self) -> u64 {
        limits::value(self.first(), LimitKind::Soft)
    }

    /// Returns the max in bytes, `u64::MAX` where there is none. One load.
    pub fn max(&self) -> u64 {
        self.first().max()
    }

    /// Returns the least max of this group and its ancestors, in bytes. `u64::MAX` where none has one. A max that is
    /// [only observed](Self::set_observe_only) refuses no charge and does not count. A few loads a level; each is exact.
    ///
    /// ```
    /// # use memcg::{Limits, Runtime};
    /// let runtime = Runtime::builder().max(100).build()?;
    /// let acme = runtime.root().create("acme", Limits::new().max(60))?;
    /// let query = acme.create("q17", Limits::new().max(80))?;
    /// assert_eq!((query.max(), query.effective_max()), (80, 60));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn effective_max(&self) -> u64 {
        self.first().effective_max()
    }

    /// Returns the bytes that a charge to this group could ask for now: the least room of this group and its ancestors.
    /// Room is max without usage. Where no level has a max, it is what
    /// usage can still count up to 2^63.
    ///
    /// A few loads a level. The levels are read one after the other, so beside charges the figure is an estimate. Credit
    /// counts as used: a charge that drains it may find more room, at most [`stocked`](Self::stocked) of the level.
    ///
    /// ```
    /// # use memcg::{Limits, Runtime};
    /// let runtime = Runtime::builder().max(100).build()?;
    /// let [a, b] = ["a", "b"].map(|name| runtime.root().create(name, Limits::new().max(80)).unwrap());
    /// let _held = a.try_charge(70)?;
    /// assert_eq!((a.headroom(), b.headroom()), (10, 30), "a is nearly full, b has what the root has left");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn headroom(&self) -> u64 {
        self.first().headroom()
    }

    /// Returns the bytes that reclaim never touches, 0 by default. One load.
    pub fn min(&self) -> u64 {
        limits::value(self.first(), LimitKind::Min)
    }

    /// Returns the bytes that reclaim touches last, 0 by default. One load.
    pub fn low(&self) -> u64 {
        limits::value(self.first(), LimitKind::Low)
    }

    /// Changes the batch of this group and all groups below it to `bytes`, at most 1 TiB. 0 switches their stock off,
    /// so that every charge walks the tree. To drain their credit it takes the tree's lock and a heavy barrier.
    ///
    /// ```
    /// # use memcg::expert::FixedBatch as _;
    /// # let runtime = memcg::Runtime::builder().adaptive(false).build()?;
    /// let root = runtime.root();
    /// root.set_batch(0);
    /// let _held = root.try_charge(10)?;
    /// assert_eq!(root.usage(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_batch(&self, bytes: impl Into<Bytes>) {
        let Bytes(bytes) = bytes.into();
        self.first().tree().set_batch(self.first(), bytes.min(BATCH_MAX));
    }

    /// Takes back all credit of this group and all groups below it. Returns its bytes.
    ///
    /// The call takes the tree's lock and, where there is credit, runs a heavy barrier: at most four while other
    /// threads charge. The drain is complete where no thread charges meanwhile.
    ///
    /// ```
    /// # use memcg::expert::FixedBatch as _;
    /// # let runtime = memcg::Runtime::builder().adaptive(false).build()?;
    /// let root = runtime.root();
    /// let _held = root.try_charge(10)?;
    /// assert_eq!((root.usage(), root.drain(), root.usage()), (262_144, 262_134, 10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drain(&self) -> u64 {
        self.first().tree().drain(self.first())
    }
}

// === impl Group: limits that only count ===

/// # Limits that only count
impl Group {
    /// Sets whether the limits here and below only count. It may block: in async code use a thread for blocking work.
    ///
    /// A charge that the max or high there would have refused or delayed is let through. For a max, the group whose max
    /// it was counts [`Event::Max`](crate::Event::Max) and [`Event::Observed`](crate::Event::Observed). No group is
    /// asked to give anything back for such charges. Limits above this group hold.
    ///
    /// Further counters are observed, too. Charges that wait here when observing begins are made at once. When the
    /// limits act again, what is above a max counts as if it had been [forced](Self::forced), and reclaimers are asked
    /// for it. The call takes the tree's lock and looks at all groups below.
    ///
    /// ```
    /// # use memcg::expert::Inspect as _;
    /// # use memcg::{Event, Limits, Runtime};
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().max(100))?;
    /// acme.set_observe_only(true);
    /// assert!(acme.is_observe_only() && acme.create("q17", Limits::new())?.is_observe_only());
    /// let _held = acme.try_charge(130)?;
    /// assert_eq!((acme.usage(), acme.events().get(Event::Observed)), (130, 1));
    /// acme.set_observe_only(false);
    /// assert!(acme.try_charge(1).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_observe_only(&self, observe: bool) {
        observe::set(self.first(), observe);
        if !observe && !self.first().is_observed() {
            lowered::shrink_all(self.first());
        }
    }
}

// === impl Group: figures ===

/// # Figures
impl Group {
    /// Returns live charge and credit of the subtree, in bytes: what limits compare. One load.
    ///
    /// ```
    /// # use memcg::expert::FixedBatch as _;
    /// # let runtime = memcg::Runtime::builder().adaptive(false).build()?;
    /// let root = runtime.root();
    /// let _held = root.try_charge(10)?;
    /// assert_eq!((root.usage(), root.live(), root.stocked()), (262_144, 10, 262_134));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn usage(&self) -> u64 {
        self.first().usage()
    }

    /// Returns [`usage`](Self::usage) minus [`stocked`](Self::stocked), in bytes: what charges hold. It costs what
    /// `stocked` costs. It is exact at every quiescent point, else an estimate, and never negative.
    pub fn live(&self) -> u64 {
        credit::live(self.first())
    }

    /// Returns the credit of the subtree, in bytes. The call takes the tree's lock and looks at one slot for each
    /// thread and group. It is exact at every quiescent point, an estimate while other threads charge.
    pub fn stocked(&self) -> u64 {
        credit::stocked(self.first())
    }

    /// Returns the published bound on [`stocked`](Self::stocked), in bytes. It is the sum over the open stocks of the
    /// subtree of threads that touched them x 2 batches. At the root it is never above the budget. One load.
    ///
    /// ```
    /// # use memcg::expert::FixedBatch as _;
    /// # let runtime = memcg::Runtime::builder().adaptive(false).build()?;
    /// let _held = runtime.root().try_charge(10)?;
    /// assert_eq!(runtime.root().stocked_bound(), 2 * 262_144);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stocked_bound(&self) -> u64 {
        self.first().bound()
    }

    /// Returns the bytes above max, by forced charges or because max was set below usage. It falls as bytes are given
    /// back, those above max first: it is usage less max, or 0. Two loads.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let mut charge = runtime.root().force_charge(130);
    /// charge.shrink(20);
    /// assert_eq!(runtime.root().forced(), 10);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn forced(&self) -> u64 {
        self.first().forced()
    }

    /// Returns the highest usage that admitted charges left behind, in bytes, credit included. One load.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// drop(runtime.root().try_charge(10)?);
    /// assert_eq!(runtime.root().peak(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn peak(&self) -> u64 {
        self.first().peaks().ever()
    }

    /// Opens a peak of the caller's own. A reset disturbs no other peak. The window keeps the group's object.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let window = runtime.root().peak_window();
    /// drop(runtime.root().try_charge(10)?);
    /// assert_eq!(window.peak(), 10);
    /// runtime.root().drain();
    /// window.reset();
    /// assert_eq!(window.peak(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn peak_window(&self) -> PeakWindow {
        PeakWindow::open(self.first(), Box::new(self.clone()))
    }

    /// Returns the number of charges refused because this group was full, its own and those of groups below. One load.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(100).build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// assert!(acme.try_charge(101).is_err());
    /// assert_eq!((acme.refused_count(), runtime.root().refused_count()), (0, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn refused_count(&self) -> u64 {
        self.first().refusals()
    }
}
