//! The tree's lock, and everything that moves stranded credit: closing, draining, opening.
//!
//! One lock for each tree serialises drains and openings. Its holder waits for other threads only by reading transit
//! words, for a bounded time. So a thread that waits for the lock must not be in transit. Only a close makes sure that
//! no credit exists below a level. The drainer
//!
//! 1. sets capacity 0 for every open stock,
//! 2. claims what is in the slots,
//! 3. issues one heavy barrier,
//! 4. waits for the transits that it has seen,
//! 5. settles the claims,
//! 6. checks again until nothing is left,
//! 7. uncounts the stocks.
//!
//! Edges: E2 and E3 (slots), E4 (forced charge/opening), E5 and E6 (transit), E10 (open count), E35 (opening/offline),
//! E36 (closing/release). The protocol stands in `README.md` beside this file.

use crate::counter::marks;
use crate::counter::object::tree::Tree;
use crate::counter::object::tree::{Claim, List, Stocks};
use crate::counter::object::{CLOSED, Counter, OPENED};
use crate::counter::refusal::Refusal;
use crate::counter::retire;
use crate::counter::stocks::{self, Scope};
use crate::counter::walk::{Amount, Walked};
use crate::sync::barrier::BarrierFailed;
use crate::sync::{Ordering, fence_after_exchange};
use crate::thread::block::Block;

/// Margins at which a stock closes and opens, in batches per registered thread: 4 and 16 batches for two threads.
const CLOSE_BELOW: u64 = 2;
const OPEN_ABOVE: u64 = 8;

/// Passes over the stocks in a drain that leaves them open. Further passes would find only what running threads put
/// meanwhile.
const OPEN_PASSES: usize = 4;

/// The most levels that one charge closes in turn before it returns its refusal. A tree has fewer in practice, so only
/// limits that move all the time can reach it.
const TURNS_MAX: usize = 4_096;

/// How often a limit waits a millisecond for a thread in transit before it counts that thread's credit as live charge.
const PATIENCE_MAX: usize = 64;

/// Why a close could not take all credit out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stuck {
    /// A thread stayed in transit for longer than the drainer waits.
    Transit,
    /// The heavy barrier failed.
    Barrier,
}

impl From<BarrierFailed> for Stuck {
    fn from(_: BarrierFailed) -> Self {
        Stuck::Barrier
    }
}

/// How a pass over stocks treats them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// The stocks stay open.
    Open,
    /// Their capacity is 0, and the pass may leave no credit in them.
    Closing,
}

// === impl Tree: the failure path ===

impl Tree {
    /// Drain stranded credit below the level that refused a charge of `n` to `counter`, and try again. A refusal after
    /// that is for lack of room. The charge leaves out the levels from `top` on. The caller is not in transit.
    #[cold]
    pub(crate) fn charge_at_limit<'a>(
        &self,
        counter: &'a Counter,
        n: u64,
        top: Option<&Counter>,
        mut refusal: Refusal<'a>,
    ) -> Result<Walked, Refusal<'a>> {
        for _ in 0..TURNS_MAX {
            if refusal.without_credit() {
                return Err(refusal);
            }
            let mut stocks = self.stocks.lock();
            // The thread that held the lock before has drained: this thread tries again before it drains itself.
            refusal = match counter.walk_below(n, Amount::Needed, top) {
                Ok(walked) => return Ok(walked),
                Err(refusal) => refusal,
            };
            let level = refusal.level;
            level.limits.tight.store(true, Ordering::Relaxed);
            let closed = self.close(&mut stocks, level, Scope::Subtree);
            let retried = counter.walk_below(n, Amount::Needed, top);
            self.reopen(&mut stocks, level);
            match (retried, closed) {
                (Ok(walked), _) => return Ok(walked),
                (Err(again), Ok(())) if std::ptr::eq(again.level, level) => return Err(again),
                // Another level refuses now: it has credit of its own to drain.
                (Err(again), Ok(())) => refusal = again,
                (Err(again), Err(_)) => {
                    refusal = again;
                    break;
                }
            }
        }
        self.counts.refused_in_transit.fetch_add(1, Ordering::Relaxed);
        Err(refusal)
    }

    /// Close the stocks below the levels that forced charges have put above max: no hit below them may succeed from
    /// here on.
    #[cold]
    pub(crate) fn close_crossed(&self, counter: &Counter) {
        for level in counter.path_to_root() {
            // SeqCst (E4): after the exchange on usage; pairs with `open`.
            if level.usage() <= level.max() || level.limits.open.load(Ordering::SeqCst) as u32 == 0 {
                continue;
            }
            let mut stocks = self.stocks.lock();
            level.limits.tight.store(true, Ordering::Relaxed);
            let _ = self.close(&mut stocks, level, Scope::Subtree);
            self.reopen(&mut stocks, level);
        }
    }

    /// Set a max. It drains credit first, so that only live charge makes it fail.
    pub(crate) fn set_max(&self, level: &Counter, max: u64) -> Result<(), u64> {
        let mut stocks = self.stocks.lock();
        let lowers = max < level.max();
        let mut near = self.adaptive && lowers && level.room(max) < self.close_margin(level.batch());
        let mut closed = false;
        let mut set = Err(level.usage());
        // A charge between the read of usage and the store undoes the max: the charge had room under the old one.
        for turn in 0..TURNS_MAX {
            let usage = level.usage();
            if near || (usage > max && !closed) {
                level.limits.tight.store(true, Ordering::Relaxed);
                let stuck = self.close(&mut stocks, level, Scope::Subtree) == Err(Stuck::Transit);
                // Unlike a charge, this may wait until a thread that was preempted in transit runs again.
                (near, closed) = (false, !stuck || turn >= PATIENCE_MAX);
                continue;
            }
            set = if usage > max { Err(usage) } else { level.store_max(max) };
            if set.is_ok() || usage > max {
                break;
            }
        }
        if set.is_ok() && lowers {
            // A walk may have passed this level under the old max without a second read. It shows more than the new one
            // until it is undone. Walks are in transit (E5).
            let _ = self.wait_transits();
        }
        if level.incarnation().parent.is_none() && level.bound.load(Ordering::Relaxed) > stocks::budget(level) {
            let _ = self.close(&mut stocks, level, Scope::Subtree);
        }
        self.reopen(&mut stocks, level);
        set
    }

    /// Set a max, whatever usage is. Drains credit where usage comes near it. Returns the usage above it.
    pub(crate) fn impose_max(&self, stocks: &mut Stocks, level: &Counter, max: u64) -> u64 {
        let lowers = max < level.max();
        level.impose_max(max);
        let near = self.adaptive && level.room(max) < self.close_margin(level.batch());
        if lowers && (near || level.usage() > max) {
            level.limits.tight.store(true, Ordering::Relaxed);
            let _ = self.close(stocks, level, Scope::Subtree);
        }
        if lowers {
            let _ = self.wait_transits();
        }
        level.trim_forced();
        if level.incarnation().parent.is_none() && level.bound.load(Ordering::Relaxed) > stocks::budget(level) {
            let _ = self.close(stocks, level, Scope::Subtree);
        }
        self.reopen(stocks, level);
        // A charge that waits here may fit now, or never again.
        marks::limit_moved(level);
        level.usage().saturating_sub(max)
    }

    /// Wait for the walks that are under way: what has left a lower level has then left those above it. The caller is
    /// not in transit.
    pub(crate) fn wait_for_walks(&self) {
        let _drains = self.stocks.lock();
        let _ = self.wait_transits();
    }

    /// A heavy barrier (E5), and a wait for every transit of this tree that this thread finds.
    fn wait_transits(&self) -> Result<(), Stuck> {
        self.barrier.heavy()?;
        let over = self.registry.blocks().all(|block| block.transit.wait(self.number));
        if over { Ok(()) } else { Err(Stuck::Transit) }
    }

    // === Opening and closing ===

    /// Margin under which a stock closes.
    pub(crate) fn close_margin(&self, batch: u64) -> u64 {
        self.threads().saturating_mul(CLOSE_BELOW).saturating_mul(batch)
    }

    /// Margin from which on a stock opens. A stock that never closes by margin has closed for a level above its max,
    /// and may open as soon as the level is not.
    pub(crate) fn open_margin(&self, batch: u64) -> u64 {
        if !self.adaptive {
            return 0;
        }
        self.threads().saturating_mul(OPEN_ABOVE).saturating_mul(batch)
    }

    fn threads(&self) -> u64 {
        u64::from(self.registry.threads()).max(2)
    }

    /// Open or close the stock after a walk that left `margin`: near a limit credit does more harm than good. Skipped
    /// while a drain runs.
    #[inline]
    pub(crate) fn adapt(&self, counter: &Counter, open: bool, margin: u64) {
        let batch = counter.batch();
        if batch == 0 {
            return;
        }
        let closes = self.adaptive && open && margin < self.close_margin(batch);
        let tight = || counter.path_to_root().any(Counter::is_tight);
        let opens = !open && margin >= self.open_margin(batch) && !tight() && stocks::may_open(counter);
        if (closes || opens)
            && let Some(mut stocks) = self.stocks.try_lock()
        {
            if opens {
                self.open(&mut stocks, counter.header.counter());
            } else {
                let _ = self.close(&mut stocks, counter, Scope::Own);
            }
        }
    }

    /// Open one stock, if nothing forbids it.
    fn open(&self, stocks: &mut Stocks, counter: &'static Counter) {
        if !stocks::may_open(counter) {
            return;
        }
        let capacity = 2 * counter.batch();
        if !counter.is_open() {
            // Without memory the counter goes without stock.
            if !stocks.has_room() || !stocks::reserve(counter, counter.touched.load(Ordering::Relaxed) * capacity) {
                return;
            }
            stocks.set_open(counter, true);
            for level in counter.path_to_root() {
                // SeqCst (E10): counted before the first batch; pairs with `Refusal::without_credit`.
                level.limits.open.fetch_add(OPENED, Ordering::SeqCst);
            }
        }
        // E4: pairs with `close_crossed`. Either this thread sees that a forced charge has put a level above its max,
        // or that thread sees this stock counted and closes it.
        // E35: the same for a group that goes offline.
        fence_after_exchange();
        let forbids = |level: &Counter| level.is_tight() || level.usage() > level.max();
        if counter.links().is_barred() || counter.path_to_root().any(forbids) {
            // A stock that has had no capacity holds no credit.
            if counter.header.capacity.load(Ordering::Relaxed) == 0 && !counter.stuck.load(Ordering::Relaxed) {
                self.uncount(counter);
                stocks.set_open(counter, false);
            }
            return;
        }
        // Release (E10): after the count; a thread that finds the stock open finds it counted.
        counter.header.capacity.store(capacity, Ordering::Release);
    }

    /// Uncount a stock that holds no credit any more.
    pub(crate) fn uncount(&self, counter: &Counter) {
        stocks::unreserve(counter, counter.touched.load(Ordering::Relaxed) * 2 * counter.batch());
        for level in counter.path_to_root() {
            // AcqRel (E10): uncounted after the drain; pairs with `Refusal::without_credit`.
            level.limits.open.fetch_add(CLOSED, Ordering::AcqRel);
        }
    }

    /// Open everything below `level` again, where stocks never close by margin.
    fn reopen(&self, stocks: &mut Stocks, level: &Counter) {
        if self.adaptive {
            return;
        }
        if level.usage() <= level.max() {
            level.limits.tight.store(false, Ordering::Relaxed);
        }
        for counter in self.hierarchy.snapshot().subtree(level.header.counter()) {
            self.open(stocks, counter);
            if let Some(front) = counter.front() {
                self.open(stocks, front);
            }
        }
    }

    /// Close every open stock in `scope` and take all its credit out, at the price of one barrier. On an error some
    /// stocks stay counted as open, with capacity 0; the next close finds them.
    fn close(&self, stocks: &mut Stocks, top: &Counter, scope: Scope) -> Result<(), Stuck> {
        let closing = stocks.open_in(&self.hierarchy, top, scope);
        // Stocks in the queue of pending closes may hold what a limit above them lacks.
        if closing.is_empty() && (scope == Scope::Own || stocks.pending_close.is_empty()) {
            stocks.scratch = closing;
            return Ok(());
        }
        self.close_all(stocks, closing)
    }

    /// Close these stocks, and with them those in the queue of pending closes.
    pub(crate) fn close_all(&self, stocks: &mut Stocks, mut closing: List) -> Result<(), Stuck> {
        stocks.take_pending_close(&mut closing);
        if closing.is_empty() {
            return Ok(());
        }
        for stock in &closing {
            // SeqCst (E3, E5): before the heavy barrier; a put or a transit that it does not wait for reads zero.
            stock.header.capacity.store(0, Ordering::SeqCst);
        }
        let taken = self.take_out(stocks, &closing, Pass::Closing);
        for &stock in &closing {
            stock.stuck.store(taken.is_err(), Ordering::Relaxed);
            if taken.is_ok() {
                self.uncount(stock);
                stocks.set_open(stock, false);
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

    /// Claim, barrier, settle, uncharge: until no slot shows credit.
    #[allow(unsafe_code)]
    fn take_out(&self, stocks: &mut Stocks, from: &[&'static Counter], pass: Pass) -> Result<(), Stuck> {
        let mut result = Ok(());
        self.counts.drains.fetch_add(1, Ordering::Relaxed);
        let mut cut = false;
        for turn in 0.. {
            if pass == Pass::Open && turn == OPEN_PASSES {
                break;
            }
            stocks.claims.clear();
            // Blocks are the outer loop: a thread's slots lie together.
            let mut all = true;
            for block in self.registry.blocks() {
                for &stock in from {
                    all &= stocks.claim(stock, block);
                }
            }
            // A first closing turn needs its barrier even where no slot shows credit: each thread must have seen
            // capacity 0. A claim that was cut left credit to an owner that may be undoing a consume. Only after
            // another barrier does this thread see what the owner puts back, or the owner see the cut.
            let first_closing = pass == Pass::Closing && turn == 0;
            let look_again = first_closing || cut;
            if stocks.claims.is_empty() && !look_again {
                break;
            }
            let seen = if first_closing { self.wait_transits() } else { self.barrier.heavy().map_err(Stuck::from) };
            result = result.and(seen);
            if seen == Err(Stuck::Barrier) {
                stocks.release_claims();
                break;
            }
            // The next turn claims the slots for which there was no memory.
            cut = !all;
            for claim in &stocks.claims {
                // SAFETY: the slot lies in a block of the registry, which is never freed.
                let units = unsafe { &*claim.slot }.settle(claim.units);
                claim.stock.usage.settled.fetch_add(units, Ordering::Relaxed);
                cut |= units < claim.units;
            }
        }
        stocks.claims.clear();
        for stock in from {
            let units = stock.usage.settled.swap(0, Ordering::Relaxed);
            if units > 0 {
                self.uncharge_drained(stock, units);
            }
        }
        result
    }

    /// Uncharge credit that came out of slots. What a poisoned counter holds beyond its usage was never charged.
    fn uncharge_drained(&self, stock: &Counter, units: u64) {
        let backed = if stock.poisoned.load(Ordering::Relaxed) { units.min(stock.backing()) } else { units };
        stock.uncharge_levels(backed);
        self.counts.discarded.fetch_add(units - backed, Ordering::Relaxed);
        self.counts.drained.fetch_add(backed, Ordering::Relaxed);
    }

    // === Explicit drains ===

    /// Take all credit below `level` out and leave the stocks open.
    pub(crate) fn drain(&self, level: &Counter) -> u64 {
        let mut stocks = self.stocks.lock();
        let _ = retire::close_all_pending(self, &mut stocks);
        let before = self.counts.drained.load(Ordering::Relaxed);
        let mut open = stocks.open_in(&self.hierarchy, level, Scope::Subtree);
        let _ = self.take_out(&mut stocks, &open, Pass::Open);
        // A counter whose credit turned out to be unbacked may not stay open.
        for stock in &open {
            if stock.poisoned.load(Ordering::Relaxed) {
                let _ = self.close(&mut stocks, stock, Scope::Own);
            }
        }
        open.clear();
        stocks.scratch = open;
        self.counts.drained.load(Ordering::Relaxed) - before
    }

    /// Close the stocks below a `level` under pressure: from here on an uncharge below it goes up the tree.
    pub(crate) fn close_below(&self, level: &Counter) {
        let mut stocks = self.stocks.lock();
        if level.limits.open.load(Ordering::Relaxed) as u32 == 0 {
            return;
        }
        level.limits.tight.store(true, Ordering::Relaxed);
        let _ = self.close(&mut stocks, level, Scope::Subtree);
        self.reopen(&mut stocks, level);
    }

    /// Close a stock after more was uncharged than charged: a hit must not consume credit that has no usage behind it.
    #[cold]
    pub(crate) fn close_poisoned(&self, counter: &Counter) {
        let mut stocks = self.stocks.lock();
        let _ = self.close(&mut stocks, counter, Scope::Own);
    }

    /// Change the batch of `level` and all below: capacity 0, barrier, drain, then the new batch. Never drain first: a
    /// charge in transit that still reads the old capacity would refill the stock behind the drain.
    pub(crate) fn set_batch(&self, level: &Counter, batch: u64) {
        let mut stocks = self.stocks.lock();
        let closed = self.close(&mut stocks, level, Scope::Subtree);
        // A stock that could not be closed keeps its batch: its bound was published for it.
        let _ = closed;
        for counter in self.hierarchy.snapshot().subtree(level.header.counter()) {
            for stock in [Some(counter), counter.front()].into_iter().flatten().filter(|stock| !stock.is_open()) {
                stock.batch.store(batch, Ordering::Relaxed);
            }
        }
        self.reopen(&mut stocks, level);
    }

    /// Uncharge the credit of a `parent` that has its first child. The root has no stock as long as it has children.
    pub(crate) fn after_first_child(&self, stocks: &mut Stocks, parent: &'static Counter) {
        let _ = self.close(stocks, parent, Scope::Own);
        for stock in [Some(parent), parent.front()].into_iter().flatten() {
            self.open_at_start(stocks, stock);
        }
    }

    /// Open the stock of a new counter at once, where stocks never close by margin.
    pub(crate) fn open_at_start(&self, stocks: &mut Stocks, counter: &'static Counter) {
        if !self.adaptive {
            self.open(stocks, counter);
        }
    }
}

// === impl Stocks: claims ===

impl Stocks {
    /// Claim what a thread has in a stock, for the next barrier. False where there is no memory for the claim.
    fn claim(&mut self, stock: &'static Counter, block: &Block) -> bool {
        let Some(slot) = block.slot(stock.index) else { return true };
        if self.claims.try_reserve(1).is_err() {
            return false;
        }
        let units = slot.claim();
        if units > 0 {
            self.claims.push(Claim { stock, slot, units });
        }
        true
    }

    /// Give claims back after a barrier that failed.
    #[allow(unsafe_code)]
    fn release_claims(&mut self) {
        for claim in self.claims.drain(..) {
            // SAFETY: as in `take_out`.
            unsafe { &*claim.slot }.release_claim(claim.units);
        }
    }
}
