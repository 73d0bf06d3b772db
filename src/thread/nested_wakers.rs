//! Wakers that were due too deep inside other wakers of this thread, for the loop outside.

use std::cell::RefCell;
use std::task::Waker;

use smallvec::SmallVec;

use crate::thread::foreign::Foreign;

pub(crate) type DueWakers = SmallVec<[Foreign<Waker>; 4]>;

crate::sync::thread_local! {
    /// Empty while the thread is in no waker.
    static LEFT: RefCell<DueWakers> = RefCell::new(DueWakers::new());
}

/// Leaves wakers to the loop that has called the innermost waker. `Err`: the thread is past its
/// destructors and has no list any more.
pub(crate) fn leave(wakers: DueWakers) -> Result<(), DueWakers> {
    let mut wakers = Some(wakers);
    // The wakers are moved: no foreign code runs.
    let left = LEFT.try_with(|left| {
        left.borrow_mut()
            .extend(wakers.take().into_iter().flatten())
    });
    left.map_err(|_| wakers.unwrap_or_default())
}

/// Takes what was left.
pub(crate) fn take() -> DueWakers {
    LEFT.try_with(RefCell::take).unwrap_or_default()
}
