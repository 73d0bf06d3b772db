//! The path of a charge: the stock, then transit, a refill or an exact walk. `uncharge` has the way
//! back.
//!
//! Edges: E5 (transit), E14 (a second charger).

use crate::counter::at_limit::{self, AfterRefusal};
use crate::counter::level::How;
use crate::counter::object::tree::StockMove;
use crate::counter::object::{Counter, SHARED};
use crate::counter::refusal::LevelRefusal;
use crate::counter::reserve;
use crate::counter::slow_path::{Lazily, SlowPath};
use crate::counter::spare::Side;
use crate::counter::walk::{self, Walked};
use crate::counter::{counted, cover, live_peak, look, stocks, uncharge, width};
use crate::sync::{Ordering, fence_after_exchange};
use crate::thread::block::Block;
use crate::thread::context;
use crate::thread::directory::Header;
use crate::thread::local::{self, with_local};
use crate::thread::slot::{Consume, Put, Slot};
use crate::thread::slow_path::{Entered, Outside};
use crate::thread::transit::InTransit;

/// Result of the walk of a charge that missed.
#[derive(Clone, Copy)]
pub(super) struct Refilled<'a> {
    pub(super) walked: Walked<'a>,
    /// True if the stock was open.
    pub(super) open: bool,
    /// True if the walk was for a batch.
    stocked: bool,
    /// The units that it has charged.
    units: u64,
    /// It was the first walk of the counter: see `end_refill`.
    first: bool,
}

// === The hit path ===

impl Header {
    #[inline(always)]
    pub(crate) fn consume(&self, n: u64) -> Consume {
        with_local(
            |local| match local.fast_block().and_then(|block| block.slot_behind(self)) {
                Some(slot) => slot.consume(n, false),
                None => Consume::Miss,
            },
        )
    }

    /// [`consume`](Self::consume) for groups. It also misses for 0 units, which take a handle, and
    /// for a closed stock. The slot may still hold credit after the group went offline without a
    /// barrier; it must not be spent.
    #[inline(always)]
    pub(crate) fn consume_open(&self, n: u64) -> Consume {
        let miss_mask = self.miss_mask(n);
        with_local(
            |local| match local.fast_block().and_then(|block| block.slot_behind(self)) {
                // Mutation: offline-leaves-credit-to-hit
                Some(slot) => slot.consume_unless(n, false, miss_mask),
                None => Consume::Miss,
            },
        )
    }

    /// Below zero for 0 units, and where the stock is closed.
    #[inline(always)]
    pub(crate) fn miss_mask(&self, n: u64) -> i64 {
        // Relaxed: a thread that knows that the group is offline, and so closed, reads 0.
        n.cast_signed().wrapping_sub(1)
            | self
                .capacity
                .load(Ordering::Relaxed)
                .cast_signed()
                .wrapping_sub(1)
    }

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

// === The slow path of a charge ===

impl Counter {
    /// Charge `n` after a miss. The group asks for reclaim itself, outside of any slow path.
    /// Returns the units that it took up the tree: a batch, `n`, or none where it has hit after
    /// all.
    #[cold]
    #[inline(never)]
    pub(crate) fn try_charge_once_slow(
        &self,
        n: u64,
        missed: Consume,
    ) -> Result<u64, LevelRefusal<'_>> {
        self.charge_slow(n, missed, How::Admit, AfterRefusal::Drain)
    }

    /// The same for a charge that may not wait. It drains this thread's slot and central stocks,
    /// and no other one.
    #[cold]
    #[inline(never)]
    pub(crate) fn try_charge_now_slow(
        &self,
        n: u64,
        missed: Consume,
    ) -> Result<u64, LevelRefusal<'_>> {
        self.charge_slow(n, missed, How::Admit, AfterRefusal::Own)
    }

    /// Force what does not fit, after a drain of stranded credit. Returns the units charged: fewer
    /// than `n` only where a level cannot count them.
    #[cold]
    #[inline(never)]
    pub(crate) fn force_slow(&self, n: u64, missed: Consume) -> u64 {
        if self.cover().is_none()
            && self
                .charge_slow(n, missed, How::AdmitOrForce, AfterRefusal::Drain)
                .is_ok()
        {
            return n;
        }
        let charged = n.min(self.countable());
        if charged < n {
            self.tree().counts.overflows.fetch_add(1, Ordering::Relaxed);
        }
        if self.cover().is_some() {
            reserve::force(self, charged);
            return charged;
        }
        let path = SlowPath::enter();
        if path.own_block().is_none() {
            live_peak::note_mover(self, None);
        }
        let walked = walk::walk(self, charged, How::Force, None);
        counted::charged(self, path.own_block(), charged);
        if walked.is_ok_and(|walked| walked.above_max.is_some())
            && let Some(outermost) = path.outermost()
        {
            at_limit::close_crossed(self, outermost);
        }
        charged
    }

    /// Undo what a hit has begun, for a charge that is given up.
    #[cold]
    pub(crate) fn undo_slow(&self, n: u64, missed: Consume) {
        if missed == Consume::Undone {
            let path = SlowPath::enter();
            self.undo(path.block(), n);
        }
    }

    #[inline(always)]
    pub(crate) fn charge_slow(
        &self,
        n: u64,
        missed: Consume,
        how: How,
        after: AfterRefusal,
    ) -> Result<u64, LevelRefusal<'_>> {
        if n == 0 {
            return Ok(0);
        }
        if self.cover().is_some() {
            return reserve::charge(self, n, after);
        }
        let path = Lazily::outside();
        let thread = if missed == Consume::Miss {
            self.outside_if_closed()
        } else {
            None
        };
        let Some((transit, first)) = self.begin_closed_transit(thread.as_ref()) else {
            return self.charge_in_slow_path(n, missed, how, after);
        };
        // Mutation: e5-closed-walk-not-in-transit
        let walked = walk::walk_from(self, n, how, None, &path);
        drop(transit);
        match walked {
            Ok(Walked { margin, above_max }) if path.is_outside() => {
                if let Some(level) = above_max {
                    look::tell_above_max(level, None);
                }
                // The stock stays closed: the walk was all.
                if first || !at_limit::is_due(self, false, margin) {
                    counted::note_charged(self, n);
                    return Ok(n);
                }
            }
            // There is no credit to drain. The caller asks for reclaim.
            Err(refusal) if path.is_outside() && refusal.without_credit() => return Err(refusal),
            _ => {}
        }
        let refilled = walked.map(|walked| Refilled {
            walked,
            open: false,
            stocked: false,
            units: n,
            first,
        });
        self.end_closed_charge(&path, n, refilled, after)
    }

    /// [`end_charge`](Self::end_charge), out of line: the walk of a closed stock mostly ends
    /// without it, and saves fewer registers so.
    #[cold]
    #[inline(never)]
    fn end_closed_charge<'a>(
        &'a self,
        path: &Lazily,
        n: u64,
        refilled: Result<Refilled<'a>, LevelRefusal<'a>>,
        after: AfterRefusal,
    ) -> Result<u64, LevelRefusal<'a>> {
        self.end_charge(path.entered(), n, refilled, after)
    }

    /// This thread, where it may charge a closed stock: outside of any slow path.
    #[inline(always)]
    pub(super) fn outside_if_closed(&self) -> Option<Outside> {
        // Relaxed: a first look, there is another in transit.
        let is_closed =
            self.header.capacity.load(Ordering::Relaxed) == 0 && !self.incarnation().slow_only;
        if is_closed {
            Outside::this_thread()
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
        thread: Option<&'t Outside>,
    ) -> Option<(InTransit<'t>, bool)> {
        let block = thread?.block();
        let (transit, first) = self.begin_transit(block);
        // SeqCst (E5, E14): in transit, as in `refill`.
        let capacity = self.header.capacity.load(Ordering::SeqCst);
        if capacity > 0 || block.slot(self.index).is_some_and(|slot| slot.owned() > 0) {
            return None;
        }
        Some((transit, first))
    }

    /// A charge from an open stock, or by a thread that is in a slow path already.
    #[inline(never)]
    fn charge_in_slow_path(
        &self,
        n: u64,
        missed: Consume,
        how: How,
        after: AfterRefusal,
    ) -> Result<u64, LevelRefusal<'_>> {
        let path = SlowPath::enter();
        let Some(refilled) = self.charge_or_refill(&path, n, missed, how) else {
            counted::charged(self, path.own_block(), n);
            return Ok(0);
        };
        self.end_charge(&path, n, refilled, after)
    }

    /// After the walk, out of transit: adapts the stock, or makes room where the walk was refused.
    #[inline(always)]
    fn end_charge<'a>(
        &'a self,
        path: &Entered,
        n: u64,
        refilled: Result<Refilled<'a>, LevelRefusal<'a>>,
        after: AfterRefusal,
    ) -> Result<u64, LevelRefusal<'a>> {
        let units = match refilled {
            Ok(refilled) => {
                self.end_refill(path, refilled, after);
                refilled.units
            }
            Err(refusal) => {
                at_limit::retry(self, path, n, None, refusal, after)?;
                n
            }
        };
        counted::charged(self, path.own_block(), n);
        Ok(units)
    }

    /// Goes on with a charge that has missed. `None`: it has hit now.
    #[inline(always)]
    pub(super) fn charge_or_refill(
        &self,
        path: &Entered,
        n: u64,
        missed: Consume,
        how: How,
    ) -> Option<Result<Refilled<'_>, LevelRefusal<'_>>> {
        // A hit that costs more: with a real fence, or counted twice.
        let missed = match self.slot_of(path.block()) {
            Some((_, slot)) if self.incarnation().slow_only => {
                slot.consume(n, self.incarnation().fenced)
            }
            _ => missed,
        };
        // Mutation: e2-consume-is-not-undone
        if missed == Consume::Undone {
            self.undo(path.block(), n);
        }
        // Mutation: e2-allocator-spends-what-a-drain-has-claimed
        (missed != Consume::Hit).then(|| self.refill(path.own_block(), n, how))
    }

    /// After the walk, out of transit: close stocks below a level above max, open or close the own
    /// one.
    fn end_refill(&self, path: &Entered, refilled: Refilled<'_>, after: AfterRefusal) {
        let Refilled {
            walked,
            open,
            stocked,
            units,
            first,
        } = refilled;
        let Some(outermost) = path.outermost() else {
            return;
        };
        live_peak::count_due(self, path);
        if walked.above_max.is_some() {
            at_limit::close_crossed(self, outermost);
        }
        if let Some(policies) = self.tree().policies().filter(|_| stocked) {
            policies.stock_moved(self, outermost, StockMove::Refill);
        }
        // The first walk of a counter opens no stock: many are charged once. To close one takes a
        // barrier and a wait for threads in transit.
        if !first && (!open || after != AfterRefusal::Own) {
            let alone = if stocked { 0 } else { units };
            at_limit::adapt(self, open, walked.margin, alone, outermost);
        }
    }

    /// Walk for a batch, whose surplus stays in the slot, or for exactly `n`.
    pub(super) fn refill(
        &self,
        block: Option<&Block>,
        n: u64,
        how: How,
    ) -> Result<Refilled<'_>, LevelRefusal<'_>> {
        let exactly = |open: bool, first: bool| {
            let walked = cover::walk(self, n, how, Side::Allocated);
            walked.map(|walked| Refilled {
                walked,
                open,
                stocked: false,
                units: n,
                first,
            })
        };
        let Some(block) = block else {
            live_peak::note_mover(self, None);
            return exactly(false, false);
        };
        // Mutation: e5-capacity-read-before-transit
        let (_transit, first) = self.begin_transit(block);
        // SeqCst (E5, E14): read in transit. A thread that closes the stock after this waits for
        // this thread.
        let capacity = self.header.capacity.load(Ordering::SeqCst);
        live_peak::settle_noted(self, block);
        // Inside reclaim a thread charges nothing in advance: credit here would be memory that
        // reclaim lacks.
        let open = capacity > 0;
        let batch = if capacity > 0 && context::in_reclaim() {
            0
        } else {
            capacity / 2
        };
        let Some(slot) = self.ready_slot(block, capacity).filter(|_| n <= batch) else {
            return exactly(open, first);
        };
        let units = if self.tree().config.adaptive {
            if n > self.batch() {
                width::ask(self);
            }
            block.next_refill(self.index, n, self.batch(), batch)
        } else {
            batch
        };
        if let Ok(walked) = cover::walk(self, units, How::Batch, Side::Allocated) {
            // Mutation: e6-transit-ends-early
            // Mutation: e3-allocator-puts-and-does-not-look-again
            self.keep_surplus(slot, units - n);
            return Ok(Refilled {
                walked,
                open,
                stocked: true,
                units,
                first,
            });
        }
        // There is no room for a batch, or others wait for it: the stock closes.
        let mut refilled = exactly(open, first)?;
        refilled.walked.margin = 0;
        Ok(refilled)
    }

    /// Begin a transit, as one of this counter's chargers. Also returns whether no thread has been
    /// one before.
    #[inline(always)]
    pub(crate) fn begin_transit<'b>(&self, block: &'b Block) -> (InTransit<'b>, bool) {
        let me = block.charger();
        // SeqCst (E14), here and below: pairs with `retire::close_for_good`. Either the closer sees
        // two chargers, or this thread reads capacity 0. Another thread's mark orders nothing here:
        // a thread that finds the mark reads capacity after it.
        let before = self.charger.load(Ordering::SeqCst);
        // Mutation: e14-mark-of-others-orders-nothing
        if before != me {
            let marks = before != SHARED;
            if marks
                && (before != 0
                    || self
                        .charger
                        .compare_exchange(0, me, Ordering::SeqCst, Ordering::Relaxed)
                        .is_err())
            {
                // Before the mark, with which a third thread passes this by.
                live_peak::note_mover(self, None);
                // SeqCst (E14): as above.
                // Mutation: e14-second-charger-not-marked
                self.charger.swap(SHARED, Ordering::SeqCst);
            } else if marks {
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

    /// Keep units that are charged as credit, or uncharge them.
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

    /// Takes a step in transit, where the thread has a block and is in no transit yet.
    pub(super) fn in_transit<T>(
        &self,
        block: Option<&Block>,
        step: impl FnOnce(Option<&Block>) -> T,
    ) -> T {
        let _transit = block.map(|block| self.begin_transit(block));
        match block {
            Some(block) => live_peak::settle(self, block),
            None => live_peak::note_mover(self, None),
        }
        step(block)
    }

    /// Put back what a charge consumed after a drainer had claimed the slot. The charge goes on as
    /// a miss.
    pub(super) fn undo(&self, block: Option<&Block>, n: u64) {
        let Some((block, slot)) = self.slot_of(block) else {
            return;
        };
        if slot.undo(n, &self.header.capacity, self.incarnation().fenced) == Put::Closed {
            uncharge::take_back(
                self.header,
                Some((block, slot)),
                self.tree().number,
                self.incarnation().fenced,
            );
        }
    }

    pub(super) fn slot_of<'a>(&self, block: Option<&'a Block>) -> Option<(&'a Block, &'a Slot)> {
        block.and_then(|block| Some((block, block.slot(self.index)?)))
    }
}
