//! Handles that are held by what holds no bytes: group handles, and charges of zero bytes.

use crate::charge::page_counter::Node;
use crate::charge::pool::slow_path;

/// One more. The caller keeps the group meanwhile.
#[cold]
pub(super) fn hold(node: &Node) {
    node.keeper().state().pin();
}

/// One less. Afterwards the group may be gone.
#[inline]
pub(super) fn release(node: &Node) {
    let keeper = node.keeper();
    if let Some(of) = keeper.unpin() {
        release_last(keeper, of);
    }
}

/// It may have been the last.
#[cold]
fn release_last(node: &Node, of: crate::charge::life::Generation) {
    slow_path(|_, _| node.part(of));
}
