//! The service's own names for the limits of groups, for refusals.

use crate::counter::object::Counter;
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::{group_object, group_tree};

/// From here on refusals of the group name that setting. A tree has 255 names at most: groups with later ones have none.
pub(crate) fn set(group: &Counter, name: &'static str) {
    let _path = SlowPath::enter();
    let mut names = group_tree::of(group).setting_names.lock();
    let known = names.iter().position(|known| *known == name);
    let number = known.unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    });
    group_object::state(group).setting.set(u8::try_from(number + 1).unwrap_or(0));
}

pub(crate) fn of(group: &Counter) -> Option<&'static str> {
    let number = group_object::state(group).setting.get().checked_sub(1)?;
    let _path = SlowPath::enter();
    group_tree::of(group).setting_names.lock().get(usize::from(number)).copied()
}
