//! The story of an uncharge, from top to bottom: the put into this thread's stock; where the stock
//! does not take it, transit, and the walk back.
//!
//! Edges: E5 (transit), E14 (a second charger), E15 (the last uncharge).

use crate::counter::handle::WeakCounter;
use crate::counter::object::tree::StockMove;
use crate::counter::object::{Counter, Object};
use crate::counter::slow_path::{LazySlowPath, SlowPath};
use crate::counter::thread_stock::take_back;
use crate::counter::{at_limit, bookkeeping, reserve};
use crate::error::USAGE_MAX;
use crate::sync::Ordering;
use crate::thread::block::Block;
use crate::thread::directory::Header;
use crate::thread::local::with_local;
use crate::thread::slot::{Put, Slot};
use crate::thread::slow_path::{Entered, Outermost};
use crate::thread::transit::ANY;

// === The hit path ===

impl Header {
    #[inline(always)]
    pub(crate) fn put(&self, n: u64) -> Put {
        with_local(
            |local| match local.fast_block().and_then(|block| block.slot_behind(self)) {
                Some(slot) => slot.put(n, &self.capacity, false),
                None => Put::Full,
            },
        )
    }
}

// === The slow path of an uncharge ===

/// Uncharges `n` from the header's counter after a miss. Afterwards the counter may be gone.
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

/// Uncharges what does not fit into the slot.
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

impl Counter {
    /// Uncharges `n`, which keeps the counter alive until the last step.
    #[inline(always)]
    pub(crate) fn give_back(&self, n: u64) {
        // No counter holds more: the rest is an underflow in any case.
        let n = n.min(USAGE_MAX);
        // 0 units keep no counter.
        if n == 0 {
            return;
        }
        // Reserved bytes may stay in usage there, to pay for allocated ones.
        if self.cover().is_some() {
            return reserve::uncharge(self, n);
        }
        // A closed stock and no credit here: the walk back is all that there is to do.
        let path = LazySlowPath::outside();
        let thread = self.outside_if_closed();
        let Some((transit, _)) = self.begin_closed_transit(thread.as_ref()) else {
            return self.give_back_in_slow_path(n);
        };
        bookkeeping::note_uncharged(self, n);
        self.uncharge_up_to(n, None, &path);
        drop(transit);
    }

    #[inline(never)]
    fn give_back_in_slow_path(&self, n: u64) {
        self.give_back_entered(&SlowPath::enter(), n);
    }

    /// Uncharges at least one unit. An allocator's path takes no lock, and counts without a block:
    /// a cell's page may be missing.
    pub(super) fn give_back_entered(&self, path: &Entered, n: u64) {
        let incarnation = self.incarnation();
        let tree = self.tree().number;
        // The audit counts first: once the credit is put back the object may be another counter's.
        if self.cover().is_none() {
            bookkeeping::note_uncharged(self, n);
        }
        bookkeeping::audit_uncharged(self, path.outermost().and_then(Outermost::block), n);
        // The put that the hit path has left out for such a counter.
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
        // What is asked of the counter after its last units are back, it is asked by a new handle.
        let weak = WeakCounter::new(self);
        let whole = self.in_transit(path.own_block(), |block| match block {
            Some(block) => self.cut(block, n),
            // Without a slot of its own: an allocator that frees inside a slow path of the thread, or
            // a thread that ends.
            None => self.uncharge_levels(n),
        });
        // E15: the holder of a handle has uncharged more than it had charged, or a guard has, whose
        // group may be gone.
        if (poisoned || !whole)
            && let Some(outermost) = path.outermost()
            && weak.object.header.capacity.load(Ordering::Relaxed) > 0
            && let Some(counter) = weak.try_pin()
        {
            at_limit::close_poisoned(&counter, outermost);
        }
    }

    fn is_full_for(&self, block: &Block, n: u64) -> bool {
        let capacity = self.header.capacity.load(Ordering::Relaxed);
        let owned = block.slot(self.index).map_or(-1, Slot::owned);
        capacity > 0 && owned >= 0 && n.saturating_add(owned.cast_unsigned()) > capacity
    }

    /// Keeps one batch and uncharges the rest: if only the excess went, the slot would overflow
    /// again at once. False where a level had less to take.
    fn cut(&self, block: &Block, n: u64) -> bool {
        // SeqCst (E5, E14): as in `consume_or_walk`.
        let capacity = self.header.capacity.load(Ordering::SeqCst);
        let Some(slot) = self.ready_slot(block, capacity) else {
            // The stock is closed, or has no room for a thread more.
            return self.uncharge_levels(n);
        };
        let fenced = self.incarnation().fenced;
        match slot.put(n, &self.header.capacity, fenced) {
            // The slot has been emptied since the put that missed, or this is its first one.
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
        // The slot alone has more than it is to keep: some of that goes with `n`.
        if owned >= batch {
            return self.uncharge_levels(n.saturating_add(slot.take_back(owned - batch, fenced)));
        }
        let keep = (batch - owned).min(n);
        self.keep_surplus(slot, keep);
        self.uncharge_levels(n - keep)
    }
}
