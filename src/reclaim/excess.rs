//! Which groups are above their soft limits: known at each crossing, and told to the level above.
//!
//! A group is in excess while its usage is above its soft limit. The kernel's rework looks every
//! 1,024 events (`mem_cgroup_update_soft_limit`). Here each thread that changes usage or the limit
//! compares. Where the mark is wrong it takes the lock of the rings and corrects it: it sets the
//! mark, then reads usage again, until both agree. A group without a soft limit pays one load at
//! each level that a charge walks. A charge from the stock does not get here.
//!
//! Edge: E23 (usage/mark).

use crate::counter::handle::Handle;
use crate::counter::object::{Counter, LimitWords};
use crate::counter::slow_path::SlowPath;
use crate::counter::{children as listing, thresholds};
use crate::reclaim::rings;
use crate::state::reclaim::RingReason;
use crate::sync::{Ordering, fence_after_exchange};

/// Corrects the mark of a group, and the counts of the levels above, until mark and usage agree. It
/// takes the lock of the rings, so two threads do not correct one mark at once.
#[cold]
pub(crate) fn cross(group: &Counter) {
    let LimitWords {
        soft, in_excess, ..
    } = &group.limits;
    let mut rings = rings::lock(group.tree());
    loop {
        // SeqCst (E23): after the mark of the turn before; pairs with the exchange in
        // `thresholds::set_soft`.
        let excess = group.usage() > soft.load(Ordering::SeqCst);
        if excess == thresholds::is_in_excess(group) {
            return;
        }
        // SeqCst (E23): the mark, then usage again; pairs with the exchange on usage before
        // `is_excess_wrong`. Either the thread that changes usage sees the new mark, or this one
        // sees the new usage.
        // Mutation: e23-mark-without-fence
        in_excess.swap(u64::from(excess), Ordering::SeqCst);
        // Mutation: e23-mark-without-fence
        fence_after_exchange();
        // Mutation: e23-mark-not-looked-at-again
        rings.set_own(rings::number(group), RingReason::Excess, excess);
    }
}

/// Counts the children of a group that are in excess, themselves or somewhere below.
pub(crate) fn children(group: &Counter) -> u64 {
    let _path = SlowPath::enter();
    rings::lock(group.tree())
        .counts(rings::number(group), RingReason::Excess)
        .below
}

/// Counts the groups below that are in excess. Each level knows how many of its children are in
/// excess or have such groups below them, so the search enters those groups alone that have one
/// below. The caller holds no lock.
pub(crate) fn count_below(group: &Counter) -> u64 {
    let mut count = 0;
    let mut entered = vec![Handle::pin(group)];
    while let Some(above) = entered.pop() {
        if children(&above) > 0 {
            let below = listing::pin(&above);
            count += below
                .iter()
                .filter(|group| thresholds::is_in_excess(group))
                .count() as u64;
            entered.extend(below);
        }
    }
    count
}
