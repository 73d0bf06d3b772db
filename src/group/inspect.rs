//! Figures that no program needs in order to run: the kernel's own readers, for tests and comparisons.

use std::iter;

use super::handle::Group;
use crate::counter::protection::Protection;
use crate::counter::{children, credit, effective, marks};
use crate::hierarchy::stats;
use crate::page_counter::reading::{ProtectionFigures, Sealed};
use crate::pressure::victims;
use crate::reclaim::excess;
use crate::state::oom::{EXEMPT, OomPolicy, TOGETHER};

/// Readers of a group's settings and figures beside those that [`Group`] has.
///
/// ```
/// use memcg::expert::Inspect;
///
/// let runtime = memcg::Runtime::builder().build()?;
/// let acme = runtime.root().create("acme", memcg::Limits::new())?;
/// let _held = acme.try_charge(10)?;
/// assert_eq!((acme.live_local(), runtime.root().live_local()), (10, 0));
/// assert_eq!(runtime.root().descendants().count(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Inspect: Sealed {
    /// Returns whether usage is above the soft limit. Pressure from here or above asks such a group, and all groups
    /// below it, first. One load; exact.
    ///
    /// ```
    /// # use memcg::expert::Inspect as _;
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().soft(0))?;
    /// assert!(!acme.is_in_excess());
    /// let _held = acme.try_charge(1)?;
    /// assert!(acme.is_in_excess());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn is_in_excess(&self) -> bool;

    /// Returns the number of groups below, at any depth, that are above their soft limits. Exact where none crosses
    /// meanwhile. It visits the groups that have one below, and their children.
    ///
    /// Source: `children_in_excess`, soft limit rework (Hocko, 2013).
    ///
    /// ```
    /// # use memcg::expert::Inspect as _;
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().soft(10))?;
    /// let _held = acme.try_charge(11)?;
    /// assert_eq!((runtime.root().descendants_in_excess(), acme.descendants_in_excess()), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn descendants_in_excess(&self) -> u64;

    /// Returns whether pressure on `root` asks this group in its first pass. It does where this group is above its soft
    /// limit, or a group between it and `root` is, `root` included. Groups above `root` do not count.
    ///
    /// Source: `mem_cgroup_soft_reclaim_eligible`, soft limit rework (Hocko, 2013).
    ///
    /// ```
    /// # use memcg::expert::Inspect as _;
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().soft(0))?;
    /// let query = acme.create("q17", Limits::new())?;
    /// let _held = query.try_charge(1)?;
    /// assert!(query.is_soft_eligible(&runtime.root()), "with acme");
    /// assert!(!query.is_soft_eligible(&query));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn is_soft_eligible(&self, root: &Group) -> bool;

    /// Returns [`usage`](Group::usage) without that of the children that are online, in bytes. That is the group's own,
    /// and what groups that went offline left behind. It costs one load for each child, and holds no lock over more than
    /// a few. It is exact at every quiescent point, an estimate while other threads charge.
    ///
    /// ```
    /// # use memcg::expert::Inspect as _;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// let (ours, theirs) = (runtime.root().try_charge(3)?, acme.try_charge(4)?);
    /// assert_eq!((runtime.root().usage_local(), acme.usage_local()), (3, 4));
    /// acme.offline()?;
    /// assert_eq!(runtime.root().usage_local(), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn usage_local(&self) -> u64;

    /// Returns the credit in this group's own stock, and in the stocks of groups below that went offline and are not
    /// settled, in bytes. It looks at one slot for each thread and such group. It is exact at every quiescent point.
    ///
    /// ```
    /// # use memcg::expert::{FixedBatch as _, Inspect as _};
    /// # let runtime = memcg::Runtime::builder().adaptive(false).build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// let _held = acme.try_charge(10)?;
    /// assert_eq!((runtime.root().stocked_local(), acme.stocked_local()), (0, 262_134));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn stocked_local(&self) -> u64;

    /// Returns [`usage_local`](Self::usage_local) minus [`stocked_local`](Self::stocked_local), in bytes. Where the group
    /// [covers](crate::Limits::cover_allocations) it is the larger of what is reserved and what is allocated in the group alone.
    ///
    /// ```
    /// # use memcg::expert::Inspect as _;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// let _held = acme.try_charge(10)?;
    /// assert_eq!((runtime.root().live_local(), acme.live_local()), (0, 10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn live_local(&self) -> u64;

    /// Returns whether this group, or an ancestor, is only observed. One load.
    fn is_observe_only(&self) -> bool;

    /// Returns the group's own policy, as it was set.
    fn oom_policy(&self) -> OomPolicy;

    /// Returns the setting of [`set_oom_group`](Group::set_oom_group).
    fn oom_group(&self) -> bool;

    /// Returns the group's own setting of [`set_oom_exempt`](Group::set_oom_exempt).
    fn oom_exempt(&self) -> bool;

    /// Returns the groups below that are online, parents first. Groups may be created and go offline meanwhile: the
    /// walk looks up the children of a group when it reaches that group.
    ///
    /// ```
    /// # use memcg::expert::Inspect as _;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let query = runtime.root().create("acme", memcg::Limits::new())?.create("q17", memcg::Limits::new())?;
    /// let paths: Vec<_> = runtime.root().descendants().map(|group| group.path()).collect();
    /// assert_eq!(paths, ["/acme", "/acme/q17"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn descendants(&self) -> Box<dyn Iterator<Item = Group>>;

    /// Does what [`flush`](Group::flush) does where more than [`Freshness::Threshold`](crate::Freshness::Threshold) allows
    /// may be missing, and only while the periodic flush is more than one full cycle late. Returns whether it flushed.
    ///
    /// Source: `mem_cgroup_flush_stats_ratelimited` in `mm/memcontrol.c`.
    ///
    /// ```
    /// # use memcg::expert::Inspect as _;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// # let root = runtime.root();
    /// root.stat_add(memcg::Stat::SLAB, 1 << 30);
    /// assert!(!root.flush_ratelimited(), "the runtime has just begun");
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    fn flush_ratelimited(&self) -> bool;
}

impl Inspect for Group {
    fn is_in_excess(&self) -> bool {
        marks::is_in_excess(self.first())
    }

    fn descendants_in_excess(&self) -> u64 {
        excess::count_below(self.first())
    }

    fn is_soft_eligible(&self, root: &Group) -> bool {
        excess::is_soft_eligible(self.first(), root.first())
    }

    fn usage_local(&self) -> u64 {
        let mut below: u64 = 0;
        children::each(self.first(), |child| below = below.saturating_add(child.usage()));
        self.usage().saturating_sub(below)
    }

    fn stocked_local(&self) -> u64 {
        credit::stocked_local(self.first())
    }

    fn live_local(&self) -> u64 {
        if self.first().cover().is_some() {
            let ledger = self.ledger_local();
            return ledger.reserved().max(ledger.allocated());
        }
        let stocked = self.stocked_local();
        self.usage_local().saturating_sub(stocked)
    }

    fn is_observe_only(&self) -> bool {
        self.first().is_observed()
    }

    fn oom_policy(&self) -> OomPolicy {
        victims::marks(self.first()).policy()
    }

    fn oom_group(&self) -> bool {
        victims::marks(self.first()).has(TOGETHER)
    }

    fn oom_exempt(&self) -> bool {
        victims::marks(self.first()).has(EXEMPT)
    }

    fn descendants(&self) -> Box<dyn Iterator<Item = Group>> {
        let mut next = self.children();
        Box::new(iter::from_fn(move || {
            let group = next.pop()?;
            next.extend(group.children());
            Some(group)
        }))
    }

    fn flush_ratelimited(&self) -> bool {
        stats::flush_ratelimited(self.first())
    }
}

impl ProtectionFigures for Group {
    fn children_min_usage(&self) -> u64 {
        marks::children_protected(self.first(), Protection::Min)
    }

    fn children_low_usage(&self) -> u64 {
        marks::children_protected(self.first(), Protection::Low)
    }

    fn effective_min(&self, root: &Self) -> u64 {
        effective::protected(self.first(), Protection::Min, root.first())
    }

    fn effective_low(&self, root: &Self) -> u64 {
        effective::protected(self.first(), Protection::Low, root.first())
    }
}

impl Sealed for Group {}
