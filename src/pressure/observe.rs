//! Observe-only: the limits of a subtree refuse and delay no charge, as if they were not there, and count.

use crate::counter::object::Counter;
use crate::counter::slow_path::SlowPath;
use crate::counter::watch::OBSERVED;
use crate::counter::{at_limit, central, handle};
use crate::pressure::victims::marks;
use crate::state::oom::OBSERVES;
use crate::sync::Ordering;

/// Mark the counter as observed, or not any more. Returns its max where that changes: to be stored anew. The mark of the
/// parent is right.
fn switch(counter: &Counter) -> Option<u64> {
    let group = counter.first();
    let observed = marks(group).has(OBSERVES) || group.incarnation().parent.is_some_and(Counter::is_observed);
    if observed == counter.is_observed() {
        return None;
    }
    let max = counter.max();
    if observed {
        // The max is kept apart before the mark says where to look for it.
        counter.usage.observed_max.store(max, Ordering::Relaxed);
        counter.limits.watched.set(OBSERVED);
    } else {
        counter.limits.watched.clear(OBSERVED);
    }
    Some(max)
}

/// A group that is being made is observed where its parent is. No thread can charge it yet. Under the lock of its shard.
pub(crate) fn follow_unlinked(group: &Counter) {
    for counter in group.group() {
        if let Some(max) = switch(counter) {
            counter.impose_max(max);
        }
    }
}

/// The limits of `top` and all below it only count, or act again.
pub(crate) fn set(top: &'static Counter, observed: bool) {
    let _path = SlowPath::enter();
    let tree = top.tree();
    let mut stocks = tree.lock();
    marks(top).set(OBSERVES, observed);
    if observed {
        // Each charge is to walk, which counts what a limit would have refused.
        central::close_below(&mut stocks, top);
    }
    // A group that is made meanwhile follows its parent, which may not be switched yet: then the next pass finds the group. A
    // pass that finds nothing to switch was behind all switches, and so are the groups that are made after it.
    let mut is_over = false;
    while !is_over {
        is_over = true;
        for counter in handle::pin_below(top).iter().flat_map(|group| group.group()) {
            if let Some(max) = switch(counter) {
                is_over = false;
                // Usage above a max that acts again is set apart as if it had been forced.
                at_limit::impose_max(&mut stocks, counter, max);
            }
        }
    }
}
