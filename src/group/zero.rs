//! Counts the handles of a group: those of [`Group`](super::Group), and of charges of zero bytes.

use crate::counter::object::Counter;

/// Takes one handle. The caller keeps the group meanwhile.
#[cold]
pub(crate) fn hold(counter: &Counter) {
    counter.first().state().pin();
}

/// Gives one handle up. Afterwards the group may be gone.
#[inline]
pub(crate) fn release(counter: &Counter) {
    counter.first().release();
}
