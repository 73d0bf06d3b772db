//! Observe-only: the limits of a subtree refuse and delay no charge, as if they were not there, and
//! count.

use crate::counter::object::Counter;
use crate::counter::slow_path::SlowPath;
use crate::counter::watch::OBSERVED;
use crate::counter::{at_limit, central, links};
use crate::hierarchy::group_tree;
use crate::pressure::victims::oom_flags;
use crate::state::oom::OBSERVES;
use crate::sync::Ordering;

/// `None`: the counter is observed, or not, as the mark of its group says. The mark of the parent
/// is right.
fn wanted(counter: &Counter) -> Option<bool> {
    let group = counter.first();
    let observed =
        oom_flags(group).has(OBSERVES) || group.parent().is_some_and(|above| above.is_observed());
    (observed != counter.is_observed()).then_some(observed)
}

/// Marks the counter as observed. Returns its max, to be stored anew.
fn begin(counter: &Counter) -> u64 {
    let max = counter.max();
    // The max is kept apart before the mark says where to look for it.
    counter.usage.observed_max.store(max, Ordering::Relaxed);
    counter.limits.watched.set(OBSERVED);
    max
}

/// A group that is being made is observed where its parent is. No thread can charge it yet. Under
/// the lock of its shard.
pub(crate) fn follow_unlinked(group: &Counter) {
    for counter in group
        .group()
        .filter(|counter| wanted(counter) == Some(true))
    {
        counter.impose_max(begin(counter));
    }
}

/// The limits of `top` and all below it only count, or act again.
pub(crate) fn set(top: &Counter, observed: bool) {
    let path = SlowPath::enter();
    let tree = top.tree();
    let mut stocks = tree.lock(&path);
    // Mutation: an-observation-that-ends-ends-those-below
    oom_flags(top).set(OBSERVES, observed);
    if observed {
        // Each charge is to walk, which counts what a limit would have refused.
        central::close_below(&mut stocks, top);
    }
    // A group that is made meanwhile follows its parent, which may not be switched yet: then the
    // next pass finds the group. A pass that finds nothing to switch was behind all switches, and
    // so are the groups that are made after it.
    let mut is_over = false;
    while !is_over {
        is_over = true;
        // Handles, for the lock of the tree does not keep a group from ending, and a max is stored
        // in each.
        for counter in links::pin_below(top).iter().flat_map(|group| group.group()) {
            let Some(observed) = wanted(counter) else {
                continue;
            };
            is_over = false;
            // What a level divides by shares follows from maxes that act.
            group_tree::of(counter).shares.lock().max_moved(counter);
            if observed {
                at_limit::impose_max(&mut stocks, counter, begin(counter));
            } else {
                // Usage above a max that acts again is set apart as if it had been forced.
                at_limit::act_again(&mut stocks, counter);
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;
    use crate::thread::slot::Consume;
    use crate::{Limits, Runtime};

    /// Who serves the line of a level that is observed from now on may be another thread, at any
    /// time later. The line refuses no charge meanwhile.
    #[test]
    fn the_line_of_an_observed_level_refuses_nothing() {
        let runtime = Runtime::builder().batch(0).build().unwrap();
        let group = runtime
            .root()
            .create("acme", Limits::new().max(100))
            .unwrap();
        let _held = group.charge(90).unwrap();
        let mut waits = pin!(group.charge_async(60));
        let mut poll = || waits.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        {
            // Lines are served where the outermost slow path ends.
            let _path = SlowPath::enter();
            set(group.first(), true);
            for _ in 0..3 {
                let charged = group.first().try_charge_once_slow(60, Consume::Miss);
                assert!(charged.is_ok() && group.waiting_count() == 1);
                group.raw().uncharge(60);
            }
        }
        assert!(poll().is_ready());
    }
}
