//! Figures that few programs need: the kernel's own readers, parts of a figure, and figures for
//! adapters.

use std::iter;
use std::time::Duration;

use super::handle::Group;
use super::ledger::Ledger;
use crate::admission::lowered;
use crate::counter::protection::Protection;
use crate::counter::{children, credit, ledger, thresholds};
use crate::hierarchy::{group_tree, limits, stats};
use crate::pressure::{incidents, line, throttle};
use crate::reclaim::{excess, shares};
use crate::stat::visits::UnlistPolicy;
use crate::state::incidents::Incident;
use crate::sync::Ordering;
use crate::units::{Bytes, IntoBytes};

/// # Insides
impl Group {
    /// Returns a view of figures that few programs need: [`GroupInspector`] lists them. Costs
    /// nothing.
    #[inline]
    pub fn inspect(&self) -> GroupInspector<'_> {
        GroupInspector { group: self }
    }
}

/// Figures of a group that few programs need: [`Group::inspect`]. A name that ends in `_local`
/// leaves out what the children that are online account for.
///
/// | | |
/// |---|---|
/// | limits in bytes | [`min`](Self::min), [`low`](Self::low), [`high`](Self::high), [`soft`](Self::soft); [`high_delay`](Self::high_delay) says what a high costs |
/// | a max that moves by itself | [`move_max`](Self::move_max), [`end_vain_waits`](Self::end_vain_waits), [`keep_max`](Self::keep_max), [`shrink_to_max`](Self::shrink_to_max) |
/// | what the root's max leaves out | [`show_uncharged`](Self::show_uncharged), [`uncharged`](Self::uncharged) |
/// | soft limits | [`is_in_excess`](Self::is_in_excess), [`descendants_in_excess`](Self::descendants_in_excess) |
/// | the group alone | [`live_local`](Self::live_local), [`ledger_local`](Self::ledger_local), [`allocated_local`](Self::allocated_local) |
/// | the groups below | [`descendants`](Self::descendants), [`child_count`](Self::child_count), [`top`](Self::top) |
/// | what happened | [`incidents`](Self::incidents), [`underflowed`](Self::underflowed) |
/// | statistics | [`flush`](Self::flush), [`flush_ratelimited`](Self::flush_ratelimited) |
///
/// ```
/// let runtime = memcg::Runtime::builder().build()?;
/// let (root, acme) = (runtime.root(), runtime.root().create("acme", memcg::Limits::new())?);
/// let _held = acme.charge(10)?;
/// assert_eq!((acme.inspect().live_local(), root.inspect().live_local()), (10, 0));
/// assert_eq!(root.inspect().descendants().count(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct GroupInspector<'a> {
    group: &'a Group,
}

impl GroupInspector<'_> {
    /// Returns the [min](crate::Limits::min) in bytes, 0 by default. One load.
    pub fn min(&self) -> u64 {
        thresholds::protection(self.group.first(), Protection::Min)
    }

    /// Returns the [low](crate::Limits::low) in bytes, 0 by default. One load.
    ///
    /// ```
    /// # use memcg::{Limit, Limits};
    /// # let runtime = memcg::Runtime::builder().max(1_000).build()?;
    /// let acme = runtime.root().create("acme", Limits::new().low(Limit::percent(25)))?;
    /// assert_eq!(acme.inspect().low(), 250);
    /// runtime.root().set_max(2_000)?;
    /// assert_eq!(acme.inspect().low(), 500, "worked out again");
    /// assert_eq!(runtime.root().memory().children_low_usage(), 0, "acme uses nothing");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn low(&self) -> u64 {
        thresholds::protection(self.group.first(), Protection::Low)
    }

    /// Returns the [high](crate::Limits::high) in bytes, `u64::MAX` if there is none. One load.
    pub fn high(&self) -> u64 {
        thresholds::high(self.group.first())
    }

    /// Returns the [soft limit](crate::Limits::soft) in bytes, `u64::MAX` if there is none. One
    /// load, and two locks if a group of the runtime has a [share](crate::Limits::share).
    pub fn soft(&self) -> u64 {
        shares::look(self.group.first());
        thresholds::soft(self.group.first())
    }

    /// Tells the runtime how many bytes the max of the root leaves out, because the process uses
    /// them without charging any group. Refusals of the root, its row of a snapshot and
    /// [`uncharged`](Self::uncharged) show the figure; nothing else depends on it. One store.
    /// `memcg-host` calls this (`less_uncharged`).
    ///
    /// ```
    /// # use memcg::Limits;
    ///
    /// let runtime = memcg::Runtime::builder().max(412 << 20).build()?;
    /// let root = runtime.root();
    /// root.inspect().show_uncharged(188 << 20);
    /// let refused = root.charge(500 << 20).unwrap_err().to_string();
    /// assert!(refused.contains("; memory that is not charged holds 188 MiB of what the host leaves"), "{refused}");
    /// assert_eq!((root.inspect().uncharged(), runtime.snapshot().rows()[0].uncharged), (188 << 20, 188 << 20));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn show_uncharged(&self, bytes: impl IntoBytes) {
        group_tree::of(self.group.first())
            .uncharged
            .store(bytes.into_bytes().as_u64(), Ordering::Relaxed);
    }

    /// Sets a max that follows something outside of the program, as
    /// [`GroupCounter::set_max_now`](crate::PageCounter::set_max_now) does, but for a max that may
    /// rise again in a moment: charges that wait, or come to wait, for more than it stay in line
    /// for one second after it has fallen. Percentages in the groups below follow in the same way.
    /// Returns the bytes above the max. `memcg-host` calls this.
    ///
    /// A wait that the max can never serve ends with the first call of
    /// [`end_vain_waits`](Self::end_vain_waits) after that second, and at once where the program
    /// sets the max of that group.
    ///
    /// ```
    /// # use std::future::Future;
    /// # use std::pin::pin;
    /// # use std::task::{Context, Waker};
    /// let runtime = memcg::Runtime::builder().max(1_000).build()?;
    /// let root = runtime.root();
    /// let held = root.charge(900)?;
    /// let mut waits = pin!(root.charge_async(600));
    /// let mut context = Context::from_waker(Waker::noop());
    /// assert!(waits.as_mut().poll(&mut context).is_pending());
    /// assert_eq!(root.inspect().move_max(500), 400);
    /// root.inspect().end_vain_waits();
    /// assert_eq!(root.waiting_count(), 1, "it may be a dip");
    /// root.inspect().move_max(1_000);
    /// drop(held);
    /// assert!(waits.as_mut().poll(&mut context).is_ready());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn move_max(&self, bytes: impl IntoBytes) -> u64 {
        limits::move_max(self.group.first(), bytes.into_bytes().as_u64())
    }

    /// Refuses the charges in line that can never fit any more because a max was
    /// [moved](Self::move_max) below what they ask for, once that max has stood for one second. It
    /// takes two locks, and a step for each move within the last second.
    pub fn end_vain_waits(&self) {
        line::end_waits_of_stood(self.group.first().tree());
    }

    /// Says that nothing [moves the max](Self::move_max) of this group any more: from here on it
    /// counts like one that the program has set, and so do those below that follow it. Charges in
    /// line that can never fit are refused at once. It takes two locks for each move within the
    /// last second.
    pub fn keep_max(&self) {
        line::end_waits_of_moved(self.group.first());
    }

    /// Asks reclaimers for the bytes above max, and cancels groups if the policy says so, as
    /// [`Group::set_max`](crate::Group::set_max) does once it has stored the max. Returns the bytes
    /// that stay above it. It may block for as long as that call: in async code call it on a thread
    /// for blocking work.
    pub fn shrink_to_max(&self) -> u64 {
        lowered::shrink_to_max(self.group.first())
    }

    /// Returns the bytes that [`show_uncharged`](Self::show_uncharged) has set; 0 for a group that
    /// is not the root. One load.
    pub fn uncharged(&self) -> u64 {
        group_tree::uncharged(self.group.first())
    }

    /// Returns the delay above high of a charge of `bytes` that walks the tree now: the greatest
    /// among this group and its ancestors. Charges do not sleep for 10 ms or less. The call costs a
    /// few loads for each level. Above a high it takes the tree's lock to leave credit out, and
    /// drains the credit if that may be all that is above, which takes a barrier. Inside a
    /// reclaimer it does neither, and credit counts.
    ///
    /// Source: `calculate_high_delay` in `mm/memcontrol.c`.
    ///
    /// ```
    /// # use memcg::{Limits, Runtime};
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().high(100 << 20))?;
    /// let _held = acme.force_charge(102 << 20);
    /// assert_eq!(acme.inspect().high_delay(64 * 4096).as_millis(), 25);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn high_delay(&self, bytes: impl IntoBytes) -> Duration {
        let Bytes(bytes) = bytes.into_bytes();
        throttle::delay_now(self.group.first(), bytes)
    }

    /// Returns true if usage is above the soft limit, so that reclaim for this group or one above
    /// asks it, and all groups below it, first. One load, and two locks where a group of the
    /// runtime has a [share](crate::Limits::share); exact.
    ///
    /// ```
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().soft(0))?;
    /// assert!(!acme.inspect().is_in_excess());
    /// let _held = acme.charge(1)?;
    /// assert!(acme.inspect().is_in_excess());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn is_in_excess(&self) -> bool {
        shares::look(self.group.first());
        thresholds::is_in_excess(self.group.first())
    }

    /// Returns the number of groups below, at any depth, that are above their soft limits. It is
    /// exact if none crosses its limit meanwhile. It visits the groups that have such a group below
    /// them, and their children.
    ///
    /// Source: `children_in_excess`, soft limit rework (Hocko, 2013).
    ///
    /// ```
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new().soft(10))?;
    /// let _held = acme.charge(11)?;
    /// assert_eq!((runtime.root().inspect().descendants_in_excess(), acme.inspect().descendants_in_excess()), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn descendants_in_excess(&self) -> u64 {
        shares::look(self.group.first());
        excess::count_below(self.group.first())
    }

    /// Returns the [live](Group::live) bytes without those of the children that are online: the
    /// group's own, and what groups that went offline left behind. It costs a load for each child
    /// more than `live`, and holds no lock over more than a few of them. It is exact as long as no
    /// thread charges meanwhile, otherwise an estimate. If the group
    /// [covers](crate::Limits::cover_allocations) it is the larger of what is reserved and what is
    /// allocated in the group alone.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// let _held = acme.charge(10)?;
    /// assert_eq!((runtime.root().inspect().live_local(), acme.inspect().live_local()), (0, 10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn live_local(&self) -> u64 {
        if self.group.first().cover().is_some() {
            let ledger = self.group.ledger_alone();
            return ledger.reserved().max(ledger.allocated());
        }
        credit::live_local(self.group.first())
    }

    /// Returns the [ledger](Group::ledger) of this group without the groups below that are online:
    /// that of the bytes of [`live_local`](Self::live_local). It costs as much as that call, and
    /// visits the counts of each thread.
    ///
    /// ```
    /// use memcg::allocator::Owner; // what an allocator does
    /// use memcg::{Limits, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// let query = acme.create("q17", Limits::new())?;
    /// let ours = acme.charge(100)?;
    /// let theirs = query.charge(10)?;
    /// let object = acme.run(|| Owner::charge(30));
    /// let ledger = acme.inspect().ledger_local();
    /// assert_eq!((ledger.reserved(), ledger.allocated(), acme.ledger().reserved()), (100, 30, 110));
    /// # unsafe { object.uncharge(30) };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ledger_local(&self) -> Ledger {
        self.group.ledger_alone()
    }

    /// Returns the bytes of the objects that this group owns, without those of any group below,
    /// online or offline. It allocates nothing.
    pub fn allocated_local(&self) -> u64 {
        ledger::own(self.group.first()).allocated
    }

    /// Returns the groups below that are online, parents first. Groups may be created and go
    /// offline meanwhile: the walk looks up the children of a group when it reaches that group.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let query = runtime.root().create("acme", memcg::Limits::new())?.create("q17", memcg::Limits::new())?;
    /// let paths: Vec<_> = runtime.root().inspect().descendants().map(|group| group.path()).collect();
    /// assert_eq!(paths, ["/acme", "/acme/q17"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn descendants(&self) -> impl Iterator<Item = Group> + use<> {
        let mut next = self.group.children();
        iter::from_fn(move || {
            let group = next.pop()?;
            next.extend(group.children());
            Some(group)
        })
    }

    /// Returns the number of groups directly below that are online. One load.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// let acme = runtime.root().create("acme", memcg::Limits::new())?;
    /// assert_eq!((runtime.root().inspect().child_count(), acme.inspect().child_count()), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn child_count(&self) -> usize {
        self.group.first().child_count().get() as usize
    }

    /// Returns the `n` children of largest usage with the usage of each in bytes, the largest
    /// first. The call reads them one after the other, and holds a lock over only a few at a time:
    /// a child that is created or goes offline meanwhile may be missing. It keeps few of them: of a
    /// million children it takes some ten handles for each of the `n`.
    ///
    /// ```
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().batch(memcg::Bytes(0)).build()?;
    /// let [a, b] = ["a", "b"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    /// let _held = [a.charge(1)?, b.charge(2)?];
    /// assert_eq!(runtime.root().inspect().top(1), [(b, 2)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn top(&self, n: usize) -> Vec<(Group, u64)> {
        let largest = children::largest(self.group.first(), n).into_iter();
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
    /// use memcg::figures::IncidentKind;
    /// use memcg::{Limits, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// runtime.keep_incidents(100);
    /// let acme = runtime.root().create("acme", Limits::new().max(100))?;
    /// let query = acme.create("q17", Limits::new())?;
    /// assert!(query.charge(130).is_err());
    /// let incidents = acme.inspect().incidents();
    /// let last = incidents.last().unwrap();
    /// assert_eq!((last.kind, last.group.as_str(), last.limited.as_str()), (IncidentKind::Refused, "/acme/q17", "/acme"));
    /// assert_eq!((last.requested, last.usage, last.max), (130, 0, 100));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn incidents(&self) -> Vec<Incident> {
        incidents::of(self.group.first())
    }

    /// Returns the bytes that were given back to this group and never charged, as far as its usage
    /// was too low for them: a bug of whoever gave them back. Each time is an
    /// [`Event::Underflow`](crate::Event::Underflow). What lies as credit is not among them yet;
    /// [`Runtime::verify`](crate::Runtime::verify) has both. One load; it allocates nothing.
    ///
    /// ```
    /// use memcg::{Event, Limits, Runtime};
    ///
    /// let runtime = Runtime::builder().batch(memcg::Bytes(0)).build()?;
    /// let acme = runtime.root().create("acme", Limits::new())?;
    /// acme.raw().charge(100)?;
    /// acme.raw().uncharge(130); // a bug
    /// assert_eq!((acme.inspect().underflowed(), acme.events().get(Event::Underflow)), (30, 1));
    /// assert!(runtime.verify().to_string().contains("/acme: 30 uncharged that were never charged"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn underflowed(&self) -> u64 {
        self.group.first().underflowed()
    }

    /// Publishes all statistics that were written in this subtree before the call. It costs half of
    /// an [exact](crate::Freshness::Exact) read.
    ///
    /// Source: `do_flush_stats` in `mm/memcontrol.c`.
    pub fn flush(&self) {
        stats::flush(self.group.first(), UnlistPolicy::Many);
    }

    /// Does what [`flush`](Self::flush) does if more than
    /// [`Freshness::Threshold`](crate::Freshness::Threshold) allows may be missing, and the
    /// periodic flush is more than one full cycle late. Returns true if it flushed.
    ///
    /// Source: `mem_cgroup_flush_stats_ratelimited` in `mm/memcontrol.c`.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// # let root = runtime.root();
    /// root.stat_add(memcg::StatKey::SLAB, 1 << 30);
    /// assert!(!root.inspect().flush_ratelimited(), "the runtime has just begun");
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn flush_ratelimited(&self) -> bool {
        stats::flush_ratelimited(self.group.first())
    }
}
