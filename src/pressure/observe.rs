//! Observe-only: the limits of a subtree refuse and delay no charge, as if they were not there, and count.

use crate::counter::at_limit;
use crate::counter::handle;
use crate::counter::object::Counter;
use crate::counter::object::tree::Stocks;
use crate::counter::watch::OBSERVED;
use crate::pressure::policy::marks;
use crate::state::oom::OBSERVES;
use crate::sync::Ordering;
use crate::sync::stat_atomic::AtomicU64;

/// The max as it was set, while the counter is only observed.
fn observed_max(of: &Counter) -> &AtomicU64 {
    &of.usage.observed_max
}

/// Only observed, by its own group or by one above.
fn is_to_be_observed(counter: &Counter) -> bool {
    counter.first().path_to_root().any(|level| marks(level).has(OBSERVES))
}

/// Mark the counter as observed, or not any more. Returns its max where that changes: to be stored anew.
fn switch(counter: &Counter) -> Option<u64> {
    let observed = is_to_be_observed(counter);
    if observed == counter.is_observed() {
        return None;
    }
    let max = counter.max();
    if observed {
        // The max is kept apart before the mark says where to look for it.
        observed_max(counter).store(max, Ordering::Relaxed);
        counter.limits.watched.set(OBSERVED);
    } else {
        counter.limits.watched.clear(OBSERVED);
    }
    Some(max)
}

/// A group that is being made is observed where a group above it is. No thread can charge it yet. Under the lock of its
/// shard.
pub(crate) fn follow_unlinked(group: &Counter) {
    for counter in group.group() {
        if let Some(max) = switch(counter) {
            counter.impose_max(max);
        }
    }
}

/// The limits of `top` and all below it only count, or act again.
pub(crate) fn set(top: &'static Counter, observed: bool) {
    let tree = top.tree();
    let mut stocks = tree.stocks.lock();
    marks(top).set(OBSERVES, observed);
    // A group that is made meanwhile is in the hierarchy already, or finds the mark: see `follow_unlinked`.
    for group in &handle::pin_below(top) {
        for counter in group.group() {
            follow(&mut stocks, counter);
        }
    }
}

fn follow(stocks: &mut Stocks, counter: &'static Counter) {
    if let Some(max) = switch(counter) {
        // What is above a max that acts again is set apart as if it had been forced.
        at_limit::impose_max(stocks, counter, max);
    }
}
