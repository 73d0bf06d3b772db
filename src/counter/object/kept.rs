//! A counter as a value that is stored, where this crate counts no handle for it.

use std::ops::Deref;
use std::ptr;

use crate::counter::object::{Counter, Object};
use crate::thread::directory::Header;

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

    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn header(self) -> KeptHeader {
        // SAFETY: the caller of `new` vouches for it.
        unsafe { KeptHeader::new(self.0.header) }
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

impl Header {
    /// The object behind the header.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn object(&self) -> &'static Object {
        // SAFETY: the pool ties each header to its object before it shows either to a thread, and never frees one.
        unsafe { &*self.owner().cast::<Object>() }
    }
}

/// A [`Kept`] by its header, which is all that a hit reads.
#[derive(Clone, Copy)]
pub(crate) struct KeptHeader(&'static Header);

impl KeptHeader {
    /// # Safety
    ///
    /// As for [`Kept::new`].
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) unsafe fn new(header: &'static Header) -> KeptHeader {
        KeptHeader(header)
    }

    /// The header, which outlives the incarnation.
    #[inline(always)]
    pub(crate) fn header(self) -> &'static Header {
        self.0
    }

    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn counter(&self) -> &Counter {
        // SAFETY: the caller of `new` vouches for it.
        unsafe { self.0.object().kept() }
    }
}

impl PartialEq for KeptHeader {
    #[inline(always)]
    fn eq(&self, other: &KeptHeader) -> bool {
        ptr::eq(self.0, other.0)
    }
}

impl Deref for KeptHeader {
    type Target = Header;

    #[inline(always)]
    fn deref(&self) -> &Header {
        self.0
    }
}
