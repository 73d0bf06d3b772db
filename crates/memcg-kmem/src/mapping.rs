//! Pages of the system as a value.
//!
//! A mapping is a range of whole pages: anonymous, private, zeroed. Its drop gives the pages back.
//! On Linux the kernel maps the pages, and a mapping grows by moving them without a copy. Elsewhere
//! they come from the allocator.

use std::ops::Range;
use std::ptr::NonNull;

use memcg::kmem::{NodeId, NodeOf, OneNode};

use crate::error::KmemError;

/// Bytes of a page of the system.
#[inline]
pub(crate) fn page_size() -> usize {
    OneNode::new(NodeId::new(0)).page_size()
}

/// Effect of a change of size on the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resized {
    Kept,
    /// Other pages have the content. Where these lie is not known yet.
    Copied,
}

/// Whole pages, or none.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is the only owner of its memory.
#[allow(unsafe_code)]
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` gives out addresses alone.
#[allow(unsafe_code)]
unsafe impl Sync for Mapping {}

/// The smallest page of any supported system. Only at run time is the size of this system's pages
/// known.
const PAGE_MIN: usize = 4_096;

/// Fails to compile for a type that a page of the smallest size does not align. A mapping starts at
/// a page and at nothing larger, so every owner of typed pages calls this.
pub(crate) const fn assert_page_aligns<T>() {
    assert!(
        align_of::<T>() <= PAGE_MIN,
        "the type is aligned for more than a page"
    );
}

pub(crate) fn pages_for(bytes: usize) -> Result<usize, KmemError> {
    let max = isize::MAX.unsigned_abs() & !(page_size() - 1);
    match bytes.checked_next_multiple_of(page_size()) {
        Some(whole) if whole <= max => Ok(whole),
        _ => Err(KmemError::Capacity {
            bytes: bytes as u64,
            max: max as u64,
        }),
    }
}

impl Mapping {
    /// Maps whole pages for so many bytes. Zero bytes take no pages and no system call.
    pub(crate) fn new(bytes: usize) -> Result<Mapping, KmemError> {
        let len = pages_for(bytes)?;
        if len == 0 {
            return Ok(Mapping::empty());
        }
        let start = calls::map(len).map_err(|source| KmemError::System { bytes: len, source })?;
        Ok(Mapping { start, len })
    }

    pub(crate) fn empty() -> Mapping {
        // The address is aligned for every type that a page aligns.
        let start = std::ptr::without_provenance_mut(page_size());
        Mapping {
            start: NonNull::new(start).unwrap_or(NonNull::dangling()),
            len: 0,
        }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The first value, where the mapping holds values of one type. A type that a page does not
    /// align does not compile.
    #[inline]
    pub(crate) fn first<T>(&self) -> NonNull<T> {
        const { assert_page_aligns::<T>() };
        self.start.cast()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn range(&self) -> Range<usize> {
        let start = self.start.addr().get();
        start..start + self.len
    }

    /// Asks the system to place the untouched pages of a range on a node. The system may place them
    /// elsewhere: an owner that must know looks the pages up. Where the system has no such node,
    /// nothing happens.
    pub(crate) fn bind(&self, range: Range<usize>, node: NodeId) {
        let own = self.range();
        // Whole pages within the range alone: a page at its edge has other bytes, too, which may be
        // asked for on another node.
        let start = range.start.max(own.start).next_multiple_of(page_size());
        let end = range.end.min(own.end) / page_size() * page_size();
        if start < end {
            calls::bind(start..end, node);
        }
    }

    /// Writes to each page, so that the page gets a place. The caller is the only user of the
    /// mapping.
    #[allow(unsafe_code)]
    pub(crate) fn touch(&mut self) {
        for page in (0..self.len).step_by(page_size()) {
            // SAFETY: the address is within the mapping, which only the caller uses. Untouched
            // pages read as zero.
            unsafe {
                let byte = self.start.as_ptr().add(page);
                byte.write_volatile(byte.read_volatile());
            }
        }
    }

    /// Resizes to whole pages for so many bytes. What fits both sizes keeps its content, new pages
    /// are zeroed.
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<Resized, KmemError> {
        let len = pages_for(bytes)?;
        if len == self.len {
            return Ok(Resized::Kept);
        }
        // There is nothing to move: pages are mapped for the first time, or all of them go back.
        if self.len == 0 || len == 0 {
            *self = Mapping::new(len)?;
            return Ok(Resized::Kept);
        }
        let failed = |source| KmemError::System { bytes: len, source };
        let (start, resized) = calls::remap(self.start, self.len, len).map_err(failed)?;
        self.start = start;
        self.len = len;
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
#[allow(unsafe_code, reason = "system calls")]
mod calls {
    use std::io;
    use std::ops::Range;
    use std::ptr::{NonNull, null_mut};

    use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

    use memcg::kmem::NodeId;

    use crate::mapping::Resized;

    /// The most nodes that a kernel can be configured for.
    const NODES: usize = 1_024;

    fn error(of: rustix::io::Errno) -> io::Error {
        io::Error::from_raw_os_error(of.raw_os_error())
    }

    pub(super) fn map(len: usize) -> io::Result<NonNull<u8>> {
        // SAFETY: the system chooses new addresses.
        let start = unsafe {
            mmap_anonymous(
                null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(error)?;
        NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    pub(super) fn bind(pages: Range<usize>, node: NodeId) {
        const WORD: usize = libc::c_ulong::BITS as usize;
        let node = usize::from(node.get());
        let mut mask: [libc::c_ulong; NODES / WORD] = [0; NODES / WORD];
        let Some(word) = mask.get_mut(node / WORD) else {
            return;
        };
        *word = 1 << (node % WORD);
        // SAFETY: the call reads the mask, which has as many bits as the call is told. It changes
        // how the kernel places the caller's own pages. A refusal changes nothing.
        unsafe {
            // Preferred, and not bound: where the node is full, a page lies elsewhere, and nothing
            // is killed for it.
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

    pub(super) fn remap(
        start: NonNull<u8>,
        len: usize,
        new_len: usize,
    ) -> io::Result<(NonNull<u8>, Resized)> {
        // SAFETY: the caller owns the mapping and has no reference into it.
        let start = unsafe { mremap(start.as_ptr().cast(), len, new_len, MremapFlags::MAYMOVE) }
            .map_err(error)?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok((start, Resized::Kept))
    }

    pub(super) fn unmap(start: NonNull<u8>, len: usize) {
        // SAFETY: the caller owns the mapping and forgets it. The call fails only for arguments
        // that `map` has not given.
        let _ = unsafe { munmap(start.as_ptr().cast(), len) };
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
#[allow(unsafe_code, reason = "the allocator has no safe form")]
mod calls {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::io;
    use std::ops::Range;
    use std::ptr::NonNull;

    use memcg::kmem::NodeId;

    use crate::mapping::Resized;

    fn layout(len: usize) -> io::Result<Layout> {
        Layout::from_size_align(len, crate::mapping::page_size())
            .map_err(|_| io::ErrorKind::OutOfMemory.into())
    }

    pub(super) fn map(len: usize) -> io::Result<NonNull<u8>> {
        // SAFETY: `Mapping` never maps zero bytes.
        NonNull::new(unsafe { alloc_zeroed(layout(len)?) })
            .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// This system does not place memory.
    pub(super) fn bind(_: Range<usize>, _: NodeId) {}

    pub(super) fn remap(
        start: NonNull<u8>,
        len: usize,
        new_len: usize,
    ) -> io::Result<(NonNull<u8>, Resized)> {
        let new = map(new_len)?;
        // SAFETY: both allocations have at least so many bytes.
        unsafe { new.copy_from_nonoverlapping(start, len.min(new_len)) };
        unmap(start, len);
        Ok((new, Resized::Copied))
    }

    pub(super) fn unmap(start: NonNull<u8>, len: usize) {
        if let Ok(layout) = layout(len) {
            // SAFETY: the memory comes from `map`, with the same layout.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    #[test]
    #[cfg(target_os = "linux")]
    #[cfg_attr(miri, ignore = "Miri: no move_pages(2)")]
    fn a_page_is_there_once_it_is_touched() {
        use memcg::kmem::{MovePages, PageNode};

        use super::*;

        let Ok(kernel) = MovePages::new() else {
            return println!("skipped: the system does not say where pages lie");
        };
        let mut mapping = Mapping::new(page_size()).expect("a page");
        let ask = |mapping: &Mapping| {
            let mut found = [PageNode::Unmapped];
            kernel.look_up(&[mapping.range().start], &mut found);
            found[0]
        };
        assert_eq!(ask(&mapping), PageNode::Untouched);
        mapping.touch();
        assert!(ask(&mapping).node().is_some());
    }
}
