//! Words that all counters of a tree share, and the one way in which charging speaks to the
//! policies above it.
//!
//! Charging knows marks: numbers and bits in a counter. Where a counter has a mark, a slow function
//! calls the policies; where it has none, charging calls no policy. A tree of bare counters has no
//! policies at all.

use std::ptr::NonNull;
use std::sync::OnceLock;

use hashbrown::HashTable;
use smallvec::SmallVec;

use crate::counter::alerts::Alerts;
use crate::counter::config::CounterConfig;
use crate::counter::idle_visits::IdleVisits;
use crate::counter::index::{Names, NamesHint};
use crate::counter::object::{Counter, CounterRef, Incarnation, Object};
use crate::counter::peak::{LiveWindows, PeakWindows};
use crate::pool::Cache;
use crate::sync::barrier::Barrier;
use crate::sync::lock::{Lock, LockGuard, Rank};
use crate::sync::stat_atomic::{AtomicBool as StatBool, AtomicU32 as StatU32, AtomicU64};
use crate::sync::{
    Arc, CachePadded, NameHasher, Ordering, SHARDS, Shared, figures_were_loaded,
    figures_were_stored,
};
use crate::thread::local::is_in_transit;
use crate::thread::registry::{Registrar, registry};
use crate::thread::slot::Slot;
use crate::thread::slow_path::{MayWait, Outermost};
use crate::thread::tally::Tally;

pub(crate) struct Tree {
    /// Named in transit words: two trees with one number only wait for each other's transits.
    pub(crate) number: u32,
    pub(crate) registry: Registrar,
    pub(crate) barrier: Barrier,
    pub(crate) config: CounterConfig,
    policies: Option<Box<dyn Policies>>,
    /// The counters' objects come from it.
    pub(crate) pool: Shared<Cache>,
    /// Those of all groups but the root, where they have fewer counters.
    pub(crate) pool_below: OnceLock<Shared<Cache>>,
    pub(crate) counts: TreeCounts,
    /// The word that a checkpoint and a charge that has missed load.
    pub(crate) alerts: CachePadded<Alerts>,
    /// Levels with a mark of a refusal: see `counter::look_ahead`.
    pub(crate) refusing: StatU32,
    stocks: Lock<Stocks>,
    pub(crate) idle_visits: IdleVisits,
    pub(crate) hierarchy: Hierarchy,
    /// The most credit of the stocks that are counted as open and wide, their part of the root's
    /// bound: see `counter::width`.
    pub(crate) wide_bound: AtomicU64,
    /// Readers with peaks of their own, of usage and of live units.
    pub(crate) windows: Lock<PeakWindows>,
    pub(crate) live_windows: Lock<LiveWindows>,
    /// Odd while the holder of the lock moves credit out of slots: figures of both then do not fit
    /// together.
    pub(crate) moving: CreditMoves,
    /// The same while it has slots note their least credit anew.
    pub(crate) noting: CreditMoves,
}

/// The number of times that the holder of a tree's lock has begun something and has ended it, for
/// figures.
#[derive(Default)]
pub(crate) struct CreditMoves(AtomicU64);

/// What it has begun, until the value is dropped.
#[must_use]
pub(crate) struct MovingCredit<'a>(&'a AtomicU64);

impl CreditMoves {
    pub(crate) fn begin(&self) -> MovingCredit<'_> {
        // Before the first claim, whose Release stores show this to a thread that has read one.
        self.0.fetch_add(1, Ordering::Relaxed);
        MovingCredit(&self.0)
    }

    /// The number where nothing is under way: two reads that return the same had nothing between
    /// them.
    pub(crate) fn seen_still(&self) -> Option<u64> {
        let moves = self.0.load(Ordering::Relaxed);
        // What is read after this is what the moves so far have left.
        figures_were_loaded();
        Some(moves).filter(|moves| moves.is_multiple_of(2))
    }
}

impl Drop for MovingCredit<'_> {
    fn drop(&mut self) {
        figures_were_stored();
        self.0.fetch_add(1, Ordering::Relaxed);
    }
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

impl Tree {
    pub(crate) fn new(
        config: CounterConfig,
        pool: Shared<Cache>,
        policies: Option<Box<dyn Policies>>,
    ) -> Arc<Tree> {
        static NUMBERS: StatU32 = StatU32::new(1);
        Arc::new(Tree {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            registry: registry(),
            barrier: Barrier::new(config.barrier),
            config,
            policies,
            pool,
            pool_below: OnceLock::new(),
            counts: TreeCounts::default(),
            alerts: CachePadded::default(),
            refusing: StatU32::new(0),
            stocks: Lock::new(Rank::Stocks, Stocks::default()),
            idle_visits: IdleVisits::new(),
            hierarchy: Hierarchy::new(),
            wide_bound: AtomicU64::new(0),
            windows: Lock::new(Rank::Bookkeeping, PeakWindows::default()),
            live_windows: Lock::new(Rank::Bookkeeping, LiveWindows::default()),
            moving: CreditMoves::default(),
            noting: CreditMoves::default(),
        })
    }

    /// The pool of the root's object, or of those below it.
    pub(crate) fn pool_of(&self, is_root: bool) -> &Cache {
        let below = self.pool_below.get().filter(|_| !is_root);
        below.unwrap_or(&self.pool)
    }

    /// Takes away the mark of a level that has refused.
    pub(crate) fn clear_refuses(&self, mark: &StatBool) {
        if mark.swap(false, Ordering::Relaxed) {
            self.refusing.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// None for bare counters.
    #[inline]
    pub(crate) fn policies(&self) -> Option<&dyn Policies> {
        self.policies.as_deref()
    }

    /// The tree's lock. Its holder waits for threads in transit, so a thread that waits for it is
    /// in none.
    pub(crate) fn lock(&self, _: &impl MayWait) -> LockGuard<'_, Stocks> {
        debug_assert!(
            !is_in_transit(),
            "the holder of the lock may wait for this thread"
        );
        self.stocks.lock()
    }

    pub(crate) fn try_lock(&self) -> Option<LockGuard<'_, Stocks>> {
        self.stocks.try_lock()
    }

    /// Audited live charge of one counter, over all threads.
    pub(crate) fn audited_live(&self, counter: &Counter) -> i64 {
        let cells = self
            .registry
            .blocks()
            .filter_map(|block| block.audit.get(counter.index))
            .map(Tally::net);
        // Cumulative counts wrap, and so do their sums: the difference is right. `verify` compares
        // it only where no thread charges, and its caller orders itself after all threads that did.
        cells
            .fold(
                counter.usage.audit_shared.load(Ordering::Relaxed),
                u64::wrapping_add,
            )
            .cast_signed()
    }

    /// Credit of one counter, over all threads.
    pub(crate) fn credit(&self, counter: &Counter) -> u64 {
        self.registry
            .listed()
            .filter_map(|block| block.slot(counter.index))
            .map(Slot::available)
            .sum()
    }
}

/// The tree of a counter. Only roots hold counted references: if each group changed the count, all
/// threads would write one word.
pub(crate) struct OfTree {
    tree: NonNull<Tree>,
    /// The root's alone.
    _counted: Option<Arc<Tree>>,
}

impl OfTree {
    pub(crate) fn root(tree: &Arc<Tree>) -> OfTree {
        // `counted` counts the tree again by this pointer, which is that of `Arc::into_raw`.
        let pointer = NonNull::new(Arc::as_ptr(tree).cast_mut());
        OfTree {
            tree: pointer.expect("an Arc points somewhere"),
            _counted: Some(Arc::clone(tree)),
        }
    }

    /// For a counter below, which ends before this one.
    pub(crate) fn below(&self) -> OfTree {
        OfTree {
            tree: self.tree,
            _counted: None,
        }
    }

    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn get(&self) -> &Tree {
        // SAFETY: the root above holds a counted reference, and its children keep the root.
        unsafe { self.tree.as_ref() }
    }

    /// For a caller that needs the tree after the counter.
    #[allow(unsafe_code)]
    pub(crate) fn counted(&self) -> Arc<Tree> {
        // SAFETY: the pointer is that of the root's reference, which is still counted, as above.
        unsafe {
            Arc::increment_strong_count(self.tree.as_ptr());
            Arc::from_raw(self.tree.as_ptr())
        }
    }
}

/// Questions and reports of charging to a tree's policies: one object for each tree.
///
/// The caller keeps each counter that it passes. A caller of `may_barge`, `barge_undone`,
/// `underflowed` and `usage_moved`, and in a slow path of `above_max`, may hold the tree's lock or
/// be in transit: these call no foreign code and take only locks that rank after the tree's. The
/// caller of `server`, `release_object` and `stock_moved` holds no lock.
pub(crate) trait Policies: Send + Sync {
    /// A walk has added `n` units at `counter`, where charges wait for room. Whether the units may
    /// stay.
    fn may_barge(&self, counter: &Counter, n: u64) -> bool;

    /// A walk subtracts `n` units that [`may_barge`](Self::may_barge) let stay: a level above has
    /// refused.
    fn barge_undone(&self, counter: &Counter, n: u64);

    /// A charge went above the max of `counter`, by force or where max is only observed. In a slow
    /// path, or outside of any and not in transit.
    fn above_max(&self, counter: &Counter);

    /// More was uncharged than charged at `counter`. In a slow path.
    fn underflowed(&self, counter: &Counter);

    /// Usage or a max has moved at a counter, and a look has found something to do there.
    fn usage_moved(&self, counter: &Counter, found: LookFinding);

    /// Looks at a counter in the place of an allocator, at the levels above it, and gives up the
    /// handle that the list has. The caller holds no lock and runs no slow path.
    fn look_again(&self, counter: &'static Object);

    /// Function that serves the counters that a thread has scheduled: a list, each with a handle.
    /// It calls foreign code. A function, because the policies may go with the last of those
    /// counters.
    fn server(&self) -> fn(*const ());

    /// Function that leaves such a list to the next outermost slow path of any thread. It may run
    /// while the thread unwinds.
    fn leaver(&self) -> fn(*const ());

    /// Releases the object of a group that this thread has claimed, and then the handle on its
    /// parent. The caller drops the result outside of any slow path: with the root's incarnation
    /// the tree ends.
    fn release_object(&self, group: &Counter) -> Option<Incarnation>;

    /// A charge has moved a batch between the stock of `counter` and the counters.
    fn stock_moved(&self, counter: &Counter, outermost: &Outermost, moved: StockMove);
}

/// What a look (`look.rs`) has found for the policies to do at a level. They go by it and do not
/// compare again: each of their steps looks at usage anew before it changes anything, so what is no
/// longer true costs a step in vain. What becomes true later is for the thread that has changed
/// usage or limit since.
#[derive(Clone, Copy)]
pub(crate) struct LookFinding {
    /// The mark of excess above the soft limit is wrong.
    pub(crate) crosses_soft: bool,
    /// Usage is above the threshold of reclaim in the background, and no thread reclaims yet.
    pub(crate) is_to_reclaim: bool,
    /// The mark of pressure is wrong.
    pub(crate) moves_pressure: bool,
    /// Credit may be all that keeps the pressure up.
    pub(crate) may_be_credit: bool,
    /// Charges wait in line, and may fit now.
    pub(crate) serves_line: bool,
}

impl LookFinding {
    pub(crate) fn is_any(self) -> bool {
        self.crosses_soft
            || self.is_to_reclaim
            || self.moves_pressure
            || self.may_be_credit
            || self.serves_line
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StockMove {
    /// From the counters into the stock.
    Refill,
    /// From the stock, which was full, to the counters.
    Return,
}

/// A few counters; the list of a group that is created allocates nothing.
pub(crate) type Counters = SmallVec<[CounterRef; 8]>;

/// The open stocks, which `stocks` keeps, and scratch for drains so that they allocate only when
/// they grow.
#[derive(Default)]
pub(crate) struct Stocks {
    /// Each at the index that `Counter::opened` has.
    pub(in crate::counter) opened: Vec<CounterRef>,
    /// Those whose central stock is open, each at the index that `Counter::central_opened` has.
    pub(in crate::counter) central: Vec<CounterRef>,
    pub(crate) scratch: Counters,
    pub(crate) claims: SmallVec<[SlotClaim; 8]>,
    /// A limit has been set to a percentage.
    pub(crate) percents: bool,
    /// Stocks of groups that went offline.
    pub(crate) pending_close: Vec<CounterRef>,
    /// The number of groups with a stock in that queue.
    pub(crate) unsettled: usize,
}

/// Credit claimed in one slot.
pub(crate) struct SlotClaim {
    pub(crate) stock: CounterRef,
    pub(crate) slot: *const Slot,
    pub(crate) units: u64,
}

// SAFETY: a thread uses the pointers within one drain, while the registry keeps its blocks; between
// drains the list is empty.
#[allow(unsafe_code)]
unsafe impl Send for SlotClaim {}

/// All groups of a tree by name, and by parent: see `links`.
pub(crate) struct Hierarchy {
    /// `SHARDS` of them.
    pub(in crate::counter) shards: Box<[CachePadded<Lock<Shard>>]>,
    /// Of the shards, in their order.
    pub(in crate::counter) hints: Box<[NamesHint]>,
    pub(in crate::counter) hasher: NameHasher,
}

impl Hierarchy {
    fn new() -> Hierarchy {
        let shard = |_| CachePadded::new(Lock::new(Rank::Hierarchy, Shard::default()));
        Hierarchy {
            shards: (0..SHARDS).map(shard).collect(),
            hints: (0..SHARDS).map(|_| NamesHint::new()).collect(),
            hasher: NameHasher::default(),
        }
    }
}

/// The groups of one shard.
#[derive(Default)]
pub(crate) struct Shard {
    pub(in crate::counter) names: Names,
    /// Parents that have children here, and the youngest of these.
    pub(in crate::counter) parents: HashTable<Children>,
    /// Places where listings of children go on: see `children`.
    pub(in crate::counter) cursors: SmallVec<[Cursor; 1]>,
    /// Groups that went offline and still hold something, the youngest first.
    pub(in crate::counter) dying: Option<CounterRef>,
    pub(in crate::counter) online: u32,
    pub(crate) dead: u32,
}

/// Place where a listing of a group's children goes on. A thread that unlinks the child moves the
/// cursor on.
pub(in crate::counter) struct Cursor {
    pub(in crate::counter) number: u64,
    pub(in crate::counter) at: Option<CounterRef>,
}

pub(in crate::counter) struct Children {
    pub(in crate::counter) of: CounterRef,
    pub(in crate::counter) first: CounterRef,
}
