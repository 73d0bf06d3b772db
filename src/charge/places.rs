//! The shape of a tree of counters: who is below whom, who comes, who goes, whose stock is open.
//!
//! Links are indices into one vector under the tree's lock, so a walk over a subtree allocates nothing and
//! needs no recursion, however deep the tree is.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::page_counter::{Life, Node};
use super::stock::Slot;
use crate::sync::Ordering;

/// No place.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// Open stocks elsewhere that are passed over for one of a subtree, before the subtree itself is walked.
const OPENED_COMMON: usize = 64;

/// All counters of the tree, and scratch for drains so that they allocate only when they grow.
pub(crate) struct Places {
    pub(crate) all: Vec<Place>,
    free: Vec<u32>,
    pub(crate) stocks: Vec<u32>,
    /// The stocks that are counted as open.
    opened: Vec<u32>,
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
    /// Counted in `Limits::open`, and where it stands in `Places::opened`. Its capacity may already be 0: closing has
    /// begun.
    open: Option<u32>,
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
    /// Bytes of all this, as far as it has been written to.
    pub(super) fn bytes(&self) -> u64 {
        let numbers = self.free.len() + self.stocks.capacity() + self.opened.len() + self.deaths.capacity();
        let lists = numbers * size_of::<u32>() + self.claims.capacity() * size_of::<Claim>();
        (self.all.len() * size_of::<Place>() + lists + self.names.allocation_size()) as u64
    }

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

    pub(crate) fn is_open(&self, place: u32) -> bool {
        self.all[place as usize].open.is_some()
    }

    /// Note that a stock is counted as open, or not any more.
    pub(crate) fn set_open(&mut self, place: u32, open: bool) {
        match self.all[place as usize].open {
            None if open => {
                self.all[place as usize].open = Some(self.opened.len() as u32);
                self.opened.push(place);
            }
            Some(at) if !open => {
                self.all[place as usize].open = None;
                self.opened.swap_remove(at as usize);
                if let Some(&moved) = self.opened.get(at as usize) {
                    self.all[moved as usize].open = Some(at);
                }
            }
            _ => {}
        }
    }

    /// Stocks in `scope` that are counted as open, fronts of counter sets included. In the scratch list. Not those of
    /// the dying, which are in `deaths` already.
    pub(crate) fn open_stocks(&mut self, top: u32, scope: Scope) -> Vec<u32> {
        let mut stocks = std::mem::take(&mut self.stocks);
        let mut visit = |place: u32| {
            let at = &self.all[place as usize];
            if at.open.is_some() && !at.dying {
                stocks.push(place);
            }
            if at.front != NOWHERE && self.is_open(at.front) {
                stocks.push(at.front);
            }
        };
        let level = self.node(top);
        // Changes under the tree's lock alone. Few stocks are open near a limit, however many groups there are.
        let below = level.limits.open.load(Ordering::Relaxed) as u32 as usize;
        match scope {
            Scope::Own => visit(top),
            Scope::Subtree if below == 0 => {}
            Scope::Subtree if self.opened.len() / OPENED_COMMON > below => self.subtree(top).for_each(visit),
            Scope::Subtree => {
                let is_below = |&&place: &&u32| {
                    !self.all[place as usize].dying && self.node(place).levels().any(|above| std::ptr::eq(above, level))
                };
                stocks.extend(self.opened.iter().filter(is_below));
            }
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
    pub(super) fn unlink(&mut self, place: u32) {
        if !self.all[place as usize].dying {
            self.forget_name(place);
        }
        self.pull(place);
        self.set_open(place, false);
        let entry = std::mem::replace(&mut self.all[place as usize], Place::empty());
        debug_assert_eq!(entry.first_child, NOWHERE, "a counter outlives its children");
        self.free.push(place);
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
            opened: Vec::new(),
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
            open: None,
            stuck: false,
            dying: false,
            settled: 0,
        }
    }
}
