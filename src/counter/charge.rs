//! The story of a charge, from top to bottom: the stock of this thread; and after a miss the walk
//! of a closed stock, or the refill or exact walk of an open one, each in transit; then, out of
//! transit, the stock is adapted to what the charge has found, or room is made for one that was
//! refused. `uncharge` has the way back.
//!
//! Edges: E5 (transit), E14 (a second charger).

use crate::counter::at_limit::{self, DrainReach, StockFinding};
use crate::counter::level::ChargeMode;
use crate::counter::object::Counter;
use crate::counter::object::tree::StockMove;
use crate::counter::refusal::LevelRefusal;
use crate::counter::reserve;
use crate::counter::slow_path::{LazySlowPath, SlowPath};
use crate::counter::spare_word::CoverSide;
use crate::counter::walk::{self, Walked};
use crate::counter::{bookkeeping, cover, live_peak, look, width};
use crate::sync::Ordering;
use crate::thread::context;
use crate::thread::directory::Header;
use crate::thread::local::with_local;
use crate::thread::slot::Consume;
use crate::thread::slow_path::{Entered, Outermost};
use crate::thread::transit::InTransit;

/// What a charge that missed has come to, where it was not refused.
#[derive(Clone, Copy)]
pub(super) enum MissedCharge<'a> {
    /// The slot had the credit after all.
    Hit,
    /// Units have gone up the tree.
    Walked(WalkedCharge<'a>),
}

/// A charge that has gone up the tree.
#[derive(Clone, Copy)]
pub(super) struct WalkedCharge<'a> {
    /// The units that the walk has taken: those of the charge, or a batch.
    units: u64,
    /// The lowest level that the walk left above its max.
    above_max: Option<&'a Counter>,
    /// What the charge has found out about the counter's stock.
    pub(super) stock: StockFinding,
    /// No thread had charged the counter before.
    is_first: bool,
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
}

// === The slow path of a charge ===

impl Counter {
    /// Charges `n` after a miss. The group asks for reclaim itself, outside of any slow path.
    /// Returns the units that it took up the tree: a batch, `n`, or none where it has hit after
    /// all.
    #[cold]
    #[inline(never)]
    pub(crate) fn try_charge_once_slow(
        &self,
        n: u64,
        missed: Consume,
    ) -> Result<u64, LevelRefusal<'_>> {
        self.charge_slow(n, missed, ChargeMode::Admit, DrainReach::AllThreads)
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
        self.charge_slow(n, missed, ChargeMode::Admit, DrainReach::OwnCredit)
    }

    /// Forces what does not fit, after a drain of stranded credit. Returns the units charged: fewer
    /// than `n` only where a level cannot count them.
    #[cold]
    #[inline(never)]
    pub(crate) fn force_slow(&self, n: u64, missed: Consume) -> u64 {
        // As any charge at first, so that credit which makes room is drained. Levels where no drain
        // may do that go above max at once.
        if self.cover().is_none()
            && self
                .charge_slow(n, missed, ChargeMode::AdmitOrForce, DrainReach::AllThreads)
                .is_ok()
        {
            return n;
        }
        // What is left after the drain, and where others have taken the room meanwhile: above max,
        // whatever is below.
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
        let walked = walk::walk(self, charged, ChargeMode::Force, None);
        bookkeeping::charged(self, path.own_block(), charged);
        if walked.is_ok_and(|walked| walked.above_max.is_some())
            && let Some(outermost) = path.outermost()
        {
            // No hit below a level above its max may succeed (E4).
            at_limit::close_crossed(self, outermost);
        }
        charged
    }

    /// Raises the slot again after [`Consume::Undone`], for a charge that is given up.
    #[cold]
    pub(crate) fn undo_slow(&self, n: u64, missed: Consume) {
        if missed == Consume::Undone {
            let path = SlowPath::enter();
            self.undo(path.block(), n);
        }
    }

    /// Charges `n` after a miss. There are two stories: that of a closed stock, as mostly near a
    /// limit, in [`charge_closed`](Self::charge_closed), and that of an open one, in
    /// [`charge_open`](Self::charge_open). What is left to do after the walk, out of transit, is the
    /// same for both: [`end_charge`](Self::end_charge). Mostly a closed stock needs nothing of it.
    #[inline(always)]
    fn charge_slow(
        &self,
        n: u64,
        missed: Consume,
        mode: ChargeMode,
        reach: DrainReach,
    ) -> Result<u64, LevelRefusal<'_>> {
        // No level has to hold anything. What keeps a group for a guard of no bytes is a handle,
        // which the caller takes.
        if n == 0 {
            return Ok(0);
        }
        if self.cover().is_some() {
            // Reserved bytes pay for allocated ones there: the group has no stock for charges.
            return reserve::charge(self, n, reach);
        }
        // A path that is entered only if a step needs one: to walk a closed stock takes no lock and
        // waits for nobody.
        let path = LazySlowPath::outside();
        // Otherwise the slot was lowered for a hit, and has to be raised again first.
        let thread = if missed == Consume::Miss {
            self.outside_if_closed()
        } else {
            None
        };
        match self.begin_closed_transit(thread.as_ref()) {
            Some((transit, is_first)) => {
                self.charge_closed(&path, transit, is_first, n, mode, reach)
            }
            None => self.charge_open(n, missed, mode, reach),
        }
    }

    // === A closed stock ===

    /// The charge of a closed stock by a thread without credit, which is in transit: a walk for
    /// exactly `n` is all that there is to do, and mostly needs no slow path.
    #[inline(always)]
    fn charge_closed(
        &self,
        path: &LazySlowPath,
        transit: InTransit<'_>,
        is_first: bool,
        n: u64,
        mode: ChargeMode,
        reach: DrainReach,
    ) -> Result<u64, LevelRefusal<'_>> {
        // In transit (E5): a thread that lowers max waits for this walk; pairs with
        // `Tree::wait_transits`.
        // Mutation: e5-closed-walk-not-in-transit
        let walked = walk::walk_from(self, n, mode, None, path);
        drop(transit);
        match walked {
            Ok(Walked { margin, above_max }) if path.is_outside() => {
                // Here and not in the walk: listeners may run, which may wait for other threads,
                // and these for a thread in transit.
                if let Some(level) = above_max {
                    look::tell_above_max(level, None);
                }
                let stock = StockFinding::Closed { margin, units: n };
                if is_first || !at_limit::is_due(self, stock) {
                    // The stock stays closed, and nothing is left to do.
                    bookkeeping::note_charged(self, n);
                    return Ok(n);
                }
            }
            Err(refusal) if path.is_outside() && refusal.without_credit() => {
                // There is no credit to drain. The caller asks for reclaim.
                return Err(refusal);
            }
            // The walk has entered a slow path, or there is credit to drain.
            _ => {}
        }
        let walked = walked.map(|Walked { margin, above_max }| WalkedCharge {
            units: n,
            above_max,
            stock: StockFinding::Closed { margin, units: n },
            is_first,
        });
        self.end_closed_charge(path, n, walked, reach)
    }

    // === An open stock ===

    /// The charge of an open stock, and that of a thread that has credit to spend or to put back,
    /// or that is in a slow path already.
    #[inline(never)]
    fn charge_open(
        &self,
        n: u64,
        missed: Consume,
        mode: ChargeMode,
        reach: DrainReach,
    ) -> Result<u64, LevelRefusal<'_>> {
        let path = SlowPath::enter();
        // In transit: the slot once more, a batch, or exactly `n`.
        let walked = match self.consume_or_walk(&path, n, missed, mode) {
            Ok(MissedCharge::Hit) => {
                bookkeeping::charged(self, path.own_block(), n);
                return Ok(0);
            }
            Ok(MissedCharge::Walked(walked)) => Ok(walked),
            Err(refusal) => Err(refusal),
        };
        // Out of transit: the stock opens, closes or gets wider, or the thread drains what other
        // stocks have.
        self.end_charge(&path, n, walked, reach)
    }

    /// Goes on with a charge that has missed, as far as it moves this thread's credit: a hit in a
    /// slow path, or a walk in transit. Also for an allocator, which takes no lock afterwards. Only
    /// the group of an allocator's charge may cover here, so for all other callers [`cover::walk`]
    /// is [`walk::walk`].
    pub(super) fn consume_or_walk<'a>(
        &'a self,
        path: &Entered,
        n: u64,
        missed: Consume,
        mode: ChargeMode,
    ) -> Result<MissedCharge<'a>, LevelRefusal<'a>> {
        // A hit that costs more: with a real fence, or counted twice.
        let missed = match self.slot_of(path.block()) {
            Some((_, slot)) if self.incarnation().slow_only => {
                slot.consume(n, self.incarnation().fenced)
            }
            _ => missed,
        };
        // A drainer had claimed the slot when the thread lowered it. What the drainer leaves goes
        // back into the slot, and the charge goes on as any miss.
        // Mutation: e2-consume-is-not-undone
        if missed == Consume::Undone {
            self.undo(path.block(), n);
        }
        // Mutation: e2-allocator-spends-what-a-drain-has-claimed
        if missed == Consume::Hit {
            return Ok(MissedCharge::Hit);
        }
        let charged = |units: u64, walked: Walked<'a>, stock: StockFinding, is_first: bool| {
            MissedCharge::Walked(WalkedCharge {
                units,
                above_max: walked.above_max,
                stock,
                is_first,
            })
        };
        // A thread without a block, or inside another slow path of its own, has no slot to fill,
        // and is in no transit of its own.
        let Some(block) = path.own_block() else {
            live_peak::note_mover(self, None);
            let walked = cover::walk(self, n, mode, CoverSide::Allocated)?;
            let stock = StockFinding::Closed {
                margin: walked.margin,
                units: n,
            };
            return Ok(charged(n, walked, stock, false));
        };
        // Mutation: e5-capacity-read-before-transit
        let (_transit, is_first) = self.begin_transit(block);
        // SeqCst (E5, E14): read in transit. A thread that closes the stock after this waits for
        // this thread. Pairs with `Tree::close_all`, and with `retire::close_for_good`.
        let capacity = self.header.capacity.load(Ordering::SeqCst);
        live_peak::record_most_if_noted(self, block);
        // Inside reclaim a thread charges nothing in advance: credit here would be memory that
        // reclaim lacks.
        let batch = if capacity > 0 && context::in_reclaim() {
            0
        } else {
            capacity / 2
        };
        let is_open = capacity > 0;
        // A batch pays for the charge, and the rest of it becomes credit, where this thread has a
        // slot. A charge above the batch would leave no rest: it takes what it needs, below.
        if let Some(slot) = self.ready_slot(block, capacity).filter(|_| n <= batch) {
            let units = if self.tree().config.adaptive {
                // The stock is wide for the sake of such charges, and a visit does not narrow it.
                if n > self.batch() {
                    width::ask(self);
                }
                block.next_refill(self.index, n, self.batch(), batch)
            } else {
                batch
            };
            if let Ok(walked) = cover::walk(self, units, ChargeMode::Batch, CoverSide::Allocated) {
                // Mutation: e6-transit-ends-early
                // Mutation: e3-allocator-puts-and-does-not-look-again
                self.keep_surplus(slot, units - n);
                let margin = walked.margin;
                return Ok(charged(
                    units,
                    walked,
                    StockFinding::Served { margin },
                    is_first,
                ));
            }
            // There is no room for a batch, or others wait for it. There may be for `n` alone, but
            // the stock would only take from them what they lack.
            let walked = cover::walk(self, n, mode, CoverSide::Allocated)?;
            return Ok(charged(n, walked, StockFinding::LacksRoom, is_first));
        }
        // Exactly `n`: the stock is closed, or open and the charge goes by it.
        let walked = cover::walk(self, n, mode, CoverSide::Allocated)?;
        let (margin, units) = (walked.margin, n);
        let stock = if is_open {
            StockFinding::PassedBy { margin, units }
        } else {
            StockFinding::Closed { margin, units }
        };
        Ok(charged(n, walked, stock, is_first))
    }

    // === The end of both ===

    /// Ends both stories, out of transit: makes room for a charge that was refused, or adapts the
    /// stock to one that was not.
    #[inline(always)]
    fn end_charge<'a>(
        &'a self,
        path: &Entered,
        n: u64,
        walked: Result<WalkedCharge<'a>, LevelRefusal<'a>>,
        reach: DrainReach,
    ) -> Result<u64, LevelRefusal<'a>> {
        let units = match walked {
            Ok(walked) => {
                // A nested slow path may not take the tree's lock, and leaves the stock as it is.
                if let Some(outermost) = path.outermost() {
                    self.adapt_stock(path, walked, reach, outermost);
                }
                walked.units
            }
            Err(refusal) => {
                at_limit::retry(self, path, n, None, refusal, reach)?;
                n
            }
        };
        bookkeeping::charged(self, path.own_block(), n);
        Ok(units)
    }

    /// [`end_charge`](Self::end_charge), out of line: the walk of a closed stock mostly ends
    /// without it, and saves fewer registers so.
    #[cold]
    #[inline(never)]
    fn end_closed_charge<'a>(
        &'a self,
        path: &LazySlowPath,
        n: u64,
        walked: Result<WalkedCharge<'a>, LevelRefusal<'a>>,
        reach: DrainReach,
    ) -> Result<u64, LevelRefusal<'a>> {
        self.end_charge(path.entered(), n, walked, reach)
    }

    /// After a walk, out of transit: closes the stocks below a level above max, and opens, closes
    /// or widens the own one.
    fn adapt_stock(
        &self,
        path: &Entered,
        walked: WalkedCharge<'_>,
        reach: DrainReach,
        outermost: &Outermost,
    ) {
        live_peak::count_due(self, path);
        if walked.above_max.is_some() {
            // No hit below that level may succeed now.
            at_limit::close_crossed(self, outermost);
        }
        let stock = walked.stock;
        if let StockFinding::Served { .. } = stock
            && let Some(policies) = self.tree().policies()
        {
            policies.stock_moved(self, outermost, StockMove::Refill);
        }
        // The first walk of a counter opens no stock: many are charged once. To close one takes a
        // barrier and a wait for threads in transit, which a charge that may not wait leaves to
        // others.
        if !walked.is_first && (stock.is_closed() || reach.may_wait()) {
            at_limit::adapt(self, stock, outermost);
        }
    }
}
