//! One counter as a level of its tree: usage, limits, and the steps a charge takes at it.
//!
//! After `mm/page_counter.c`, with three differences: a level admits by compare-exchange, so a refusal leaves no trace at
//! its own level; a peak is recorded after the whole walk, so a doomed charge leaves none at all; protection is propagated
//! by a loop (`protection`), so it is exact.
//!
//! Edges: E1 (charge/set_max), E4 (forced charge/opening). What credit is and how it moves is in `stock` and `drain`.

use std::ptr;

use smallvec::SmallVec;

use super::audit::Cell as AuditCell;
use super::peak::Peaks;
use super::protection::Propagated;
use super::tree::Tree;
use crate::error::{CounterId, Refused};
use crate::sync::lock::{Lock, Rank};
use crate::sync::slots::{Gate, SlotIndex};
use crate::sync::stat_atomic::{AtomicBool, AtomicU32, AtomicU64 as StatU64};
use crate::sync::{Arc, AtomicI64, AtomicU64, CachePadded, Ordering, fence_after_exchange};

/// The most units a counter may hold.
pub(crate) const USAGE_MAX: u64 = i64::MAX as u64;

/// Levels at a new peak that a walk keeps on its own stack.
const RISEN_COMMON: usize = 8;

/// One open stock more or less below a level, and one transition: see `Limits::open`.
pub(crate) const OPENED: u64 = (1 << 32) | 1;
pub(crate) const CLOSED: u64 = (1 << 32) - 1;

/// A counter: its stock, its level, its place in the tree. In this order: what never changes on one line, usage on
/// another, limits on a third.
#[repr(C, align(128))]
pub(crate) struct Node {
    // Read by every walk, written at birth.
    /// State of the stock, and what the hit path reads.
    pub(crate) gate: &'static Gate,
    /// Slot index in every thread's block.
    pub(crate) index: SlotIndex,
    /// Audited, or with a real fence: not for the hit path.
    pub(crate) careful: bool,
    pub(crate) fenced: bool,
    pub(crate) parent: Option<Arc<Node>>,
    /// The front of a counter set with shared stock charges these and is no level itself. Empty otherwise.
    pub(crate) members: Box<[Arc<Node>]>,
    pub(crate) tree: Arc<Tree>,

    usage: CachePadded<Usage>,
    pub(crate) limits: CachePadded<Limits>,

    // Rarely touched.
    pub(crate) id: CounterId,
    /// Where the tree keeps it; written once, under the lock.
    pub(crate) place: AtomicU32,
    /// Units per refill when open; 0 = stock off.
    pub(crate) batch: StatU64,
    /// (thread, counter) pairs that may hold credit.
    pub(crate) touched: StatU64,
    /// Bound on the credit below this level: the sum of `touched` x capacity over open stocks.
    pub(crate) bound: StatU64,
    /// Root only: the most that `bound` may become; `None`: a share of max.
    pub(crate) budget: Option<u64>,
    pub(crate) children: AtomicU32,
    /// More was uncharged than charged here: the stock stays closed.
    pub(crate) poisoned: AtomicBool,
    pub(crate) failcnt: StatU64,
    pub(crate) underflows: StatU64,
    pub(crate) underflowed: StatU64,
    /// Audit cell of threads that have no block.
    pub(crate) audit_shared: AuditCell,
}

struct Usage {
    /// Live charge and credit of the whole subtree. Signed: an underflow is seen, not wrapped.
    units: AtomicI64,
    peaks: Peaks,
}

pub(crate) struct Limits {
    pub(crate) max: AtomicU64,
    pub(crate) min: AtomicU64,
    pub(crate) low: AtomicU64,
    /// Open stocks below this level in the low half, transitions in the high half (E10). Opening counts before the first
    /// batch, closing uncounts after the last drain: a level that reads zero twice with the same number had no credit
    /// below it in between.
    pub(crate) open: AtomicU64,
    /// Refused here lately: nothing below opens. Set under the lock, cleared by a charge that sees room.
    pub(crate) tight: AtomicBool,
    /// Units above max that forced charges put here. Changes only together with usage, under `forcing`.
    forced: StatU64,
    forced_total: StatU64,
    forcing: Lock<()>,
    pub(super) min_propagated: Propagated,
    pub(super) low_propagated: Propagated,
}

/// A level that said no.
pub(crate) struct Refusal<'a> {
    pub(crate) level: &'a Node,
    /// `Limits::open` as read before the refusing look at usage.
    open: u64,
    usage: u64,
    max: u64,
}

impl Refusal<'_> {
    /// No stock was open below the level from before the refusal until now: there is no credit to look for.
    pub(crate) fn without_credit(&self) -> bool {
        // Acquire (E10): pairs with the exchanges in `Tree::open` and `Tree::close`.
        self.open & u64::from(u32::MAX) == 0 && self.level.limits.open.load(Ordering::Acquire) == self.open
    }

    pub(crate) fn refused(&self, requester: &Node, requested: u64) -> Refused {
        Refused {
            level: self.level.id,
            requester: requester.id,
            requested,
            usage: self.usage,
            max: self.max,
            stocked_bound: self.level.bound.load(Ordering::Relaxed),
        }
    }
}

/// The levels of a charge: from a counter to its root. For the front of a set, all chains of its members, the last first;
/// uncharges go from the first, so that a later counter never reads lower for it.
pub(crate) struct Levels<'a> {
    next: Option<&'a Node>,
    rest: std::slice::Iter<'a, Arc<Node>>,
}

impl<'a> Iterator for Levels<'a> {
    type Item = &'a Node;

    #[inline]
    fn next(&mut self) -> Option<&'a Node> {
        let level = match self.next {
            Some(level) => level,
            None => self.rest.next_back()?,
        };
        self.next = level.parent.as_deref();
        Some(level)
    }
}

/// Levels that a walk may bring to a new peak. Recorded once the walk is through, so that a doomed one leaves none.
struct Risen<'a>(SmallVec<[(&'a Node, u64); RISEN_COMMON]>);

impl<'a> Risen<'a> {
    fn new() -> Self {
        Risen(SmallVec::new())
    }

    #[inline]
    fn note(&mut self, level: &'a Node, usage: i64) {
        let usage = usage.max(0).cast_unsigned();
        if level.peaks().rises(usage) {
            self.0.push((level, usage));
        }
    }

    #[inline]
    fn record(self) {
        for (level, usage) in self.0 {
            level.peaks().record(usage);
        }
    }
}

/// What a node is made from.
pub(crate) struct Birth {
    pub(crate) tree: Arc<Tree>,
    pub(crate) parent: Option<Arc<Node>>,
    pub(crate) members: Box<[Arc<Node>]>,
    pub(crate) batch: u64,
    pub(crate) max: u64,
    pub(crate) budget: Option<u64>,
    /// Whether it has a stock of its own.
    pub(crate) stock: bool,
}

// === impl Node: the walk ===

impl Node {
    pub(crate) fn new(birth: Birth) -> Node {
        static NEXT: StatU64 = StatU64::new(1);
        let fenced = birth.tree.barrier.fenced();
        let careful = fenced || birth.tree.audited;
        let (index, gate) = if birth.stock { birth.tree.registry.take_index() } else { birth.tree.registry.no_index() };
        gate.set_index(if careful { SlotIndex::NONE } else { index });
        Node {
            gate,
            index,
            careful,
            fenced,
            parent: birth.parent,
            members: birth.members,
            tree: birth.tree,
            usage: CachePadded::new(Usage { units: AtomicI64::new(0), peaks: Peaks::new() }),
            limits: CachePadded::new(Limits {
                max: AtomicU64::new(birth.max),
                min: AtomicU64::new(0),
                low: AtomicU64::new(0),
                open: AtomicU64::new(0),
                tight: AtomicBool::new(false),
                forced: StatU64::new(0),
                forced_total: StatU64::new(0),
                forcing: Lock::new(Rank::Forcing, ()),
                min_propagated: Propagated::default(),
                low_propagated: Propagated::default(),
            }),
            id: CounterId(NEXT.fetch_add(1, Ordering::Relaxed)),
            place: AtomicU32::new(u32::MAX),
            batch: StatU64::new(birth.batch),
            touched: StatU64::new(0),
            bound: StatU64::new(0),
            budget: birth.budget,
            children: AtomicU32::new(0),
            poisoned: AtomicBool::new(false),
            failcnt: StatU64::new(0),
            underflows: StatU64::new(0),
            underflowed: StatU64::new(0),
            audit_shared: AuditCell::new(),
        }
    }

    #[inline]
    pub(crate) fn levels(&self) -> Levels<'_> {
        Levels { next: self.members.is_empty().then_some(self), rest: self.members.iter() }
    }

    /// Charge exactly `n` at every level, or at none. Returns the smallest room that its own exchanges left.
    ///
    /// A doomed walk is visible below the refusing level until it is undone.
    pub(crate) fn walk(&self, n: u64) -> Result<u64, Refusal<'_>> {
        let mut risen = Risen::new();
        let mut margin = u64::MAX;
        for level in self.levels() {
            match level.admit(n) {
                Ok((usage, room)) => {
                    margin = margin.min(room);
                    risen.note(level, usage);
                }
                Err(refusal) => {
                    self.roll_back(n, refusal.level);
                    return Err(refusal);
                }
            }
        }
        risen.record();
        Ok(margin)
    }

    #[cold]
    fn roll_back(&self, n: u64, refused: &Node) {
        for below in self.levels().take_while(|&below| !ptr::eq(below, refused)) {
            below.take_off(n);
        }
    }

    /// Charge exactly `n` at every level, whatever the limits say. True if a level is above its max afterwards.
    pub(crate) fn force(&self, n: u64) -> bool {
        let mut risen = Risen::new();
        let mut crossed = false;
        for level in self.levels() {
            let (usage, above) = level.add_forced(n);
            risen.note(level, usage);
            crossed |= above;
        }
        risen.record();
        crossed
    }

    /// Give `n` back at every level. What a level clamps its ancestors keep: they hold it for somebody else.
    pub(crate) fn uncharge_levels(&self, n: u64) {
        if self.members.is_empty() {
            self.uncharge_chain(n);
        } else {
            // First member first: see `Levels`.
            for member in &self.members {
                if member.uncharge_chain(n) < n {
                    self.poisoned.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    /// Returns what was there to take at the lowest level.
    fn uncharge_chain(&self, n: u64) -> u64 {
        if n == 0 {
            return 0;
        }
        let lowest = self.subtract(n);
        let mut n = lowest;
        let mut level = self.parent.as_deref();
        while let Some(above) = level.filter(|_| n > 0) {
            n = above.subtract(n);
            level = above.parent.as_deref();
        }
        lowest
    }

    /// Usage behind the credit of this stock: the least of a set's counters.
    pub(crate) fn backing(&self) -> u64 {
        self.members.iter().map(|member| member.usage()).min().unwrap_or_else(|| self.usage())
    }
}

impl Drop for Node {
    /// Not by recursion: a tree may be deeper than a stack.
    fn drop(&mut self) {
        let mut parent = self.parent.take();
        while let Some(mut node) = parent.and_then(Arc::into_inner) {
            parent = node.parent.take();
        }
    }
}

// === impl Node: one level ===

impl Node {
    /// Add `n` if usage stays within max. Returns usage and the room left above it.
    fn admit(&self, n: u64) -> Result<(i64, u64), Refusal<'_>> {
        // Acquire (E10): read before usage, compared after the refusal.
        let open = self.limits.open.load(Ordering::Acquire);
        // Acquire, here and where the exchange fails: max is read after usage, so that a refusal never pairs an old max with
        // a newer usage.
        let mut usage = self.usage.units.load(Ordering::Acquire);
        loop {
            let max = self.limits.max.load(Ordering::Acquire);
            let Some(new) = checked_add(usage, n).filter(|&new| within(new, max)) else {
                // An exchange of nothing reads the latest value: no refusal rests on a stale look.
                let now = self.usage.units.fetch_add(0, Ordering::AcqRel);
                if now == usage {
                    return Err(self.refusal(open, usage, max));
                }
                usage = now;
                continue;
            };
            // SeqCst (E1): pairs with `set_max`. Either we read its new max below, or it reads our usage.
            if let Err(now) = self.usage.units.compare_exchange_weak(usage, new, Ordering::SeqCst, Ordering::Acquire) {
                usage = now;
                continue;
            }
            fence_after_exchange();
            let max = self.limits.max.load(Ordering::SeqCst);
            if !within(new, max) {
                self.take_off(n);
                return Err(self.refusal(open, usage, max));
            }
            self.propagate();
            let room = max.min(USAGE_MAX) - new.max(0).cast_unsigned();
            self.loosen(room);
            return Ok((new, room));
        }
    }

    fn refusal(&self, open: u64, usage: i64, max: u64) -> Refusal<'_> {
        Refusal { level: self, open, usage: usage.max(0).cast_unsigned(), max }
    }

    /// A charge that sees plenty of room at a tight level ends the tightness.
    fn loosen(&self, room: u64) {
        if self.limits.tight.load(Ordering::Relaxed) && room >= self.tree.open_above(self.batch()) {
            self.limits.tight.store(false, Ordering::Relaxed);
        }
    }

    /// Add `n` whatever max says. The excess is set apart before usage shows it, so usage - forced <= max all the while.
    fn add_forced(&self, n: u64) -> (i64, bool) {
        let _forcing = self.limits.forcing.lock();
        let mut set_apart = 0;
        let mut usage = self.usage.units.load(Ordering::Relaxed);
        loop {
            let new = usage.checked_add_unsigned(n).unwrap_or_else(|| {
                self.tree.counts.overflows.fetch_add(1, Ordering::Relaxed);
                i64::MAX
            });
            let max = self.limits.max.load(Ordering::Acquire).min(USAGE_MAX);
            let excess = new.max(0).cast_unsigned().saturating_sub(max).min(n);
            self.limits.forced.fetch_add(excess.wrapping_sub(set_apart), Ordering::AcqRel);
            self.limits.forced_total.fetch_add(excess.saturating_sub(set_apart), Ordering::Relaxed);
            set_apart = excess;
            // SeqCst (E4): pairs with the look at usage in `Tree::open`, see `Tree::close_crossed`.
            match self.usage.units.compare_exchange_weak(usage, new, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => {
                    fence_after_exchange();
                    self.propagate();
                    return (new, excess > 0);
                }
                Err(now) => usage = now,
            }
        }
    }

    /// Take `n` off this level. Returns what was there to take: less than `n` is an underflow, counted and clamped.
    pub(crate) fn subtract(&self, n: u64) -> u64 {
        let taken = if self.limits.forced.load(Ordering::Acquire) == 0 {
            self.subtract_usage(n)
        } else {
            // Usage first, and no forced charge in between. Units above max go first.
            let _forcing = self.limits.forcing.lock();
            let taken = self.subtract_usage(n);
            let forced = self.limits.forced.load(Ordering::Relaxed);
            self.limits.forced.store(forced.saturating_sub(taken), Ordering::Release);
            taken
        };
        fence_after_exchange();
        self.propagate();
        taken
    }

    /// One subtraction where there is enough to take, always but for a caller's bug; else what is there.
    fn subtract_usage(&self, n: u64) -> u64 {
        let (n, mut usage) = (n.min(USAGE_MAX), self.usage.units.load(Ordering::Relaxed));
        if usage >= n.cast_signed() {
            // SeqCst (E1, E11): a limit or a protection set meanwhile sees it, or we see the protection afterwards.
            usage = self.usage.units.fetch_sub(n.cast_signed(), Ordering::SeqCst);
            if usage >= n.cast_signed() {
                return n;
            }
            // Somebody else took more than was his in between.
            let taken = usage.max(0).cast_unsigned();
            self.usage.units.fetch_add((n - taken).cast_signed(), Ordering::SeqCst);
            return self.underflow(n, taken);
        }
        // Not by subtraction: a usage far below zero, if only for an instant, would let everybody pass the limit.
        loop {
            let taken = n.min(usage.max(0).cast_unsigned());
            let left = usage - taken.cast_signed();
            match self.usage.units.compare_exchange_weak(usage, left, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) if taken == n => return n,
                Ok(_) => return self.underflow(n, taken),
                Err(now) => usage = now,
            }
        }
    }

    #[cold]
    fn underflow(&self, n: u64, taken: u64) -> u64 {
        self.underflows.fetch_add(1, Ordering::Relaxed);
        self.underflowed.fetch_add(n - taken, Ordering::Relaxed);
        self.tree.counts.underflows.fetch_add(1, Ordering::Relaxed);
        self.poisoned.store(true, Ordering::Relaxed);
        taken
    }

    /// Take back what this walk has just added. Nothing of it was forced.
    fn take_off(&self, n: u64) {
        self.subtract_usage(n);
        fence_after_exchange();
        self.propagate();
    }

    /// Store a max. Below usage it is taken back and the usage returned. Under the tree's lock.
    pub(crate) fn store_max(&self, max: u64) -> Result<(), u64> {
        let old = self.limits.max.load(Ordering::Relaxed);
        // SeqCst (E1): pairs with the exchange in `admit`. Either the charger reads this max, or we read its usage.
        self.limits.max.swap(max, Ordering::SeqCst);
        fence_after_exchange();
        let usage = self.usage();
        if usage <= max || max >= old {
            return Ok(());
        }
        self.limits.max.store(old, Ordering::SeqCst);
        Err(usage)
    }

    pub(crate) fn usage(&self) -> u64 {
        self.usage.units.load(Ordering::SeqCst).max(0).cast_unsigned()
    }

    /// Units that fit at every level before one of them cannot count them.
    pub(crate) fn countable(&self) -> u64 {
        self.levels().map(|level| USAGE_MAX - level.usage()).min().unwrap_or(USAGE_MAX)
    }

    pub(crate) fn forced(&self) -> u64 {
        self.limits.forced.load(Ordering::Acquire)
    }

    pub(crate) fn forced_total(&self) -> u64 {
        self.limits.forced_total.load(Ordering::Acquire)
    }

    pub(crate) fn peaks(&self) -> &Peaks {
        &self.usage.peaks
    }
}

fn checked_add(usage: i64, n: u64) -> Option<i64> {
    usage.checked_add(i64::try_from(n).ok()?)
}

fn within(usage: i64, max: u64) -> bool {
    usage.max(0).cast_unsigned() <= max
}
