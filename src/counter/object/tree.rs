//! What all counters of a tree share, and what the tree keeps about each.

use std::ptr::NonNull;

use crate::counter::config::{BUDGET_SHARE, CounterConfig};
use crate::counter::door::Policies;
use crate::counter::incarnation::Generation;
use crate::counter::links::Hierarchy;
use crate::counter::make::group_cache;
use crate::counter::object::{Counter, USAGE_MAX};
use crate::counter::peak::Windows;
use crate::counter::stocks::Stocks;
use crate::hierarchy::events::event_cache;
use crate::lifecycle::own_bytes::Own;
use crate::numa::config::Numa;
use crate::pool::{Cache, PoolAlign};
use crate::pressure::line::Waiting;
use crate::pressure::listeners::Listeners;
use crate::pressure::victims::Oom;
use crate::reclaim::shared::{ReclaimConfig, ReclaimShared};
use crate::stat::coordinator::Coordinator;
use crate::sync::barrier::{Barrier, BarrierState};
use crate::sync::lock::{Lock, Rank};
use crate::sync::stat_atomic::{AtomicU32, AtomicU64};
use crate::sync::{Arc, Ordering, Shared};
use crate::thread::audit::Cell as AuditCell;
use crate::thread::directory::SlotIndex;
use crate::thread::registry::{Registrar, registry};
use crate::thread::slot::Slot;

/// What all counters of a tree share.
pub(crate) struct Tree {
    /// Tells transits of this tree from those of others. Two trees with one number only wait for each other's transits.
    pub(crate) number: u32,
    pub(crate) registry: Registrar,
    pub(crate) barrier: Barrier,
    pub(crate) adaptive: bool,
    pub(crate) audited: bool,
    pub(crate) config: CounterConfig,
    /// The policies that charges ask and notify; none for bare counters.
    pub(crate) policies: Option<&'static dyn Policies>,
    /// The cache that its groups come from.
    pub(crate) pool: Shared<Cache>,
    /// The cache that their counts of events come from. Of a tree of groups.
    pub(crate) events: Option<Shared<Cache>>,
    /// The counters that each of its groups has beside memory.
    pub(crate) further: Box<[CounterDecl]>,
    /// The most groups at a time.
    pub(crate) groups_max: u32,
    /// Of a tree of groups.
    pub(crate) stats: Option<Coordinator>,
    pub(crate) counts: TreeCounts,
    /// The tree's lock.
    pub(crate) stocks: Lock<Stocks>,
    pub(crate) hierarchy: Hierarchy,
    /// The number of groups, dying ones included, where it is limited.
    pub(crate) groups: AtomicU32,
    pub(crate) reclaim: ReclaimConfig,
    /// Of a tree of groups.
    numa: Option<Numa>,
    pub(crate) reclaim_shared: ReclaimShared<(&'static Counter, Generation)>,
    /// Charges that wait for room.
    pub(crate) waiting: Lock<Waiting>,
    /// Threads that wait for events, and listeners.
    pub(crate) listeners: Lock<Listeners>,
    /// Victims that can be cancelled, and those that have been.
    pub(crate) oom: Lock<Oom>,
    /// Readers with peaks of their own.
    pub(crate) windows: Lock<Windows>,
    pub(crate) own: Own,
}

/// What a tree of groups has beside its counters.
pub(crate) struct OfGroups {
    pub(crate) policies: &'static dyn Policies,
    pub(crate) pool_align: PoolAlign,
    pub(crate) further: Box<[CounterDecl]>,
    pub(crate) groups_max: u32,
    pub(crate) stats: Coordinator,
    pub(crate) reclaim: ReclaimConfig,
    pub(crate) numa: Numa,
}

/// The tree of a counter. Its roots hold counted references; all other counters keep their parents, and so the tree. If
/// each group changed the count, all threads would write one word.
pub(crate) struct OfTree {
    tree: NonNull<Tree>,
    is_root: bool,
}

impl OfTree {
    pub(crate) fn root(tree: &Arc<Tree>) -> OfTree {
        let tree = Arc::into_raw(Arc::clone(tree)).cast_mut();
        OfTree { tree: NonNull::new(tree).expect("an Arc points somewhere"), is_root: true }
    }

    /// For a counter below, which ends before this one.
    pub(crate) fn below(&self) -> OfTree {
        OfTree { tree: self.tree, is_root: false }
    }

    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn get(&self) -> &Tree {
        // SAFETY: the root above holds a counted reference, and its children keep the root.
        unsafe { self.tree.as_ref() }
    }

    /// A counted reference, for a caller that needs the tree after the counter.
    #[allow(unsafe_code)]
    pub(crate) fn counted(&self) -> Arc<Tree> {
        // SAFETY: the pointer is from `Arc::into_raw` in `root`, and the root's reference is still counted, as above.
        unsafe {
            Arc::increment_strong_count(self.tree.as_ptr());
            Arc::from_raw(self.tree.as_ptr())
        }
    }
}

impl Drop for OfTree {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        if self.is_root {
            // SAFETY: the pointer is from `Arc::into_raw` in `root`; no counter is below the root any more.
            drop(unsafe { Arc::from_raw(self.tree.as_ptr()) });
        }
    }
}

/// A counter that every group has beside memory.
#[derive(Clone, Debug)]
pub(crate) struct CounterDecl {
    pub(crate) name: Box<str>,
    /// The builder that declared it.
    pub(crate) builder: u64,
}

/// Event counts of a tree; nothing depends on them.
#[derive(Default)]
pub(crate) struct TreeCounts {
    pub(crate) drains: AtomicU64,
    pub(crate) drained: AtomicU64,
    pub(crate) refused_in_transit: AtomicU64,
    pub(crate) underflows: AtomicU64,
    pub(crate) overflows: AtomicU64,
    pub(crate) discarded: AtomicU64,
    /// Counters that have counts of events.
    pub(crate) event_counts: AtomicU64,
    /// Bytes of names that lie outside of their counters.
    pub(crate) name_bytes: AtomicU64,
}

// === impl Tree ===

impl Tree {
    pub(crate) fn new(config: CounterConfig) -> Arc<Tree> {
        Tree::make(config, group_cache(1, 1, PoolAlign::default()), None)
    }

    pub(crate) fn of_groups(config: CounterConfig, groups: OfGroups) -> Arc<Tree> {
        let pool = group_cache(1 + groups.further.len(), groups.stats.nodes, groups.pool_align);
        Tree::make(config, pool, Some(groups))
    }

    fn make(config: CounterConfig, pool: Shared<Cache>, groups: Option<OfGroups>) -> Arc<Tree> {
        static NUMBERS: AtomicU32 = AtomicU32::new(1);
        let events = groups.as_ref().map(|groups| event_cache(groups.pool_align));
        let policies = groups.as_ref().map(|groups| groups.policies);
        let (further, groups_max, reclaim, stats, numa) = match groups {
            Some(OfGroups { further, groups_max, reclaim, stats, numa, .. }) => {
                (further, groups_max, reclaim, Some(stats), Some(numa))
            }
            None => (Box::default(), u32::MAX, ReclaimConfig::default(), None, None),
        };
        Arc::new(Tree {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            registry: registry(),
            barrier: Barrier::new(config.barrier),
            adaptive: config.adaptive,
            audited: config.audit,
            config,
            policies,
            pool,
            events,
            further,
            groups_max,
            stats,
            counts: TreeCounts::default(),
            stocks: Lock::new(Rank::Stocks, Stocks::default()),
            hierarchy: Hierarchy::new(),
            groups: AtomicU32::new(0),
            reclaim,
            numa,
            reclaim_shared: ReclaimShared::new(),
            waiting: Lock::new(Rank::Waiting, Waiting::default()),
            listeners: Lock::new(Rank::Bookkeeping, Listeners::default()),
            oom: Lock::new(Rank::Bookkeeping, Oom::default()),
            windows: Lock::new(Rank::Bookkeeping, Windows::default()),
            own: Own::new(),
        })
    }

    /// What the tree's runtime knows of memory nodes.
    #[inline]
    pub(crate) fn numa(&self) -> &Numa {
        self.numa.as_ref().expect("a tree of groups knows its nodes")
    }

    /// Audited live charge of one counter, over all threads.
    pub(crate) fn audited_live(&self, counter: &Counter) -> i64 {
        let cells = self.registry.blocks().filter_map(|block| block.audit(counter.index)).map(AuditCell::live);
        // Cumulative counts wrap, and so do their sums: the difference is right.
        cells.fold(counter.usage.audit_shared.live(), i64::wrapping_add)
    }

    /// Credit of one counter, over all threads.
    pub(crate) fn credit(&self, counter: &Counter) -> u64 {
        self.registry.blocks().filter_map(|block| block.slot(counter.index)).map(Slot::available).sum()
    }
}

// === impl Counter: what the tree keeps about it ===

impl Counter {
    /// The counter's position in its group; 0 for a counter alone.
    pub(crate) fn number_in_group(&self) -> usize {
        self.position.into()
    }

    /// The name of a further counter of a group; `None` for its first, and for a counter alone.
    pub(crate) fn further_name(&'static self) -> Option<&'static str> {
        Some(&self.tree().further.get(self.number_in_group().checked_sub(1)?)?.name)
    }

    pub(crate) fn batch(&self) -> u64 {
        self.batch.load(Ordering::Relaxed)
    }

    /// The published bound on the credit below this level.
    pub(crate) fn bound(&self) -> u64 {
        self.bound.load(Ordering::Relaxed)
    }

    /// Charges refused at this level.
    pub(crate) fn refusals(&self) -> u64 {
        self.usage.failcnt.load(Ordering::Relaxed)
    }

    /// Count one refused charge.
    pub(crate) fn count_refusal(&self) {
        self.usage.failcnt.fetch_add(1, Ordering::Relaxed);
    }

    /// Room below `max`.
    pub(crate) fn room(&self, max: u64) -> u64 {
        max.min(USAGE_MAX).saturating_sub(self.usage())
    }

    pub(crate) fn max(&self) -> u64 {
        if self.is_observed() {
            return self.usage.observed_max.load(Ordering::Relaxed);
        }
        // Acquire (E1): as in `admit`.
        self.limits.ceiling.load(Ordering::Acquire)
    }

    /// Whether nothing about the counter itself keeps its stock closed.
    pub(crate) fn may_open(&self) -> bool {
        let bare_root = |counter: &Counter| counter.incarnation().parent.is_some() || counter.first().children() == 0;
        let members = &self.incarnation().members;
        self.index != SlotIndex::NONE
            && self.incarnation().stock
            && self.batch() > 0
            && !self.first().is_barred()
            && !self.poisoned.load(Ordering::Relaxed)
            && self.tree().barrier.state() != BarrierState::Degraded
            && if members.is_empty() { bare_root(self) } else { members.iter().all(|member| bare_root(member)) }
            && self.may_reserve(self.touched.load(Ordering::Relaxed).max(1) * 2 * self.batch())
    }

    /// The most credit that may be stranded below this root.
    pub(crate) fn budget(&self) -> u64 {
        self.incarnation().budget.unwrap_or_else(|| self.max() / BUDGET_SHARE)
    }

    fn may_reserve(&self, units: u64) -> bool {
        self.path_to_root()
            .filter(|level| level.incarnation().parent.is_none())
            .all(|root| root.bound.load(Ordering::Relaxed).saturating_add(units) <= root.budget())
    }

    /// Add to the published bound of every level, if the budgets of the roots allow it.
    pub(crate) fn reserve(&self, units: u64) -> bool {
        for (passed, root) in self.path_to_root().filter(|level| level.incarnation().parent.is_none()).enumerate() {
            let budget = root.budget();
            let reserved = root.bound.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bound| {
                bound.checked_add(units).filter(|&bound| bound <= budget)
            });
            if reserved.is_err() {
                for root in self.path_to_root().filter(|level| level.incarnation().parent.is_none()).take(passed) {
                    root.bound.fetch_sub(units, Ordering::Relaxed);
                }
                return false;
            }
        }
        for level in self.path_to_root().filter(|level| level.incarnation().parent.is_some()) {
            level.bound.fetch_add(units, Ordering::Relaxed);
        }
        true
    }

    pub(crate) fn unreserve(&self, units: u64) {
        for level in self.path_to_root() {
            level.bound.fetch_sub(units, Ordering::Relaxed);
        }
    }
}
