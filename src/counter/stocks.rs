//! The list of a tree's stocks that are counted as open, those of groups that went offline with one
//! among them. The tree's lock guards it.
//!
//! No thread releases a counter whose stock is counted here without this lock, so its holder may
//! read all of them.
//!
//! Edges: E35 (a stock opens/its group goes offline), E36 (a stock closes/its group is released),
//! E48 (a stock is uncounted/a refusal looks at its bound).

use crate::counter::config::BUDGET_SHARE;
use crate::counter::object::tree::{Counters, Hierarchy, SlotClaim, Stocks, Tree};
use crate::counter::object::{Counter, CounterRef, Object, SHARE_OF_MAX};
use crate::sync::Ordering;
use crate::sync::barrier::BarrierState;
use crate::thread::directory::{Header, SlotIndex};

/// A search for the open stocks of a subtree looks through the list of all open ones. Where it
/// would pass over more than so many for each one that it finds, it walks the subtree instead.
const OPENED_COMMON: usize = 64;

/// Margins at which a stock closes and opens, in batches per registered thread: 4 and 16 batches
/// for two threads.
const CLOSE_BELOW: u64 = 2;
const OPEN_ABOVE: u64 = 8;

/// Which stocks a close reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseScope {
    /// The stock of one counter only.
    Own,
    Subtree,
}

impl Stocks {
    /// The bytes that the lists take, as far as they have been written to.
    pub(crate) fn bytes(&self) -> u64 {
        let counters = self.opened.len()
            + self.central.len()
            + self.scratch.capacity()
            + self.pending_close.capacity();
        (counters * size_of::<&Counter>() + self.claims.capacity() * size_of::<SlotClaim>()) as u64
    }

    /// True if there is memory for one more open stock.
    pub(crate) fn has_room(&mut self) -> bool {
        self.opened.try_reserve(1).is_ok()
    }

    /// Moves the queue of pending closes into `closing`, so that they share its barrier. Without
    /// memory for that, the queue waits for the next close.
    pub(crate) fn take_pending_close(&mut self, closing: &mut Counters) {
        if closing.try_reserve(self.pending_close.len()).is_ok() {
            closing.extend(self.pending_close.drain(..));
        }
    }

    /// Notes that a stock is counted as open. The counter keeps its place in the list, plus 1, so
    /// that it leaves the list without a search; 0 says that it is not there.
    #[allow(unsafe_code)]
    pub(crate) fn add_open(&mut self, counter: &Counter) {
        // SAFETY: no thread releases a counter that is counted as open; `remove_open` takes it out
        // of the list.
        self.opened.push(unsafe { CounterRef::new(counter) });
        // SeqCst (E35): counted, then a check whether the group is going offline; pairs with
        // `ChildCount::bar`.
        counter
            .opened
            .swap(self.opened.len() as u32, Ordering::SeqCst);
    }

    /// Notes that a stock is not counted as open any more. It is the last access: once `opened` is
    /// 0, a thread may release the counter.
    pub(crate) fn remove_open(&mut self, counter: &Counter) {
        let Some(at) = counter.opened.load(Ordering::Relaxed).checked_sub(1) else {
            return;
        };
        // The last stock of the list moves into the place that is free now, and has to know its new
        // place.
        self.opened.swap_remove(at as usize);
        if let Some(moved) = self.opened.get(at as usize) {
            moved.opened.store(at + 1, Ordering::Relaxed);
        }
        counter.queued.store(false, Ordering::Relaxed);
        // Release (E36): pairs with `Counter::is_open` of the thread that releases the counter.
        counter.opened.store(0, Ordering::Release);
    }

    /// Returns the stocks in `scope` that are counted as open, in the scratch list, which the
    /// caller puts back: it keeps its memory from one close to the next. Leaves out those in the
    /// queue of pending closes, which each close takes anyway.
    pub(crate) fn open_in(
        &mut self,
        hierarchy: &Hierarchy,
        top: &Counter,
        scope: CloseScope,
    ) -> Counters {
        let mut stocks = std::mem::take(&mut self.scratch);
        let mut visit = |counter: &Counter| {
            if counter.is_open() && !counter.is_queued() {
                stocks.extend(
                    self.opened
                        .get(counter.opened.load(Ordering::Relaxed) as usize - 1)
                        .copied(),
                );
            }
        };
        // Relaxed: it changes under the tree's lock alone. Near a limit few stocks are open,
        // however many groups there are, and often none is open below: then nothing is searched.
        let below = top.limits.open.load(Ordering::Relaxed).stocks();
        match scope {
            CloseScope::Own => visit(top),
            CloseScope::Subtree if below == 0 => {}
            CloseScope::Subtree if self.opened.len() / OPENED_COMMON > below => {
                // Many stocks are open elsewhere, and few here.
                hierarchy.snapshot().subtree(top).for_each(visit);
            }
            CloseScope::Subtree => {
                // Most of the open stocks may be below: each asks its own path.
                let is_below =
                    |counter: &CounterRef| !counter.is_queued() && counter.is_within(top);
                stocks.extend(self.opened.iter().copied().filter(is_below));
            }
        }
        stocks
    }

    /// True if few of the open stocks are below `top`, so that a walk over the groups below passes
    /// over fewer counters than one over the list.
    pub(crate) fn are_few_below(&self, top: &Counter) -> bool {
        let below = top.limits.open.load(Ordering::Relaxed).stocks();
        self.count_open() / OPENED_COMMON > below
    }

    /// The counters with a stock that is counted as open, those in the queue of pending closes
    /// among them, each once. No other counter of the tree has credit.
    pub(crate) fn all_open(&self) -> impl Iterator<Item = &Counter> {
        // A counter may have both kinds of stock: then the first list has named it.
        let central = self.central.iter().filter(|counter| !counter.is_open());
        self.opened.iter().chain(central).map(|counter| &**counter)
    }

    /// The number of stocks that are counted as open, those of threads and central ones.
    pub(crate) fn count_open(&self) -> usize {
        self.opened.len() + self.central.len()
    }

    /// The stock behind a header, if this tree counts it as open. Leaves out those in the queue of
    /// pending closes.
    pub(crate) fn open_behind(&self, header: &Header) -> Option<CounterRef> {
        let object = Object::of(header);
        let at = object.opened.load(Ordering::Relaxed).checked_sub(1)?;
        // The counter may be another tree's by now: in this tree's list it is this tree's.
        let is_here = |open: &CounterRef| std::ptr::eq(open.object(), object) && !open.is_queued();
        self.opened.get(at as usize).copied().filter(is_here)
    }

    /// Takes a stock of a released group out of the queue of pending closes: it holds no credit.
    pub(crate) fn forget_pending_close(&mut self, counter: &Counter) {
        self.pending_close
            .retain(|pending| !std::ptr::eq(&**pending, counter));
    }
}

// === What may be stranded ===

/// True if nothing forbids the stock of threads to open, as far as a thread can tell without the
/// tree's lock. `Tree::open` asks again with it.
pub(crate) fn may_open(counter: &Counter) -> bool {
    // In this order: without an index no thread has a slot; a batch of 0 is configured to have no
    // stock; a barred group opens none any more; a poisoned counter may have no usage behind its
    // credit; and after a barrier has failed no drain could take credit out of a slot again.
    counter.index != SlotIndex::NONE
        && counter.batch() > 0
        && !counter.child_count().is_barred()
        && !counter.poisoned.load(Ordering::Relaxed)
        && counter.tree().barrier.state() != BarrierState::Degraded
        && may_reserve(counter, counter.touched().max(1) * 2 * counter.batch())
}

/// The most credit that may be stranded below this root. Where none is configured it is a part of
/// max, and follows it.
pub(crate) fn budget(root: &Counter) -> u64 {
    let budget = root.incarnation().budget;
    if budget == SHARE_OF_MAX {
        root.max() / BUDGET_SHARE
    } else {
        budget
    }
}

pub(crate) fn root(counter: &Counter) -> &Counter {
    counter.path_to_root().last().expect("a path has a level")
}

fn may_reserve(counter: &Counter, units: u64) -> bool {
    let root = root(counter);
    root.bound().saturating_add(units) <= budget(root)
}

/// Adds to the published bound of every level, if the budget of the root allows it. The root is
/// asked first and by an exchange, for threads reserve without the lock as well; the levels below
/// have no budget, and their bounds only say how much may lie there.
pub(crate) fn reserve(counter: &Counter, units: u64) -> bool {
    let root = root(counter);
    let most = budget(root);
    let more = |bound: u64| bound.checked_add(units).filter(|&bound| bound <= most);
    let bound = &root.usage.bound;
    let reserved = bound.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    if reserved.is_err() {
        return false;
    }
    for level in counter
        .path_to_root()
        .filter(|level| level.parent().is_some())
    {
        level.usage.bound.fetch_add(units, Ordering::Relaxed);
    }
    true
}

pub(crate) fn unreserve(counter: &Counter, units: u64) {
    for level in counter.path_to_root() {
        // Release (E48): uncounted before; pairs with `LevelRefusal::is_beyond_credit`.
        level.usage.bound.fetch_sub(units, Ordering::Release);
    }
}

// === The margins ===

impl Tree {
    /// Margin under which a stock closes.
    pub(crate) fn close_margin(&self, batch: u64) -> u64 {
        self.margin(CLOSE_BELOW, batch)
    }

    /// Margin from which on a stock opens.
    pub(crate) fn open_margin(&self, batch: u64) -> u64 {
        self.margin(OPEN_ABOVE, batch)
    }

    /// Each registered thread may hold two batches in the stock, so the margins grow with the
    /// threads. 0 where stocks do not adapt: they never close by margin. One has closed for a level
    /// above its max, and may open as soon as the level is not.
    fn margin(&self, batches: u64, batch: u64) -> u64 {
        if !self.config.adaptive {
            return 0;
        }
        let threads = u64::from(self.registry.threads()).max(2);
        threads.saturating_mul(batches).saturating_mul(batch)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn each_list_counts_with_the_size_of_its_entries() {
        let mut stocks = Stocks::default();
        stocks.scratch.reserve_exact(100);
        stocks.pending_close.reserve_exact(30);
        stocks.claims.reserve_exact(20);
        let least = (130 * size_of::<&Counter>() + 20 * size_of::<SlotClaim>()) as u64;
        assert!(
            (least..2 * least).contains(&stocks.bytes()),
            "{} bytes",
            stocks.bytes()
        );
    }
}
