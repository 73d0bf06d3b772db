//! Figures and settings that few programs need: the kernel's own readers, parts of a figure, and
//! figures for adapters.

use std::iter;
use std::time::Duration;

use super::handle::Group;
use super::ledger::Ledger;
use crate::admission::lowered;
use crate::counter::protection::Protection;
use crate::counter::{children, credit, ledger, marks};
use crate::hierarchy::{group_tree, stats};
use crate::pressure::{incidents, observe, throttle, victims};
use crate::reclaim::{excess, shares};
use crate::stat::visits::Unlist;
use crate::state::incidents::Incident;
use crate::state::oom::{EXEMPT, TOGETHER};
use crate::sync::Ordering;
use crate::units::{Bytes, IntoBytes};

/// Figures and settings of a group beside those of [`Group`]. A name that ends in `_local` leaves
/// out what the children that are online account for.
///
/// | | |
/// |---|---|
/// | limits in bytes | [`min`](Self::min), [`low`](Self::low), [`high`](Self::high), [`soft`](Self::soft); [`high_delay`](Self::high_delay) says what a high costs |
/// | what the root's max leaves out | [`show_uncharged`](Self::show_uncharged), [`uncharged`](Self::uncharged) |
/// | limits that only count | [`set_observe_only`](Self::set_observe_only), [`is_observe_only`](Self::is_observe_only) |
/// | soft limits | [`is_in_excess`](Self::is_in_excess), [`descendants_in_excess`](Self::descendants_in_excess) |
/// | the group alone | [`live_local`](Self::live_local), [`ledger_local`](Self::ledger_local), [`allocated_local`](Self::allocated_local) |
/// | victims | [`set_oom_group`](Self::set_oom_group), [`set_oom_exempt`](Self::set_oom_exempt), and what was set |
/// | the groups below | [`descendants`](Self::descendants), [`top`](Self::top) |
/// | what happened | [`incidents`](Self::incidents) |
/// | statistics | [`flush`](Self::flush), [`flush_ratelimited`](Self::flush_ratelimited) |
///
/// ```
/// use memcg::expert::Inspect;
///
/// let runtime = memcg::Runtime::builder().build()?;
/// let acme = runtime.root().create("acme", memcg::Limits::new())?;
/// let _held = acme.charge(10)?;
/// assert_eq!((acme.live_local(), runtime.root().live_local()), (10, 0));
/// assert_eq!(runtime.root().descendants().count(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Inspect: ThisGroup {
    /// Returns the bytes that reclaim never touches, 0 by default. One load.
    fn min(&self) -> u64 {
        marks::protection(self.this().first(), Protection::Min)
    }

    /// Returns the bytes that reclaim touches last, 0 by default. One load.
    ///
    /// ```
    /// # use memcg::expert::Inspect as _;
    /// # use memcg::{Limit, Limits};
    /// # let runtime = memcg::Runtime::builder().max(1_000).build()?;
    /// let acme = runtime.root().create("acme", Limits::new().low(Limit::percent(25)))?;
    /// assert_eq!(acme.low(), 250);
    /// runtime.root().set_max(2_000)?;
    /// assert_eq!(acme.low(), 500, "worked out again");
    /// assert_eq!(runtime.root().memory().children_low_usage(), 0, "acme uses nothing");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn low(&self) -> u64 {
        marks::protection(self.this().first(), Protection::Low)
    }

    /// Returns the high in bytes, `u64::MAX` if there is none. One load.
    fn high(&self) -> u64 {
        marks::high(self.this().first())
    }

    /// Returns the soft limit in bytes, `u64::MAX` if there is none. One load, and two locks where
    /// a group of the runtime has a [share](crate::Limits::share).
    fn soft(&self) -> u64 {
        shares::look(self.this().first().tree());
        marks::soft(self.this().first())
    }

    /// Tells the runtime how many bytes the max of the root leaves out, because memory of the
    /// process holds them that no group is charged for. Refusals of the root, its row of a snapshot
    /// and [`uncharged`](Self::uncharged) show the figure; nothing else depends on it. One store.
    /// `memcg-host` calls this (`less_uncharged`).
    ///
    /// ```
    /// # use memcg::Limits;
    /// use memcg::expert::Inspect as _;
    ///
    /// let runtime = memcg::Runtime::builder().max(412 << 20).build()?;
    /// let root = runtime.root();
    /// root.show_uncharged(188 << 20);
    /// let refused = root.charge(500 << 20).unwrap_err().to_string();
    /// assert!(refused.contains("; memory that is not charged holds 188 MiB of what the host leaves"), "{refused}");
    /// assert_eq!((root.uncharged(), runtime.snapshot().rows()[0].uncharged), (188 << 20, 188 << 20));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    fn show_uncharged(&self, bytes: impl IntoBytes) {
        group_tree::of(self.this().first())
            .uncharged
            .store(bytes.into_bytes().as_u64(), Ordering::Relaxed);
    }

    /// Returns the bytes that [`show_uncharged`](Self::show_uncharged) has set; 0 for a group that
    /// is not the root. One load.
    fn uncharged(&self) -> u64 {
        group_tree::uncharged(self.this().first())
    }

    /// Returns the delay of a charge of `bytes` that walks the tree now: the greatest delay among
    /// this group and its ancestors. Charges do not sleep for 10 ms or less. The call costs a few
    /// loads a level. Above a high the call takes the tree's lock and counts credit out; where credit
    /// alone may be above, it drains that, which takes a barrier. That it does not do inside a reclaimer,
    /// where credit counts.
    ///
    /// Source: `calculate_high_delay` in `mm/memcontrol.c`.
    ///
    /// ```
    /// # use memcg::expert::Inspect as _;
    /// # use memcg::{Limits, Runtime};
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().high(100 << 20))?;
    /// let _held = acme.force_charge(102 << 20);
    /// assert_eq!(acme.high_delay(64 * 4096).as_millis(), 25);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn high_delay(&self, bytes: impl IntoBytes) -> Duration {
        let Bytes(bytes) = bytes.into_bytes();
        throttle::delay_now(self.this().first(), bytes)
    }

    /// Makes the limits here and below only count, or act again. It may block: in async code use a
    /// thread for blocking work.
    ///
    /// A charge that the max or high there would have refused or delayed is let through. For a max,
    /// the group of that max counts [`Event::Max`](crate::Event::Max) and
    /// [`Event::Observed`](crate::Event::Observed). No group is asked to give anything back for
    /// such charges. Limits above this group hold.
    ///
    /// The setting holds for further counters, too. Charges that wait here when it begins are made
    /// at once. When the limits act again, bytes above a max count as if they had been
    /// [forced](Group::forced), and reclaimers are asked for them. The call takes the tree's lock
    /// and looks at all groups below.
    ///
    /// ```
    /// # use memcg::expert::Inspect as _;
    /// # use memcg::{Event, Limits, Runtime};
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().max(100))?;
    /// acme.set_observe_only(true);
    /// assert!(acme.is_observe_only() && acme.create("q17", Limits::new())?.is_observe_only());
    /// let _held = acme.charge(130)?;
    /// assert_eq!((acme.usage(), acme.events().get(Event::Observed)), (130, 1));
    /// acme.set_observe_only(false);
    /// assert!(acme.charge(1).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn set_observe_only(&self, observe: bool) {
        observe::set(self.this().first(), observe);
        if !observe && !self.this().first().is_observed() {
            lowered::shrink_all(self.this().first());
        }
    }

    /// Returns true if the limits of this group or of an ancestor only count. One load.
    fn is_observe_only(&self) -> bool {
        self.this().first().is_observed()
    }

    /// Returns whether usage is above the soft limit. Pressure from here or above asks such a
    /// group, and all groups below it, first. One load, and two locks where a group of the runtime
    /// has a [share](crate::Limits::share); exact.
    ///
    /// ```
    /// # use memcg::expert::Inspect as _;
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().soft(0))?;
    /// assert!(!acme.is_in_excess());
    /// let _held = acme.charge(1)?;
    /// assert!(acme.is_in_excess());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn is_in_excess(&self) -> bool {
        shares::look(self.this().first().tree());
        marks::is_in_excess(self.this().first())
    }

    /// Returns the number of groups below, at any depth, that are above their soft limits. Exact
    /// where none crosses meanwhile. It visits the groups that have one below, and their children.
    ///
    /// Source: `children_in_excess`, soft limit rework (Hocko, 2013).
    ///
    /// ```
    /// # use memcg::expert::Inspect as _;
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().soft(10))?;
    /// let _held = acme.charge(11)?;
    /// assert_eq!((runtime.root().descendants_in_excess(), acme.descendants_in_excess()), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn descendants_in_excess(&self) -> u64 {
        shares::look(self.this().first().tree());
        excess::count_below(self.this().first())
    }

    /// Returns the [live](Group::live) bytes without those of the children that are online. That is
    /// the group's own, and what groups that went offline left behind. It costs one load for each
    /// child, and holds no lock over more than a few. It is exact at every quiescent point, an
    /// estimate while other threads charge. Where the group
    /// [covers](crate::Limits::cover_allocations) it is the larger of what is reserved and what is
    /// allocated in the group alone.
    ///
    /// ```
    /// # use memcg::expert::Inspect as _;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// let _held = acme.charge(10)?;
    /// assert_eq!((runtime.root().live_local(), acme.live_local()), (0, 10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn live_local(&self) -> u64 {
        if self.this().first().cover().is_some() {
            let ledger = self.this().ledger_alone();
            return ledger.reserved().max(ledger.allocated());
        }
        credit::live_local(self.this().first())
    }

    /// Returns the [ledger](Group::ledger) of this group without the groups below that are online:
    /// that of the bytes of [`live_local`](Self::live_local). It costs as much as that call, and
    /// visits the counts of each thread.
    ///
    /// ```
    /// use memcg::allocator::Owner; // what an allocator does
    /// use memcg::expert::Inspect as _;
    /// use memcg::{Limits, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// let query = acme.create("q17", Limits::new())?;
    /// let (ours, theirs) = (acme.charge(100)?, query.charge(10)?);
    /// let object = acme.run(|| Owner::charge(30));
    /// let ledger = acme.ledger_local();
    /// assert_eq!((ledger.reserved(), ledger.allocated(), acme.ledger().reserved()), (100, 30, 110));
    /// # unsafe { object.uncharge(30) };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn ledger_local(&self) -> Ledger {
        self.this().ledger_alone()
    }

    /// Returns the bytes of the objects that this group owns, without those of any group below,
    /// online or offline. It allocates nothing.
    fn allocated_local(&self) -> u64 {
        ledger::own(self.this().first()).allocated
    }

    /// With true, compares the whole subtree of this group as one, and cancels all of it if any of
    /// its groups is chosen.
    ///
    /// Source: `memory.oom.group`.
    ///
    /// ```
    /// # use memcg::expert::Inspect as _;
    /// let runtime = memcg::Runtime::builder().build()?;
    /// let root = runtime.root();
    /// root.set_oom_group(true);
    /// root.set_oom_exempt(true);
    /// assert!(root.oom_group() && root.oom_exempt());
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    fn set_oom_group(&self, together: bool) {
        victims::marks(self.this().first()).set(TOGETHER, together);
    }

    /// Returns the setting of [`set_oom_group`](Self::set_oom_group).
    fn oom_group(&self) -> bool {
        victims::marks(self.this().first()).has(TOGETHER)
    }

    /// With true, never cancels this group and the groups below it, not even with the subtree that
    /// they are in.
    ///
    /// Source: an `oom_score_adj` of -1000.
    fn set_oom_exempt(&self, exempt: bool) {
        victims::marks(self.this().first()).set(EXEMPT, exempt);
    }

    /// Returns the group's own setting of [`set_oom_exempt`](Self::set_oom_exempt).
    fn oom_exempt(&self) -> bool {
        victims::marks(self.this().first()).has(EXEMPT)
    }

    /// Returns the groups below that are online, parents first. Groups may be created and go
    /// offline meanwhile: the walk looks up the children of a group when it reaches that group.
    ///
    /// ```
    /// # use memcg::expert::Inspect as _;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let query = runtime.root().create("acme", memcg::Limits::new())?.create("q17", memcg::Limits::new())?;
    /// let paths: Vec<_> = runtime.root().descendants().map(|group| group.path()).collect();
    /// assert_eq!(paths, ["/acme", "/acme/q17"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn descendants(&self) -> Box<dyn Iterator<Item = Group>> {
        let mut next = self.this().children();
        Box::new(iter::from_fn(move || {
            let group = next.pop()?;
            next.extend(group.children());
            Some(group)
        }))
    }

    /// Returns how many groups directly below are online. One load.
    ///
    /// ```
    /// # use memcg::expert::Inspect as _;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// assert_eq!((runtime.root().child_count(), acme.child_count()), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn child_count(&self) -> usize {
        self.this().first().child_count().get() as usize
    }

    /// Returns the `n` children of largest usage with the usage of each in bytes, the largest
    /// first. The call reads them one after the other, and locks only a few at a time: a child that
    /// is created or goes offline meanwhile may be missing. It keeps few of them at a time: of a
    /// million it takes some ten handles for each of the `n`.
    ///
    /// ```
    /// # use memcg::Limits;
    /// # use memcg::expert::Inspect as _;
    /// # let runtime = memcg::Runtime::builder().batch(memcg::Bytes(0)).build()?;
    /// let [a, b] = ["a", "b"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    /// let _held = [a.charge(1)?, b.charge(2)?];
    /// assert_eq!(runtime.root().top(1), [(b, 2)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn top(&self, n: usize) -> Vec<(Group, u64)> {
        let largest = children::largest(self.this().first(), n).into_iter();
        largest
            .map(|(child, usage)| (Group::from_handle(child), usage))
            .collect()
    }

    /// Returns the last refusals and victims of this group and of the groups below it, the oldest
    /// first. A refusal belongs to the group that asked and to the group whose max was met. The
    /// list is empty unless [`Runtime::keep_incidents`](crate::Runtime::keep_incidents) has asked
    /// to keep incidents.
    ///
    /// The call finds groups by their paths, so incidents of an earlier group of the same path are
    /// among them. It takes one lock and copies what it returns.
    ///
    /// ```
    /// use memcg::expert::Inspect as _;
    /// use memcg::figures::IncidentKind;
    /// use memcg::{Limits, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// runtime.keep_incidents(100);
    /// let acme = runtime.root().create("acme", Limits::new().max(100))?;
    /// let query = acme.create("q17", Limits::new())?;
    /// assert!(query.charge(130).is_err());
    /// let incidents = acme.incidents();
    /// let last = incidents.last().unwrap();
    /// assert_eq!((last.kind, last.group.as_str(), last.limited.as_str()), (IncidentKind::Refused, "/acme/q17", "/acme"));
    /// assert_eq!((last.requested, last.usage, last.max), (130, 0, 100));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn incidents(&self) -> Vec<Incident> {
        incidents::of(self.this().first())
    }

    /// Publishes all statistics that were written in this subtree before the call. It costs half of
    /// an [exact](crate::Freshness::Exact) read.
    ///
    /// Source: `do_flush_stats` in `mm/memcontrol.c`.
    fn flush(&self) {
        stats::flush(self.this().first(), Unlist::Many);
    }

    /// Does what [`flush`](Self::flush) does if more than
    /// [`Freshness::Threshold`](crate::Freshness::Threshold) allows may be missing, and the
    /// periodic flush is more than one full cycle late. Returns true if it flushed.
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
    fn flush_ratelimited(&self) -> bool {
        stats::flush_ratelimited(self.this().first())
    }
}

/// Only a group has these figures.
pub trait ThisGroup {
    fn this(&self) -> &Group;
}

impl ThisGroup for Group {
    fn this(&self) -> &Group {
        self
    }
}

impl Inspect for Group {}
