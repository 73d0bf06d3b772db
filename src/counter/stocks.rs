//! The stocks of a tree that are counted as open, and those of groups that went offline with one: what the tree's lock
//! guards.
//!
//! A counter whose stock is counted here is not buried without this lock, so its holder may look at all of them. Who is
//! whose child is in `shape`.
//!
//! Edges: E35 (a stock opens/its group goes offline), E36 (a stock closes/its group is buried).

use smallvec::SmallVec;

use crate::counter::links::Hierarchy;
use crate::counter::object::Counter;
use crate::sync::Ordering;
use crate::thread::slot::Slot;

/// Open stocks elsewhere that are passed over for one of a subtree, before the subtree itself is walked.
const OPENED_COMMON: usize = 64;

/// A few counters; none of a group that is created takes memory.
pub(crate) type List = SmallVec<[&'static Counter; 8]>;

/// Open stocks, and scratch for drains so that they allocate only when they grow.
#[derive(Default)]
pub(crate) struct Stocks {
    /// Those that are counted as open, each where its counter says.
    opened: Vec<&'static Counter>,
    pub(crate) scratch: List,
    pub(crate) claims: SmallVec<[Claim; 8]>,
    /// Some limit of the tree has been set to a percentage.
    pub(crate) percents: bool,
    /// Those of groups that went offline, which no barrier has closed yet.
    pub(crate) pending_close: Vec<&'static Counter>,
    /// Groups that have one there.
    pub(crate) unsettled: usize,
}

/// Credit claimed in one slot.
pub(crate) struct Claim {
    pub(crate) stock: &'static Counter,
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

// === impl Stocks ===

impl Stocks {
    /// Bytes of all this, as far as it has been written to.
    pub(crate) fn bytes(&self) -> u64 {
        let nodes = self.opened.len() + self.scratch.capacity() + self.pending_close.capacity();
        (nodes * size_of::<&Counter>() + self.claims.capacity() * size_of::<Claim>()) as u64
    }

    /// Whether there is memory for one more that is open.
    pub(crate) fn has_room(&mut self) -> bool {
        self.opened.try_reserve(1).is_ok()
    }

    /// The pending_close are closed, too; another time where there is no memory for a list of all.
    pub(crate) fn take_pending_close(&mut self, closing: &mut List) {
        if closing.try_reserve(self.pending_close.len()).is_ok() {
            closing.extend(self.pending_close.drain(..));
        }
    }

    /// Note that a stock is counted as open, or not any more. Then it is the last that is done about it here: from here
    /// on its counter may be buried.
    pub(crate) fn set_open(&mut self, node: &'static Counter, open: bool) {
        match node.opened.load(Ordering::Relaxed).checked_sub(1) {
            None if open => {
                self.opened.push(node);
                // SeqCst (E35): counted, then a look whether the group is going offline; pairs with `Counter::bar`.
                node.opened.swap(self.opened.len() as u32, Ordering::SeqCst);
            }
            Some(at) if !open => {
                self.opened.swap_remove(at as usize);
                if let Some(moved) = self.opened.get(at as usize) {
                    moved.opened.store(at + 1, Ordering::Relaxed);
                }
                node.queued.store(false, Ordering::Relaxed);
                // Release (E36): pairs with `Counter::is_open` of who buries it.
                node.opened.store(0, Ordering::Release);
            }
            _ => {}
        }
    }

    /// Stocks in `scope` that are counted as open, fronts of counter sets included. In the scratch list. Not those
    /// among the pending_close already.
    pub(crate) fn open_in(&mut self, hierarchy: &Hierarchy, top: &Counter, scope: Scope) -> List {
        let mut stocks = std::mem::take(&mut self.scratch);
        let is_open = |node: &&'static Counter| node.is_open() && !node.is_queued();
        let mut visit =
            |node: &'static Counter| stocks.extend([Some(node), node.front()].into_iter().flatten().filter(is_open));
        // Changes under the tree's lock alone. Few stocks are open near a limit, however many groups there are.
        let below = top.limits.open.load(Ordering::Relaxed) as u32 as usize;
        match scope {
            Scope::Own => visit(top.header.node()),
            Scope::Subtree if below == 0 => {}
            Scope::Subtree if self.opened.len() / OPENED_COMMON > below => {
                hierarchy.snapshot().subtree(top.header.node()).for_each(visit);
            }
            Scope::Subtree => {
                let is_below = |node: &&'static Counter| {
                    !node.is_queued() && node.path_to_root().any(|above| std::ptr::eq(above, top))
                };
                stocks.extend(self.opened.iter().copied().filter(is_below));
            }
        }
        stocks
    }

    /// The group of these counters is done with, and no barrier has closed their stocks: nothing is in them.
    pub(crate) fn forget_pending_close(&mut self, node: &'static Counter) {
        self.pending_close.retain(|&death| !std::ptr::eq(death, node));
    }
}

// === impl Counter: what the tree keeps about its stock ===

impl Counter {
    /// Counted as open. Its capacity may already be 0: closing has begun.
    pub(crate) fn is_open(&self) -> bool {
        // SeqCst (E35): after `Counter::bar`, pairs with `set_open`. Acquire (E36): whoever finds it closed comes after
        // all that was done about it.
        self.opened.load(Ordering::SeqCst) != 0
    }

    /// Among the pending_close.
    pub(crate) fn is_queued(&self) -> bool {
        self.queued.load(Ordering::Relaxed)
    }

    /// The front of the counter set whose member this is.
    #[allow(unsafe_code)]
    pub(crate) fn front(&self) -> Option<&'static Counter> {
        // SAFETY: set and taken away under the tree's lock by the front itself; objects are never freed.
        unsafe { self.usage.front.load(Ordering::Relaxed).as_ref() }
    }

    pub(crate) fn set_front(&self, front: Option<&'static Counter>) {
        let front = front.map_or(std::ptr::null(), std::ptr::from_ref);
        self.usage.front.store(front.cast_mut(), Ordering::Relaxed);
    }
}
