//! What a slow path does for an allocator that has changed usage: the looks that the allocator has left out.
//!
//! Edges: E4 (forced charge/opening), E45 (usage changes/the counter is looked at).

use crate::counter::object::Counter;
use crate::counter::object::tree::Crossing;
use crate::counter::watch::OBSERVED;
use crate::counter::{at_limit, marks, noted};
use crate::sync::Ordering;
use crate::thread::slow_path::Outermost;

/// Looks at a counter that an allocator has noted, and at the levels above. The caller has a handle, and holds no lock.
pub(crate) fn look_again(counter: &Counter, thread: &Outermost) {
    // Mutation: e45-looked-at-before-the-mark-is-taken
    let forced = noted::take(counter);
    // Mutation: e45-looked-at-before-the-mark-is-taken
    look_at_path(counter, thread, forced);
}

fn look_at_path(counter: &Counter, thread: &Outermost, forced: bool) {
    if forced {
        at_limit::close_crossed(counter, thread);
    }
    counter.path_to_root().for_each(marks::report_protected);
    if let Some(policies) = counter.tree().policies() {
        for level in counter.path_to_root() {
            if forced && level.forced() > 0 {
                policies.crossed(&Crossing::Forced(level));
            }
            if level.limits.watched.is_for(OBSERVED) && level.usage() > level.max() {
                policies.crossed(&Crossing::ObservedMax(level));
            }
        }
        counter.path_to_root().for_each(|level| policies.fell(level));
    }
    let open = counter.header.capacity.load(Ordering::Relaxed) > 0;
    if open && counter.poisoned.load(Ordering::Relaxed) {
        at_limit::close_poisoned(counter, thread);
    } else {
        at_limit::adapt(counter, open, counter.headroom(), thread);
    }
}
