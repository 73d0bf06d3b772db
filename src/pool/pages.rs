//! An array that grows, in pages of the system. It never calls the process's allocator.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

use crate::numa::mapping::{Mapping, NoMemory};

pub(crate) struct PageVec<T> {
    pages: Mapping,
    len: usize,
    of: PhantomData<T>,
}

impl<T> PageVec<T> {
    pub(crate) fn new() -> Self {
        const { assert!(size_of::<T>() > 0) };
        PageVec {
            pages: Mapping::empty(),
            len: 0,
            of: PhantomData,
        }
    }

    /// Makes room for so many more values. If the system refuses it, nothing has changed.
    pub(crate) fn reserve(&mut self, more: usize) -> Result<(), NoMemory> {
        let bytes = self.len.saturating_add(more).saturating_mul(size_of::<T>());
        if bytes > self.pages.len() {
            // The values may move: the borrow proves that no other reference to them exists.
            self.pages
                .grow(bytes.max(self.pages.len().saturating_mul(2)))?;
        }
        Ok(())
    }

    /// Adds a value that the array has room for.
    #[allow(unsafe_code)]
    pub(crate) fn push(&mut self, value: T) {
        assert!(
            (self.len + 1) * size_of::<T>() <= self.pages.len(),
            "room is reserved before"
        );
        // SAFETY: the place is within the mapping, at a multiple of the size from its start, and
        // holds no value.
        unsafe { self.start().add(self.len).write(value) };
        self.len += 1;
    }

    fn start(&self) -> NonNull<T> {
        self.pages.first()
    }
}

impl<T> Deref for PageVec<T> {
    type Target = [T];

    #[allow(unsafe_code)]
    fn deref(&self) -> &[T] {
        // SAFETY: the array holds so many values, and owns the mapping.
        unsafe { slice::from_raw_parts(self.start().as_ptr(), self.len) }
    }
}

impl<T> DerefMut for PageVec<T> {
    #[allow(unsafe_code)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the borrow is the only one.
        unsafe { slice::from_raw_parts_mut(self.start().as_ptr(), self.len) }
    }
}

impl<T> Drop for PageVec<T> {
    /// Runs in models and in tests.
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: this is the last use of the values.
        unsafe { ptr::drop_in_place::<[T]>(&mut **self) };
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::sync::many;

    #[test]
    fn it_grows_keeps_and_drops_what_it_has() {
        let counted = Rc::new(());
        let mut array = PageVec::new();
        for number in 0..many(10_000) {
            array.reserve(1).unwrap();
            array.push((number, Rc::clone(&counted)));
        }
        assert!(array.iter().map(|(number, _)| *number).eq(0..many(10_000)));
        assert_eq!(Rc::strong_count(&counted), many(10_000) as usize + 1);
        drop(array);
        assert_eq!(Rc::strong_count(&counted), 1);
    }

    #[test]
    fn what_cannot_be_had_is_refused() {
        let mut array = PageVec::<u64>::new();
        array.reserve(1).unwrap();
        array.push(7);
        assert!(array.reserve(usize::MAX).is_err());
        assert!(array.reserve(isize::MAX as usize / 8).is_err());
        assert_eq!(*array, [7]);
    }
}
