//! A group goes offline: its stocks close, it leaves its parent's children, and each policy is
//! notified, in their order.

use std::ptr;

use crate::counter::child_count::HasChildren;
use crate::counter::handle::Handle;
use crate::counter::links;
use crate::counter::object::Counter;
use crate::counter::object::tree::{Shard, Stocks, Tree};
use crate::counter::slow_path::SlowPath;
use crate::counter::{central, exceeded_mark, retire, thresholds};
use crate::hierarchy::service::{self, WAITS};
use crate::pressure::{delays, pressure_levels};
use crate::reclaim::{excess, registrations, shares};
use crate::sync::{PENDING_CLOSE_MAX, fence_after_exchange};

/// Takes `group` offline: it admits no charge, leaves its parent's children, and its name is free.
/// The caller has a handle. Takes the tree's lock only where the group has an open stock. Fails
/// where the group has children.
pub(crate) fn offline(tree: &Tree, group: &Counter) -> Result<(), HasChildren> {
    let path = SlowPath::enter();
    // Mutation: offline-before-its-stock-is-closed
    group.child_count().bar()?;
    // E35: barred, then a check whether a stock is open; a thread that opens one now sees the bar;
    // pairs with `Tree::open` and `central::open`.
    // Mutation: e35-offline-does-not-fence
    fence_after_exchange();
    // A stock that waits for a barrier already has been closed, by another thread that takes the
    // group offline.
    if group.is_open_central()
        || group
            .group()
            .any(|counter| counter.is_open() && !counter.is_queued())
    {
        let mut stocks = tree.lock(&path);
        close_barred(tree, &mut stocks, group);
        // One barrier settles all groups that wait for one. Until there are so many their credit
        // stays in usage, where a refusal finds it.
        if stocks.unsettled >= PENDING_CLOSE_MAX {
            tree.close_all_pending(&mut stocks);
        }
    }
    leave(&mut tree.hierarchy.lock_of(group), group);
    Ok(())
}

/// Takes everything below the group offline, children before parents, and last the group if it is
/// to go `with` them. It holds the locks of the tree and of all shards meanwhile, so no group comes
/// in between.
pub(crate) fn offline_tree(tree: &Tree, top: &Counter, with: bool) {
    let path = SlowPath::enter();
    let mut stocks = tree.lock(&path);
    let mut hierarchy = tree.hierarchy.snapshot();
    // Going offline may be the last step, because no other handle need exist: this thread takes the
    // step with a handle.
    // Mutation: e15-offline-is-no-last-step
    let below: Vec<_> = hierarchy
        .subtree(top)
        .filter(|&group| with || !ptr::eq(group, top))
        .map(Handle::pin)
        .collect();
    for group in below.into_iter().rev() {
        // No child comes between: this thread has all locks of the hierarchy.
        let barred = group.child_count().bar();
        debug_assert!(barred.is_ok());
        close_barred(tree, &mut stocks, &group);
        leave(hierarchy.shard_of(&group), &group);
    }
    drop(hierarchy);
    tree.close_all_pending(&mut stocks);
}

/// Closes the stocks of a barred group: no thread opens them again.
fn close_barred(tree: &Tree, stocks: &mut Stocks, group: &Counter) {
    // Mutation: e35-offline-leaves-a-central-stock-open
    central::close_own(stocks, group);
    let queued = stocks.pending_close.len();
    for counter in group
        .group()
        .filter(|counter| counter.is_open() && !counter.is_queued())
    {
        retire::close_for_good(tree, stocks, counter);
    }
    // One group more that waits for a barrier, however many of its counters do.
    stocks.unsettled += usize::from(stocks.pending_close.len() > queued);
}

/// Unlinks a barred group with closed stocks from its parent's children, unless another thread was
/// first, and tells each policy. The caller has locked the shard.
fn leave(shard: &mut Shard, group: &Counter) {
    // Mutation: two-take-it-offline
    if group.state().is_offline() {
        return;
    }
    shard.leave(group);
    for counter in group.group() {
        // Mutation: an-offline-group-is-protected
        thresholds::unprotect(counter);
        // Mutation: e23-offline-stays-in-excess
        thresholds::set_soft(counter, u64::MAX);
        thresholds::set_reclaim_above(counter, u64::MAX);
        if thresholds::is_excess_wrong(counter) {
            excess::cross(counter);
        }
        // After all this: a thread that sees the bit finds the stock closed, and no protection and
        // no excess any more.
        counter.state().set_offline();
        // E27: offline, then a check whether a charge waits. E43: and whether it is marked as above
        // a limit. E47: and whether it is in a ring.
        // Mutation: e27-offline-does-not-fence
        fence_after_exchange();
        // Mutation: e43-offline-leaves-the-mark
        exceeded_mark::moved(counter);
        // Mutation: e43-offline-leaves-the-pressure
        pressure_levels::correct(counter);
        // A charge in line here is to be refused now.
        // Mutation: e27-offline-ends-no-wait
        if counter.limits.watched.is_for(WAITS) {
            service::schedule(counter);
        }
    }
    // Mutation: offline-ends-no-delay
    delays::went_offline(group);
    let _ = shares::leave(group);
    registrations::hand_to_parent(group);
    // The last step: until here the parent counts the group, so it could not go offline before it
    // had the reclaimers.
    links::leave_parent(group);
}
