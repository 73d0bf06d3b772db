//! The shape of a tree of counters: who is below whom, who comes, who goes.
//!
//! Links are indices into one vector under the tree's lock, so a walk over a subtree allocates nothing and
//! needs no recursion, however deep the tree is.

use super::audit::Cell as AuditCell;
use super::config::{BUDGET_SHARE, CounterConfig};
use super::page_counter::{Birth, Node, USAGE_MAX};
use super::protection::Protection;
use super::stock::Slot;
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
    pub(crate) counts: TreeCounts,
    pub(crate) places: Lock<Places>,
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
#[derive(Default)]
pub(crate) struct Places {
    pub(crate) all: Vec<Place>,
    free: Vec<u32>,
    pub(crate) stocks: Vec<u32>,
    pub(crate) claims: Vec<Claim>,
}

pub(crate) struct Place {
    node: Option<Arc<Node>>,
    parent: u32,
    first_child: u32,
    next: u32,
    prev: u32,
    /// The front of the counter set whose member this is.
    pub(crate) front: u32,
    /// Counted in `Limits::open`. Its capacity may already be 0: closing has begun.
    pub(crate) open: bool,
    /// The last closing could not finish: credit may be on its way.
    pub(crate) stuck: bool,
    /// Drained and not yet uncharged; used within one drain.
    pub(crate) settled: u64,
}

/// Credit claimed in one slot.
pub(crate) struct Claim {
    pub(crate) stock: u32,
    pub(crate) slot: *const Slot,
    pub(crate) units: u64,
}

// SAFETY: the pointers are used within one drain, while the registry's blocks cannot go; between drains the list is empty.
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
    pub(crate) fn node(&self, place: u32) -> &Arc<Node> {
        self.all[place as usize].node.as_ref().expect("a linked place holds a node")
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

    /// Stocks in `scope` that are counted as open, fronts of counter sets included. In the scratch list.
    pub(crate) fn open_stocks(&mut self, top: u32, scope: Scope) -> Vec<u32> {
        let mut stocks = std::mem::take(&mut self.stocks);
        let mut visit = |place: u32| {
            let at = &self.all[place as usize];
            if at.open {
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
    fn link(&mut self, node: Arc<Node>) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.all.push(Place::empty());
            (self.all.len() - 1) as u32
        });
        node.place.store(place, Ordering::Relaxed);
        let parent = node.parent.as_ref().map_or(NOWHERE, |parent| parent.place());
        let mut entry = Place { node: Some(node), parent, ..Place::empty() };
        if parent != NOWHERE {
            entry.next = std::mem::replace(&mut self.all[parent as usize].first_child, place);
            if entry.next != NOWHERE {
                self.all[entry.next as usize].prev = place;
            }
        }
        self.all[place as usize] = entry;
        place
    }

    fn unlink(&mut self, place: u32) -> Place {
        let entry = std::mem::replace(&mut self.all[place as usize], Place::empty());
        debug_assert_eq!(entry.first_child, NOWHERE, "a counter outlives its children");
        if entry.prev != NOWHERE {
            self.all[entry.prev as usize].next = entry.next;
        } else if entry.parent != NOWHERE {
            self.all[entry.parent as usize].first_child = entry.next;
        }
        if entry.next != NOWHERE {
            self.all[entry.next as usize].prev = entry.prev;
        }
        self.free.push(place);
        entry
    }
}

impl Place {
    fn empty() -> Place {
        Place {
            node: None,
            parent: NOWHERE,
            first_child: NOWHERE,
            next: NOWHERE,
            prev: NOWHERE,
            front: NOWHERE,
            open: false,
            stuck: false,
            settled: 0,
        }
    }
}

// === impl Tree: coming and going ===

impl Tree {
    pub(crate) fn new(config: CounterConfig) -> Arc<Tree> {
        static NUMBERS: AtomicU32 = AtomicU32::new(1);
        Arc::new(Tree {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            registry: registry(),
            barrier: Barrier::new(config.barrier),
            adaptive: config.adaptive,
            audited: config.audit,
            config,
            counts: TreeCounts::default(),
            places: Lock::new(Rank::Places, Places::default()),
        })
    }

    /// A root of this tree; a counter set has one for each member.
    pub(crate) fn root(self: &Arc<Self>, config: &CounterConfig, stock: bool) -> Arc<Node> {
        self.attach(Birth {
            tree: Arc::clone(self),
            parent: None,
            members: Box::default(),
            batch: config.batch,
            max: config.max,
            budget: config.budget,
            stock,
        })
    }

    /// A counter below `parent`, with its batch.
    pub(crate) fn child(self: &Arc<Self>, parent: &Arc<Node>, stock: bool) -> Arc<Node> {
        self.attach(Birth {
            tree: Arc::clone(self),
            parent: Some(Arc::clone(parent)),
            members: Box::default(),
            batch: parent.batch(),
            max: u64::MAX,
            budget: None,
            stock,
        })
    }

    /// The one stock of several counters that are charged together.
    pub(crate) fn front(self: &Arc<Self>, members: Box<[Arc<Node>]>, batch: u64) -> Arc<Node> {
        self.attach(Birth {
            tree: Arc::clone(self),
            parent: None,
            members,
            batch,
            max: u64::MAX,
            budget: None,
            stock: true,
        })
    }

    fn attach(&self, birth: Birth) -> Arc<Node> {
        let node = Arc::new(Node::new(birth));
        let mut places = self.places.lock();
        if let Some(parent) = &node.parent
            && parent.children.fetch_add(1, Ordering::Relaxed) == 0
        {
            self.before_first_child(&mut places, parent);
        }
        let place = places.link(Arc::clone(&node));
        for member in &node.members {
            places.all[member.place() as usize].front = place;
        }
        self.open_at_birth(&mut places, place);
        node
    }

    /// Nobody can charge `node` any more. Its credit and what is still charged to it leave its ancestors, its index and
    /// its place are free again.
    pub(crate) fn retire(&self, node: &Node) {
        let mut places = self.places.lock();
        let entry = places.unlink(node.place());
        // What a set's stock was charged stays charged to the counters of the set.
        let live = self.audited_live(node);
        let mut credit = 0;
        for block in self.registry.blocks() {
            // E12: no barrier. The last handle's drop orders every use of the counter before this, and the registry's
            // mutex orders this before the next counter with the index.
            credit += block.slot(node.index).map_or(0, Slot::vacate);
            if let Some(cell) = block.audit(node.index) {
                cell.reset();
            }
        }
        node.set_protection(Protection::Min, 0);
        node.set_protection(Protection::Low, 0);
        for member in &node.members {
            member.uncharge_levels(credit.min(member.usage()));
            member.audit_shared.charged_shared(live.cast_unsigned());
            places.all[member.place() as usize].front = NOWHERE;
        }
        if let Some(parent) = &node.parent {
            // The credit is part of the usage.
            parent.uncharge_levels(node.usage());
            parent.children.fetch_sub(1, Ordering::Relaxed);
        }
        if entry.open {
            // E10: uncounted after its credit is back, as in `close`.
            node.gate.capacity.store(0, Ordering::Release);
            self.uncount(node);
        }
        drop(places);
        self.registry.release_index(node.index);
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
    pub(crate) fn place(&self) -> u32 {
        self.place.load(Ordering::Relaxed)
    }

    pub(crate) fn batch(&self) -> u64 {
        self.batch.load(Ordering::Relaxed)
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
        let bare_root = |node: &Node| node.parent.is_some() || node.children.load(Ordering::Relaxed) == 0;
        self.index != SlotIndex::NONE
            && self.batch() > 0
            && !self.poisoned.load(Ordering::Relaxed)
            && self.tree.barrier.state() != BarrierState::Degraded
            && if self.members.is_empty() { bare_root(self) } else { self.members.iter().all(|m| bare_root(m)) }
            && self.may_reserve(self.touched.load(Ordering::Relaxed).max(1) * 2 * self.batch())
    }

    /// Most credit that may be stranded below this root.
    pub(crate) fn budget(&self) -> u64 {
        self.budget.unwrap_or_else(|| self.max() / BUDGET_SHARE)
    }

    fn may_reserve(&self, units: u64) -> bool {
        self.levels()
            .filter(|level| level.parent.is_none())
            .all(|root| root.bound.load(Ordering::Relaxed).saturating_add(units) <= root.budget())
    }

    /// Add to the published bound of every level, if the budgets of the roots allow it.
    pub(crate) fn reserve(&self, units: u64) -> bool {
        for (passed, root) in self.levels().filter(|level| level.parent.is_none()).enumerate() {
            let budget = root.budget();
            let reserved = root.bound.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bound| {
                bound.checked_add(units).filter(|&bound| bound <= budget)
            });
            if reserved.is_err() {
                for root in self.levels().filter(|level| level.parent.is_none()).take(passed) {
                    root.bound.fetch_sub(units, Ordering::Relaxed);
                }
                return false;
            }
        }
        for level in self.levels().filter(|level| level.parent.is_some()) {
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
