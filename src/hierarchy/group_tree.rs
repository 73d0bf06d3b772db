//! Shared state of the policies of a tree of groups, and the one cast that leads from a tree to it.

use std::ptr;
use std::time::{Duration, Instant};

use crate::counter::handle::WeakCounter;
use crate::counter::object::tree::Tree;
use crate::counter::object::{Counter, CounterRef};
use crate::hierarchy::declared_counters::{CounterDecl, DeclaredCounters};
use crate::numa::config::Numa;
use crate::pool::{Cache, PoolAlign};
use crate::stat::Unit;
use crate::stat::coordinator::Coordinator;
use crate::state::events::event_cache;
use crate::state::incidents::Incidents;
use crate::state::listeners::Listeners;
use crate::state::oom::Oom;
use crate::state::reclaim::{RECLAIM_TIME, RegisteredReclaimers, Rings};
use crate::state::shares::Shares;
use crate::state::started::StartedWork;
use crate::state::waiting::Waiting;
use crate::sync::clock;
use crate::sync::lock::{Lock, Rank};
use crate::sync::stat_atomic::{AtomicBool, AtomicU32, AtomicU64};
use crate::sync::{CachePadded, Ordering, Shared};

/// Shared state of all groups of a tree: behind `Tree::policies`.
pub(crate) struct GroupTree {
    pub(crate) made: Instant,
    pub(crate) settings: GroupSettings,
    pub(crate) further: DeclaredCounters,
    /// The number of groups, dying ones included, where it is limited. On a line of its own: each
    /// life of a group writes it, and each reads the fields beside it.
    pub(crate) groups: CachePadded<AtomicU32>,
    /// Bytes of names that lie outside of their groups.
    pub(crate) name_bytes: AtomicU64,
    pub(crate) stats: Coordinator,
    pub(crate) numa: Numa,
    /// Counts of events come from it.
    pub(crate) events: Shared<Cache>,
    /// Counters that have counts of events.
    pub(crate) event_counts: AtomicU64,
    pub(crate) reclaimers: Lock<RegisteredReclaimers>,
    pub(crate) rings: Lock<Rings<WeakCounter>>,
    pub(crate) waiting: Lock<Waiting>,
    pub(crate) listeners: Lock<Listeners>,
    pub(crate) oom: Lock<Oom>,
    pub(crate) started: Lock<StartedWork>,
    pub(crate) incidents: Incidents,
    pub(crate) stalls: Lock<Stalls>,
    /// Bytes that the root's max leaves out: memory of the process that no group is charged for. A
    /// figure alone.
    pub(crate) uncharged: AtomicU64,
    pub(crate) shares: Lock<Shares>,
    /// A spec is being applied to a group of the tree. A flag under a lock, not the lock itself:
    /// reclaimers run meanwhile.
    pub(crate) applying: Lock<bool>,
    /// A group has, or had, a share.
    pub(crate) any_shares: AtomicBool,
    /// A group has, or had, thresholds of pressure.
    pub(crate) any_pressure: AtomicBool,
}

/// The lock of all [`StallTimes`](crate::state::stalls::StallTimes) of a tree holds these.
pub(crate) struct Stalls {
    /// From here on the moments of the tree are counted.
    pub(crate) began: Instant,
    /// The latest moment so far.
    pub(crate) latest: u64,
    /// A stall that no group counts yet.
    pub(crate) deferred: Option<DeferredStall>,
    /// Stalls that were deferred.
    pub(crate) numbers: u64,
}

/// A stall that has begun. Its owner keeps the group.
#[derive(Clone, Copy)]
pub(crate) struct DeferredStall {
    pub(crate) number: u64,
    pub(crate) group: CounterRef,
    pub(crate) level: CounterRef,
    pub(crate) since: Instant,
}

/// Settings of a tree of groups, beside those of its counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupSettings {
    pub(crate) pool_align: PoolAlign,
    pub(crate) groups_max: u32,
    pub(crate) reclaim_time: Duration,
    /// The longest delay of a charge above high.
    pub(crate) delay_max: Duration,
    /// The time that a charge waits for one victim's memory.
    pub(crate) oom_time: Duration,
    /// Groups count for how long their chargers stand still.
    pub(crate) counts_stalls: bool,
}

impl GroupSettings {
    /// Unless configured otherwise. The delay is MEMCG_MAX_HIGH_DELAY_JIFFIES.
    pub(crate) const DEFAULT: GroupSettings = GroupSettings {
        pool_align: PoolAlign::CacheLine,
        groups_max: u32::MAX,
        reclaim_time: RECLAIM_TIME,
        delay_max: Duration::from_secs(2),
        oom_time: Duration::from_secs(1),
        counts_stalls: true,
    };
}

/// A builder's configuration of a tree of groups.
pub(crate) struct GroupConfig {
    pub(crate) settings: GroupSettings,
    pub(crate) further: DeclaredCounters,
    pub(crate) stats: Coordinator,
    pub(crate) numa: Numa,
}

impl GroupTree {
    pub(crate) fn new(
        GroupConfig {
            settings,
            further,
            stats,
            numa,
        }: GroupConfig,
    ) -> GroupTree {
        let stalls = Stalls {
            began: clock::now(),
            latest: 0,
            deferred: None,
            numbers: 0,
        };
        GroupTree {
            made: clock::now(),
            settings,
            further,
            groups: CachePadded::new(AtomicU32::new(0)),
            name_bytes: AtomicU64::new(0),
            stats,
            numa,
            events: event_cache(settings.pool_align),
            event_counts: AtomicU64::new(0),
            reclaimers: Lock::new(Rank::Bookkeeping, RegisteredReclaimers::default()),
            rings: Lock::new(Rank::Rings, Rings::default()),
            waiting: Lock::new(Rank::Waiting, Waiting::default()),
            listeners: Lock::new(Rank::Bookkeeping, Listeners::default()),
            oom: Lock::new(Rank::Bookkeeping, Oom::default()),
            started: Lock::new(Rank::Bookkeeping, StartedWork::default()),
            incidents: Incidents::new(),
            stalls: Lock::new(Rank::Bookkeeping, stalls),
            uncharged: AtomicU64::new(0),
            shares: Lock::new(Rank::Bookkeeping, Shares::default()),
            applying: Lock::new(Rank::Bookkeeping, false),
            any_shares: AtomicBool::new(false),
            any_pressure: AtomicBool::new(false),
        }
    }

    /// The counters of the root.
    pub(crate) fn counters_of_root(&self) -> usize {
        1 + self.further.count_at_root()
    }

    /// The counters of each group below the root.
    pub(crate) fn counters_below(&self) -> usize {
        1 + self.further.count()
    }

    /// The counters of that group.
    pub(crate) fn counters_of(&self, group: &Counter) -> usize {
        if group.parent().is_none() {
            self.counters_of_root()
        } else {
            self.counters_below()
        }
    }
}

/// Returns the shared state of a tree's groups; `None` for a tree of bare counters.
#[inline]
#[allow(unsafe_code)]
pub(crate) fn if_groups(tree: &Tree) -> Option<&GroupTree> {
    tree.policies()
        // SAFETY: `GroupTree` is the only type that implements `Policies`.
        .map(|policies| unsafe { &*ptr::from_ref(policies).cast::<GroupTree>() })
}

#[inline]
pub(crate) fn shared(tree: &Tree) -> &GroupTree {
    if_groups(tree).expect("a tree of groups")
}

#[inline]
pub(crate) fn of(group: &Counter) -> &GroupTree {
    shared(group.tree())
}

/// The name of a further counter of a group; `None` for its first.
pub(crate) fn further_name(counter: &Counter) -> Option<&str> {
    further(counter).map(|further| &*further.name)
}

/// Bytes that the max of this counter leaves out, because no group is charged for them; 0 for all
/// but the root's memory.
pub(crate) fn uncharged(counter: &Counter) -> u64 {
    let is_root = counter.is_memory() && counter.parent().is_none();
    if is_root {
        of(counter).uncharged.load(Ordering::Relaxed)
    } else {
        0
    }
}

/// Returns the unit that a counter of a group counts in.
pub(crate) fn unit(counter: &Counter) -> Unit {
    further(counter).map_or(Unit::Bytes, |further| further.unit)
}

fn further(counter: &Counter) -> Option<&CounterDecl> {
    of(counter).further.get(counter.number_in_group())
}

/// The caches of a tree's objects; that of groups first.
pub(crate) fn caches(tree: &Tree) -> impl Iterator<Item = &Cache> {
    let groups = shared(tree);
    [
        Some(&tree.pool),
        tree.pool_below.get(),
        Some(&groups.events),
    ]
    .into_iter()
    .flatten()
    .map(|cache| &**cache)
    .chain(groups.stats.caches())
}
