//! The way back of a charge: from a put that the stock does not take to one level after the other.
//! The put itself is in `charge`.
//!
//! Edges: E1 (charge/set_max), E5 (transit), E11 (protection), E15 (the last uncharge).

use std::ptr;

use crate::counter::handle::Stale;
use crate::counter::object::tree::StockMove;
use crate::counter::object::{Counter, Object};
use crate::counter::slow_path::{Lazily, SlowPath};
use crate::counter::spare::Side;
use crate::counter::watch::{EXCEEDED, RECLAIMS};
use crate::counter::{at_limit, claim, counted, cover, exceeded, look, reserve};
use crate::error::USAGE_MAX;
use crate::sync::{Ordering, fence_after_exchange};
use crate::thread::block::Block;
use crate::thread::directory::Header;
use crate::thread::slot::{Put, Slot};
use crate::thread::slow_path::{Entered, Outermost};
use crate::thread::transit::ANY;

// === Into the stock ===

/// Uncharge `n` from the header's counter after a miss. Afterwards the counter may be gone.
///
/// Each miss has a function of its own: one for both would take which it was, and a hit would set
/// that argument before the branch, for nothing.
#[inline(always)]
pub(crate) fn uncharge_missed(header: &Header, n: u64, missed: Put) {
    match missed {
        Put::Kept => {}
        Put::Full => give_back_slow(header, n),
        Put::Closed => take_back_slow(header),
    }
}

/// Uncharge what does not fit into the slot.
#[cold]
#[inline(never)]
#[allow(unsafe_code)]
fn give_back_slow(header: &Header, n: u64) {
    // SAFETY: the units that did not fit keep the counter.
    unsafe { Object::of(header).kept() }.give_back(n);
}

/// The slot has the units, and the stock has closed meanwhile: a drainer may have taken them already.
#[cold]
#[inline(never)]
fn take_back_slow(header: &Header) {
    let path = SlowPath::enter();
    let slot = path
        .block()
        .and_then(|block| Some((block, block.slot_behind(header)?)));
    // Mutation: e3-put-into-a-dying-stock-stays
    take_back(header, slot, ANY, false);
}

/// Uncharge everything in the slot of a counter that closed while this thread put credit there.
/// Credit found in the slot keeps the counter alive; where the slot is empty, the thread does not
/// touch the counter.
#[allow(unsafe_code)]
pub(super) fn take_back(header: &Header, slot: Option<(&Block, &Slot)>, tree: u32, fenced: bool) {
    let Some((block, slot)) = slot else { return };
    // The transit of the outer slow path covers an allocator that charges inside it.
    let _transit = if block.transit.is_over() {
        Some(block.transit.enter(tree, fenced))
    } else {
        block.transit.widen();
        None
    };
    let back = slot.take_back(u64::MAX, fenced);
    if back > 0 {
        // SAFETY: the credit keeps the counter.
        unsafe { Object::of(header).kept() }.uncharge_levels(back);
    }
}

impl Counter {
    /// Uncharge `n`, which keeps the counter alive until the last step.
    #[inline(always)]
    pub(crate) fn give_back(&self, n: u64) {
        let n = n.min(USAGE_MAX);
        if n == 0 {
            return;
        }
        if self.cover().is_some() {
            return reserve::release(self, n);
        }
        let path = Lazily::outside();
        let thread = self.outside_if_closed();
        let transit = thread
            .as_ref()
            .and_then(|thread| self.begin_closed_transit(thread));
        let Some((transit, _)) = transit else {
            return self.give_back_in_slow_path(n);
        };
        counted::note_uncharged(self, n);
        self.uncharge_up_to(n, None, &path);
        drop(transit);
    }

    #[inline(never)]
    fn give_back_in_slow_path(&self, n: u64) {
        self.give_back_entered(&SlowPath::enter(), n);
    }

    /// Uncharge at least one unit. An allocator's path takes no lock, and counts without a block: a
    /// cell's page may be missing.
    pub(super) fn give_back_entered(&self, path: &Entered, n: u64) {
        let incarnation = self.incarnation();
        let tree = self.tree().number;
        // The audit counts first: once the credit is put back the object may be another counter's.
        if self.cover().is_none() {
            counted::note_uncharged(self, n);
        }
        counted::audit_uncharged(self, path.outermost().and_then(Outermost::block), n);
        if incarnation.slow_only {
            let fenced = incarnation.fenced;
            let slot = self.slot_of(path.block());
            let put = slot.map_or(Put::Full, |(_, slot)| {
                slot.put(n, &self.header.capacity, fenced)
            });
            match put {
                Put::Kept => return,
                Put::Closed => return take_back(self.header, slot, tree, fenced),
                Put::Full => {}
            }
        }
        // Statistics count first for the same reason. A stock that this thread has not used yet
        // does not overflow.
        if let Some(outermost) = path.outermost()
            && outermost
                .block()
                .is_some_and(|block| self.is_full_for(block, n))
            && let Some(policies) = self.tree().policies()
        {
            policies.stock_moved(self, outermost, StockMove::Return);
        }
        let poisoned = self.poisoned.load(Ordering::Relaxed);
        let stale = Stale::new(self);
        let whole = self.in_transit(path.own_block(), |block| match block {
            Some(block) => self.cut(block, n),
            None => self.uncharge_levels(n),
        });
        // E15: the holder of a handle has uncharged more than it had charged, or a guard has, whose
        // group may be gone.
        if (poisoned || !whole)
            && let Some(outermost) = path.outermost()
            && stale.object.header.capacity.load(Ordering::Relaxed) > 0
            && let Some(counter) = stale.try_pin()
        {
            at_limit::close_poisoned(&counter, outermost);
        }
    }

    fn is_full_for(&self, block: &Block, n: u64) -> bool {
        let capacity = self.header.capacity.load(Ordering::Relaxed);
        let owned = block.slot(self.index).map_or(-1, Slot::owned);
        capacity > 0 && owned >= 0 && n.saturating_add(owned.cast_unsigned()) > capacity
    }

    /// Keep one batch and uncharge the rest: if only the excess went, the slot would overflow again
    /// at once. False where a level had less to take.
    fn cut(&self, block: &Block, n: u64) -> bool {
        // SeqCst (E5, E14): as in `consume_or_walk`.
        let capacity = self.header.capacity.load(Ordering::SeqCst);
        let Some(slot) = self.ready_slot(block, capacity) else {
            return self.uncharge_levels(n);
        };
        let fenced = self.incarnation().fenced;
        match slot.put(n, &self.header.capacity, fenced) {
            Put::Kept => return true,
            Put::Closed => {
                // Credit in the slot keeps the counter; where a drainer has taken all, the counter
                // may be gone.
                let back = slot.take_back(u64::MAX, fenced);
                return back == 0 || self.uncharge_levels(back);
            }
            Put::Full => {}
        }
        let batch = capacity / 2;
        let owned = slot.owned().max(0).cast_unsigned();
        if owned >= batch {
            return self.uncharge_levels(n.saturating_add(slot.take_back(owned - batch, fenced)));
        }
        let keep = (batch - owned).min(n);
        self.keep_surplus(slot, keep);
        self.uncharge_levels(n - keep)
    }
}

// === All levels ===

impl Counter {
    /// Uncharges `n` at each level up to `top`, which is left out. `None`: up to the root. If a
    /// level underflows, only what it really held is uncharged from its ancestors. Returns what the
    /// lowest level had. Afterwards the counter may be gone. The caller is in a slow path.
    #[inline(never)]
    pub(crate) fn uncharge(&self, n: u64, top: Option<&Counter>) -> u64 {
        self.uncharge_up_to(n, top, &Lazily::inside())
    }

    /// Does [`uncharge`](Self::uncharge) on a thread that may be outside of any slow path.
    #[inline(always)]
    fn uncharge_up_to(&self, n: u64, top: Option<&Counter>, path: &Lazily) -> u64 {
        let mut level = Some(self);
        let mut left = n;
        let mut lowest = None;
        while let Some(at) = level.filter(|&at| left > 0 && top.is_none_or(|top| !ptr::eq(at, top)))
        {
            // The parent is read before the subtraction: units that are still charged keep the
            // parent alive.
            level = at.parent();
            left = at.subtract(left, path);
            lowest = lowest.or(Some(left));
        }
        lowest.unwrap_or(n)
    }

    /// Uncharge `n` at all levels. False: a level had less. In a group that covers, the units are
    /// credit, or an allocator's. Afterwards the counter may be gone.
    pub(crate) fn uncharge_levels(&self, n: u64) -> bool {
        if self.cover().is_some() {
            cover::go_below(self, n, Side::Allocated, None);
            return true;
        }
        self.uncharge(n, None) == n
    }

    /// Uncharge credit that came out of slots, and return how much.
    pub(crate) fn uncharge_settled(&self) -> u64 {
        self.uncharge_drained(self.usage.settled.swap(0, Ordering::Relaxed))
    }

    /// Uncharge credit that a drain has taken out, and return how much. What a poisoned counter
    /// holds beyond its usage was never charged.
    pub(crate) fn uncharge_drained(&self, units: u64) -> u64 {
        if units == 0 {
            return 0;
        }
        let backed = if self.poisoned.load(Ordering::Relaxed) {
            units.min(self.usage())
        } else {
            units
        };
        let counts = &self.tree().counts;
        self.uncharge_levels(backed);
        counts
            .discarded
            .fetch_add(units - backed, Ordering::Relaxed);
        counts.drained.fetch_add(backed, Ordering::Relaxed);
        backed
    }
}

// === One level ===

impl Counter {
    /// Subtract `n` from this level. Returns what was there to subtract: less than `n` is an
    /// underflow, counted and clamped. Afterwards the counter may be gone.
    #[inline(always)]
    pub(crate) fn subtract(&self, n: u64, path: &Lazily) -> u64 {
        let level = Stale::new(self);
        let taken = self.subtract_usage(n, path);
        fence_after_exchange();
        let Stale { object, of } = level;
        // Usage that falls passes no mark of reclaim.
        let watched = object.limits.watched.bits() & !RECLAIMS;
        // The last units that keep the object, or something looks at the level and may be wrong
        // now.
        let is_right = watched == 0 || (watched == EXCEEDED && exceeded::is_near_max(object));
        if !is_right || object.first().state().unreferenced(of).is_some() {
            fell_slow(level, path);
        }
        taken
    }

    /// One subtraction where usage is at least `n`, which only a caller's bug prevents; else what
    /// is there.
    #[inline(always)]
    fn subtract_usage(&self, n: u64, path: &Lazily) -> u64 {
        let n = n.min(USAGE_MAX);
        if self.usage.units.load(Ordering::Relaxed) >= n.cast_signed() {
            // SeqCst (E1, E11): a thread that sets a limit or a protection meanwhile sees it, or
            // this thread sees the protection afterwards.
            let usage = self
                .usage
                .units
                .fetch_sub(n.cast_signed(), Ordering::SeqCst);
            if usage >= n.cast_signed() {
                n
            } else {
                self.put_back(n, usage, path)
            }
        } else {
            self.subtract_clamped(n, path)
        }
    }

    /// Between the look at usage and the subtraction another thread has uncharged more than it had
    /// charged.
    #[cold]
    #[inline(never)]
    fn put_back(&self, n: u64, usage: i64, path: &Lazily) -> u64 {
        let taken = usage.max(0).cast_unsigned();
        // SeqCst (E1, E11): as in `subtract_usage`.
        self.usage
            .units
            .fetch_add((n - taken).cast_signed(), Ordering::SeqCst);
        self.underflow(n, taken, path)
    }

    #[cold]
    #[inline(never)]
    fn subtract_clamped(&self, n: u64, path: &Lazily) -> u64 {
        let mut usage = self.usage.units.load(Ordering::Relaxed);
        // A plain subtraction would take usage far below zero for an instant, in which every charge
        // passes the limit.
        loop {
            let taken = n.min(usage.max(0).cast_unsigned());
            let left = usage - taken.cast_signed();
            // SeqCst (E1, E11): as above.
            match self.usage.units.compare_exchange_weak(
                usage,
                left,
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(_) if taken == n => return n,
                Ok(_) => return self.underflow(n, taken, path),
                Err(now) => usage = now,
            }
        }
    }

    #[cold]
    fn underflow(&self, n: u64, taken: u64, path: &Lazily) -> u64 {
        self.poisoned.store(true, Ordering::Relaxed);
        self.count_underflow(n - taken, path);
        taken
    }

    /// Counts `missing` units that were uncharged and never charged. Units that a guard holds keep
    /// the object until they are counted here (`raw`). Afterwards the counter may be gone, unless
    /// the caller has a handle. Listeners of the event run at the end of the slow path.
    pub(crate) fn count_underflow(&self, missing: u64, path: &Lazily) {
        let sum = |sum: u64| Some(sum.saturating_add(missing));
        path.enter();
        look::tell_underflow(self);
        self.usage.underflows.fetch_add(1, Ordering::Relaxed);
        // Mutation: e15-underflow-is-counted-before-the-last-use
        self.tree()
            .counts
            .underflows
            .fetch_add(1, Ordering::Relaxed);
        // Release (E15): a thread that reads this and releases the object comes after all uses of
        // it.
        // Mutation: e15-underflow-is-counted-relaxed
        let _ = self
            .usage
            .underflowed
            .fetch_update(Ordering::Release, Ordering::Relaxed, sum);
    }

    /// Units that were uncharged and never charged, as far as usage was too low for them.
    pub(crate) fn underflowed(&self) -> u64 {
        self.usage.underflowed.load(Ordering::Relaxed)
    }

    /// Subtracts units that this walk has just added.
    pub(crate) fn take_off(&self, n: u64, path: &Lazily) {
        self.subtract_usage(n, path);
        fence_after_exchange();
        look::fell(self, path);
    }
}

/// The caller no longer keeps the level.
#[cold]
#[inline(never)]
fn fell_slow(level: Stale, path: &Lazily) {
    path.enter();
    look::fell_unkept(level);
    // E15: these may have been the last units.
    // Mutation: transfer-ends-no-group
    claim::try_release_last(level.object.first(), level.of);
}
