//! Finds the largest children of a group.

use super::handle::Group;
use crate::counter::object::Counter;
use crate::counter::slow_path::SlowPath;
use crate::thread::slow_path;

/// The most children that a refusal names.
pub(crate) const HOLDERS: usize = 3;

/// A refusal looks at this many children at most, because no group is created or goes offline meanwhile.
const LOOKED_AT_MAX: u32 = 256;

/// Children of one group and what they hold, the largest first.
pub(crate) type Holders = [Option<(Group, u64)>; HOLDERS];

/// Finds the children of `level` that hold most. It allocates nothing, because the caller may be an allocator. Inside
/// another slow path it names none.
pub(crate) fn holders(level: &Counter) -> Holders {
    let mut most: [Option<(&Counter, u64)>; HOLDERS] = [None; HOLDERS];
    if !level.is_memory() || !(1..=LOOKED_AT_MAX).contains(&level.child_count().get()) || slow_path::is_running() {
        return [const { None }; HOLDERS];
    }
    let _path = SlowPath::enter();
    // A thread that is refused does not queue for the lock.
    let Some(shape) = level.tree().hierarchy.try_snapshot() else { return [const { None }; HOLDERS] };
    for child in shape.children(level) {
        let mut next = Some((child, child.usage())).filter(|&(_, usage)| usage > 0);
        for held in &mut most {
            if next.is_some_and(|(_, usage)| held.is_none_or(|(_, most)| usage > most)) {
                std::mem::swap(held, &mut next);
            }
        }
    }
    // The lock keeps the children until this takes handles on them.
    most.map(|held| held.map(|(child, usage)| (Group::pinned(child), usage)))
}
