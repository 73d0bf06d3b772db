//! The service's own names for the limits of groups, for refusals.

use std::fmt;
use std::num::NonZeroU8;
use std::sync::OnceLock;

use crate::counter::object::Counter;
use crate::hierarchy::group_object;
use crate::sync::Ordering;

/// A group has a byte for the number of its name.
const NAMES_MAX: usize = u8::MAX as usize;

/// The names of all runtimes, each once, in the order in which they came. They are never dropped,
/// so a refusal reads one without a lock.
static NAMES: [OnceLock<Box<str>>; NAMES_MAX] = [const { OnceLock::new() }; NAMES_MAX];

/// The number of a name that the process keeps.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SettingName(NonZeroU8);

/// The place of a name, which is copied if it is new; `None` where that finds no place.
fn place_of(names: &[OnceLock<Box<str>>], name: &str) -> Option<usize> {
    names
        .iter()
        .position(|place| **place.get_or_init(|| name.into()) == *name)
}

impl SettingName {
    /// `None`: the process keeps as many names already as it can.
    pub(crate) fn of(name: &str) -> Option<SettingName> {
        NonZeroU8::new(place_of(&NAMES, name)? as u8 + 1).map(SettingName)
    }

    pub(crate) fn get(self) -> &'static str {
        NAMES[usize::from(self.0.get()) - 1]
            .get()
            .map_or("", |name| name)
    }
}

impl fmt::Debug for SettingName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.get(), f)
    }
}

/// From here on refusals of the group name that setting.
pub(crate) fn set(group: &Counter, name: SettingName) {
    group_object::state(group)
        .setting
        .store(name.0.get(), Ordering::Relaxed);
}

/// From here on refusals of the group name no setting.
pub(crate) fn clear(group: &Counter) {
    group_object::state(group)
        .setting
        .store(0, Ordering::Relaxed);
}

pub(crate) fn of(group: &Counter) -> Option<SettingName> {
    NonZeroU8::new(group_object::state(group).setting.load(Ordering::Relaxed)).map(SettingName)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_one_place_until_all_are_taken() {
        let names = [const { OnceLock::new() }; 2];
        assert_eq!(
            ["a", "b", "a", "c", "b"].map(|name| place_of(&names, name)),
            [Some(0), Some(1), Some(0), None, Some(1)]
        );
    }
}
