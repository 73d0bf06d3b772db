//! The word that says which group owns an object.

use crate::counter::object::Counter;
use crate::group::Group;

/// What a granule's place in the metadata holds: the first counter of the group that owns the object which starts
/// there, or null.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct OwnerWord(*const Counter);

impl OwnerWord {
    pub(super) const NONE: OwnerWord = OwnerWord(std::ptr::null());

    #[inline]
    pub(super) fn of(group: &Group) -> OwnerWord {
        OwnerWord(std::ptr::from_ref(group.first()))
    }

    #[inline]
    pub(super) fn is_none(self) -> bool {
        self.0.is_null()
    }

    /// The group, with a handle of its own.
    ///
    /// # Safety
    ///
    /// The group is charged for the object until this returns.
    #[allow(unsafe_code)]
    pub(super) unsafe fn group(self) -> Option<Group> {
        // SAFETY: the word is null or names a group's first counter, and objects of counters are never freed. The
        // caller's charge keeps the group.
        unsafe { self.0.as_ref() }.map(Group::pinned)
    }
}
