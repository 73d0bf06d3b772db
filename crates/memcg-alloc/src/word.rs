//! The owner's word behind an object.
//!
//! The word takes the 4 bytes behind the last byte of the object. So its place follows from the
//! layout that the program gives, and the object's own address and alignment are those of the inner
//! allocator. The word itself is not aligned.

use std::alloc::Layout;

use memcg::allocator::Owner;

pub(crate) const BYTES: usize = size_of::<u32>();

/// True if an object of a layout's alignment may be of that size: its word must fit, too.
#[inline(always)]
pub(crate) fn fits(size: usize, align: usize) -> bool {
    // Rounded up to the alignment, a size is at most `isize::MAX`. An eighth of all addresses of 64
    // bits is more than a system has, and one shift tells: with the word it is still no more than
    // the largest alignment.
    if usize::BITS == 64 {
        size >> (usize::BITS - 3) == 0
    } else {
        size <= isize::MAX as usize - (align - 1) - BYTES
    }
}

/// The layout of an object and its word. `None`: no object can be that large.
#[inline(always)]
#[allow(unsafe_code)]
pub(crate) fn with_word(object: Layout) -> Option<Layout> {
    let fits = fits(object.size(), object.align());
    // SAFETY: it fits.
    fits.then(|| unsafe { with_word_unchecked(object) })
}

/// # Safety
///
/// The object [`fits`].
#[inline(always)]
#[allow(unsafe_code)]
pub(crate) unsafe fn with_word_unchecked(object: Layout) -> Layout {
    // SAFETY: the alignment is that of a layout, and the size is within the bound for it, says the
    // caller.
    unsafe { Layout::from_size_align_unchecked(object.size() + BYTES, object.align()) }
}

/// # Safety
///
/// `object` is the start of a block that has room for `size` bytes and the word.
#[inline(always)]
#[allow(unsafe_code)]
pub(crate) unsafe fn write(object: *mut u8, size: usize, owner: Owner) {
    // SAFETY: the caller has the room behind the object.
    unsafe {
        object
            .add(size)
            .cast::<u32>()
            .write_unaligned(owner.to_word())
    };
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
