//! The stocks of a tree that are counted as open, and those of groups that went offline with one. The tree's lock
//! guards them.
//!
//! No thread releases a counter whose stock is counted here without this lock, so its holder may read all of them.
//! `links` has the hierarchy.
//!
//! Edges: E35 (a stock opens/its group goes offline), E36 (a stock closes/its group is released).

use smallvec::SmallVec;

use crate::counter::links::Hierarchy;
use crate::counter::object::Counter;
use crate::sync::Ordering;
use crate::thread::slot::Slot;

/// How many open stocks a search passes over for each one of a subtree, before it walks the subtree instead.
const OPENED_COMMON: usize = 64;

/// A few counters; the list of a group that is created allocates nothing.
pub(crate) type List = SmallVec<[&'static Counter; 8]>;

/// Open stocks, and scratch for drains so that they allocate only when they grow.
#[derive(Default)]
pub(crate) struct Stocks {
    /// The counters whose stocks are counted as open, each at the index that it stores.
    opened: Vec<&'static Counter>,
    pub(crate) scratch: List,
    pub(crate) claims: SmallVec<[Claim; 8]>,
    /// A limit of the tree has been set to a percentage.
    pub(crate) percents: bool,
    /// The stocks of groups that went offline, which no barrier has closed yet.
    pub(crate) pending_close: Vec<&'static Counter>,
    /// The number of groups with a stock in that queue.
    pub(crate) unsettled: usize,
}

/// Credit claimed in one slot.
pub(crate) struct Claim {
    pub(crate) stock: &'static Counter,
    pub(crate) slot: *const Slot,
    pub(crate) units: u64,
}

// SAFETY: a thread uses the pointers within one drain, while the registry keeps its blocks; between drains the list is
// empty.
#[allow(unsafe_code)]
unsafe impl Send for Claim {}

/// Which stocks a close reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The stock of one counter only.
    Own,
    /// The stocks of a counter and of all below it.
    Subtree,
}

// === impl Stocks ===

impl Stocks {
    /// Bytes of all this, as far as it has been written to.
    pub(crate) fn bytes(&self) -> u64 {
        let counters = self.opened.len() + self.scratch.capacity() + self.pending_close.capacity();
        (counters * size_of::<&Counter>() + self.claims.capacity() * size_of::<Claim>()) as u64
    }

    /// Whether there is memory for one more open stock.
    pub(crate) fn has_room(&mut self) -> bool {
        self.opened.try_reserve(1).is_ok()
    }

    /// Move the queue of pending closes into `closing`. Where there is no memory for that, the queue waits for the next
    /// close.
    pub(crate) fn take_pending_close(&mut self, closing: &mut List) {
        if closing.try_reserve(self.pending_close.len()).is_ok() {
            closing.extend(self.pending_close.drain(..));
        }
    }

    /// Note that a stock is counted as open, or not any more. The latter is the last access here: from here on a thread
    /// may release the counter.
    pub(crate) fn set_open(&mut self, counter: &'static Counter, open: bool) {
        match counter.opened.load(Ordering::Relaxed).checked_sub(1) {
            None if open => {
                self.opened.push(counter);
                // SeqCst (E35): counted, then a check whether the group is going offline; pairs with `Counter::bar`.
                counter.opened.swap(self.opened.len() as u32, Ordering::SeqCst);
            }
            Some(at) if !open => {
                self.opened.swap_remove(at as usize);
                if let Some(moved) = self.opened.get(at as usize) {
                    moved.opened.store(at + 1, Ordering::Relaxed);
                }
                counter.queued.store(false, Ordering::Relaxed);
                // Release (E36): pairs with `Counter::is_open` of the thread that releases the counter.
                counter.opened.store(0, Ordering::Release);
            }
            _ => {}
        }
    }

    /// Stocks in `scope` that are counted as open, fronts of counter sets included, in the scratch list. Leaves out
    /// those in the queue of pending closes.
    pub(crate) fn open_in(&mut self, hierarchy: &Hierarchy, top: &Counter, scope: Scope) -> List {
        let mut stocks = std::mem::take(&mut self.scratch);
        let is_open = |counter: &&'static Counter| counter.is_open() && !counter.is_queued();
        let mut visit = |counter: &'static Counter| {
            stocks.extend([Some(counter), counter.front()].into_iter().flatten().filter(is_open))
        };
        // Changes under the tree's lock alone. Few stocks are open near a limit, however many groups there are.
        let below = top.limits.open.load(Ordering::Relaxed) as u32 as usize;
        match scope {
            Scope::Own => visit(top.header.counter()),
            Scope::Subtree if below == 0 => {}
            Scope::Subtree if self.opened.len() / OPENED_COMMON > below => {
                hierarchy.snapshot().subtree(top.header.counter()).for_each(visit);
            }
            Scope::Subtree => {
                let is_below = |counter: &&'static Counter| {
                    !counter.is_queued() && counter.path_to_root().any(|above| std::ptr::eq(above, top))
                };
                stocks.extend(self.opened.iter().copied().filter(is_below));
            }
        }
        stocks
    }

    /// Take a stock of a released group out of the queue of pending closes. No barrier has closed it, and it holds no
    /// credit.
    pub(crate) fn forget_pending_close(&mut self, counter: &'static Counter) {
        self.pending_close.retain(|&pending| !std::ptr::eq(pending, counter));
    }
}

// === impl Counter: what the tree keeps about its stock ===

impl Counter {
    /// The stock is counted as open. Its capacity may already be 0: a close has begun.
    pub(crate) fn is_open(&self) -> bool {
        // SeqCst (E35): after `Counter::bar`, pairs with `set_open`. Acquire (E36): a thread that finds it closed comes
        // after every access to the stock.
        self.opened.load(Ordering::SeqCst) != 0
    }

    /// The stock is in the queue of pending closes.
    pub(crate) fn is_queued(&self) -> bool {
        self.queued.load(Ordering::Relaxed)
    }

    /// The front of the counter set that this counter is a member of.
    #[allow(unsafe_code)]
    pub(crate) fn front(&self) -> Option<&'static Counter> {
        // SAFETY: the front itself sets and clears it under the tree's lock; objects are never freed.
        unsafe { self.usage.front.load(Ordering::Relaxed).as_ref() }
    }

    pub(crate) fn set_front(&self, front: Option<&'static Counter>) {
        let front = front.map_or(std::ptr::null(), std::ptr::from_ref);
        self.usage.front.store(front.cast_mut(), Ordering::Relaxed);
    }
}
