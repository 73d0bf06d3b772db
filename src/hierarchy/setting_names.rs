//! The service's own names for the limits of groups, for refusals.

use crate::counter::object::Counter;
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::{group_object, group_tree};

/// A group has a byte for the number of its name.
const NAMES_MAX: usize = u8::MAX as usize;

/// From here on refusals of the group name that setting. A tree keeps so many names: groups with later ones have none.
pub(crate) fn set(group: &Counter, name: &'static str) {
    let _path = SlowPath::enter();
    let mut names = group_tree::of(group).setting_names.lock();
    let known = names.iter().position(|known| *known == name);
    let at = known.or_else(|| {
        let has_place = names.len() < NAMES_MAX;
        has_place.then(|| {
            names.push(name);
            names.len() - 1
        })
    });
    // 0: none.
    group_object::state(group).setting.set(at.map_or(0, |at| at as u8 + 1));
}

pub(crate) fn of(group: &Counter) -> Option<&'static str> {
    let at = group_object::state(group).setting.get().checked_sub(1)?;
    let _path = SlowPath::enter();
    group_tree::of(group).setting_names.lock().get(usize::from(at)).copied()
}
