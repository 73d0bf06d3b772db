//! The tasks of a group: where all of them wait, nothing in the group comes back.

use crate::counter::object::Counter;
use crate::hierarchy::group_object;
use crate::sync::Ordering;

/// 0 where the group does not say.
pub(crate) fn of(group: &Counter) -> u16 {
    group_object::of(group).tasks.load(Ordering::Relaxed)
}

pub(crate) fn set(group: &Counter, tasks: u16) {
    group_object::of(group)
        .tasks
        .store(tasks, Ordering::Relaxed);
}

/// The highest group on the path that says how many tasks it has.
pub(crate) fn holder(group: &Counter) -> Option<&Counter> {
    group.path_to_root().filter(|&above| of(above) > 0).last()
}
