//! What a group tells about itself, and its limits. No suffix: the subtree; `_local`: what no child that is online
//! accounts for.

use super::{Group, LimitError, Limits};
use crate::counter::credit;
use crate::counter::slow_path::slow_path;
use crate::hierarchy::limits;
use crate::hierarchy::limits::LimitKind;
use crate::page_counter::PeakWindow;
use crate::units::Limit;

// === impl Group: limits ===

impl Group {
    /// Set the most bytes that charges may bring usage to. May block: in async code [`set_max_now`](Self::set_max_now).
    /// Returns the bytes that are above it now: 0 where usage fits.
    ///
    /// The max is stored whatever usage is, then credit below it is drained, and reclaimers are asked for what is above
    /// it ([`Reclaim`](crate::Reclaim): foreign code runs, for at most
    /// [`reclaim_time`](crate::RuntimeBuilder::reclaim_time)); where the group [chooses](crate::OomPolicy) others are
    /// cancelled, one after another, and each waited for. Whoever waits in line and fits is served, whoever can never
    /// fit any more is refused. [`set_max_now`](Self::set_max_now) asks and cancels nobody. Usage above it stands apart
    /// in [`forced`](Self::forced), and charges are refused until enough is given back. From the return on `usage -
    /// forced <= max`. Percentages below follow. A percentage below that has no limited ancestor any more keeps the
    /// bytes it had. Takes the tree's lock; lowering costs a heavy barrier, and another where credit is drained.
    ///
    /// Source: `memory_max_write` in `mm/memcontrol.c`.
    ///
    /// # Errors
    ///
    /// [`LimitError::NoLimitedAncestor`] for a percentage where no ancestor has a max. The old max holds.
    ///
    /// ```
    /// use memcg::{Limit, Limits, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// let held = acme.try_charge(60)?;
    /// assert_eq!(acme.set_max(Limit::Bytes(50))?, 10);
    /// assert_eq!((acme.usage(), acme.forced()), (60, 10));
    /// assert!(acme.try_charge(1).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_max(&self, limit: Limit) -> Result<u64, LimitError> {
        self.memory().set_max(limit)
    }

    /// Set the bytes that reclaim never touches. Told to the parent; charges do not look at it. Nothing on a group that
    /// is offline.
    ///
    /// # Errors
    ///
    /// As [`set_max`](Self::set_max).
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// acme.set_min(memcg::Limit::Bytes(100))?;
    /// let _held = acme.try_charge(30)?;
    /// assert_eq!(runtime.root().children_min_usage(), 30, "what is not used needs no protection");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_min(&self, limit: Limit) -> Result<(), LimitError> {
        self.memory().set(LimitKind::Min, limit).map(drop)
    }

    /// Set the bytes that reclaim touches last. Told to the parent; charges do not look at it. Nothing on a group that
    /// is offline.
    ///
    /// # Errors
    ///
    /// As [`set_max`](Self::set_max).
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(memcg::Limit::Bytes(1_000)).build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// acme.set_low("25%".parse::<memcg::Limit>()?)?;
    /// assert_eq!(acme.low(), 250);
    /// runtime.root().set_max(memcg::Limit::Bytes(2_000))?;
    /// assert_eq!(acme.low(), 500, "worked out again");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_low(&self, limit: Limit) -> Result<(), LimitError> {
        self.memory().set(LimitKind::Low, limit).map(drop)
    }

    /// [`set_max`](Self::set_max) that asks nobody to give anything back, and so returns at once: what is above stays
    /// until it is given back.
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
    /// assert_eq!(root.set_max_now(memcg::Limit::Bytes(4))?, root.usage() - 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_max_now(&self, limit: Limit) -> Result<u64, LimitError> {
        self.memory().set_max_now(limit)
    }

    /// Set the usage above which this group, and all below it, is reclaimed before others. 0: whenever it holds
    /// anything; [`Limit::Max`], as it is at first: never. Nothing on a group that is offline.
    ///
    /// Charges that walk compare, and tell the groups above at each crossing; those from the stock do not, for credit
    /// is usage already.
    ///
    /// # Errors
    ///
    /// As [`set_max`](Self::set_max).
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let root = runtime.root();
    /// let _held = root.try_charge(10)?;
    /// root.set_soft(memcg::Limit::Bytes(0))?;
    /// assert!(root.is_in_excess());
    /// root.set_soft(memcg::Limit::Max)?;
    /// assert!(!root.is_in_excess());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_soft(&self, limit: Limit) -> Result<(), LimitError> {
        self.memory().set(LimitKind::Soft, limit).map(drop)
    }

    /// The limits as they were set, percentages as percentages.
    ///
    /// ```
    /// use memcg::{Limit, Limits, Runtime};
    ///
    /// let runtime = Runtime::builder().max(Limit::Bytes(1_000)).build()?;
    /// let acme = runtime.root().create("acme", Limits::new().max("25%".parse()?))?;
    /// assert_eq!(acme.limits().max, Some("25%".parse()?));
    /// assert_eq!(acme.limits().low, Some(Limit::Bytes(0)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limits(&self) -> Limits {
        let set = |kind| limits::set_to(self.node(), kind);
        let limits = Limits::new().max(set(LimitKind::Max)).min(set(LimitKind::Min)).low(set(LimitKind::Low));
        limits.soft(set(LimitKind::Soft)).high(set(LimitKind::High))
    }

    /// The soft limit in bytes, `u64::MAX` where there is none. One load.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// assert_eq!(runtime.root().soft(), u64::MAX);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn soft(&self) -> u64 {
        limits::value(self.node(), LimitKind::Soft)
    }

    /// The max in bytes, `u64::MAX` where there is none. One load.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// assert_eq!(runtime.root().max(), u64::MAX);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn max(&self) -> u64 {
        self.node().max()
    }

    /// The bytes that reclaim never touches, 0 by default. One load.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// assert_eq!(runtime.root().min(), 0);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn min(&self) -> u64 {
        limits::value(self.node(), LimitKind::Min)
    }

    /// The bytes that reclaim touches last, 0 by default. One load.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// assert_eq!(runtime.root().low(), 0);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn low(&self) -> u64 {
        limits::value(self.node(), LimitKind::Low)
    }

    /// Sum over the children of min(usage, min), in bytes. Exact at every quiescent point. One load.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// assert_eq!(runtime.root().children_min_usage(), 0);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn children_min_usage(&self) -> u64 {
        self.node().children_protected(crate::counter::protection::Protection::Min)
    }

    /// Sum over the children of min(usage, low), in bytes. Exact at every quiescent point. One load.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// assert_eq!(runtime.root().children_low_usage(), 0);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn children_low_usage(&self) -> u64 {
        self.node().children_protected(crate::counter::protection::Protection::Low)
    }

    /// Change the batch of this group and all below it to `bytes`, at most 1 TiB; 0 switches their stock off, so that
    /// every charge walks the tree. Their credit is drained first: the tree's lock and a heavy barrier.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().adaptive(false).build()?;
    /// let root = runtime.root();
    /// root.set_batch(0);
    /// let _held = root.try_charge(10)?;
    /// assert_eq!(root.usage(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_batch(&self, bytes: u64) {
        self.memory().set_batch(bytes);
    }

    /// Take all credit of this group and all below it back. Returns the bytes; complete when nobody charges meanwhile.
    ///
    /// Takes the tree's lock; where there is credit a heavy barrier, at most four while others charge.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().adaptive(false).build()?;
    /// let root = runtime.root();
    /// let _held = root.try_charge(10)?;
    /// assert_eq!((root.usage(), root.drain(), root.usage()), (262_144, 262_134, 10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drain(&self) -> u64 {
        self.memory().drain()
    }
}

// === impl Group: figures ===

impl Group {
    /// Live charge and credit of the subtree, in bytes: what the limits see. One load.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().adaptive(false).build()?;
    /// let root = runtime.root();
    /// let _held = root.try_charge(10)?;
    /// assert_eq!((root.usage(), root.live(), root.stocked()), (262_144, 10, 262_134));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn usage(&self) -> u64 {
        self.node().usage()
    }

    /// [`usage`](Self::usage) minus [`stocked`](Self::stocked), in bytes: what charges hold. Exact at every quiescent
    /// point, an estimate while others run, never negative. Costs what `stocked` costs.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let held = runtime.root().try_charge(10)?;
    /// assert_eq!(runtime.root().live(), held.bytes());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn live(&self) -> u64 {
        self.memory().live()
    }

    /// Credit of the subtree, in bytes. Exact at every quiescent point, an estimate while others run. Takes the tree's
    /// lock, looks at one slot for each thread and group.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// assert_eq!(runtime.root().stocked(), 0);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn stocked(&self) -> u64 {
        self.memory().stocked()
    }

    /// The published bound on [`stocked`](Self::stocked), in bytes: over the open stocks of the subtree, threads that
    /// touched them x 2 batches; at the root never above the budget. One load.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().adaptive(false).build()?;
    /// let _held = runtime.root().try_charge(10)?;
    /// assert_eq!(runtime.root().stocked_bound(), 2 * 262_144);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stocked_bound(&self) -> u64 {
        self.node().bound()
    }

    /// Bytes above max, by forced charges or because max was set below usage. Falls as bytes are given back, those
    /// above max first; `usage - forced <= max`. One load.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(memcg::Limit::Bytes(100)).build()?;
    /// let mut charge = runtime.root().charge(130);
    /// charge.shrink(20);
    /// assert_eq!(runtime.root().forced(), 10);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn forced(&self) -> u64 {
        self.node().forced()
    }

    /// The highest usage that admitted charges left behind, in bytes, credit included. One load.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// drop(runtime.root().try_charge(10)?);
    /// assert_eq!(runtime.root().peak(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn peak(&self) -> u64 {
        self.memory().peak()
    }

    /// A peak of the caller's own, which it may reset without disturbing others. Keeps the group's object.
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
        self.memory().peak_window()
    }

    /// Charges refused because this group was full, its own and those of groups below. One load.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().max(memcg::Limit::Bytes(100)).build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// assert!(acme.try_charge(101).is_err());
    /// assert_eq!((acme.refused(), runtime.root().refused()), (0, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn refused(&self) -> u64 {
        self.memory().refused()
    }

    /// [`usage`](Self::usage) without that of the children that are online, in bytes: the group's own, and what groups
    /// that went offline left behind. An estimate while others run. Nobody comes or goes meanwhile; one load for each child.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// let (ours, theirs) = (runtime.root().try_charge(3)?, acme.try_charge(4)?);
    /// assert_eq!((runtime.root().usage_local(), acme.usage_local()), (3, 4));
    /// acme.offline()?;
    /// assert_eq!(runtime.root().usage_local(), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn usage_local(&self) -> u64 {
        slow_path(|_, _| {
            let shape = self.node().tree().hierarchy.snapshot();
            let below = shape.children(self.node()).map(|child| child.usage()).fold(0, u64::saturating_add);
            self.usage().saturating_sub(below)
        })
    }

    /// Credit in this group's own stock, and in those of groups below that went offline and are not settled, in bytes.
    /// Exact at every quiescent point. One slot for each thread and such group.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().adaptive(false).build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// let _held = acme.try_charge(10)?;
    /// assert_eq!((runtime.root().stocked_local(), acme.stocked_local()), (0, 262_134));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stocked_local(&self) -> u64 {
        slow_path(|_, _| credit::stocked_local(self.node().tree(), self.node()))
    }

    /// [`usage_local`](Self::usage_local) minus [`stocked_local`](Self::stocked_local), in bytes.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// let _held = acme.try_charge(10)?;
    /// assert_eq!((runtime.root().live_local(), acme.live_local()), (0, 10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn live_local(&self) -> u64 {
        let stocked = self.stocked_local();
        self.usage_local().saturating_sub(stocked)
    }
}
