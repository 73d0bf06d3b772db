//! Idle credit is uncharged: that of threads that do not charge, for the threads that do, and for
//! readers of usage.
//!
//! A *visit* looks at all slots of the tree and compares each with what the last two visits saw. It
//! claims what has not moved, and what lies in the block of a thread that has ended, as a drain
//! does: claim, one barrier, settle, uncharge. The stocks of threads stay open; a central stock
//! that no thread uses closes, and so do those of groups that are offline. `idle.md` has the steps
//! and the races.
//!
//! Edges: E2 (consume/claim), E36 (closing/release).

use std::mem;

use crate::counter::central;
use crate::counter::idle_visits::SeenCredit;
use crate::counter::live_peak::{self, LeastCredit};
use crate::counter::object::Object;
use crate::counter::object::tree::{Counters, Stocks, Tree};
use crate::counter::slow_path::SlowPath;
use crate::counter::stocks::CloseScope;
use crate::sync::Ordering;
use crate::sync::lock::LockGuard;
use crate::thread::directory::Header;
use crate::thread::local;
use crate::thread::pace::Pace;
use crate::thread::slot::Slot;
use crate::thread::slow_path::Outermost;
use crate::thread::transit::ANY;

/// Slots that a visit claims while it holds the tree's lock once, with one barrier.
const CLAIMS_MAX: usize = 4_096;

/// A slot whose credit a visit claims.
struct IdleSlot<'a> {
    slot: &'a Slot,
    pace: Option<Pace<'a>>,
    header: &'a Header,
    /// The owner's word as the visit has read it. An owner that has moved credit since is awake;
    /// `None`: the slot has no owner.
    filled: Option<u64>,
}

/// Gives back the credit of slots that have not moved for two visits, and that of ended threads. It
/// waits while another thread visits. Returns the units of memory given back.
pub(crate) fn release_credit(tree: &Tree) -> u64 {
    let path = SlowPath::enter();
    // A visit takes locks and waits, which a nested slow path may not.
    if path.outermost().is_none() {
        return 0;
    }
    visit(tree, &path, tree.idle_visits.seen.lock())
}

/// Does what [`release_credit`] does, unless another thread is about it: that one visits the same
/// slots.
pub(crate) fn release_credit_periodic(tree: &Tree) {
    let path = SlowPath::enter();
    if let Some(seen) = tree.idle_visits.seen.try_lock() {
        visit(tree, &path, seen);
    }
}

/// Visits all slots of the tree, and gives back what is idle. The search holds no lock of the tree,
/// for it is long: an owner may move credit meanwhile, or end. So what it finds is looked at again
/// under the lock.
fn visit(tree: &Tree, path: &SlowPath, mut seen: LockGuard<'_, SeenCredit>) -> u64 {
    let mut due = Vec::new();
    // Nobody uses what groups that are offline have left. First, for any close takes it along, and
    // this call says what it has given back.
    // Mutation: visit-leaves-what-is-offline
    let mut released = tree.close_offline_stocks();
    for block in tree.registry.listed() {
        for (index, slot) in block.slots.made() {
            // The owner's word first: credit that the owner puts there after this read makes the
            // slot look moved.
            let filled = slot.filled();
            if slot.available() == 0 {
                continue;
            }
            // The blocks are those of the process. A slot of another tree's counter is left to the
            // visits of that tree.
            let header = tree
                .registry
                .header(index)
                .filter(|header| header.tree() == tree.number);
            let Some(header) = header else { continue };
            let stood = seen.has_stood(block.number(), index, filled);
            let ended = block.has_ended();
            // An ended thread has nobody who would move the slot. Without memory for the list the
            // slot waits for the next visit.
            if (stood || ended) && due.try_reserve(1).is_ok() {
                let filled = (!ended).then_some(filled);
                let pace = block.slots.pace(index);
                due.push(IdleSlot {
                    slot,
                    pace,
                    header,
                    filled,
                });
            }
            // Others get the tree's lock in between.
            if due.len() == CLAIMS_MAX {
                released += take_out(tree, path, due.drain(..));
            }
        }
    }
    // What needs no claim comes last: central stocks, wide ones without credit, and blocks of ended
    // threads that are empty by now.
    released += take_out(tree, path, due.drain(..)) + central::visit(tree, path);
    close_wide(tree, path);
    tree.sweep();
    tree.idle_visits.end(seen);
    released
}

/// Claim, barrier, settle, uncharge. An owner that consumes meanwhile keeps what it consumed, or
/// puts it back and charges up the tree: then its credit stays for the visits to come.
fn take_out<'a>(
    tree: &Tree,
    path: &SlowPath,
    due: impl ExactSizeIterator<Item = IdleSlot<'a>>,
) -> u64 {
    if due.len() == 0 {
        return 0;
    }
    let mut stocks = tree.lock(path);
    let _moving = tree.moving.begin();
    stocks.claims.clear();
    for IdleSlot {
        slot,
        pace,
        header,
        filled,
    } in due
    {
        // The owner has moved credit since: it is awake, and keeps it.
        if filled.is_some_and(|filled| filled != slot.filled()) {
            continue;
        }
        // Without the lock the object may have been released, and be a counter of another tree by
        // now. In this tree's list it is one of this tree; a stock that waits for a close keeps its
        // credit for that.
        if let Some(stock) = stocks.open_behind(header) {
            // Without memory for the claim the slot waits for the next visit.
            // Mutation: e8-ended-thread-without-heavy
            let _ = stocks.claim_slot(stock, slot);
            // The thread that wakes up begins with a small refill.
            pace.inspect(Pace::reset);
        }
    }
    if stocks.claims.is_empty() {
        return 0;
    }
    // heavy (E2): as in a drain. Where it fails, an owner may have consumed what is claimed and not
    // know of the claim: the claims go back, and the credit stays where it is.
    // Mutation: e2-visit-without-heavy
    // Mutation: visit-unlocks-before-it-uncharges
    if tree.barrier.heavy().is_err() {
        tree.undo_claims(&mut stocks);
        return 0;
    }
    // Mutation: visit-unlocks-before-it-settles
    tree.counts.drains.fetch_add(1, Ordering::Relaxed);
    uncharge_claims(tree, &mut stocks)
}

/// Closes the wide stocks that nothing has asked for since the last visit, and in which no thread
/// has credit: what they have reserved is for others. They open again with the tree's batch.
fn close_wide(tree: &Tree, path: &SlowPath) {
    if tree.wide_bound.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut stocks = tree.lock(path);
    // Collected first: each close takes its stock out of the list.
    let mut idle = Counters::new();
    for &stock in &stocks.opened {
        // The mark goes with each visit, and each large charge that misses sets it again.
        let is_wide = stock.width.load(Ordering::Relaxed) > 0 && !stock.is_queued();
        let was_asked = is_wide && stock.asked_wide.swap(false, Ordering::Relaxed);
        if is_wide && !was_asked && tree.credit(&stock) == 0 && idle.try_reserve(1).is_ok() {
            idle.push(stock);
        }
    }
    for stock in &idle {
        let _ = tree.close(&mut stocks, stock, CloseScope::Own);
    }
}

fn uncharge_claims(tree: &Tree, stocks: &mut Stocks) -> u64 {
    let mut from = mem::take(&mut stocks.scratch);
    let mut memory = 0;
    stocks.settle_claims(|stock, units| {
        from.push(stock);
        // Mutation: idle-credit-of-all-counters-is-memory
        memory += if stock.is_memory() { units } else { 0 };
    });
    // Each once: the close of an unbacked one may be its end (E36).
    from.sort_unstable_by_key(|stock| stock.index);
    from.dedup_by_key(|stock| stock.index);
    for stock in &from {
        // Mutation: visit-forgets-what-it-has-settled
        stock.uncharge_settled();
    }
    // A counter whose credit turned out to be unbacked may not stay open.
    for stock in &from {
        if stock.poisoned.load(Ordering::Relaxed) {
            let _ = tree.close(stocks, stock, CloseScope::Own);
        }
    }
    from.clear();
    stocks.scratch = from;
    memory
}

/// Gives back the credit in this thread's own slots, before it sleeps. No barrier and no lock of
/// the tree: the thread is the owner. Returns the units of memory given back.
#[allow(unsafe_code)]
pub(crate) fn release_own_credit(tree: &Tree) -> u64 {
    // A thread that has never charged needs no block for this.
    if local::with_block(|block| block.is_none()) {
        return 0;
    }
    let path = SlowPath::enter();
    let Some(block) = path.outermost().and_then(Outermost::block) else {
        return 0;
    };
    let mut memory = 0;
    for (index, slot) in block.slots.made().filter(|(_, slot)| slot.owned() > 0) {
        let header = tree
            .registry
            .header(index)
            .filter(|header| header.tree() == tree.number);
        let Some(header) = header else { continue };
        // With real fences, for any tree: the thread has neither a handle nor charge of this
        // counter. Its object may be released, and taken by another tree, until the thread holds
        // units of it.
        let _transit = block.transit.enter(ANY, true);
        let least = LeastCredit::of(tree, Some(slot));
        // Mutation: own-release-uncharges-what-it-has-not-taken
        let units = slot.take_back(u64::MAX, true);
        if units > 0 {
            // SAFETY: the thread holds units of the counter.
            let counter = unsafe { Object::of(header).kept() };
            memory += if counter.is_memory() { units } else { 0 };
            live_peak::record_most_of(counter, Some(slot), least);
            // Mutation: e6-own-release-not-in-transit
            counter.uncharge_levels(units);
        }
    }
    memory
}
