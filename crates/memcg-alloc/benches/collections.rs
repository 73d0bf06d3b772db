//! Strings and maps whole: what a program does between two allocations is a part of the figure.

use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;
use std::io::Write;
use std::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};
use allocator_api2::vec::Vec;
use hashbrown::{DefaultHashBuilder, HashMap};

/// A global allocator as one of collections. One type for all: the program's machine code and its
/// place are the same.
#[derive(Clone, Copy)]
struct Through(&'static (dyn GlobalAlloc + Sync));

// SAFETY: each block is one of the allocator's, and goes back with its layout. Clones are the same
// allocator.
unsafe impl Allocator for Through {
    #[inline]
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        assert!(layout.size() > 0, "collections ask for no empty block");
        // SAFETY: the layout has a size.
        let block = NonNull::new(unsafe { self.0.alloc(layout) }).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(block, layout.size()))
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.0.dealloc(block.as_ptr(), layout) };
    }

    #[inline]
    unsafe fn grow(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's promise; collections keep their alignment.
        let block = NonNull::new(unsafe { self.0.realloc(block.as_ptr(), old, new.size()) })
            .ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(block, new.size()))
    }
}

/// Rows that a map groups by a key: each key and each field is a string of its own, of 8 to 160
/// bytes.
pub(crate) fn group_rows(allocator: &'static (dyn GlobalAlloc + Sync), rows: usize) {
    let through = || Through(allocator);
    let filler = [b'x'; 160];
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut table = HashMap::<
        Vec<u8, Through>,
        Vec<Vec<u8, Through>, Through>,
        DefaultHashBuilder,
        _,
    >::with_hasher_in(DefaultHashBuilder::default(), through());
    for row in 0..rows {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let mut key = Vec::new_in(through());
        write!(
            Grows(&mut key),
            "customer-{}",
            random % (rows as u64 / 4 + 1)
        )
        .expect("memory");
        let mut field = Vec::new_in(through());
        write!(Grows(&mut field), "{row}:").expect("memory");
        field.extend_from_slice(&filler[..(random >> 32) as usize % filler.len()]);
        table
            .entry(key)
            .or_insert_with(|| Vec::new_in(through()))
            .push(field);
    }
    let mut all = Vec::new_in(through());
    for (key, fields) in &table {
        let longest = fields
            .iter()
            .max_by_key(|field| field.len())
            .expect("a row");
        let mut line = key.clone();
        line.push(b'=');
        line.extend_from_slice(longest);
        all.push(line);
    }
    all.sort_unstable_by(|one, other| one.as_slice().cmp(other));
    black_box(&all);
}

struct Grows<'a, A: Allocator>(&'a mut Vec<u8, A>);

impl<A: Allocator> Write for Grows<'_, A> {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
