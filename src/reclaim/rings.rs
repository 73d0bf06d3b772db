//! Groups and their rings: which group has which ring.
//!
//! Which ring a group stands in, and when its turn comes: see `turns`.

use crate::counter::handle::WeakCounter;
use crate::counter::object::Counter;
use crate::counter::object::tree::Tree;
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::{group_object, group_tree};
use crate::pool::NoMemory;
use crate::reclaim::turns::RingMember;
use crate::state::reclaim::{NO_RING, RingPlace, Rings};
use crate::sync::lock::LockGuard;

impl RingMember for WeakCounter {
    fn usage(self) -> u64 {
        self.object.usage()
    }

    fn take_handle(self) -> bool {
        self.object.state().try_pin(self.of)
    }
}

/// Where a group object keeps the number of its ring.
fn place(of: &Counter) -> &RingPlace {
    &group_object::of(of).ring
}

/// The number of the ring of a group's memory, or [`NO_RING`]: its further counters have none.
pub(crate) fn number(of: &Counter) -> u32 {
    if of.is_memory() {
        place(of).number()
    } else {
        // Reclaimers give memory, so a further counter of a group is never visited for its own
        // usage.
        NO_RING
    }
}

/// Locks the rings of a tree. Under this lock no thread calls the process's allocator, which may
/// charge, and so cross a soft limit and ask for the lock again.
pub(crate) fn lock(tree: &Tree) -> LockGuard<'_, Rings<WeakCounter>> {
    group_tree::shared(tree).rings.lock()
}

/// Makes a ring for a group and for each above it, all of them or none: the memory for them is
/// reserved first.
pub(crate) fn make(group: &Counter) -> Result<(), NoMemory> {
    // A ring stays until its group is released, and the groups above have one, too.
    if number(group) != NO_RING {
        return Ok(());
    }
    let mut rings = lock(group.tree());
    // Before the first ring is made: to find no memory halfway up would leave a group whose ring
    // has no ring above it, which no reclaim from above ever reaches.
    rings.all.reserve(
        group
            .path_to_root()
            .take_while(|level| number(level) == NO_RING)
            .count(),
    )?;
    let mut below = NO_RING;
    for level in group.path_to_root() {
        // Looked up again for each level: of two threads that make rings at once, the second finds
        // under the lock what the first has made.
        let known = number(level);
        let member = WeakCounter::new(level);
        let ring = if known == NO_RING {
            rings.add(member, NO_RING)
        } else {
            known
        };
        // Known or new, this ring is the one above the ring that was made last.
        if below != NO_RING {
            rings.all[below as usize].parent = ring;
        }
        // From here up all have one.
        if known != NO_RING {
            break;
        }
        place(level).set(ring);
        below = ring;
    }
    Ok(())
}

/// [`make`] for a caller that cannot be refused: without memory the process ends.
pub(crate) fn make_in_any_case(group: &Counter) {
    let _path = SlowPath::enter();
    make(group).unwrap_or_else(|refused| refused.abort());
}

/// Announces the rings of a group and of all above it: a thread that takes one of these groups
/// offline from here on finds its ring (E47).
pub(crate) fn announce(group: &Counter) {
    group
        .path_to_root()
        .for_each(|level| place(level).announce());
}

/// Gives back the ring of a group that is released, if it has one. No group is below it, and it has
/// neither reclaimers nor excess.
pub(crate) fn end(group: &Counter) {
    let ring = number(group);
    // Most groups never had a reclaimer or a soft limit, and end without this lock.
    if ring != NO_RING {
        lock(group.tree()).remove(ring);
    }
}
