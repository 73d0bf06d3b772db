//! Reclaim as users call it: registrations, reclaim before memory is needed, and what protects a group from it.

use super::error::ReclaimError;
use super::handle::Group;
use super::registration::Registration;
use crate::counter::effective;
use crate::counter::marks;
use crate::counter::protection::Protection;
use crate::reclaim::repeat;
use crate::reclaim::report::ReclaimReport;
use crate::reclaim::{excess, registrations};
use crate::state::reclaimer::{Priority, Reclaim, ReclaimContext, Reclaimer};
use crate::sync::Arc;
use crate::units::Bytes;

impl ReclaimContext<'_> {
    /// Returns the group whose turn it is: the reclaimer's own, or the nearest group above where that went offline.
    pub fn group(&self) -> Group {
        Group::pinned(self.group.counter())
    }

    /// Returns the group that is under pressure: [`group`](Self::group) or one above it.
    pub fn target(&self) -> Group {
        Group::pinned(self.target.counter())
    }
}

/// # Reclaim
impl Group {
    /// Registers `reclaimer`, to be asked for memory when this group or one above it is under pressure.
    ///
    /// A group that goes offline leaves its reclaimers to its parent, as it does its charges. The call makes room for
    /// this group and its ancestors in the rings of reclaim. It takes two locks.
    ///
    /// See [`Reclaim`] for an example.
    pub fn register_reclaimer(&self, reclaimer: Arc<dyn Reclaim>, priority: Priority) -> Registration {
        let reclaimer = Reclaimer::new(reclaimer, priority);
        let tree = self.first().incarnation().tree.counted();
        registrations::register(self.first(), &reclaimer);
        Registration::of_reclaimer(tree, reclaimer)
    }

    /// Asks reclaimers for `bytes` before they are needed. Returns what they freed. It may block: in async code call it
    /// on a thread for blocking work.
    ///
    /// The call asks groups in excess of their soft limits first, then all that are not protected, and last those that
    /// low protects. This group's own protection does not hold against it; that of the groups below does. The call
    /// drains the stocks below.
    ///
    /// It goes on while a reclaimer frees something, and may free more or less than `bytes`. What is freed later, or by
    /// other threads, is not in the report. It counts no event but [`Event::Low`](crate::Event::Low).
    ///
    /// Source: `memory_reclaim` in `mm/memcontrol.c`.
    ///
    /// # Errors
    ///
    /// [`ReclaimError::InReclaim`] inside a reclaimer: reclaim does not nest.
    ///
    /// ```
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let report = runtime.root().reclaim(64 << 20)?;
    /// assert!(report.freed < report.requested, "no reclaimer is registered");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reclaim(&self, bytes: impl Into<Bytes>) -> Result<ReclaimReport, ReclaimError> {
        let Bytes(bytes) = bytes.into();
        repeat::reclaim_now(self.first(), bytes).ok_or_else(|| ReclaimError::InReclaim { group: self.clone() })
    }

    /// Returns whether usage is above the soft limit. Pressure from here or above asks such a group, and all groups
    /// below it, first. One load; exact.
    ///
    /// ```
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().soft(0))?;
    /// assert!(!acme.is_in_excess());
    /// let _held = acme.try_charge(1)?;
    /// assert!(acme.is_in_excess());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_in_excess(&self) -> bool {
        marks::is_in_excess(self.first())
    }

    /// Returns the number of groups below, at any depth, that are above their soft limits. Exact where none crosses
    /// meanwhile. It visits the groups that have one below, and their children.
    ///
    /// Source: `children_in_excess`, soft limit rework (Hocko, 2013).
    ///
    /// ```
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().soft(10))?;
    /// let _held = acme.try_charge(11)?;
    /// assert_eq!((runtime.root().descendants_in_excess(), acme.descendants_in_excess()), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn descendants_in_excess(&self) -> u64 {
        excess::count_below(self.first())
    }

    /// Returns whether pressure on `root` asks this group in its first pass. It does where this group is above its soft
    /// limit, or a group between it and `root` is, `root` included. Groups above `root` do not count.
    ///
    /// Source: `mem_cgroup_soft_reclaim_eligible`, soft limit rework (Hocko, 2013).
    ///
    /// ```
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().soft(0))?;
    /// let query = acme.create("q17", Limits::new())?;
    /// let _held = query.try_charge(1)?;
    /// assert!(query.is_soft_eligible(&runtime.root()), "with acme");
    /// assert!(!query.is_soft_eligible(&query));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_soft_eligible(&self, root: &Group) -> bool {
        excess::is_soft_eligible(self.first(), root.first())
    }

    /// Returns the bytes of usage that min protects against pressure on `root`: this group's share of what the groups
    /// between have. 0 for `root` itself. The call computes it from the counters as they are, with a few loads a level.
    ///
    /// Source: `effective_protection` in `mm/page_counter.c`.
    ///
    /// ```
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().batch(memcg::Bytes(0)).build()?;
    /// let acme = runtime.root().create("acme", Limits::new().min(50))?;
    /// let [a, b] = ["a", "b"].map(|name| acme.create(name, Limits::new().min(100)).unwrap());
    /// let _held = [a.try_charge(100)?, b.try_charge(100)?];
    /// assert_eq!(a.effective_min(&runtime.root()), 25, "acme has 50 for both");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn effective_min(&self, root: &Group) -> u64 {
        effective::protected(self.first(), Protection::Min, root.first())
    }

    /// Returns the bytes of usage that low protects against pressure on `root`, as
    /// [`effective_min`](Self::effective_min) does for min.
    ///
    /// ```
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().low(50))?;
    /// let _held = acme.try_charge(100)?;
    /// assert_eq!((acme.effective_low(&runtime.root()), acme.effective_low(&acme)), (50, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn effective_low(&self, root: &Group) -> u64 {
        effective::protected(self.first(), Protection::Low, root.first())
    }
}
