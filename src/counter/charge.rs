//! The whole path of a charge and of an uncharge.
//!
//! Edges: E5 (transit), E14 (a second charger).

use crate::counter::at_limit::{self, Room};
use crate::counter::config::Pressure;
use crate::counter::handle::Handle;
use crate::counter::level::How;
use crate::counter::object::tree::StockMove;
use crate::counter::object::{Counter, SHARED};
use crate::counter::refusal::LevelRefusal;
use crate::counter::reserve;
use crate::counter::slow_path::{Lazily, SlowPath};
use crate::counter::spare::Side;
use crate::counter::walk::{Charged, Walked};
use crate::counter::{counted, stocks};
use crate::error::USAGE_MAX;
use crate::sync::{Ordering, fence_after_exchange};
use crate::thread::block::Block;
use crate::thread::context;
use crate::thread::directory::Header;
use crate::thread::local::{self, with_local};
use crate::thread::slot::{Consume, Put, Slot};
use crate::thread::slow_path::{Entered, Outermost, Outside};
use crate::thread::transit::{ANY, InTransit};

/// How often a charge tries again while the pressure hook frees something: the kernel's MAX_RECLAIM_RETRIES.
const RECLAIM_RETRIES_MAX: usize = 16;

/// Result of the walk of a charge that missed.
pub(super) struct Refilled<'a> {
    pub(super) walked: Walked<'a>,
    /// Whether the stock was open.
    pub(super) open: bool,
    /// Whether the walk was for a batch.
    stocked: bool,
    /// It was the first walk of the counter: see `adapt`.
    first: bool,
}

// === The hit path ===

impl Header {
    #[inline(always)]
    pub(crate) fn consume(&self, n: u64) -> Consume {
        with_local(|local| match local.fast_block().and_then(|block| block.slot_behind(self)) {
            Some(slot) => slot.consume(n, false),
            None => Consume::Miss,
        })
    }

    /// [`consume`](Self::consume) for groups. It also misses for 0 units, which take a handle, and for a closed stock.
    /// The slot may still hold credit after the group went offline without a barrier; it must not be spent.
    #[inline(always)]
    pub(crate) fn consume_open(&self, n: u64) -> Consume {
        let bar = self.bar(n);
        with_local(|local| match local.fast_block().and_then(|block| block.slot_behind(self)) {
            // Mutation: offline-leaves-credit-to-hit
            Some(slot) => slot.consume_unless(n, false, bar),
            None => Consume::Miss,
        })
    }

    /// Below zero for 0 units, and where the stock is closed.
    #[inline(always)]
    pub(crate) fn bar(&self, n: u64) -> i64 {
        // Relaxed: a thread that knows that the group is offline, and so closed, reads 0.
        n.cast_signed().wrapping_sub(1) | self.capacity.load(Ordering::Relaxed).cast_signed().wrapping_sub(1)
    }

    #[inline(always)]
    pub(crate) fn put(&self, n: u64) -> Put {
        with_local(|local| match local.fast_block().and_then(|block| block.slot_behind(self)) {
            Some(slot) => slot.put(n, &self.capacity, false),
            None => Put::Full,
        })
    }

    /// The caller keeps the counter alive, by a handle or by live charge.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn counter(&self) -> &'static Counter {
        // SAFETY: the pool ties each header to its object before it shows either to a thread, and never frees one.
        unsafe { &*self.owner().cast::<Counter>() }
    }
}

// === The slow path of a charge ===

impl Counter {
    /// Charge `n` after a miss. The group asks for reclaim itself, outside of any slow path.
    #[cold]
    #[inline(never)]
    pub(crate) fn try_charge_once_slow(&self, n: u64, missed: Consume) -> Result<Charged, LevelRefusal<'_>> {
        self.charge_slow(n, missed, How::Admit, Room::Drain)
    }

    /// The same for a charge that may not wait. It drains this thread's slot and central stocks, and no other one.
    #[cold]
    #[inline(never)]
    pub(crate) fn try_charge_now_slow(&self, n: u64, missed: Consume) -> Result<Charged, LevelRefusal<'_>> {
        self.charge_slow(n, missed, How::Admit, Room::Own)
    }

    /// Force what does not fit, after a drain of stranded credit. Returns the units charged: fewer than `n` only where a
    /// level cannot count them.
    #[cold]
    #[inline(never)]
    pub(crate) fn force_slow(&self, n: u64, missed: Consume) -> u64 {
        if self.cover().is_some() {
            return self.force_covering(n);
        }
        if self.charge_slow(n, missed, How::AdmitOrForce, Room::Drain).is_ok() {
            return n;
        }
        let path = SlowPath::enter();
        let charged = self.clamp_to_countable(n);
        let walked = self.walk(charged, How::Force, None);
        counted::charged(self, path.own_block(), charged);
        if let (Ok(Walked { above_max: true, .. }), Some(outermost)) = (walked, path.outermost()) {
            at_limit::close_crossed(self, outermost);
        }
        charged
    }

    fn force_covering(&self, n: u64) -> u64 {
        let charged = self.clamp_to_countable(n);
        reserve::force(self, charged);
        charged
    }

    fn clamp_to_countable(&self, n: u64) -> u64 {
        let charged = n.min(self.countable());
        if charged < n {
            self.tree().counts.overflows.fetch_add(1, Ordering::Relaxed);
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
        room: Room,
    ) -> Result<Charged, LevelRefusal<'_>> {
        if n == 0 {
            return Ok(Charged::QUIETLY);
        }
        if self.cover().is_some() {
            return reserve::charge(self, n, room);
        }
        let path = Lazily::outside();
        let thread = if missed == Consume::Miss { Outside::this_thread() } else { None };
        let Some((transit, first)) = self.enter_closed(thread.as_ref()) else {
            return self.charge_in_slow_path((n, missed), (how, room), &path, None);
        };
        // Mutation: e5-closed-walk-not-in-transit
        let walked = self.walk_from_outside(n, how, &path);
        drop(transit);
        match walked {
            // The stock stays closed, and no policy has to know: the walk was all.
            Ok(walked) if path.is_outside() && (first || !at_limit::is_due(self, false, walked.margin)) => {
                counted::charged_without_audit(self, n);
                walked.tell_forced();
                Ok(walked.into())
            }
            walked => {
                let refilled = walked.map(|walked| Refilled { walked, open: false, stocked: false, first });
                self.charge_in_slow_path((n, missed), (how, room), &path, Some(refilled))
            }
        }
    }

    /// Begins a transit where the stock is closed and this thread has no credit, outside of any slow path: then the walk is
    /// all that there is to do. Also returns whether no thread has charged here before.
    #[inline(always)]
    fn enter_closed<'t>(&self, thread: Option<&'t Outside>) -> Option<(InTransit<'t>, bool)> {
        // Relaxed: a first look, there is another in transit.
        if self.header.capacity.load(Ordering::Relaxed) > 0 || self.incarnation().careful {
            return None;
        }
        let block = thread?.block();
        let (transit, first) = self.enter(block);
        // SeqCst (E5, E14): in transit, as in `refill`.
        let capacity = self.header.capacity.load(Ordering::SeqCst);
        if capacity > 0 || block.slot(self.index).is_some_and(|slot| slot.owned() > 0) {
            return None;
        }
        Some((transit, first))
    }

    /// Goes on in a slow path, where `walked` is the walk of a closed stock, and makes room where the charge is refused.
    #[inline(never)]
    fn charge_in_slow_path<'a>(
        &'a self,
        (n, missed): (u64, Consume),
        (how, room): (How, Room),
        path: &Lazily,
        walked: Option<Result<Refilled<'a>, LevelRefusal<'a>>>,
    ) -> Result<Charged, LevelRefusal<'a>> {
        let path = path.entered();
        let charged = match walked.or_else(|| self.charge_or_refill(path, n, missed, how)) {
            None => Charged::QUIETLY,
            Some(Ok(refilled)) => {
                self.end_refill(path, &refilled, room);
                refilled.walked.into()
            }
            Some(Err(refusal)) => match at_limit::retry(self, path, n, None, refusal, room) {
                Ok(walked) => walked.into(),
                Err(refusal) if room == Room::Hook => {
                    self.call_hook(path, n, refusal).inspect_err(|refusal| refusal.level.count_refusal())?;
                    Charged::QUIETLY
                }
                Err(refusal) => return Err(refusal),
            },
        };
        counted::charged(self, path.own_block(), n);
        Ok(charged)
    }

    /// Goes on with a charge that has missed. `None`: it has hit now.
    pub(super) fn charge_or_refill(
        &self,
        path: &Entered,
        n: u64,
        missed: Consume,
        how: How,
    ) -> Option<Result<Refilled<'_>, LevelRefusal<'_>>> {
        // A hit that costs more: with a real fence, or counted twice.
        let missed = match self.slot_of(path.block()) {
            Some((_, slot)) if self.incarnation().careful => slot.consume(n, self.incarnation().fenced),
            _ => missed,
        };
        // Mutation: e2-consume-is-not-undone
        if missed == Consume::Undone {
            self.undo(path.block(), n);
        }
        // Mutation: e2-allocator-spends-what-a-drain-has-claimed
        (missed != Consume::Hit).then(|| self.refill(path.own_block(), n, how))
    }

    /// After the walk, out of transit: close stocks below a level above max, open or close the own one.
    fn end_refill(&self, path: &Entered, refilled: &Refilled<'_>, room: Room) {
        let &Refilled { walked, open, stocked, first } = refilled;
        walked.tell_forced();
        let Some(outermost) = path.outermost() else { return };
        if walked.above_max {
            at_limit::close_crossed(self, outermost);
        }
        if let Some(policies) = self.tree().policies().filter(|_| stocked) {
            policies.stock_moved(self, outermost, StockMove::Refill);
        }
        // The first walk of a counter opens no stock: many are charged once. To close one takes a barrier and a wait for
        // threads in transit.
        if !first && (!open || room != Room::Own) {
            at_limit::adapt(self, open, walked.margin, outermost);
        }
    }

    /// Walk for a batch, whose surplus stays in the slot, or for exactly `n`.
    fn refill(&self, block: Option<&Block>, n: u64, how: How) -> Result<Refilled<'_>, LevelRefusal<'_>> {
        let exactly = |open: bool, first: bool| {
            self.walk_side(n, how, Side::Allocated).map(|walked| Refilled { walked, open, stocked: false, first })
        };
        let Some(block) = block else { return exactly(false, false) };
        // Mutation: e5-capacity-read-before-transit
        let (_transit, first) = self.enter(block);
        // SeqCst (E5, E14): read in transit. A thread that closes the stock after this waits for this thread.
        let capacity = self.header.capacity.load(Ordering::SeqCst);
        // Inside reclaim a thread charges nothing in advance: credit here would be memory that reclaim lacks.
        let (open, batch) = (capacity > 0, if capacity > 0 && context::in_reclaim() { 0 } else { capacity / 2 });
        let Some(slot) = self.ready_slot(block, capacity).filter(|_| n <= batch) else { return exactly(open, first) };
        let units = if self.tree().adaptive { block.next_refill(self.index, n, batch) } else { batch };
        if let Ok(walked) = self.walk_side(units, How::Batch, Side::Allocated) {
            // Mutation: e6-transit-ends-early
            // Mutation: e3-allocator-puts-and-does-not-look-again
            self.keep_surplus(slot, units - n);
            return Ok(Refilled { walked, open, stocked: true, first });
        }
        // There is no room for a batch, or others wait for it: the stock closes.
        let mut refilled = exactly(open, first)?;
        refilled.walked.margin = 0;
        Ok(refilled)
    }

    /// Begin a transit, as one of this counter's chargers. Also returns whether no thread has been one before.
    #[inline(always)]
    pub(crate) fn enter<'b>(&self, block: &'b Block) -> (InTransit<'b>, bool) {
        let me = block.charger();
        // SeqCst (E14), here and below: pairs with `retire::close_for_good`. Either the closer sees two chargers, or this
        // thread reads capacity 0. Another thread's mark orders nothing here: a thread that finds the mark reads
        // capacity after it.
        let before = self.charger.load(Ordering::SeqCst);
        // Mutation: e14-mark-of-others-orders-nothing
        if before != me {
            let marks = before != SHARED;
            if marks
                && (before != 0 || self.charger.compare_exchange(0, me, Ordering::SeqCst, Ordering::Relaxed).is_err())
            {
                // Mutation: e14-second-charger-not-marked
                self.charger.swap(SHARED, Ordering::SeqCst);
            }
            fence_after_exchange();
        }
        (block.transit.enter(self.tree().number, self.incarnation().fenced), before == 0)
    }

    /// Keep units that are charged as credit, or uncharge them.
    fn keep_surplus(&self, slot: &Slot, surplus: u64) {
        let fenced = self.incarnation().fenced;
        let back = match slot.put(surplus, &self.header.capacity, fenced) {
            Put::Kept => 0,
            Put::Full => surplus,
            Put::Closed => slot.take_back(u64::MAX, fenced),
        };
        self.uncharge_levels(back);
    }

    /// This thread's slot, active: its share of the published bound is set aside. `None`: go without stock.
    fn ready_slot<'a>(&self, block: &'a Block, capacity: u64) -> Option<&'a Slot> {
        if capacity == 0 {
            // The barrier failed or the closer ran out of time and left this credit: perhaps no other thread drains it.
            let slot = block.slot(self.index)?;
            self.uncharge_levels(slot.take_back(u64::MAX, self.incarnation().fenced));
            return None;
        }
        let slot = block.slots.get_or_make(self.index, Slot::vacant)?;
        if slot.is_vacant() {
            if !stocks::reserve(self, capacity) {
                return None;
            }
            self.usage.touched.fetch_add(1, Ordering::Relaxed);
            local::activate(slot);
            block.slots.pace(self.index)?.reset();
        }
        Some(slot)
    }

    fn call_hook<'a>(&'a self, path: &Entered, n: u64, mut refusal: LevelRefusal<'a>) -> Result<(), LevelRefusal<'a>> {
        let hook = self.tree().config.hook.as_ref().filter(|_| path.outermost().is_some());
        let Some(hook) = hook else { return Err(refusal) };
        for _ in 0..RECLAIM_RETRIES_MAX {
            let refused = refusal.refused(self, n);
            let freed = context::in_hook(|| hook(&Pressure { refused: &refused }));
            if freed.unwrap_or(0) == 0 {
                break;
            }
            let refilled = self.refill(path.own_block(), n, How::Admit).map(|refilled| refilled.walked);
            refusal = match refilled.or_else(|refusal| at_limit::retry(self, path, n, None, refusal, Room::Drain)) {
                Ok(_) => return Ok(()),
                Err(refusal) => refusal,
            };
        }
        Err(refusal)
    }
}

// === The slow path of an uncharge ===

impl Header {
    /// Uncharge `n` from the header's counter after a miss. Afterwards the counter may be gone.
    #[cold]
    #[inline(never)]
    pub(crate) fn uncharge_slow(&self, n: u64, missed: Put) {
        match missed {
            Put::Kept => {}
            Put::Full => self.counter().give_back(n),
            // The slot has the units, and the stock has closed meanwhile: a drainer may have taken them already.
            Put::Closed => {
                let path = SlowPath::enter();
                let slot = path.block().and_then(|block| Some((block, block.slot_behind(self)?)));
                // Mutation: e3-put-into-a-dying-stock-stays
                self.take_back(slot, ANY, false);
            }
        }
    }

    /// Uncharge everything in the slot of a counter that closed while this thread put credit there. Credit found in the
    /// slot keeps the counter alive; where the slot is empty, the thread does not touch the counter.
    pub(super) fn take_back(&self, slot: Option<(&Block, &Slot)>, tree: u32, fenced: bool) {
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
            self.counter().uncharge_levels(back);
        }
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
        let (path, thread) = (Lazily::outside(), Outside::this_thread());
        let Some((transit, _)) = self.enter_closed(thread.as_ref()) else { return self.give_back_in_slow_path(n) };
        counted::uncharged_without_audit(self, n);
        self.uncharge_from_outside(n, &path);
        drop(transit);
    }

    #[inline(never)]
    fn give_back_in_slow_path(&self, n: u64) {
        self.give_back_entered(&SlowPath::enter(), n);
    }

    /// Uncharge at least one unit. An allocator's path takes no lock, and counts without a block: a cell's page may be
    /// missing.
    pub(super) fn give_back_entered(&self, path: &Entered, n: u64) {
        let (incarnation, tree) = (self.incarnation(), self.tree().number);
        // The audit counts first: once the credit is put back the object may be another counter's.
        if self.cover().is_none() {
            counted::uncharged_without_audit(self, n);
        }
        counted::audit_uncharged(self, path.outermost().and_then(Outermost::block), n);
        if incarnation.careful {
            let (fenced, slot) = (incarnation.fenced, self.slot_of(path.block()));
            match slot.map_or(Put::Full, |(_, slot)| slot.put(n, &self.header.capacity, fenced)) {
                Put::Kept => return,
                Put::Closed => return self.header.take_back(slot, tree, fenced),
                Put::Full => {}
            }
        }
        // Statistics count first for the same reason. A stock that this thread has not used yet does not overflow.
        if let Some(outermost) = path.outermost()
            && outermost.block().is_some_and(|block| self.is_full_for(block, n))
            && let Some(policies) = self.tree().policies()
        {
            policies.stock_moved(self, outermost, StockMove::Return);
        }
        let (poisoned, first) = (self.poisoned.load(Ordering::Relaxed), self.first());
        let of = first.state().generation();
        let whole = self.in_transit(path.own_block(), |block| match block {
            Some(block) => self.cut(block, n),
            None => self.uncharge_levels(n),
        });
        // E15: the holder of a handle has uncharged more than it had charged, or a guard has, whose group may be gone.
        if (poisoned || !whole)
            && let Some(outermost) = path.outermost()
            && self.header.capacity.load(Ordering::Relaxed) > 0
            && let Some(_kept) = Handle::try_pin(first, of)
        {
            at_limit::close_poisoned(self, outermost);
        }
    }

    /// Takes a step in transit, where the thread has a block and is in no transit yet.
    pub(super) fn in_transit<T>(&self, block: Option<&Block>, step: impl FnOnce(Option<&Block>) -> T) -> T {
        let _transit = block.map(|block| self.enter(block));
        step(block)
    }

    fn is_full_for(&self, block: &Block, n: u64) -> bool {
        let capacity = self.header.capacity.load(Ordering::Relaxed);
        let owned = block.slot(self.index).map_or(-1, Slot::owned);
        capacity > 0 && owned >= 0 && n.saturating_add(owned.cast_unsigned()) > capacity
    }

    /// Keep one batch and uncharge the rest: if only the excess went, the slot would overflow again at once. False
    /// where a level had less to take.
    fn cut(&self, block: &Block, n: u64) -> bool {
        // SeqCst (E5, E14): as in `refill`.
        let capacity = self.header.capacity.load(Ordering::SeqCst);
        let Some(slot) = self.ready_slot(block, capacity) else { return self.uncharge_levels(n) };
        let fenced = self.incarnation().fenced;
        match slot.put(n, &self.header.capacity, fenced) {
            Put::Kept => return true,
            Put::Closed => return self.uncharge_levels(slot.take_back(u64::MAX, fenced)),
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

    /// Put back what a charge consumed after a drainer had claimed the slot. The charge goes on as a miss.
    pub(super) fn undo(&self, block: Option<&Block>, n: u64) {
        let Some((block, slot)) = self.slot_of(block) else { return };
        if slot.undo(n, &self.header.capacity, self.incarnation().fenced) == Put::Closed {
            self.header.take_back(Some((block, slot)), self.tree().number, self.incarnation().fenced);
        }
    }

    fn slot_of<'a>(&self, block: Option<&'a Block>) -> Option<(&'a Block, &'a Slot)> {
        block.and_then(|block| Some((block, block.slot(self.index)?)))
    }
}
