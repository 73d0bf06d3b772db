//! Counts of handles, for what holds no bytes: group handles, and charges of zero bytes.

use crate::counter::object::Counter;

/// One more. The caller keeps the group meanwhile.
#[cold]
pub(crate) fn hold(node: &Counter) {
    node.first().state().pin();
}

/// One less. Afterwards the group may be gone.
#[inline]
pub(crate) fn release(node: &Counter) {
    node.first().release();
}
