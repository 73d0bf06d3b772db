//! Who is above its soft limit: known at each crossing, and told to all above.
//!
//! A group is in excess while its usage is above its soft limit. The kernel's rework looks every 1,024 events
//! (`mem_cgroup_update_soft_limit`); here whoever changes usage or the limit compares, and where the mark is wrong
//! takes the lock of the rings and puts it right: mark, then look at usage again, until both agree. Groups without a
//! soft limit pay one load at each level that a charge walks; charges from the stock do not get here.
//!
//! Edge: E23 (usage/mark).

use std::ptr;

use crate::counter::object::Counter;
use crate::counter::tree::Tree;
use crate::counter::watch::TOLD;
use crate::pool::NoMemory;
use crate::reclaim::rings::{Kind, NO_RING};
use crate::sync::{Ordering, fence_after_exchange};

impl Counter {
    /// Puts the mark right.
    #[cold]
    pub(crate) fn cross(&self) {
        let mut rings = self.tree().rings.lock();
        loop {
            // SeqCst (E23): after the mark of the turn before; pairs with the exchange in `set_soft`.
            let excess = self.usage() > self.limits.soft.load(Ordering::SeqCst);
            if excess == self.is_in_excess() {
                return;
            }
            // SeqCst (E23): the mark, then usage again; pairs with the exchange on usage before `is_excess_wrong`. Either
            // who changes usage sees the new mark, or we see the new usage.
            self.limits.in_excess.swap(u64::from(excess), Ordering::SeqCst);
            fence_after_exchange();
            rings.set_own(self.ring.load(Ordering::Relaxed), Kind::Excess, excess);
        }
    }

    /// Set the soft limit. A group that goes offline gets none. Under the lock of its
    /// shard.
    pub(crate) fn set_soft(&self, soft: u64) {
        // SeqCst (E23): the limit, then usage; pairs with the exchange on usage before `is_excess_wrong`.
        self.limits.soft.swap(soft, Ordering::SeqCst);
        if soft < u64::MAX {
            self.watch(TOLD);
        }
        fence_after_exchange();
        if self.ring.load(Ordering::Relaxed) != NO_RING {
            self.cross();
        }
    }

    /// Whether pressure on `root` asks this group first: itself or one above it, up to and including `root`, is in
    /// excess.
    pub(crate) fn is_soft_eligible(&self, root: &Counter) -> bool {
        self.path_below(Some(root)).chain([root]).any(Counter::is_in_excess)
            && self.path_to_root().any(|level| ptr::eq(level, root))
    }

    /// Groups below that are in excess.
    pub(crate) fn children_in_excess(&self) -> u64 {
        self.tree().rings.lock().counts(self.ring.load(Ordering::Relaxed), Kind::Excess).1
    }
}

impl Tree {
    /// Make sure that the rings know a group that is to have a soft limit.
    pub(crate) fn before_soft(&self, node: &'static Counter, soft: u64) -> Result<(), NoMemory> {
        if soft < u64::MAX { self.make_rings(node) } else { Ok(()) }
    }
}
