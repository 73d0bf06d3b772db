//! The whole path of a charge and of an uncharge.

use crate::counter::config::Pressure;
use crate::counter::object::tree::StockMove;
use crate::counter::object::{Counter, SHARED};
use crate::counter::refusal::LevelRefusal;
use crate::counter::reserve::{self, Room};
use crate::counter::slow_path::SlowPath;
use crate::counter::walk::{Amount, Charged, Stopped, Walked, WalkedAtOnce};
use crate::counter::{at_limit, closed, counted, stocks};
use crate::error::USAGE_MAX;
use crate::sync::{Ordering, fence_after_exchange};
use crate::thread::block::Block;
use crate::thread::context;
use crate::thread::directory::Header;
use crate::thread::local::{self, with_local};
use crate::thread::slot::{Consume, Put, Slot};
use crate::thread::slow_path::{Entered, Outermost};
use crate::thread::transit::ANY;

/// How often a charge tries again while the pressure hook frees something: the kernel's MAX_RECLAIM_RETRIES.
const RECLAIM_RETRIES_MAX: usize = 16;

struct Refilled {
    walked: Walked,
    /// Whether the stock was open.
    open: bool,
    /// Whether the walk was for a batch.
    stocked: bool,
    /// It was the first walk of the counter: see `adapt`.
    first: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnRefusal {
    CallHook,
    Return,
    /// Without a drain: the charge may not wait.
    ReturnAtOnce,
    /// Only where a drain may make room: else the charge goes above max.
    ReturnIfStranded,
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
    #[inline(always)]
    pub(crate) fn try_charge_slow(&self, n: u64, missed: Consume) -> Result<(), LevelRefusal<'_>> {
        self.charge_slow(n, missed, OnRefusal::CallHook).map(drop)
    }

    /// The same for groups: the group asks for reclaim itself, outside of any slow path.
    #[cold]
    #[inline(never)]
    pub(crate) fn try_charge_once_slow(&self, n: u64, missed: Consume) -> Result<Charged, LevelRefusal<'_>> {
        self.charge_slow(n, missed, OnRefusal::Return)
    }

    /// The same for a charge that may not wait. It drains this thread's slot and central stocks, and no other one.
    #[cold]
    #[inline(never)]
    pub(crate) fn try_charge_now_slow(&self, n: u64, missed: Consume) -> Result<Charged, LevelRefusal<'_>> {
        self.charge_slow(n, missed, OnRefusal::ReturnAtOnce)
    }

    /// Force what does not fit, after a drain of stranded credit. Returns the units charged: fewer than `n` only where a
    /// level cannot count them.
    #[cold]
    #[inline(never)]
    pub(crate) fn force_slow(&self, n: u64, missed: Consume) -> u64 {
        if self.cover().is_some() {
            return self.force_covering(n);
        }
        if self.charge_slow(n, missed, OnRefusal::ReturnIfStranded).is_ok() {
            return n;
        }
        let path = SlowPath::enter();
        let charged = n.min(self.countable());
        if charged < n {
            self.tree().counts.overflows.fetch_add(1, Ordering::Relaxed);
        }
        let crossed = self.force(charged);
        counted::charged(self, path.own_block(), charged);
        if let Some(outermost) = path.outermost().filter(|_| crossed) {
            at_limit::close_crossed(self, outermost);
        }
        charged
    }

    fn force_covering(&self, n: u64) -> u64 {
        let charged = n.min(self.countable());
        if charged < n {
            self.tree().counts.overflows.fetch_add(1, Ordering::Relaxed);
        }
        reserve::force(self, charged);
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
    fn charge_slow(&self, n: u64, missed: Consume, refused: OnRefusal) -> Result<Charged, LevelRefusal<'_>> {
        if self.cover().is_some() {
            let room = if refused == OnRefusal::ReturnAtOnce { Room::Own } else { Room::Drain };
            return if n == 0 { Ok(Charged::QUIETLY) } else { reserve::charge(self, n, room) };
        }
        let forced = refused == OnRefusal::ReturnIfStranded;
        let walked = if missed == Consume::Miss { closed::charge(self, n, forced) } else { None };
        match walked {
            Some(Ok(walked)) if !at_limit::opens_with(self, walked.margin) => {
                counted::charged_without_audit(self, n);
                walked.tell_forced();
                Ok(Charged::QUIETLY)
            }
            walked => self.charge_in_slow_path(n, missed, refused, walked),
        }
    }

    #[inline(never)]
    fn charge_in_slow_path<'a>(
        &'a self,
        n: u64,
        missed: Consume,
        refused: OnRefusal,
        walked: Option<Result<WalkedAtOnce<'a>, Stopped<'a>>>,
    ) -> Result<Charged, LevelRefusal<'a>> {
        if n == 0 {
            return Ok(Charged::QUIETLY);
        }
        let path = SlowPath::enter();
        let forced = refused == OnRefusal::ReturnIfStranded;
        let refilled = match walked {
            Some(walked) => walked
                .map(|walked| self.report(&walked))
                .or_else(|stopped| closed::go_on(self, &path, n, forced, stopped))
                .map(|walked| Refilled { walked, open: false, stocked: false, first: false }),
            None => {
                let missed = if self.incarnation().careful { self.consume_careful(path.block(), n) } else { missed };
                // Mutation: e2-consume-is-not-undone
                if missed == Consume::Undone {
                    self.undo(path.block(), n);
                }
                if missed == Consume::Hit {
                    counted::charged(self, path.own_block(), n);
                    return Ok(Charged::QUIETLY);
                }
                self.refill(path.own_block(), n, refused)
            }
        };
        let charged = self.charge_refilled(&path, n, refused, refilled)?;
        counted::charged(self, path.own_block(), n);
        Ok(charged)
    }

    fn charge_refilled<'a>(
        &'a self,
        path: &Entered,
        n: u64,
        refused: OnRefusal,
        refilled: Result<Refilled, LevelRefusal<'a>>,
    ) -> Result<Charged, LevelRefusal<'a>> {
        let mut refusal = match refilled {
            Ok(Refilled { walked, open, stocked, first }) => {
                if let Some(outermost) = path.outermost() {
                    if walked.above_max {
                        at_limit::close_crossed(self, outermost);
                    }
                    if let Some(policies) = self.tree().policies().filter(|_| stocked) {
                        policies.stock_moved(self, outermost, StockMove::Refill);
                    }
                    // To close a stock takes a barrier and a wait for threads in transit.
                    if !first && (!open || refused != OnRefusal::ReturnAtOnce) {
                        at_limit::adapt(self, open, walked.margin, outermost);
                    }
                }
                return Ok(Charged { over_high: walked.over_high });
            }
            Err(refusal) => refusal,
        };
        if refused == OnRefusal::ReturnAtOnce {
            let walked = at_limit::take_own_and_retry(self, path, n, refusal)?;
            return Ok(Charged { over_high: walked.over_high });
        }
        if let Some(outermost) = path.outermost() {
            refusal = match at_limit::drain_and_retry(self, n, None, refusal, outermost) {
                Ok(walked) => return Ok(Charged { over_high: walked.over_high }),
                Err(refusal) => refusal,
            };
            if refused == OnRefusal::CallHook {
                refusal = match self.call_hook(outermost, n, refusal) {
                    Ok(()) => return Ok(Charged::QUIETLY),
                    Err(refusal) => refusal,
                };
            }
        } else {
            self.tree().counts.refused_in_transit.fetch_add(1, Ordering::Relaxed);
        }
        if refused == OnRefusal::CallHook {
            refusal.level.count_refusal();
        }
        Err(refusal)
    }

    /// Walk for a batch, whose surplus stays in the slot, or for exactly `n`.
    fn refill(&self, block: Option<&Block>, n: u64, refused: OnRefusal) -> Result<Refilled, LevelRefusal<'_>> {
        let exactly = |open: bool, first: bool| {
            let is_forced = refused == OnRefusal::ReturnIfStranded;
            let walked = if is_forced { self.walk_forced(n) } else { self.walk(n, Amount::Needed) };
            walked.map(|walked| Refilled { walked, open, stocked: false, first })
        };
        let Some(block) = block else { return exactly(false, false) };
        // Mutation: e5-capacity-read-before-transit
        let first = self.enter(block);
        let transit = block.transit.until_dropped();
        // SeqCst (E5, E14): read in transit. A thread that closes the stock after this waits for this thread.
        let capacity = self.header.capacity.load(Ordering::SeqCst);
        // Inside reclaim a thread charges nothing in advance: credit here would be memory that reclaim lacks.
        let (open, batch) = (capacity > 0, if capacity > 0 && context::in_reclaim() { 0 } else { capacity / 2 });
        let refilled = match self.ready_slot(block, capacity) {
            Some(slot) if n <= batch => {
                let units = if self.tree().adaptive { block.next_refill(self.index, n, batch) } else { batch };
                match self.walk(units, Amount::Batch) {
                    Ok(walked) if !walked.above_observed => {
                        // Mutation: e6-transit-ends-early
                        self.keep_surplus(slot, units - n);
                        Ok(Refilled { walked, open, stocked: true, first })
                    }
                    // There is no room for them: the walk charges exactly `n`, and the stock closes.
                    walked => {
                        if walked.is_ok() {
                            self.uncharge_levels(units);
                        }
                        let closing = |walked| Walked { margin: 0, ..walked };
                        exactly(open, first).map(|refilled| Refilled { walked: closing(refilled.walked), ..refilled })
                    }
                }
            }
            _ => exactly(open, first),
        };
        drop(transit);
        refilled
    }

    /// Begin a transit, as one of this counter's chargers. Returns whether no thread has been one before.
    #[inline(always)]
    pub(crate) fn enter(&self, block: &Block) -> bool {
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
        block.transit.begin(self.tree().number, self.incarnation().fenced);
        before == 0
    }

    /// Keep units that are charged as credit, or uncharge them.
    pub(super) fn keep_surplus(&self, slot: &Slot, surplus: u64) {
        let fenced = self.incarnation().fenced;
        let back = match slot.put(surplus, &self.header.capacity, fenced) {
            Put::Kept => 0,
            Put::Full => surplus,
            Put::Closed => slot.take_back(u64::MAX, fenced),
        };
        self.uncharge_levels(back);
    }

    /// This thread's slot, active: its share of the published bound is set aside. `None`: go without stock.
    pub(super) fn ready_slot<'a>(&self, block: &'a Block, capacity: u64) -> Option<&'a Slot> {
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

    fn call_hook<'a>(
        &'a self,
        thread: &Outermost,
        n: u64,
        mut refusal: LevelRefusal<'a>,
    ) -> Result<(), LevelRefusal<'a>> {
        let Some(hook) = &self.tree().config.hook else { return Err(refusal) };
        for _ in 0..RECLAIM_RETRIES_MAX {
            let refused = refusal.refused(self, n);
            let freed = context::in_hook(|| hook(&Pressure { refused: &refused }));
            if freed.unwrap_or(0) == 0 {
                break;
            }
            refusal = match self.refill(thread.block(), n, OnRefusal::CallHook) {
                Ok(_) => return Ok(()),
                Err(refusal) => match at_limit::drain_and_retry(self, n, None, refusal, thread) {
                    Ok(_) => return Ok(()),
                    Err(refusal) => refusal,
                },
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

    /// [`take_back`](Self::take_back) in a transit that covers any tree.
    pub(super) fn take_back_any(&self, slot: Option<(&Block, &Slot)>) {
        self.take_back(slot, ANY, false);
    }

    /// Uncharge everything in the slot of a counter that closed while this thread put credit there. Credit found in the
    /// slot keeps the counter alive; where the slot is empty, the thread does not touch the counter.
    fn take_back(&self, slot: Option<(&Block, &Slot)>, tree: u32, fenced: bool) {
        let Some((block, slot)) = slot else { return };
        // The transit of the outer slow path covers an allocator that charges inside it.
        let _transit = if block.transit.is_over() {
            block.transit.begin(tree, fenced);
            Some(block.transit.until_dropped())
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
        if self.cover().is_some() && n > 0 {
            return reserve::release(self, n);
        }
        match closed::uncharge(self, n) {
            Some(Ok(())) => {}
            Some(Err(stopped)) => closed::go_on_down(stopped, n),
            None if n == 0 => {}
            None => self.give_back_in_slow_path(n),
        }
    }

    #[inline(never)]
    fn give_back_in_slow_path(&self, n: u64) {
        let path = SlowPath::enter();
        let (incarnation, tree) = (self.incarnation(), self.tree().number);
        let alone = path.own_block();
        // The audit counts first: once the credit is put back the object may be another counter's.
        counted::uncharged(self, alone, n);
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
        let poisoned = self.poisoned.load(Ordering::Relaxed);
        let whole = match alone {
            Some(block) => {
                self.enter(block);
                let _transit = block.transit.until_dropped();
                self.cut(block, n)
            }
            None => self.uncharge_levels(n),
        };
        // Only the holder of a handle can uncharge more than was charged, so the counter is alive here.
        if (poisoned || !whole)
            && let Some(outermost) = path.outermost()
            && self.header.capacity.load(Ordering::Relaxed) > 0
        {
            at_limit::close_poisoned(self, outermost);
        }
    }

    /// Takes a step in transit, where the thread has a block and is in no transit yet.
    pub(super) fn in_transit<T>(&self, block: Option<&Block>, step: impl FnOnce() -> T) -> T {
        let Some(block) = block else { return step() };
        self.enter(block);
        let _transit = block.transit.until_dropped();
        step()
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
        self.cut_to(self.ready_slot(block, capacity), n, capacity)
    }

    pub(super) fn cut_to(&self, slot: Option<&Slot>, n: u64, capacity: u64) -> bool {
        let Some(slot) = slot else { return self.uncharge_levels(n) };
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

    /// A hit that costs more: with a real fence, or counted twice.
    pub(super) fn consume_careful(&self, block: Option<&Block>, n: u64) -> Consume {
        self.slot_of(block).map_or(Consume::Miss, |(_, slot)| slot.consume(n, self.incarnation().fenced))
    }

    pub(super) fn slot_of<'a>(&self, block: Option<&'a Block>) -> Option<(&'a Block, &'a Slot)> {
        block.and_then(|block| Some((block, block.slot(self.index)?)))
    }
}
