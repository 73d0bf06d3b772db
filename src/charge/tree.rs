//! The shape of a tree of counters: who is below whom, who comes, who goes.
//!
//! Links are indices into one vector under the tree's lock, so a walk over a subtree allocates nothing and
//! needs no recursion, however deep the tree is.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::audit::Cell as AuditCell;
use super::config::{BUDGET_SHARE, CounterConfig};
use super::page_counter::{Life, Node, USAGE_MAX};
use super::reclaim::ReclaimConfig;
use super::ring::Rings;
use super::stock::Slot;
use crate::reclaim::entry::Entry;
use crate::stat::coordinator::Coordinator;
use crate::sync::barrier::{Barrier, BarrierState};
use crate::sync::lock::{Lock, Rank};
use crate::sync::slots::SlotIndex;
use crate::sync::stat_atomic::{AtomicU32, AtomicU64};
use crate::sync::{Arc, Ordering, Registrar, registry};

/// No place.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// What all counters of a tree share.
pub(crate) struct Tree {
    /// Tells transits of this tree from those of others. Two trees with one number only wait for each other's.
    pub(crate) number: u32,
    pub(crate) registry: Registrar,
    pub(crate) barrier: Barrier,
    pub(crate) adaptive: bool,
    pub(crate) audited: bool,
    pub(crate) config: CounterConfig,
    /// The counters that each of its groups has beside memory.
    pub(crate) further: Box<[Further]>,
    /// Most groups at a time.
    pub(crate) groups_max: u32,
    /// Of a tree of groups.
    pub(crate) stats: Option<Coordinator>,
    pub(crate) counts: TreeCounts,
    pub(crate) places: Lock<Places>,
    pub(crate) reclaim: ReclaimConfig,
    /// Who can be reclaimed, by ring.
    pub(crate) reclaimers: Lock<Vec<Vec<Arc<Entry>>>>,
    pub(crate) rings: Lock<Rings>,
}

/// A counter that every group has beside memory.
#[derive(Clone, Debug)]
pub(crate) struct Further {
    pub(crate) name: Box<str>,
    /// Who declared it.
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
}

/// All counters of the tree, and scratch for drains so that they allocate only when they grow.
pub(crate) struct Places {
    pub(crate) all: Vec<Place>,
    free: Vec<u32>,
    pub(crate) stocks: Vec<u32>,
    pub(crate) claims: Vec<Claim>,
    /// Named counters by parent and name.
    names: HashTable<u32>,
    hasher: RandomState,
    /// Groups there are, dying ones included: each as long as its first counter, which the others keep.
    pub(crate) groups: u32,
    /// Some limit of the tree has been set to a percentage.
    pub(crate) percents: bool,
    /// The first of the counters that went offline and still hold something.
    dying: u32,
    /// Groups among them.
    pub(crate) dying_groups: u32,
    /// Stocks of such counters that no barrier has closed yet.
    pub(crate) deaths: Vec<u32>,
    /// Groups that have one there.
    pub(crate) unsettled: usize,
}

pub(crate) struct Place {
    node: Option<&'static Node>,
    parent: u32,
    pub(super) first_child: u32,
    next: u32,
    prev: u32,
    /// The front of the counter set whose member this is.
    pub(crate) front: u32,
    /// Counted in `Limits::open`. Its capacity may already be 0: closing has begun.
    pub(crate) open: bool,
    /// The last closing could not finish: credit may be on its way.
    pub(crate) stuck: bool,
    /// Offline: linked with the dying, not with its siblings.
    pub(crate) dying: bool,
    /// Drained and not yet uncharged; used within one drain.
    pub(crate) settled: u64,
}

/// Credit claimed in one slot.
pub(crate) struct Claim {
    pub(crate) stock: u32,
    pub(crate) slot: *const Slot,
    pub(crate) units: u64,
}

// SAFETY: the pointers are used within one drain, while the registry's blocks cannot go; between drains the list is
// empty.
#[allow(unsafe_code)]
unsafe impl Send for Claim {}

/// Which stocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Of one counter only.
    Own,
    /// Of a counter and all below it.
    Subtree,
}

// === impl Places ===

impl Places {
    /// The counter at a place. Places handed out by this type are taken.
    pub(crate) fn node(&self, place: u32) -> &'static Node {
        self.all[place as usize].node.expect("a linked place holds a node")
    }

    /// The place after `place` in a walk over the subtree of `top`, parents first.
    pub(crate) fn after(&self, place: u32, top: u32) -> Option<u32> {
        let mut at = &self.all[place as usize];
        if at.first_child != NOWHERE {
            return Some(at.first_child);
        }
        let mut place = place;
        while place != top {
            if at.next != NOWHERE {
                return Some(at.next);
            }
            place = at.parent;
            at = &self.all[place as usize];
        }
        None
    }

    /// The places of a subtree, parents first.
    pub(crate) fn subtree(&self, top: u32) -> impl Iterator<Item = u32> + '_ {
        let mut next = Some(top);
        std::iter::from_fn(move || {
            let place = next?;
            next = self.after(place, top);
            Some(place)
        })
    }

    /// Stocks in `scope` that are counted as open, fronts of counter sets included. In the scratch list. Not those of
    /// the dying, which are in `deaths` already.
    pub(crate) fn open_stocks(&mut self, top: u32, scope: Scope) -> Vec<u32> {
        let mut stocks = std::mem::take(&mut self.stocks);
        let mut visit = |place: u32| {
            let at = &self.all[place as usize];
            if at.open && !at.dying {
                stocks.push(place);
            }
            if at.front != NOWHERE && self.all[at.front as usize].open {
                stocks.push(at.front);
            }
        };
        match scope {
            Scope::Own => visit(top),
            Scope::Subtree => self.subtree(top).for_each(visit),
        }
        stocks
    }

    /// Link `node` below its parent; a root or a front below nothing.
    pub(super) fn link(&mut self, node: &'static Node) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.all.push(Place::empty());
            (self.all.len() - 1) as u32
        });
        node.place.store(place, Ordering::Relaxed);
        let Life { parent, name, .. } = node.life();
        let parent = parent.map_or(NOWHERE, |parent| parent.place());
        self.all[place as usize] = Place { node: Some(node), parent, ..Place::empty() };
        if parent != NOWHERE {
            self.push(place, parent);
            if !name.is_empty() {
                let Places { names, all, hasher, .. } = self;
                names.insert_unique(hash(hasher, parent, name), place, |&other| rehash(hasher, all, other));
            }
        }
        place
    }

    /// Put a place in front of its siblings.
    fn push(&mut self, place: u32, parent: u32) {
        let next = std::mem::replace(&mut self.all[parent as usize].first_child, place);
        self.all[place as usize].next = next;
        if next != NOWHERE {
            self.all[next as usize].prev = place;
        }
    }

    /// Out of the list that a place stands in.
    fn pull(&mut self, place: u32) {
        let Place { parent, next, prev, dying, .. } = self.all[place as usize];
        let first =
            if dying { Some(&mut self.dying) } else { self.all.get_mut(parent as usize).map(|at| &mut at.first_child) };
        if prev != NOWHERE {
            self.all[prev as usize].next = next;
        } else if let Some(first) = first {
            *first = next;
        }
        if next != NOWHERE {
            self.all[next as usize].prev = prev;
        }
        (self.all[place as usize].next, self.all[place as usize].prev) = (NOWHERE, NOWHERE);
    }

    fn forget_name(&mut self, place: u32) {
        let Places { names, all, hasher, .. } = self;
        let hash = rehash(hasher, all, place);
        if let Ok(entry) = names.find_entry(hash, |&other| other == place) {
            entry.remove();
        }
    }

    /// From the children to the dying: its name is free.
    pub(super) fn leave(&mut self, place: u32) {
        self.forget_name(place);
        self.pull(place);
        let next = std::mem::replace(&mut self.dying, place);
        let at = &mut self.all[place as usize];
        (at.dying, at.next) = (true, next);
        if next != NOWHERE {
            self.all[next as usize].prev = place;
        }
    }

    /// The place is free again.
    pub(super) fn unlink(&mut self, place: u32) -> Place {
        if !self.all[place as usize].dying {
            self.forget_name(place);
        }
        self.pull(place);
        let entry = std::mem::replace(&mut self.all[place as usize], Place::empty());
        debug_assert_eq!(entry.first_child, NOWHERE, "a counter outlives its children");
        self.free.push(place);
        entry
    }

    /// The child of that name.
    pub(crate) fn child(&self, parent: u32, name: &str) -> Option<u32> {
        let same = |&place: &u32| {
            let at = &self.all[place as usize];
            at.parent == parent && at.node.is_some_and(|node| *node.life().name == *name)
        };
        self.names.find(hash(&self.hasher, parent, name), same).copied()
    }

    /// The children that are online, youngest first.
    pub(crate) fn children(&self, place: u32) -> impl Iterator<Item = u32> + '_ {
        self.list(self.all[place as usize].first_child)
    }

    /// Everybody who is offline and still holds something, in this tree.
    pub(crate) fn dying(&self) -> impl Iterator<Item = u32> + '_ {
        self.list(self.dying)
    }

    /// The dying below `top`, parents before children: a parent goes offline after its children.
    pub(crate) fn dying_below(&self, top: &Node) -> Vec<u32> {
        self.dying().filter(|&place| self.node(place).levels().skip(1).any(|level| std::ptr::eq(level, top))).collect()
    }

    fn list(&self, first: u32) -> impl Iterator<Item = u32> + '_ {
        let some = |place: u32| (place != NOWHERE).then_some(place);
        std::iter::successors(some(first), move |&place| some(self.all[place as usize].next))
    }
}

fn hash(hasher: &RandomState, parent: u32, name: &str) -> u64 {
    hasher.hash_one((parent, name))
}

fn rehash(hasher: &RandomState, all: &[Place], place: u32) -> u64 {
    let Place { parent, node, .. } = &all[place as usize];
    hash(hasher, *parent, node.map_or("", |node| &node.life().name))
}

impl Default for Places {
    fn default() -> Self {
        Places {
            all: Vec::new(),
            free: Vec::new(),
            stocks: Vec::new(),
            claims: Vec::new(),
            names: HashTable::new(),
            hasher: RandomState::new(),
            groups: 0,
            percents: false,
            dying: NOWHERE,
            dying_groups: 0,
            deaths: Vec::new(),
            unsettled: 0,
        }
    }
}

impl Place {
    pub(super) fn empty() -> Place {
        Place {
            node: None,
            parent: NOWHERE,
            first_child: NOWHERE,
            next: NOWHERE,
            prev: NOWHERE,
            front: NOWHERE,
            open: false,
            stuck: false,
            dying: false,
            settled: 0,
        }
    }
}

// === impl Tree ===

impl Tree {
    pub(crate) fn new(config: CounterConfig) -> Arc<Tree> {
        Tree::make(config, None, Box::default(), u32::MAX, ReclaimConfig::default())
    }

    pub(crate) fn of_groups(
        config: CounterConfig,
        further: Box<[Further]>,
        groups_max: u32,
        stats: Coordinator,
        reclaim: ReclaimConfig,
    ) -> Arc<Tree> {
        Tree::make(config, Some(stats), further, groups_max, reclaim)
    }

    fn make(
        config: CounterConfig,
        stats: Option<Coordinator>,
        further: Box<[Further]>,
        groups_max: u32,
        reclaim: ReclaimConfig,
    ) -> Arc<Tree> {
        static NUMBERS: AtomicU32 = AtomicU32::new(1);
        Arc::new(Tree {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            registry: registry(),
            barrier: Barrier::new(config.barrier),
            adaptive: config.adaptive,
            audited: config.audit,
            config,
            further,
            groups_max,
            stats,
            counts: TreeCounts::default(),
            places: Lock::new(Rank::Places, Places::default()),
            reclaim,
            reclaimers: Lock::new(Rank::Bookkeeping, Vec::new()),
            rings: Lock::new(Rank::Rings, Rings::default()),
        })
    }

    /// Audited live charge of one counter, over all threads.
    pub(crate) fn audited_live(&self, node: &Node) -> i64 {
        let cells = self.registry.blocks().filter_map(|block| block.audit(node.index)).map(AuditCell::live);
        // Cumulative counts wrap, and so do their sums: what is left is right.
        cells.fold(node.audit_shared.live(), i64::wrapping_add)
    }

    /// Credit of one counter, over all threads.
    pub(crate) fn credit(&self, node: &Node) -> u64 {
        self.registry.blocks().filter_map(|block| block.slot(node.index)).map(Slot::available).sum()
    }
}

// === impl Node: what the tree keeps about it ===

impl Node {
    /// Its place among the counters of its group; 0 for a counter alone.
    pub(crate) fn number_in_group(&'static self) -> usize {
        self.first().group().position(|counter| std::ptr::eq(counter, self)).unwrap_or(0)
    }

    /// The name of a further counter of a group; `None` for its first, and for a counter alone.
    pub(crate) fn further_name(&'static self) -> Option<&'static str> {
        Some(&self.tree().further.get(self.number_in_group().checked_sub(1)?)?.name)
    }

    pub(crate) fn place(&self) -> u32 {
        self.place.load(Ordering::Relaxed)
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
        self.failcnt.load(Ordering::Relaxed)
    }

    /// Room below `max`.
    pub(crate) fn room(&self, max: u64) -> u64 {
        max.min(USAGE_MAX).saturating_sub(self.usage())
    }

    pub(crate) fn max(&self) -> u64 {
        self.limits.max.load(Ordering::Acquire)
    }

    /// Nothing about the counter itself keeps its stock closed.
    pub(crate) fn may_open(&self) -> bool {
        let bare_root = |node: &Node| node.life().parent.is_some() || node.children.load(Ordering::Relaxed) == 0;
        let members = &self.life().members;
        self.index != SlotIndex::NONE
            && self.life().stock
            && self.batch() > 0
            && !self.state().is_offline()
            && !self.poisoned.load(Ordering::Relaxed)
            && self.tree().barrier.state() != BarrierState::Degraded
            && if members.is_empty() { bare_root(self) } else { members.iter().all(|member| bare_root(member)) }
            && self.may_reserve(self.touched.load(Ordering::Relaxed).max(1) * 2 * self.batch())
    }

    /// Most credit that may be stranded below this root.
    pub(crate) fn budget(&self) -> u64 {
        self.life().budget.unwrap_or_else(|| self.max() / BUDGET_SHARE)
    }

    fn may_reserve(&self, units: u64) -> bool {
        self.levels()
            .filter(|level| level.life().parent.is_none())
            .all(|root| root.bound.load(Ordering::Relaxed).saturating_add(units) <= root.budget())
    }

    /// Add to the published bound of every level, if the budgets of the roots allow it.
    pub(crate) fn reserve(&self, units: u64) -> bool {
        for (passed, root) in self.levels().filter(|level| level.life().parent.is_none()).enumerate() {
            let budget = root.budget();
            let reserved = root.bound.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bound| {
                bound.checked_add(units).filter(|&bound| bound <= budget)
            });
            if reserved.is_err() {
                for root in self.levels().filter(|level| level.life().parent.is_none()).take(passed) {
                    root.bound.fetch_sub(units, Ordering::Relaxed);
                }
                return false;
            }
        }
        for level in self.levels().filter(|level| level.life().parent.is_some()) {
            level.bound.fetch_add(units, Ordering::Relaxed);
        }
        true
    }

    pub(crate) fn unreserve(&self, units: u64) {
        for level in self.levels() {
            level.bound.fetch_sub(units, Ordering::Relaxed);
        }
    }
}
