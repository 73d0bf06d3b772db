//! The service's own names for the limits of groups, for refusals.

use std::fmt;
use std::num::NonZeroU8;
use std::sync::OnceLock;

use crate::counter::object::Counter;
use crate::hierarchy::group_object;
use crate::sync::Ordering;

/// A group has a byte for the number of its name.
const NAMES_MAX: usize = u8::MAX as usize;

/// Each name once, in the order in which they came.
struct Names<const N: usize>([OnceLock<Box<str>>; N]);

/// The names of all runtimes, which are never dropped. So a refusal reads one without a lock.
static NAMES: Names<NAMES_MAX> = Names([const { OnceLock::new() }; NAMES_MAX]);

/// The number of a name that the process keeps.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SettingName(NonZeroU8);

impl<const N: usize> Names<N> {
    /// The place of a name, which is copied if it is new; `None` where that finds no place.
    fn place_of(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|place| **place.get_or_init(|| name.into()) == *name)
    }
}

impl SettingName {
    /// `None`: the process keeps as many names already as it can.
    pub(crate) fn of(name: &str) -> Option<SettingName> {
        NonZeroU8::new(NAMES.place_of(name)? as u8 + 1).map(SettingName)
    }

    pub(crate) fn get(self) -> &'static str {
        NAMES.0[usize::from(self.0.get()) - 1].get().map_or("", |name| name)
    }
}

impl fmt::Debug for SettingName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.get(), f)
    }
}

/// From here on refusals of the group name that setting.
pub(crate) fn set(group: &Counter, name: SettingName) {
    group_object::state(group).setting.store(name.0.get(), Ordering::Relaxed);
}

pub(crate) fn of(group: &Counter) -> Option<SettingName> {
    NonZeroU8::new(group_object::state(group).setting.load(Ordering::Relaxed)).map(SettingName)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_one_place_until_all_are_taken() {
        let names = Names([const { OnceLock::new() }; 2]);
        assert_eq!(
            ["a", "b", "a", "c", "b"].map(|name| names.place_of(name)),
            [Some(0), Some(1), Some(0), None, Some(1)]
        );
    }
}
