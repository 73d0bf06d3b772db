//! `PageCounter`: the handle that users hold.

use std::fmt;

use super::config::{BATCH_MAX, CounterConfig};
use super::page_counter::{Node, USAGE_MAX};
use super::protection::Protection;
use super::stock::{Consume, Put};
use super::tree::Tree;
use super::verify::Verdict;
use crate::error::{Busy, CounterId, Refused};
use crate::sync::barrier::BarrierState;
use crate::sync::per_thread;
use crate::sync::slots::Gate;
use crate::sync::stat_atomic::AtomicU64;
use crate::sync::{Arc, Ordering, model_failed};

/// A hierarchical counter: a usage, a limit, a parent, and a stock of pre-charged credit for each thread.
///
/// Charging a counter charges all its ancestors; a charge is admitted when it fits at every level and leaves no trace when
/// it does not. Most charges are paid from the calling thread's stock and touch no shared memory (about 2 ns for a charge
/// and its uncharge, at any depth).
///
/// The type is a handle: clones name the same counter, comparison is by identity. When the last handle is gone and no
/// children are left, the counter goes, and what is still charged to it leaves its ancestors.
///
/// At every quiescent point and every level, `usage == live charges of the subtree + credit in its stocks`.
///
/// Source: `mm/page_counter.c`, and "move stock from mem_cgroup to page_counter" (J. Hahn, linux-mm, 2026).
///
/// ```
/// use memcg::{CounterConfig, PageCounter};
///
/// let machine = PageCounter::root(CounterConfig::new().batch(64));
/// let job = machine.child();
/// machine.set_max(1_000)?;
/// job.try_charge(10)?;
/// assert_eq!(machine.usage(), job.live() + job.stocked());
/// job.uncharge(10);
/// machine.drain();
/// assert_eq!(machine.usage(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PageCounter {
    /// The hit path needs nothing else.
    gate: &'static Gate,
    keep: Arc<Keep>,
}

/// Keeps a counter and its ancestors in the tree.
struct Keep {
    node: Arc<Node>,
    parent: Option<Arc<Keep>>,
}

impl Drop for Keep {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        per_thread::slow_path(|_, _| self.node.tree.retire(&self.node));
        // Not by recursion: a tree may be deeper than a stack. Each ancestor drops without a parent to go on to.
        let mut parent = self.parent.take();
        while let Some(mut keep) = parent.and_then(Arc::into_inner) {
            parent = keep.parent.take();
        }
    }
}

// === impl PageCounter: charge and uncharge ===

impl PageCounter {
    /// The default max: no limit.
    pub const UNLIMITED: u64 = u64::MAX;

    /// The most units that a counter can hold.
    pub const USAGE_MAX: u64 = USAGE_MAX;

    /// A counter without parent.
    pub fn root(config: CounterConfig) -> PageCounter {
        per_thread::slow_path(|_, _| PageCounter::keep_root(Tree::new(config.clone()).root(&config, 0, true)))
    }

    /// A counter below this one, with its batch and without limits.
    ///
    /// The first child makes the parent give its own credit back.
    pub fn child(&self) -> PageCounter {
        self.child_with_stock(true)
    }

    pub(crate) fn child_with_stock(&self, stock: bool) -> PageCounter {
        per_thread::slow_path(|_, _| {
            let node = self.node().tree.child(self.node(), stock);
            PageCounter::keep(node, Some(Arc::clone(&self.keep)))
        })
    }

    pub(crate) fn keep_root(node: Arc<Node>) -> PageCounter {
        PageCounter::keep(node, None)
    }

    fn keep(node: Arc<Node>, parent: Option<Arc<Keep>>) -> PageCounter {
        PageCounter { gate: node.gate, keep: Arc::new(Keep { node, parent }) }
    }

    #[inline(always)]
    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.keep.node
    }

    /// Charge `n` units here and at all ancestors, or nowhere.
    ///
    /// Exact: after a success usage is within max at every level, unless a forced charge is on top. Before a refusal all
    /// credit below the refusing level has been drained. Charging 0 always succeeds. About 1 ns from the stock; else two
    /// or three read-modify-write instructions a level.
    ///
    /// # Errors
    ///
    /// [`Refused`] names the level that was full.
    #[inline]
    pub fn try_charge(&self, n: u64) -> Result<(), Refused> {
        match self.gate.consume(n) {
            Consume::Hit => Ok(()),
            missed => self.node().try_charge_slow(n, missed),
        }
    }

    /// Charge `n` units here and at all ancestors, whatever the limits say.
    ///
    /// For memory that exists already. Stranded credit is drained first; what still does not fit goes above max and is kept
    /// apart in [`forced`](Self::forced). The pressure hook is not asked.
    #[inline]
    pub fn charge(&self, n: u64) {
        match self.gate.consume(n) {
            Consume::Hit => {}
            missed => self.node().force_slow(n, missed),
        }
    }

    /// Give `n` units back, on whatever thread. Never fails.
    ///
    /// Giving back more than was charged is a bug of the caller: it is clamped at the level where it shows, counted in
    /// [`Counts::underflows`] and reported by [`verify`](Self::verify); this counter then goes without stock, and its
    /// ancestors keep what belongs to others.
    #[inline]
    pub fn uncharge(&self, n: u64) {
        match self.gate.put(n) {
            Put::Kept => {}
            missed => self.node().uncharge_slow(n, missed),
        }
    }

    /// Take `n` units off this level only, leaving the ancestors as they are: one step of undoing a charge by hand.
    pub fn cancel(&self, n: u64) {
        self.node().subtract(n.min(USAGE_MAX));
    }
}

// === impl PageCounter: limits ===

impl PageCounter {
    /// Set the most units that charges may bring this counter to. Credit below it is drained before live charge is in the
    /// way.
    ///
    /// From a success on, usage stays within max but for forced charges.
    ///
    /// # Errors
    ///
    /// [`Busy`] when live charge is above `max`, which forced charges may bring about even where `max` is raised; the old
    /// max holds.
    pub fn set_max(&self, max: u64) -> Result<(), Busy> {
        per_thread::slow_path(|_, _| self.node().tree.set_max(self.node(), max)).map_err(|usage| Busy {
            level: self.id(),
            usage,
            max,
        })
    }

    /// The most units, [`UNLIMITED`](Self::UNLIMITED) by default.
    pub fn max(&self) -> u64 {
        self.node().max()
    }

    /// Set the units that reclaim never touches.
    pub fn set_min(&self, units: u64) {
        self.node().set_protection(Protection::Min, units);
    }

    /// The units that reclaim never touches, 0 by default.
    pub fn min(&self) -> u64 {
        self.node().setting(Protection::Min)
    }

    /// Set the units that reclaim touches last.
    pub fn set_low(&self, units: u64) {
        self.node().set_protection(Protection::Low, units);
    }

    /// The units that reclaim touches last, 0 by default.
    pub fn low(&self) -> u64 {
        self.node().setting(Protection::Low)
    }

    /// Sum over the children of min(usage, min). Exact at every quiescent point.
    pub fn children_min_usage(&self) -> u64 {
        self.node().children_protected(Protection::Min)
    }

    /// Sum over the children of min(usage, low). Exact at every quiescent point.
    pub fn children_low_usage(&self) -> u64 {
        self.node().children_protected(Protection::Low)
    }

    /// Change the batch of this counter and all below it; 0 switches their stock off. Their credit is drained.
    pub fn set_batch(&self, units: u64) {
        per_thread::slow_path(|_, _| self.node().tree.set_batch(self.node(), units.min(BATCH_MAX)));
    }

    /// Units that a thread charges in advance.
    pub fn batch(&self) -> u64 {
        self.node().batch()
    }

    /// Take back all credit of this counter and all below it. Returns the units; complete when nobody charges meanwhile.
    pub fn drain(&self) -> u64 {
        per_thread::slow_path(|_, _| self.node().tree.drain(self.node()))
    }
}

// === impl PageCounter: reading ===

impl PageCounter {
    /// Live charge and credit of the subtree: what the limits see. One load.
    pub fn usage(&self) -> u64 {
        self.node().usage()
    }

    /// [`usage`](Self::usage) minus [`stocked`](Self::stocked): what users hold. An estimate while others run.
    pub fn live(&self) -> u64 {
        // Credit first: what is stocked afterwards makes live larger, never negative.
        let stocked = self.stocked();
        self.usage().saturating_sub(stocked)
    }

    /// Credit in the stocks of the subtree. A look at each slot; an estimate while others run.
    pub fn stocked(&self) -> u64 {
        per_thread::slow_path(|_, _| self.node().tree.stocked(self.node()))
    }

    /// The published bound on [`stocked`](Self::stocked): over the open stocks of the subtree, threads that touched them
    /// x 2 batches. One load.
    pub fn stocked_bound(&self) -> u64 {
        self.node().bound.load(Ordering::Relaxed)
    }

    /// Units above max that forced charges put here. Falls as units are uncharged; `usage - forced <= max` at any moment.
    pub fn forced(&self) -> u64 {
        self.node().forced()
    }

    /// Units that forced charges have put above max, ever.
    pub fn forced_total(&self) -> u64 {
        self.node().forced_total()
    }

    /// The highest usage that admitted charges left behind, credit included.
    pub fn peak(&self) -> u64 {
        self.node().peaks().ever()
    }

    /// A peak of one's own: the highest usage from now on, or from its last reset.
    pub fn peak_window(&self) -> PeakWindow {
        PeakWindow { value: self.node().peaks().open_window(self.usage()), counter: self.clone() }
    }

    /// Charges that were refused at this level.
    pub fn failcnt(&self) -> u64 {
        self.node().failcnt.load(Ordering::Relaxed)
    }

    /// The parent, if any.
    pub fn parent(&self) -> Option<PageCounter> {
        let keep = self.keep.parent.as_ref()?;
        Some(PageCounter { gate: keep.node.gate, keep: Arc::clone(keep) })
    }

    /// The counter's name in errors and verdicts.
    pub fn id(&self) -> CounterId {
        self.node().id
    }

    /// The barrier pair that the tree runs on.
    pub fn barrier(&self) -> BarrierState {
        self.node().tree.barrier.state()
    }

    /// Event counts of the whole tree.
    pub fn counts(&self) -> Counts {
        let tree = &self.node().tree;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            drains: read(&tree.counts.drains),
            drained: read(&tree.counts.drained),
            barriers: read(&tree.barrier.heavies),
            refused_in_transit: read(&tree.counts.refused_in_transit),
            underflows: read(&tree.counts.underflows),
            overflows: read(&tree.counts.overflows),
            discarded: read(&tree.counts.discarded),
        }
    }

    /// Compare the counts of the subtree with each other, and with the second count where
    /// [`CounterConfig::audit`] is on. Meant for a moment when nobody charges; the tree's shape holds still meanwhile.
    pub fn verify(&self) -> Verdict {
        per_thread::slow_path(|_, _| self.node().tree.verify(self.node()))
    }
}

impl Clone for PageCounter {
    fn clone(&self) -> Self {
        PageCounter { gate: self.gate, keep: Arc::clone(&self.keep) }
    }
}

impl PartialEq for PageCounter {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.keep, &other.keep)
    }
}

impl Eq for PageCounter {}

impl fmt::Debug for PageCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageCounter")
            .field("id", &self.node().id.0)
            .field("usage", &self.usage())
            .field("max", &self.max())
            .finish_non_exhaustive()
    }
}

/// Event counts of a tree of counters. They only rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Times credit was collected: by a refusal, a lowered max, a forced excess, a switch of the stock (by hand or near a
    /// limit), a first child, a call of `drain`.
    pub drains: u64,
    /// Units that drains brought back.
    pub drained: u64,
    /// Heavy barriers that drains ran.
    pub barriers: u64,
    /// Charges refused although a thread in transit, a failed barrier or the charge's own position inside another slow
    /// path kept credit out of reach.
    pub refused_in_transit: u64,
    /// Times more was uncharged from a level than it held.
    pub underflows: u64,
    /// Times a forced charge would have passed [`PageCounter::USAGE_MAX`].
    pub overflows: u64,
    /// Units of credit that were thrown away because nothing stood behind them after an underflow.
    pub discarded: u64,
}

/// A private, resettable peak of one counter. Other windows and [`PageCounter::peak`] do not notice a reset.
#[derive(Debug)]
pub struct PeakWindow {
    counter: PageCounter,
    value: Arc<AtomicU64>,
}

impl PeakWindow {
    /// The highest usage since the window was opened or last reset.
    pub fn peak(&self) -> u64 {
        self.counter.node().peaks().read(&self.value)
    }

    /// Start over from the usage of now.
    pub fn reset(&self) {
        self.counter.node().peaks().reset(&self.value, self.counter.usage());
    }
}

impl Drop for PeakWindow {
    fn drop(&mut self) {
        self.counter.node().peaks().close_window(&self.value);
    }
}
