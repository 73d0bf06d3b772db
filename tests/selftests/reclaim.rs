#![cfg(not(loom))]
//! `test_memcg_reclaim`: memory that is given back because somebody asks.

use memcg::Group;

use crate::values_close;

/// `reclaim_until` in `test_memcontrol.c`: five attempts. False: usage was there already, or reclaim said that it had
/// freed what it was asked for and had not.
pub(crate) fn reclaim_until(group: &Group, goal: u64) -> bool {
    let mut reclaimed = false;
    for _ in 0..5 {
        let current = group.usage();
        if current < goal || values_close(current, goal, 3) {
            break;
        }
        if reclaimed {
            return false;
        }
        let want = current - goal;
        // What the kernel answers with EAGAIN is a report of less than that.
        reclaimed = group.reclaim(want).expect("not inside a reclaimer").freed >= want;
    }
    reclaimed
}
