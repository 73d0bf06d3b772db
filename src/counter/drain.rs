//! The tree's lock, and everything that moves stranded credit: closing, draining, opening.
//!
//! One lock for each tree serialises drains and openings. Its holder waits for other threads only
//! by reading transit words, for a bounded time. So a thread that waits for the lock must not be in
//! transit. `drain.md` has the steps.
//!
//! Edges: E2 and E3 (slots), E4 (forced charge/opening), E5 and E6 (transit), E10 (open count), E35
//! (opening/offline), E36 (closing/release).

use crate::counter::object::tree::{Counters, SlotClaim, Stocks, Tree};
use crate::counter::object::{Counter, CounterRef, Object};
use crate::counter::slow_path::SlowPath;
use crate::counter::stocks::{self, CloseScope};
use crate::counter::{central, live_peak, width};
use crate::sync::barrier::BarrierFailed;
use crate::sync::{Ordering, fence_after_exchange};
use crate::thread::block::Block;
use crate::thread::reports::{DrainReport, note_drain};
use crate::thread::slot::Slot;

/// Passes of a drain that leaves the stocks open. Further ones would find only what running threads
/// put meanwhile.
const OPEN_PASSES: usize = 4;

/// Why a close could not take all credit out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StuckClose {
    /// A thread stayed in transit for longer than the drainer waits.
    Transit,
    /// The heavy barrier failed.
    Barrier,
}

impl From<BarrierFailed> for StuckClose {
    fn from(_: BarrierFailed) -> Self {
        StuckClose::Barrier
    }
}

/// The result of a drain.
struct TakenOut {
    /// Units of memory; further counters count others.
    memory: u64,
    complete: Result<(), StuckClose>,
}

impl TakenOut {
    const NOTHING: TakenOut = TakenOut {
        memory: 0,
        complete: Ok(()),
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DrainPass {
    /// The stocks stay open.
    Open,
    /// Their capacity is 0, and the pass may leave no credit in them.
    Closing,
}

impl Tree {
    /// Waits for the walks that are under way: what has left a lower level has then left those
    /// above it. The caller is not in transit.
    pub(crate) fn wait_for_walks(&self) {
        let path = SlowPath::enter();
        let _drains = self.lock(&path);
        let _ = self.wait_transits();
    }

    /// A heavy barrier (E5), and a wait for every transit of this tree that this thread finds.
    pub(crate) fn wait_transits(&self) -> Result<(), StuckClose> {
        self.barrier.heavy()?;
        // Mutation: e6-closer-does-not-wait
        let over = self
            .registry
            .listed()
            .all(|block| block.transit.wait(self.number));
        if over {
            Ok(())
        } else {
            Err(StuckClose::Transit)
        }
    }

    // === Opening and closing ===

    /// Opens one stock, if nothing forbids it, with this width where it was closed.
    pub(crate) fn open(&self, stocks: &mut Stocks, counter: &Counter, width: u8) {
        if !stocks::may_open(counter) {
            return;
        }
        if !counter.is_open() {
            // Without memory the counter goes without stock.
            if !stocks.has_room() {
                return;
            }
            let most = counter.touched() * 2 * (counter.batch() << width);
            if !stocks::reserve(counter, most) {
                return;
            }
            // Mutation: a-wide-stock-opens-narrow
            width::set(counter, width, most);
            stocks.add_open(counter);
            for level in counter.path_to_root() {
                // E10: counted before the first batch. Pairs with the read of `open` in
                // `Counter::take`.
                // Mutation: e10-opening-is-not-counted
                level.limits.open.add_one();
            }
        }
        // E4: pairs with `close_crossed`. Either this thread sees that a forced charge has put a
        // level above its max, or that thread sees this stock counted and closes it. E35: the same
        // for a group that goes offline.
        // Mutation: e4-opening-without-fence
        fence_after_exchange();
        let forbids = |level: &Counter| level.is_tight() || level.forced() > 0;
        // Mutation: e4-opened-without-a-look-at-usage
        // Mutation: e35-a-barred-stock-opens
        if counter.child_count().is_barred() || counter.path_to_root().any(forbids) {
            // A stock that has had no capacity holds no credit.
            if counter.header.capacity.load(Ordering::Relaxed) == 0
                && !counter.stuck.load(Ordering::Relaxed)
            {
                self.uncount(stocks, counter);
            }
            return;
        }
        // Release (E10): after the count; a thread that finds the stock open finds it counted;
        // pairs with the reads of capacity in `Counter::consume_or_walk`.
        counter
            .header
            .capacity
            .store(2 * counter.open_batch(), Ordering::Release);
    }

    /// Uncount a stock that holds no credit any more. This is the last access to the counter: from
    /// here on a thread may release it.
    pub(crate) fn uncount(&self, stocks: &mut Stocks, counter: &Counter) {
        // Mutation: e48-bound-falls-before-the-count
        for level in counter.path_to_root() {
            // E10: uncounted after the drain. Pairs with the read of `open` in `Counter::take`.
            level.limits.open.remove_one();
        }
        let most = counter.touched() * 2 * counter.open_batch();
        width::reset(counter, most);
        // Mutation: e36-looked-at-after-it-was-closed
        stocks::unreserve(counter, most);
        stocks.remove_open(counter);
    }

    /// Opens everything below `level` again, where stocks never close by margin.
    pub(crate) fn reopen(&self, stocks: &mut Stocks, level: &Counter) {
        if self.config.adaptive {
            return;
        }
        if level.usage() <= level.max() {
            level.limits.tight.store(false, Ordering::Relaxed);
        }
        for counter in self.hierarchy.snapshot().subtree(level) {
            self.open(stocks, counter, 0);
        }
    }

    /// Closes every open stock in `scope` and takes all its credit out, at the price of one
    /// barrier. On an error some stocks stay counted as open, with capacity 0; the next close finds
    /// them.
    pub(crate) fn close(
        &self,
        stocks: &mut Stocks,
        top: &Counter,
        scope: CloseScope,
    ) -> Result<(), StuckClose> {
        // E36: before the stock of threads. Once neither is counted as open, a thread may release
        // the counter. Pairs with the look in `create::release_object`.
        // Mutation: central-stock-is-left-open-by-a-close
        central::close_own(stocks, top);
        let closed = self.close_of_threads(stocks, top, scope);
        // Mutation: central-stock-is-left-open-by-a-close
        if scope == CloseScope::Subtree {
            // After them: what is still counted as open below `top` is central.
            central::close_below(stocks, top);
        }
        closed
    }

    fn close_of_threads(
        &self,
        stocks: &mut Stocks,
        top: &Counter,
        scope: CloseScope,
    ) -> Result<(), StuckClose> {
        let closing = stocks.open_in(&self.hierarchy, top, scope);
        // Stocks in the queue of pending closes may hold what a limit above them lacks.
        if closing.is_empty() && (scope == CloseScope::Own || stocks.pending_close.is_empty()) {
            stocks.scratch = closing;
            return Ok(());
        }
        self.close_all(stocks, closing).complete
    }

    /// Closes these stocks, and those in the queue of pending closes.
    fn close_all(&self, stocks: &mut Stocks, mut closing: Counters) -> TakenOut {
        stocks.take_pending_close(&mut closing);
        if closing.is_empty() {
            return TakenOut::NOTHING;
        }
        for stock in &closing {
            live_peak::before_close(stock);
            // SeqCst (E3, E5): before the heavy barrier; a put or a transit that it does not wait
            // for reads zero; pairs with the looks in `Slot::put` and `Counter::consume_or_walk`.
            // Mutation: e3-drain-before-switch
            stock.header.capacity.store(0, Ordering::SeqCst);
        }
        // Mutation: e10-uncounted-before-the-drain
        let taken = self.take_out(stocks, &closing, DrainPass::Closing);
        for &stock in &closing {
            stock
                .stuck
                .store(taken.complete.is_err(), Ordering::Relaxed);
            // A stock that may hold credit stays counted as open: refusals beside it are not for
            // good, and its counter is not released.
            if taken.complete.is_ok() {
                live_peak::has_closed(&stock);
                self.uncount(stocks, &stock);
            } else if stock.is_queued() {
                stocks.pending_close.push(stock);
            }
        }
        if stocks.pending_close.is_empty() {
            stocks.unsettled = 0;
        }
        closing.clear();
        stocks.scratch = closing;
        taken
    }

    /// Closes all stocks that wait for a barrier, with one. Returns the units of memory that they
    /// had.
    pub(crate) fn close_all_pending(&self, stocks: &mut Stocks) -> u64 {
        if stocks.pending_close.is_empty() {
            0
        } else {
            self.close_all(stocks, Counters::new()).memory
        }
    }

    /// Takes the credit of all offline groups out of their stocks. Returns the units of memory.
    pub(crate) fn close_offline_stocks(&self) -> u64 {
        let path = SlowPath::enter();
        self.close_all_pending(&mut self.lock(&path))
    }

    /// Claim, barrier, settle, uncharge: until no slot shows credit.
    fn take_out(&self, stocks: &mut Stocks, from: &[CounterRef], pass: DrainPass) -> TakenOut {
        let mut complete = Ok(());
        let _moving = self.moving.begin();
        self.counts.drains.fetch_add(1, Ordering::Relaxed);
        let mut cut = false;
        for turn in 0.. {
            // Threads go on to fill open stocks, so such a drain need not find an end.
            if pass == DrainPass::Open && turn == OPEN_PASSES {
                break;
            }
            stocks.claims.clear();
            // Blocks are the outer loop: a thread's slots lie together.
            let mut all = true;
            for block in self.registry.listed() {
                for &stock in from {
                    all &= stocks.claim(stock, block);
                }
            }
            // A first closing turn needs its barrier even where no slot shows credit: each thread
            // must have seen capacity 0. A claim that was cut left credit to an owner that may be
            // undoing a consume. Only after another barrier does this thread see what the owner
            // puts back, or the owner see the cut.
            let first_closing = pass == DrainPass::Closing && turn == 0;
            if stocks.claims.is_empty() && !first_closing && !cut {
                break;
            }
            let seen = if first_closing {
                self.wait_transits()
            } else {
                self.barrier.heavy().map_err(StuckClose::from)
            };
            complete = complete.and(seen);
            // Without a barrier an owner may have consumed what is claimed, and not know yet: the
            // claims go back, and the credit stays where it is.
            if seen == Err(StuckClose::Barrier) {
                self.undo_claims(stocks);
                break;
            }
            // The next turn claims the slots for which there was no memory.
            cut = !all | stocks.settle_claims(|_, _| ());
        }
        let (mut units, mut memory) = (0, 0);
        for stock in from {
            let back = stock.uncharge_settled();
            units += back;
            memory += if stock.is_memory() { back } else { 0 };
        }
        // After what it has given back: the first drain behind a burst of threads pays for it, and
        // none after that.
        self.sweep();
        let closing = pass == DrainPass::Closing;
        note_drain(DrainReport {
            stocks: from.len(),
            units,
            closing,
            complete: complete.is_ok(),
        });
        TakenOut { memory, complete }
    }

    /// Drains visit no block of an ended thread that holds no credit.
    pub(crate) fn sweep(&self) {
        let leaves = |index| {
            if let Some(header) = self.registry.header(index) {
                // Release (E54): before the block leaves the list; pairs with `retire::vacate`.
                Object::of(header).swept.store(1, Ordering::Release);
            }
        };
        self.registry.sweep(leaves);
    }

    /// Gives claims back after a barrier that failed. The slots may be those of threads that have
    /// ended.
    pub(crate) fn undo_claims(&self, stocks: &mut Stocks) {
        if !stocks.claims.is_empty() {
            stocks.undo_claims();
            self.registry.list_all();
        }
    }

    /// Takes all credit below `level` out. The stocks of threads stay open.
    pub(crate) fn drain(&self, level: &Counter) -> u64 {
        let path = SlowPath::enter();
        // Mutation: drain-loser-skips
        let mut stocks = self.lock(&path);
        // Before the stocks of groups that are offline, whose credit this call takes back, too.
        let before = self.counts.drained.load(Ordering::Relaxed);
        self.close_all_pending(&mut stocks);
        central::drain(&mut stocks, level);
        let mut open = stocks.open_in(&self.hierarchy, level, CloseScope::Subtree);
        self.take_out(&mut stocks, &open, DrainPass::Open);
        // A counter whose credit turned out to be unbacked may not stay open.
        for stock in &open {
            if stock.poisoned.load(Ordering::Relaxed) {
                let _ = self.close(&mut stocks, stock, CloseScope::Own);
            }
        }
        open.clear();
        stocks.scratch = open;
        self.counts.drained.load(Ordering::Relaxed) - before
    }

    /// Closes the stocks below a `level` under pressure: from here on an uncharge below it goes up
    /// the tree.
    pub(crate) fn close_below(&self, level: &Counter) {
        let path = SlowPath::enter();
        let mut stocks = self.lock(&path);
        if !level.limits.open.load(Ordering::Relaxed).is_any() {
            return;
        }
        level.limits.tight.store(true, Ordering::Relaxed);
        let _ = self.close(&mut stocks, level, CloseScope::Subtree);
        self.reopen(&mut stocks, level);
    }

    /// Change the batch of `level` and all below: capacity 0, barrier, drain, then the new batch.
    /// Never drain first: a charge in transit that still reads the old capacity would refill the
    /// stock behind the drain.
    pub(crate) fn set_batch(&self, level: &Counter, batch: u64) {
        let path = SlowPath::enter();
        let mut stocks = self.lock(&path);
        // A stock that could not be closed keeps its batch: its bound was published for it.
        let _ = self.close(&mut stocks, level, CloseScope::Subtree);
        for counter in self.hierarchy.snapshot().subtree(level) {
            if !counter.is_open() {
                counter.batch.store(batch, Ordering::Relaxed);
            }
        }
        self.reopen(&mut stocks, level);
    }

    /// Opens the stock of a new counter at once, where stocks never close by margin.
    pub(crate) fn open_at_start(&self, stocks: &mut Stocks, counter: &Counter) {
        if !self.config.adaptive {
            self.open(stocks, counter, 0);
        }
    }
}

impl Stocks {
    /// Claims what a thread has in a stock, for the next barrier. False where there is no memory
    /// for the claim.
    fn claim(&mut self, stock: CounterRef, block: &Block) -> bool {
        block
            .slot(stock.index)
            .is_none_or(|slot| self.claim_slot(stock, slot))
    }

    pub(super) fn claim_slot(&mut self, stock: CounterRef, slot: &Slot) -> bool {
        if self.claims.try_reserve(1).is_err() {
            return false;
        }
        let units = slot.claim();
        if units > 0 {
            self.claims.push(SlotClaim { stock, slot, units });
        }
        true
    }

    /// After the barrier: note what was claimed as settled, for `uncharge_settled`, and show each
    /// claim that held, with its units, to `settled`. Whether an owner has consumed some of a
    /// claim.
    #[allow(unsafe_code)]
    pub(super) fn settle_claims(&mut self, mut settled: impl FnMut(CounterRef, u64)) -> bool {
        let mut cut = false;
        for claim in self.claims.drain(..) {
            // SAFETY: the slot lies in a block of the registry, which is never freed.
            let units = unsafe { &*claim.slot }.settle_claim(claim.units);
            claim
                .stock
                .usage
                .settled
                .fetch_add(units, Ordering::Relaxed);
            // Mutation: e2-cut-claim-is-not-drained-again
            cut |= units < claim.units;
            settled(claim.stock, units);
        }
        cut
    }

    /// See [`Tree::undo_claims`].
    #[allow(unsafe_code)]
    fn undo_claims(&mut self) {
        for claim in self.claims.drain(..) {
            // SAFETY: as in `settle_claims`.
            unsafe { &*claim.slot }.undo_claim(claim.units);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Barrier as Rendezvous;
    use std::thread;

    use crate::{CounterConfig, PageCounter};

    /// Near max a stock keeps no credit, and it opens again only where there is plenty of room. The
    /// margins follow the threads that are registered, those of other tests among them: so these
    /// rooms are far from either margin.
    #[test]
    fn a_stock_closes_near_max() {
        let max = 1 << 40;
        let counter = PageCounter::root(CounterConfig::new().batch(10).max(max));
        let near = 10;
        let far = max / 2;
        for (room, open) in [
            (far, false),
            (far, true),
            (near, false),
            (near, false),
            (far, true),
        ] {
            counter.charge(max - room - counter.usage()).unwrap();
            assert_eq!(counter.counter().is_open(), open, "{room}");
            counter.uncharge(counter.live() - 2);
        }
    }

    /// Blocks that drains visit although their threads have ended. Other tests have threads, too.
    fn visited_in_vain(counter: &PageCounter) -> usize {
        let listed = counter.counter().tree().registry.listed();
        listed.filter(|block| block.has_ended()).count()
    }

    /// Threads that ran at once leave blocks, in which there is credit until a drain: later drains
    /// visit none of them.
    #[test]
    #[cfg_attr(miri, ignore = "Miri: a thousand threads take minutes")]
    fn blocks_of_ended_threads_are_visited_once() {
        let threads = 1_000;
        let counter = PageCounter::root(CounterConfig::new().batch(2).adaptive(false));
        for round in 1..=2 {
            let together = Rendezvous::new(threads);
            thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        counter.charge(1).unwrap();
                        together.wait();
                    });
                }
            });
            let live = (round * threads) as u64;
            // Drains of other tests may have visited the blocks by now.
            assert!(counter.usage() > live);
            counter.drain();
            assert_eq!(counter.usage(), live);
            assert!(
                visited_in_vain(&counter) < threads / 2,
                "{}",
                visited_in_vain(&counter)
            );
        }
        let all = counter.counter().tree().registry.blocks().count();
        assert!(
            all < 2 * threads,
            "the second round has taken the blocks of the first: {all}"
        );
    }
}
