//! Groups and their rings: which group has which ring, and the room for them.
//!
//! Which ring a group stands in, and when its turn comes: see `turns`.

use crate::counter::object::Counter;
use crate::counter::object::tree::Tree;
use crate::hierarchy::{group_object, group_tree};
use crate::pool::NoMemory;
use crate::reclaim::turns::RingMember;
use crate::state::reclaim::{NO_RING, RingGroup, RingPlace, Rings};
use crate::sync::lock::LockGuard;

impl RingMember for RingGroup {
    fn usage(self) -> u64 {
        self.0.usage()
    }

    fn try_pin(self) -> bool {
        self.0.state().try_pin(self.1)
    }
}

fn place(of: &Counter) -> &RingPlace {
    &group_object::of(of).ring
}

/// The number of the ring of a group's memory, or [`NO_RING`]: its further counters have none.
pub(crate) fn number(of: &Counter) -> u32 {
    if of.is_memory() { place(of).number() } else { NO_RING }
}

/// Under this lock nothing is allocated or freed.
pub(crate) fn lock(tree: &Tree) -> LockGuard<'_, Rings<RingGroup>> {
    group_tree::shared(tree).rings.lock()
}

/// Makes a ring for a group and for each above it. Allocates, outside of the lock of the rings.
pub(crate) fn make(group: &'static Counter) -> Result<(), NoMemory> {
    let without = |level: &'static Counter| number(level) == NO_RING;
    let above = || group.path_to_root().take_while(|&level| without(level));
    let mut levels: Vec<&'static Counter> = room_for(above().count())?;
    levels.extend(above());
    if levels.is_empty() {
        return Ok(());
    }
    // Room is freed after the lock is, and so is `levels`: the allocator may uncharge.
    let mut room = Vec::new();
    loop {
        let mut rings = lock(group.tree());
        let needed = rings.all.len() + levels.len();
        if rings.all.capacity() < needed {
            if room.capacity() < needed {
                drop(rings);
                room = room_for(2 * needed.max(16))?;
                continue;
            }
            room.append(&mut rings.all);
            std::mem::swap(&mut rings.all, &mut room);
        }
        for &level in levels.iter().rev().filter(|&&level| without(level)) {
            let parent = level.incarnation().parent.map_or(NO_RING, number);
            let ring = rings.add((level, level.state().generation()), parent);
            place(level).set(ring);
        }
        return Ok(());
    }
}

/// A thread that takes one of these groups offline from here on finds its ring (E47).
pub(crate) fn announce(group: &Counter) {
    group.path_to_root().for_each(|level| place(level).announce());
}

/// The group is released: none is below it, and it has neither reclaimers nor excess.
pub(crate) fn release(group: &Counter) {
    let ring = number(group);
    if ring != NO_RING {
        lock(group.tree()).remove(ring);
    }
}

fn room_for<T>(many: usize) -> Result<Vec<T>, NoMemory> {
    let mut room = Vec::new();
    room.try_reserve_exact(many).map_err(|_| NoMemory { bytes: many.saturating_mul(size_of::<T>()) })?;
    Ok(room)
}
