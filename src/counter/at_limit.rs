//! Credit that is stranded in stocks, as charges and limits meet it: a refused charge drains it and
//! tries again, a forced charge and a lower max close the stocks below, a charge near a limit
//! closes its own.
//!
//! Edges: E4 (forced charge/opening), E5 (transit), E10 (open count), E45 (usage changes/the
//! counter is looked at).

use std::ptr;

use crate::counter::drain::StuckClose;
use crate::counter::level::ChargeMode;
use crate::counter::object::Counter;
use crate::counter::object::tree::{Stocks, Tree};
use crate::counter::refusal::LevelRefusal;
use crate::counter::slow_path::{LazySlowPath, SlowPath};
use crate::counter::stocks::{self, CloseScope};
use crate::counter::walk::{self, Walked};
use crate::counter::watch::{DEFERRED_ABOVE, DEFERRED_UNDERFLOW, OBSERVED};
use crate::counter::{central, look, width};
use crate::sync::Ordering;
use crate::thread::slow_path::{Entered, Outermost};

/// The most levels that one charge closes in turn before it returns its refusal. A tree has fewer
/// in practice, so only limits that move all the time can reach it.
const TURNS_MAX: usize = 4_096;

/// Milliseconds that a limit waits for a thread in transit before it counts that thread's credit as
/// live charge.
const PATIENCE_MAX: usize = 64;

/// How far a refused charge may go to make room: whose credit it may drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DrainReach {
    /// All below the level. That takes the tree's lock, and waits for threads in transit.
    AllThreads,
    /// What is at hand: that of this thread, and of central stocks while nobody has the tree's
    /// lock. The charge may not wait.
    OwnCredit,
}

impl DrainReach {
    pub(crate) fn may_wait(self) -> bool {
        self == DrainReach::AllThreads
    }
}

/// What a charge has found out about its counter's stock. Once the charge is out of transit,
/// [`adapt`] opens, closes or widens the stock by that.
#[derive(Clone, Copy)]
pub(crate) enum StockFinding {
    /// It is closed, and a walk for `units` has left `margin`. It opens where that is plenty.
    Closed { margin: u64, units: u64 },
    /// It is open and has its batch. It closes where little `margin` is left.
    Served { margin: u64 },
    /// It is open, and a charge of `units` went by it: the batch was too small for them, or the
    /// thread could have none. It closes where little `margin` is left, and gets wider otherwise,
    /// if the batch was too small.
    PassedBy { margin: u64, units: u64 },
    /// It is open, but there was no room for a batch, or other charges wait for it: it closes.
    LacksRoom,
}

impl StockFinding {
    pub(crate) fn is_closed(self) -> bool {
        matches!(self, StockFinding::Closed { .. })
    }
}

/// Makes room below the level that refused a charge of `n` to `counter`, and tries again. The
/// charge leaves out the levels from `top` on. The caller is not in transit.
pub(crate) fn retry<'a>(
    counter: &'a Counter,
    path: &Entered,
    n: u64,
    top: Option<&Counter>,
    refusal: LevelRefusal<'a>,
    reach: DrainReach,
) -> Result<Walked<'a>, LevelRefusal<'a>> {
    match (reach, path.outermost()) {
        // That would walk up to the root, and this charge ends below it.
        (DrainReach::OwnCredit, _) if top.is_some() => Err(refusal),
        (DrainReach::OwnCredit, _) => take_own_and_retry(counter, path, n, refusal),
        (DrainReach::AllThreads, Some(outermost)) => {
            drain_and_retry(counter, n, top, refusal, outermost)
        }
        // An allocator that charges inside a slow path, which may hold the tree's lock: the charge
        // is refused although there may be credit, and counted as such. Case 3 of the list of
        // `docs/src/guarantees.md`, "Where it does not hold"; those of `OwnCredit` are its case 1.
        (DrainReach::AllThreads, None) => {
            counter
                .tree()
                .counts
                .refused_in_transit
                .fetch_add(1, Ordering::Relaxed);
            Err(refusal)
        }
    }
}

/// Drains stranded credit below the level that refused a charge of `n` to `counter`, and tries
/// again. A refusal after that is for lack of room. The charge leaves out the levels from `top` on.
/// The caller is not in transit.
#[cold]
fn drain_and_retry<'a>(
    counter: &'a Counter,
    n: u64,
    top: Option<&Counter>,
    mut refusal: LevelRefusal<'a>,
    thread: &Outermost,
) -> Result<Walked<'a>, LevelRefusal<'a>> {
    let tree = counter.tree();
    for _ in 0..TURNS_MAX {
        // Mutation: reclaimed-bytes-hide-in-a-stock
        if refusal.without_credit() || is_hopeless(tree, &refusal, n) {
            return Err(refusal);
        }
        // Mutation: e10-loser-refuses
        let mut stocks = tree.lock(thread);
        // The thread that held the lock before has drained: this thread tries again before it
        // drains itself.
        refusal = match walk::walk(counter, n, ChargeMode::Admit, top) {
            Ok(walked) => return Ok(walked),
            Err(refusal) => refusal,
        };
        let level = refusal.level;
        level.limits.tight.store(true, Ordering::Relaxed);
        let closed = tree.close(&mut stocks, level, CloseScope::Subtree);
        let retried = walk::walk(counter, n, ChargeMode::Admit, top);
        let is_full = matches!(&retried, Err(again) if ptr::eq(again.level, level));
        if !is_full {
            tree.reopen(&mut stocks, level);
        }
        match (retried, closed) {
            // There was enough stranded below.
            (Ok(walked), _) => return Ok(walked),
            // The stocks stay closed: the next charge that is refused here finds nothing to drain.
            // The first one that fits ends that, and each stock opens at its next walk.
            (Err(again), Ok(())) if is_full => return Err(again),
            // Another level refuses now: it has credit of its own to drain.
            (Err(again), Ok(())) => refusal = again,
            // A thread stays in transit, or the barrier has failed: to try again would wait as
            // long. The refusal stands beside credit, and is counted as one that does.
            (Err(again), Err(_)) => {
                refusal = again;
                break;
            }
        }
    }
    // Cases 4 and 5 of the list of `docs/src/guarantees.md`, "Where it does not hold".
    tree.counts
        .refused_in_transit
        .fetch_add(1, Ordering::Relaxed);
    Err(refusal)
}

/// All credit that may lie below would be too little, and no reclaim follows: what reclaim frees
/// must go up the tree at once, and not into a stock. No reclaimer is asked for a charge above max.
fn is_hopeless(tree: &Tree, refusal: &LevelRefusal<'_>, n: u64) -> bool {
    let may_reclaim = n <= refusal.max && (tree.policies().is_some() || tree.config.hook.is_some());
    !may_reclaim && refusal.is_beyond_credit(n)
}

/// Uncharges the credit that is at hand, in this thread's own slot and in central stocks, and tries
/// again where there was any. It waits for no other thread.
#[cold]
fn take_own_and_retry<'a>(
    counter: &'a Counter,
    path: &Entered,
    n: u64,
    refusal: LevelRefusal<'a>,
) -> Result<Walked<'a>, LevelRefusal<'a>> {
    let walk = || walk::walk(counter, n, ChargeMode::Admit, None);
    // The thread's own slot first: as its owner it needs no lock, no barrier and no other thread.
    let slot = path
        .own_block()
        .and_then(|block| Some((block, block.slot(counter.index)?)));
    let mut walked = match slot {
        Some((block, slot)) => counter.in_transit(Some(block), |_| {
            let back = slot.take_back(u64::MAX, counter.incarnation().fenced);
            counter.uncharge_levels(back);
            if back > 0 { walk() } else { Err(refusal) }
        }),
        None => Err(refusal),
    };
    // Central stocks are under the tree's lock, which a nested slow path may not take.
    if path.outermost().is_none() {
        return walked;
    }
    // Each level once, from the group up: what the one has drained, the next one may lack.
    for level in counter.path_to_root() {
        match &walked {
            Ok(_) => break,
            // What is below this level is no use: a level further up refuses.
            Err(refusal) if !ptr::eq(refusal.level, level) => {}
            // Nothing was there, or another thread has the lock, for which this charge may not
            // wait.
            Err(_) if !central::close_at_once(level) => break,
            Err(_) => walked = counter.in_transit(path.own_block(), |_| walk()),
        }
    }
    walked
}

/// Closes the stocks below the levels that forced charges have put above max: no hit below them may
/// succeed then.
#[cold]
pub(crate) fn close_crossed(counter: &Counter, _: &Outermost) {
    for level in counter.path_to_root() {
        // SeqCst (E4): after the exchange on usage; pairs with `open`.
        if level.forced() > 0 && level.limits.open.load(Ordering::SeqCst).is_any() {
            level.tree().close_below(level);
        }
    }
}

/// Sets a max. It drains credit first, so that only live charge makes it fail.
pub(crate) fn set_max(level: &Counter, max: u64) -> Result<(), u64> {
    let path = SlowPath::enter();
    let tree = level.tree();
    let mut stocks = tree.lock(&path);
    let lowers = max < level.max();
    let mut near = lowers && is_near(level, max);
    let mut closed = false;
    let mut set = Err(level.usage());
    // A charge between the read of usage and the store undoes the max: the charge had room under
    // the old one.
    for turn in 0..TURNS_MAX {
        let usage = level.usage();
        // Before the first comparison where usage comes near: credit that is stranded there must
        // not be what makes the new max fail.
        if near || (usage > max && !closed) {
            level.limits.tight.store(true, Ordering::Relaxed);
            let stuck =
                tree.close(&mut stocks, level, CloseScope::Subtree) == Err(StuckClose::Transit);
            // Unlike a charge, this may wait until a thread that was preempted in transit runs
            // again.
            near = false;
            closed = !stuck || turn >= PATIENCE_MAX;
            continue;
        }
        set = if usage > max {
            Err(usage)
        } else {
            level.store_max(max)
        };
        if set.is_ok() || usage > max {
            break;
        }
    }
    max_has_moved(&mut stocks, level, set.is_ok() && lowers);
    set
}

/// Sets a max, whatever usage is. Drains credit where usage comes near it. Returns the usage above
/// it.
pub(crate) fn impose_max(stocks: &mut Stocks, level: &Counter, max: u64) -> u64 {
    let lowers = max < level.max();
    impose(stocks, level, max, lowers)
}

/// The max of a level that was only observed acts again.
pub(crate) fn act_again(stocks: &mut Stocks, level: &Counter) {
    let max = level.max();
    // Before the mark goes: a thread that reads either has the max, and the pressure of the level
    // stays.
    // Mutation: a-level-acts-again-before-it-has-a-max
    level.store_acting_max(max);
    level.limits.watched.clear(OBSERVED);
    impose(stocks, level, max, max < u64::MAX);
}

fn impose(stocks: &mut Stocks, level: &Counter, max: u64, lowers: bool) -> u64 {
    let tree = level.tree();
    // The max first: what is charged from here on has read it. Then the credit below, which would
    // count as excess otherwise.
    level.impose_max(max);
    if lowers && (is_near(level, max) || level.usage() > max) {
        level.limits.tight.store(true, Ordering::Relaxed);
        let _ = tree.close(stocks, level, CloseScope::Subtree);
    }
    max_has_moved(stocks, level, lowers);
    level.usage().saturating_sub(max)
}

/// Usage is near the max, or the credit below it is much of what is left.
fn is_near(level: &Counter, max: u64) -> bool {
    level.room(max) < level.tree().close_margin(level.batch()) || width::is_too_wide(level, max)
}

/// Draws the conclusions from another max, which `is_lower` or not.
fn max_has_moved(stocks: &mut Stocks, level: &Counter, is_lower: bool) {
    let tree = level.tree();
    // A walk may have read the old max before that moved, and exchange usage only now. It finds the
    // new max when it reads again (`Counter::max_after`) and takes its units off; until then usage
    // shows more than the new max. Where max was imposed, usage also shows a walk that had passed
    // this level and is refused by one above. Walks are in transit (E5), so they are over when this
    // call returns, but for those that `thread/transit.rs` names, and where one patience for each
    // thread is not enough: to wait longer would hold up the tree. Pairs with
    // `Counter::begin_transit`.
    // Mutation: e5-a-lowered-max-waits-for-no-walk
    if is_lower {
        let _ = tree.wait_transits();
    }
    // The budget of a root may follow from its max. The stocks below open again, as far as they
    // may.
    if level.parent().is_none() && level.bound() > stocks::budget(level) {
        let _ = tree.close(stocks, level, CloseScope::Subtree);
    }
    tree.reopen(stocks, level);
    // A charge that waits here may fit now, or never again.
    // Mutation: e25-raised-max-schedules-no-level
    look::look(level, true, &LazySlowPath::inside());
}

/// The stock is to open or to close: near a limit credit does more harm than good.
#[inline(always)]
pub(crate) fn is_due(counter: &Counter, stock: StockFinding) -> bool {
    let tree = counter.tree();
    let batch = counter.batch();
    // The counter has no stock.
    if batch == 0 {
        return false;
    }
    match stock {
        StockFinding::Closed { margin, .. } => margin >= tree.open_margin(batch),
        StockFinding::Served { margin } | StockFinding::PassedBy { margin, .. } => {
            margin < tree.close_margin(counter.open_batch())
        }
        // Stocks that do not adapt stay open.
        StockFinding::LacksRoom => tree.config.adaptive,
    }
}

/// Opens or closes the stock where it [is due](is_due), or widens it. Skipped while a drain runs:
/// that decides about the stock as well, and the next walk comes back to it.
#[inline]
pub(crate) fn adapt(counter: &Counter, stock: StockFinding, _: &Outermost) {
    let tree = counter.tree();
    let may_open =
        || !counter.path_to_root().any(|level| level.is_tight()) && stocks::may_open(counter);
    match stock {
        _ if !is_due(counter, stock) => {
            if let StockFinding::PassedBy { units, .. } = stock
                && width::is_large(counter, units)
                && may_open()
            {
                widen_slow(counter, units);
            }
        }
        StockFinding::Closed { units, .. } => {
            // Before the lock: near a limit nothing opens, and a charge there need not write the
            // lock's word.
            if may_open()
                && let Some(mut stocks) = tree.try_lock()
            {
                let width = width::for_charge(counter, units);
                tree.open(&mut stocks, counter, width);
            }
        }
        StockFinding::Served { .. } | StockFinding::PassedBy { .. } | StockFinding::LacksRoom => {
            if let Some(mut stocks) = tree.try_lock() {
                // What it cannot take out, the next close finds.
                let _ = tree.close(&mut stocks, counter, CloseScope::Own);
            }
        }
    }
}

/// A walk for `n` units was too large for the open stock: the stock gets wider, if the room allows
/// that, from the second such walk on.
#[cold]
#[inline(never)]
fn widen_slow(counter: &Counter, n: u64) {
    let is_wider = || width::for_charge(counter, n) > counter.width.load(Ordering::Relaxed);
    // To widen takes a barrier: not for one charge, and not where the room forbids it in any case.
    if !width::ask(counter) || !is_wider() {
        return;
    }
    let tree = counter.tree();
    if let Some(mut stocks) = tree.try_lock()
        && counter.is_open()
        // Another thread may have done that, or have taken the room.
        && is_wider()
        // A thread in transit may still go by the old capacity, and have reserved its bound for
        // that.
        && tree.close(&mut stocks, counter, CloseScope::Own).is_ok()
    {
        let width = width::for_charge(counter, n);
        tree.open(&mut stocks, counter, width);
    }
}

/// Closes a stock after more was uncharged than charged: a hit must not consume credit that has no
/// usage behind it.
#[cold]
pub(crate) fn close_poisoned(counter: &Counter, thread: &Outermost) {
    let tree = counter.tree();
    let _ = tree.close(&mut tree.lock(thread), counter, CloseScope::Own);
}

/// Looks at a counter in the place of an allocator, and at the levels above. The caller has a
/// handle, and holds no lock.
pub(crate) fn look_again(counter: &Counter, thread: &Outermost) {
    // Mutation: e45-looked-at-before-the-mark-is-taken
    let deferred = look::take_deferred(counter);
    // Mutation: e45-looked-at-before-the-mark-is-taken
    look_at_path(counter, thread, deferred);
}

fn look_at_path(counter: &Counter, thread: &Outermost, deferred: u64) {
    if deferred & DEFERRED_UNDERFLOW != 0 {
        look::tell_underflow(counter);
    }
    if deferred & DEFERRED_ABOVE != 0 {
        close_crossed(counter, thread);
        look::tell_above_max(counter, None);
    }
    counter
        .path_to_root()
        .for_each(|level| look::look(level, true, &LazySlowPath::inside()));
    // What the allocator's slow path could not do without the tree's lock.
    let open = counter.header.capacity.load(Ordering::Relaxed) > 0;
    if open && counter.poisoned.load(Ordering::Relaxed) {
        close_poisoned(counter, thread);
    } else {
        let margin = counter.headroom();
        let stock = if open {
            StockFinding::Served { margin }
        } else {
            StockFinding::Closed { margin, units: 0 }
        };
        adapt(counter, stock, thread);
    }
}
