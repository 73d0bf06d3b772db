//! Pages of the system's, as a value.
//!
//! Anonymous and private, zeroed, a page-aligned range of addresses that is given back on drop. On Linux they are mapped,
//! and grow by moving the pages and not what they hold; elsewhere they come from the allocator.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use super::system::page_size;
use super::topology::NodeId;

/// What became of the pages at a change of size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resized {
    /// They are the same.
    Kept,
    /// Others have their content: nobody knows yet where those lie.
    Copied,
}

/// Whole pages, or none.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: memory that nobody else has.
#[allow(unsafe_code)]
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` gives out addresses alone.
#[allow(unsafe_code)]
unsafe impl Sync for Mapping {}

/// The smallest page of any supported system. The size of this system's pages is known at run time only.
const PAGE_MIN: usize = 4_096;

/// Fails to compile for a type that a page of the smallest size does not align. A mapping starts at a page and at nothing
/// larger, so every owner of typed pages asks for this.
pub(crate) const fn assert_page_aligns<T>() {
    assert!(align_of::<T>() <= PAGE_MIN, "the type is aligned for more than a page");
}

/// Why there are no such pages.
#[derive(Debug)]
pub(crate) enum MapError {
    /// The system gives none.
    System {
        /// Asked for.
        bytes: usize,
        /// What it said.
        source: io::Error,
    },
    /// More than there are addresses for.
    Capacity {
        /// Asked for.
        bytes: usize,
        /// The most.
        max: usize,
    },
}

/// Whole pages for so many bytes.
pub(crate) fn pages_for(bytes: usize) -> Result<usize, MapError> {
    let max = isize::MAX.unsigned_abs() & !(page_size() - 1);
    match bytes.checked_next_multiple_of(page_size()) {
        Some(whole) if whole <= max => Ok(whole),
        _ => Err(MapError::Capacity { bytes, max }),
    }
}

impl Mapping {
    /// Of whole pages for so many bytes; of none for none, without a call.
    pub(crate) fn new(bytes: usize) -> Result<Mapping, MapError> {
        let len = pages_for(bytes)?;
        if len == 0 {
            return Ok(Mapping::empty());
        }
        let start = calls::map(len).map_err(|source| MapError::System { bytes: len, source })?;
        Ok(Mapping { start, len })
    }

    /// Of no pages.
    pub(crate) fn empty() -> Mapping {
        // Aligned for whatever a page is aligned for.
        let start = std::ptr::without_provenance_mut(page_size());
        Mapping { start: NonNull::new(start).unwrap_or(NonNull::dangling()), len: 0 }
    }

    /// The first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The first value, where the mapping holds values of one type. A type that a page does not align does not compile.
    #[inline]
    pub(crate) fn first<T>(&self) -> NonNull<T> {
        const { assert_page_aligns::<T>() };
        self.start.cast()
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Of addresses.
    pub(crate) fn range(&self) -> Range<usize> {
        let start = self.start.addr().get();
        start..start + self.len
    }

    /// Asks for what is not yet touched of the pages of a range to come to lie on a node. Whether they do is not promised:
    /// whoever wants to know where memory lies asks for that. Nothing happens where the system has no such node.
    pub(crate) fn bind(&self, range: Range<usize>, node: NodeId) {
        let own = self.range();
        let start = range.start.max(own.start).next_multiple_of(page_size());
        let end = range.end.min(own.end) / page_size() * page_size();
        if start < end {
            calls::bind(start..end, node);
        }
    }

    /// Writes to each page of a range of it, so that it lies somewhere. Nobody else has the mapping.
    #[allow(unsafe_code)]
    pub(crate) fn touch(&mut self, range: Range<usize>) {
        let own = self.range();
        for page in (range.start.max(own.start)..range.end.min(own.end)).step_by(page_size()) {
            // SAFETY: within the mapping, which is the caller's alone; what is not touched yet is zero.
            unsafe {
                let byte = self.start.as_ptr().add(page - own.start);
                byte.write_volatile(byte.read_volatile());
            }
        }
    }

    /// Of whole pages for so many bytes from here on: what both sizes have stays as it is, what is new is zeroed.
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<Resized, MapError> {
        let len = pages_for(bytes)?;
        if len == self.len {
            return Ok(Resized::Kept);
        }
        if self.len == 0 || len == 0 {
            *self = Mapping::new(len)?;
            return Ok(Resized::Kept);
        }
        let failed = |source| MapError::System { bytes: len, source };
        let (start, resized) = calls::remap(self.start, self.len, len).map_err(failed)?;
        (self.start, self.len) = (start, len);
        Ok(resized)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len > 0 {
            calls::unmap(self.start, self.len);
        }
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
mod calls {
    use std::io;
    use std::ops::Range;
    use std::ptr::{NonNull, null_mut};

    use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

    use crate::numa::mapping::Resized;
    use crate::numa::topology::NodeId;

    /// Of nodes that the kernel may be configured for.
    const NODES: usize = 1_024;

    fn error(of: rustix::io::Errno) -> io::Error {
        io::Error::from_raw_os_error(of.raw_os_error())
    }

    #[allow(unsafe_code)]
    pub(super) fn map(len: usize) -> io::Result<NonNull<u8>> {
        // SAFETY: new addresses, chosen by the system.
        let start = unsafe { mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }
            .map_err(error)?;
        NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    #[allow(unsafe_code)]
    pub(super) fn bind(pages: Range<usize>, node: NodeId) {
        const WORD: usize = libc::c_ulong::BITS as usize;
        let node = usize::from(node.get());
        let mut mask: [libc::c_ulong; NODES / WORD] = [0; NODES / WORD];
        let Some(word) = mask.get_mut(node / WORD) else { return };
        *word = 1 << (node % WORD);
        // SAFETY: reads the mask, which has as many bits as are said and one that is never looked at, and changes how
        // the caller's own pages are placed. A refusal changes nothing.
        unsafe {
            libc::syscall(
                libc::SYS_mbind,
                pages.start,
                pages.end - pages.start,
                libc::MPOL_PREFERRED as libc::c_ulong,
                mask.as_ptr(),
                NODES as libc::c_ulong,
                0 as libc::c_ulong,
            );
        }
    }

    #[allow(unsafe_code)]
    pub(super) fn remap(start: NonNull<u8>, len: usize, new_len: usize) -> io::Result<(NonNull<u8>, Resized)> {
        // SAFETY: the mapping is the caller's, who has no reference into it.
        let start = unsafe { mremap(start.as_ptr().cast(), len, new_len, MremapFlags::MAYMOVE) }.map_err(error)?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok((start, Resized::Kept))
    }

    #[allow(unsafe_code)]
    pub(super) fn unmap(start: NonNull<u8>, len: usize) {
        // SAFETY: the mapping is the caller's, who forgets it. It fails for arguments alone that `map` has not given.
        let _ = unsafe { munmap(start.as_ptr().cast(), len) };
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod calls {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::io;
    use std::ops::Range;
    use std::ptr::NonNull;

    use crate::numa::mapping::Resized;
    use crate::numa::topology::NodeId;

    fn layout(len: usize) -> io::Result<Layout> {
        Layout::from_size_align(len, crate::numa::system::page_size()).map_err(|_| io::ErrorKind::OutOfMemory.into())
    }

    #[allow(unsafe_code)]
    pub(super) fn map(len: usize) -> io::Result<NonNull<u8>> {
        // SAFETY: `Mapping` maps no zero bytes.
        NonNull::new(unsafe { alloc_zeroed(layout(len)?) }).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Memory lies where it does.
    pub(super) fn bind(_: Range<usize>, _: NodeId) {}

    #[allow(unsafe_code)]
    pub(super) fn remap(start: NonNull<u8>, len: usize, new_len: usize) -> io::Result<(NonNull<u8>, Resized)> {
        let new = map(new_len)?;
        // SAFETY: two allocations of at least so many bytes.
        unsafe { new.copy_from_nonoverlapping(start, len.min(new_len)) };
        unmap(start, len);
        Ok((new, Resized::Copied))
    }

    #[allow(unsafe_code)]
    pub(super) fn unmap(start: NonNull<u8>, len: usize) {
        if let Ok(layout) = layout(len) {
            // SAFETY: from `map`, with the same layout.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }
}
