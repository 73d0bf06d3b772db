//! Finds the largest children of a group.

use super::handle::Group;
use crate::counter::children;
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
pub(crate) fn holders(level: &'static Counter) -> Holders {
    let mut most: [Option<(&'static Counter, u64)>; HOLDERS] = [None; HOLDERS];
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

/// # Where the memory is
impl Group {
    /// Returns the `n` children that hold most with the usage of each in bytes, the largest first. The call reads them one
    /// after the other, under no lock that covers more than a few: a child that is created or goes offline meanwhile may be
    /// missing. It keeps few of them at a time: of a million it takes some ten handles for each of the `n`.
    ///
    /// ```
    /// # use memcg::Limits;
    /// # let runtime = memcg::Runtime::builder().batch(memcg::Bytes(0)).build()?;
    /// let [a, b] = ["a", "b"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
    /// let _held = [a.try_charge(1)?, b.try_charge(2)?];
    /// assert_eq!(runtime.root().top(1), [(b, 2)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn top(&self, n: usize) -> Vec<(Group, u64)> {
        let largest = children::largest(self.first(), n).into_iter();
        largest.map(|(child, usage)| (Group::from_handle(child), usage)).collect()
    }
}
