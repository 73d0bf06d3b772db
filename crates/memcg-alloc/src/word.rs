//! The owner's word behind an object.
//!
//! The word takes the 4 bytes behind the last byte of the object. So its place follows from the layout that the program
//! gives, and the object's own address and alignment are those of the inner allocator. The word itself is not aligned.

use std::alloc::Layout;

use memcg::allocator::Owner;

pub(crate) const BYTES: usize = size_of::<u32>();

/// The layout of an object and its word. `None`: no object can be that large.
#[inline(always)]
#[allow(unsafe_code)]
pub(crate) fn with_word(object: Layout) -> Option<Layout> {
    let (size, align) = (object.size(), object.align());
    // Rounded up to the alignment, a size is at most `isize::MAX`. An eighth of all addresses of 64 bits is more than a
    // system has, and one shift tells: with the word it is still no more than the largest alignment.
    let too_large = if usize::BITS == 64 {
        size >> (usize::BITS - 3) != 0
    } else {
        size > isize::MAX as usize - (align - 1) - BYTES
    };
    if too_large {
        return None;
    }
    // SAFETY: the alignment is that of a layout, and the size is within the bound for it, as tested.
    Some(unsafe { Layout::from_size_align_unchecked(size + BYTES, align) })
}

/// # Safety
///
/// `object` is the start of a block that has room for `size` bytes and the word.
#[inline(always)]
#[allow(unsafe_code)]
pub(crate) unsafe fn write(object: *mut u8, size: usize, owner: Owner) {
    // SAFETY: the caller has the room behind the object.
    unsafe { object.add(size).cast::<u32>().write_unaligned(owner.to_word()) };
}

/// # Safety
///
/// [`write()`] has written the word with the same arguments.
#[inline(always)]
#[allow(unsafe_code)]
pub(crate) unsafe fn read(object: *mut u8, size: usize) -> Owner {
    // SAFETY: the caller has written it.
    unsafe { Owner::from_word(object.add(size).cast::<u32>().read_unaligned()) }
}
