//! A counter leaves its tree, and a stock closes for good.
//!
//! A [`PageCounter`](crate::PageCounter) is *retired* with its last handle: what it holds leaves
//! its ancestors. The stock of a group that goes offline closes for good. Where more than one
//! thread has charged the group, that needs a barrier. Such stocks queue, and one barrier serves
//! all of them: after 64, with the next close, or in `Tree::close_offline_stocks`.
//!
//! Edges: E12 (vacated slots/the next counter with the object), E14 (a second charger/offline).

use crate::counter::handle::Handle;
use crate::counter::object::tree::{Stocks, Tree};
use crate::counter::object::{Counter, CounterRef, SHARED};
use crate::counter::slow_path::SlowPath;
use crate::counter::{live_peak, make, raw, thresholds};
use crate::sync::{Ordering, fence_after_exchange};
use crate::thread::block::Block;
use crate::thread::local;
use crate::thread::slot::Slot;

/// Ends a bare counter whose last handle is gone: what it holds leaves its ancestors, and its
/// object goes back to the pool.
pub(crate) fn retire(counter: &Counter) {
    let _path = SlowPath::enter();
    // The counter may be the last of its tree.
    let tree = counter.incarnation().tree.counted();
    uncharge_all(counter);
    tree.hierarchy.lock_of(counter).retire(counter);
    thresholds::unprotect(counter);
    // Taken over now, for the incarnation that names the parent ends with the next step. Given up
    // at last: it may have been the parent's last handle.
    let parent = counter
        .parent()
        .map(|parent| Handle::adopt(parent.object()));
    make::recycle_unused(&tree, counter.object());
    drop(parent);
}

/// Takes all that is charged to a counter off its path to the root. No handle names it, so no
/// thread charges it any more; it has no children. Its stock closes for good.
pub(crate) fn uncharge_all(counter: &Counter) {
    let path = SlowPath::enter();
    let tree = counter.tree();
    let mut stocks = tree.lock(&path);
    // No thread opens its stock from here on. It has no children: they would keep it.
    let barred = counter.child_count().bar();
    debug_assert!(barred.is_ok(), "a counter outlives its children");
    // Mutation: e10-retired-before-its-credit-is-back
    vacate(tree, counter);
    // The credit is part of the usage.
    counter.uncharge_levels(counter.usage());
    if counter.is_open() {
        // E10: uncounted after its credit is back, as in `Tree::close`.
        counter.header.capacity.store(0, Ordering::Release);
        tree.uncount(&mut stocks, counter);
    }
}

/// Makes all slots of a counter vacant, which no thread uses any more. Returns the credit that was
/// in them. It visits as few blocks as it can: mostly this thread alone has charged the counter.
pub(crate) fn vacate(tree: &Tree, counter: &Counter) -> u64 {
    live_peak::leave(counter);
    // Relaxed: E12, see below. A thread marks itself as a charger (`Counter::begin_transit`) before
    // it makes a slot active, so this thread need not visit the blocks of other threads. The audit
    // counts without that mark.
    let charger = counter.charger.load(Ordering::Relaxed);
    let in_block = |block: &Block| {
        // E12: no barrier. The last handle's drop, or the last uncharge, orders every use of the
        // counter before this. The pool's locks order this before the next counter with the object.
        // Pairs with `creation::start`.
        if let Some(cell) = block.audit.get(counter.index) {
            cell.reset();
        }
        block.slot(counter.index).map_or(0, Slot::vacate)
    };
    let registry = &tree.registry;
    // Mutation: e12-only-one-chargers-slot-is-vacated
    let of_all = charger == SHARED || tree.config.audit;
    // Mostly the one charger itself is here: it reads no word of another thread.
    let own = |block: &&Block| !of_all && charger == block.charger();
    let own_credit = local::with_block(|block| block.filter(own).map(in_block));
    let credit = if let Some(credit) = own_credit {
        credit
    } else if of_all {
        // Any thread may have a slot. Blocks off the list have no credit there, so they need a
        // visit only where a sweep says that they had a slot at all.
        let listed: u64 = registry.listed().map(in_block).sum();
        // Acquire (E54): after the walk over the list; pairs with `Tree::sweep`. A block that was
        // off the list is visited now.
        // Mutation: e54-vacated-without-a-look-for-swept-blocks
        if counter.swept.load(Ordering::Acquire) != 0 || tree.config.audit {
            registry.blocks().for_each(|block| _ = in_block(block));
            counter.swept.store(0, Ordering::Relaxed);
        }
        listed
    } else {
        // One other thread has charged, or none: at most one block has a slot.
        Block::number_of_charger(charger)
            .and_then(|number| registry.block(number))
            .map_or(0, in_block)
    };
    raw::reset(counter);
    credit
}

/// Closes a stock that no thread opens again. It needs no barrier where this thread alone has ever
/// charged the counter; else the stock waits for the next barrier, which it shares with others. The
/// caller holds the tree's lock and has barred the group.
#[allow(unsafe_code)]
pub(crate) fn close_for_good(tree: &Tree, stocks: &mut Stocks, counter: &Counter) {
    // SeqCst (E14): pairs with `Counter::begin_transit`. Either a second charger reads capacity 0,
    // or this thread sees the charger's mark.
    live_peak::before_close(counter);
    // Mutation: e14-offline-looks-before-it-closes
    counter.header.capacity.swap(0, Ordering::SeqCst);
    fence_after_exchange();
    // Mutation: e14-offline-looks-before-it-closes
    let charger = counter.charger.load(Ordering::SeqCst);
    // The owner of the only slot takes its credit back by itself. Where nobody has charged there is
    // none. Where others have, only a barrier tells what they hold.
    let mine = local::with_block(|block| match block {
        Some(block) if charger == block.charger() => {
            Some(block.slot(counter.index).map_or(0, |slot| {
                slot.take_back(u64::MAX, counter.incarnation().fenced)
            }))
        }
        _ => (charger == 0).then_some(0),
    });
    if let Some(units) = mine {
        counter.uncharge_levels(units);
        live_peak::has_closed(counter);
        tree.uncount(stocks, counter);
        return;
    }
    // The stock stays counted as open until then, so its credit is found by whoever needs it. It
    // pays for no charge: a thread that finds the group offline reads capacity 0.
    counter.queued.store(true, Ordering::Relaxed);
    // SAFETY: it is counted as open: see `Stocks::add_open`.
    stocks
        .pending_close
        .push(unsafe { CounterRef::new(counter) });
}

/// Uncounts the stocks of a group whose usage is zero, without a barrier: neither a slot nor a
/// thread in transit has credit of them, for credit is part of usage.
pub(crate) fn forget_open(tree: &Tree, stocks: &mut Stocks, group: &Counter) {
    // A group that leaves the queue is one less that a barrier is run for.
    let queued = stocks.pending_close.len();
    for counter in group.group().filter(|counter| counter.is_open()) {
        stocks.forget_pending_close(counter);
        tree.uncount(stocks, counter);
    }
    stocks.unsettled -= usize::from(stocks.pending_close.len() < queued);
}
