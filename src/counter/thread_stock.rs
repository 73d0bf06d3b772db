//! The stock of this thread and its transit: what a charge and an uncharge do with the thread's own
//! slot.
//!
//! A thread is in transit while units of a counter are charged, in no slot and in nobody's hands,
//! and while it walks. Whoever closes a stock, or lowers a max, waits for the threads that are.
//! `thread/transit.rs` says what they promise meanwhile, and which walks are in no transit.
//!
//! Edges: E5 (transit), E14 (a second charger).

use crate::counter::object::{Counter, Object, SHARED};
use crate::counter::{live_peak, stocks, width};
use crate::sync::{Ordering, fence_after_exchange};
use crate::thread::block::Block;
use crate::thread::directory::Header;
use crate::thread::local;
use crate::thread::slot::{Put, Slot};
use crate::thread::slow_path::OutsideSlowPath;
use crate::thread::transit::InTransit;

// === Transit ===

impl Counter {
    /// Begins a transit, as one of this counter's chargers. Also returns whether no thread has been
    /// one before.
    #[inline(always)]
    pub(crate) fn begin_transit<'b>(&self, block: &'b Block) -> (InTransit<'b>, bool) {
        let me = block.charger();
        // The word says who has charged here: nobody, one thread, or several (`SHARED`). A group
        // with one charger goes offline without a barrier, so it must not miss a second one.
        //
        // SeqCst (E14), here and below: pairs with `retire::close_for_good`. Either the closer sees
        // two chargers, or this thread reads capacity 0. What another thread has written orders
        // nothing here: a thread that finds the word as it is to be reads capacity after it.
        let before = self.charger.load(Ordering::SeqCst);
        // Mutation: e14-mark-of-others-orders-nothing
        if before != me {
            let is_noted = before == SHARED;
            if !is_noted
                && (before != 0
                    || self
                        .charger
                        .compare_exchange(0, me, Ordering::SeqCst, Ordering::Relaxed)
                        .is_err())
            {
                // Before the word says so, with which a third thread passes this by.
                live_peak::note_mover(self, None);
                // SeqCst (E14): as above.
                // Mutation: e14-second-charger-not-marked
                self.charger.swap(SHARED, Ordering::SeqCst);
            } else if !is_noted {
                live_peak::note_mover(self, Some(block));
            }
            fence_after_exchange();
        }
        (
            block
                .transit
                .enter(self.tree().number, self.incarnation().fenced),
            before == 0,
        )
    }

    /// Takes a step in transit, where the thread has a block and is in no transit yet.
    pub(super) fn in_transit<T>(
        &self,
        block: Option<&Block>,
        step: impl FnOnce(Option<&Block>) -> T,
    ) -> T {
        let _transit = block.map(|block| self.begin_transit(block));
        match block {
            Some(block) => live_peak::record_most(self, block),
            None => live_peak::note_mover(self, None),
        }
        step(block)
    }

    /// This thread, where it may charge a closed stock: outside of any slow path.
    #[inline(always)]
    pub(super) fn outside_if_closed(&self) -> Option<OutsideSlowPath> {
        // Relaxed: a first look, there is another in transit.
        let is_closed =
            self.header.capacity.load(Ordering::Relaxed) == 0 && !self.incarnation().slow_only;
        if is_closed {
            OutsideSlowPath::this_thread()
        } else {
            None
        }
    }

    /// Begins a transit where the stock is closed and this thread has no credit, outside of any
    /// slow path: then the walk is all that there is to do. Also returns whether no thread has
    /// charged here before.
    #[inline(always)]
    pub(super) fn begin_closed_transit<'t>(
        &self,
        thread: Option<&'t OutsideSlowPath>,
    ) -> Option<(InTransit<'t>, bool)> {
        let block = thread?.block();
        let (transit, first) = self.begin_transit(block);
        // SeqCst (E5, E14): in transit, as in `consume_or_walk`.
        let capacity = self.header.capacity.load(Ordering::SeqCst);
        if capacity > 0 || block.slot(self.index).is_some_and(|slot| slot.owned() > 0) {
            return None;
        }
        Some((transit, first))
    }
}

// === The slot ===

impl Counter {
    pub(super) fn slot_of<'a>(&self, block: Option<&'a Block>) -> Option<(&'a Block, &'a Slot)> {
        block.and_then(|block| Some((block, block.slot(self.index)?)))
    }

    /// This thread's slot, active: its share of the published bound is set aside. `None`: go
    /// without stock.
    pub(super) fn ready_slot<'a>(&self, block: &'a Block, capacity: u64) -> Option<&'a Slot> {
        if capacity == 0 {
            // The barrier failed or the closer ran out of time and left this credit: perhaps no
            // other thread drains it.
            let slot = block.slot(self.index)?;
            self.uncharge_levels(slot.take_back(u64::MAX, self.incarnation().fenced));
            return None;
        }
        let slot = block.slots.get_or_make(self.index, Slot::vacant)?;
        if slot.is_vacant() {
            if !stocks::reserve(self, capacity) {
                return None;
            }
            width::touch(self, capacity);
            self.usage.touched.fetch_add(1, Ordering::Relaxed);
            local::activate(slot);
            block.slots.pace(self.index)?.reset();
        }
        Some(slot)
    }

    /// Keeps units that are charged as credit, or uncharges them.
    pub(super) fn keep_surplus(&self, slot: &Slot, surplus: u64) {
        let fenced = self.incarnation().fenced;
        let back = match slot.put(surplus, &self.header.capacity, fenced) {
            Put::Kept => 0,
            Put::Full => surplus,
            Put::Closed => slot.take_back(u64::MAX, fenced),
        };
        // The put has noted the credit before the surplus, which never was the credit beside the
        // usage of now.
        slot.forget_least();
        if back > 0 {
            self.uncharge_levels(back);
        }
    }

    /// Puts back what a charge consumed after a drainer had claimed the slot. The charge goes on as
    /// a miss.
    pub(super) fn undo(&self, block: Option<&Block>, n: u64) {
        let Some((block, slot)) = self.slot_of(block) else {
            return;
        };
        if slot.undo(n, &self.header.capacity, self.incarnation().fenced) == Put::Closed {
            take_back(
                self.header,
                Some((block, slot)),
                self.tree().number,
                self.incarnation().fenced,
            );
        }
    }
}

/// Uncharges everything in the slot of a counter that closed while this thread put credit there.
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
