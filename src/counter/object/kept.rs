//! A counter as a value that is stored, where no handle is counted for it.

use std::ops::Deref;

use crate::counter::object::{Counter, Object};

/// A counter that something else keeps as long as this value is used: a place in a list, a ticket, a guard.
#[derive(Clone, Copy)]
pub(crate) struct Kept(&'static Object);

impl Kept {
    /// # Safety
    ///
    /// Something keeps the counter until the last use of the result and of its copies.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) unsafe fn new(counter: &Counter) -> Kept {
        Kept(counter.object())
    }
}

impl Deref for Kept {
    type Target = Counter;

    #[inline]
    #[allow(unsafe_code)]
    fn deref(&self) -> &Counter {
        // SAFETY: the caller of `new` vouches for it.
        unsafe { self.0.kept() }
    }
}
