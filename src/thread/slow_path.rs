//! The slow paths of a thread: what takes locks, waits or allocates. They nest where an allocator charges inside one.

use crate::thread::block::Block;
use crate::thread::local::with_local;
use crate::thread::registry::register;

/// Runs `work` as a slow path of this thread. `nested` tells that it runs inside another one.
#[inline]
pub(crate) fn run<R>(work: impl FnOnce(Option<&Block>, bool) -> R) -> R {
    with_local(|local| {
        let nested = local.slow.get() > 0;
        let _deeper = local.deeper();
        let mut block = local.block();
        // Registration allocates and locks: never inside another slow path.
        if block.is_none() && !nested && register() {
            block = local.block();
        }
        work(block, nested)
    })
}

/// Whether this thread is in a slow path: it is an allocator that charges inside one.
pub(crate) fn is_running() -> bool {
    with_local(|local| local.slow.get() > 0)
}

/// Whether this thread is in a slow path inside another one: an allocator that charges, which must not be entered
/// again.
pub(crate) fn is_nested() -> bool {
    with_local(|local| local.slow.get() > 1)
}
