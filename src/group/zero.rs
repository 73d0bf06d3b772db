//! Counts the handles of a group: those of [`Group`](super::Group), and of charges of zero bytes.

use crate::counter::handle::Handle;
use crate::counter::object::Counter;

/// Takes one handle. The caller keeps the group meanwhile.
#[cold]
pub(crate) fn hold(counter: &'static Counter) {
    Handle::pin(counter).into_raw();
}

/// Gives one handle up. Afterwards the group may be gone.
#[inline]
pub(crate) fn release(counter: &'static Counter) {
    drop(Handle::adopt(counter));
}
