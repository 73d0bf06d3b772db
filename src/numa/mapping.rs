//! Pages of the system as a value.
//!
//! A mapping is a range of whole pages: anonymous, private, zeroed. Its drop gives the pages back.
//! On Linux the kernel maps the pages, and a mapping grows by moving them without a copy. Elsewhere,
//! and in models, they come from the allocator.

use std::alloc::Layout;
use std::ptr::NonNull;

use super::system::page_size;
use super::topology::NodeId;

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

/// The system does not give so many bytes, or no address space has so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoMemory {
    pub(crate) bytes: usize,
}

impl NoMemory {
    /// Ends the process, where the caller has no way to return an error.
    pub(crate) fn abort(self) -> ! {
        let words = self.bytes.div_ceil(size_of::<u64>()).max(1);
        std::alloc::handle_alloc_error(Layout::array::<u64>(words).unwrap_or(Layout::new::<u64>()))
    }
}

fn pages_for(bytes: usize) -> Result<usize, NoMemory> {
    let max = isize::MAX.unsigned_abs() & !(page_size() - 1);
    match bytes.checked_next_multiple_of(page_size()) {
        Some(whole) if whole <= max => Ok(whole),
        _ => Err(NoMemory { bytes }),
    }
}

impl Mapping {
    /// Maps whole pages for so many bytes. Zero bytes take no pages and no system call.
    pub(crate) fn new(bytes: usize) -> Result<Mapping, NoMemory> {
        let mut mapping = Mapping::empty();
        mapping.grow(bytes)?;
        Ok(mapping)
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

    /// Asks the system to place the pages, which no thread has touched, on a node. The system may
    /// place them elsewhere. The call does nothing if the system has no such node.
    pub(crate) fn bind(&self, node: NodeId) {
        calls::bind(self.start, self.len, node);
    }

    /// Grows to whole pages for so many bytes, at least as many as now. The bytes keep their
    /// contents, and new pages are zeroed.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), NoMemory> {
        let len = pages_for(bytes)?;
        if len > 0 {
            let start = if self.len == 0 {
                calls::map(len)
            } else {
                calls::remap(self.start, self.len, len)
            };
            self.start = start.ok_or(NoMemory { bytes: len })?;
            self.len = len;
        }
        Ok(())
    }
}

/// Whole pages for a value of a type, zeroed, which never go back. `None` where the system gives
/// none.
pub(crate) fn map_for_ever<T>(bytes: usize) -> Option<*mut u8> {
    const { assert_page_aligns::<T>() };
    let mapping = Mapping::new(bytes).ok()?;
    let start = mapping.start();
    std::mem::forget(mapping);
    Some(start.as_ptr())
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len > 0 {
            calls::unmap(self.start, self.len);
        }
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
use allocator as calls;

#[cfg(all(target_os = "linux", not(miri)))]
mod calls {
    use std::ptr::NonNull;

    use super::{allocator, kernel};
    use crate::numa::topology::NodeId;
    use crate::sync::maps_pages;

    pub(super) fn map(len: usize) -> Option<NonNull<u8>> {
        if maps_pages() {
            kernel::map(len)
        } else {
            allocator::map(len)
        }
    }

    pub(super) fn bind(start: NonNull<u8>, len: usize, node: NodeId) {
        if maps_pages() {
            kernel::bind(start, len, node);
        }
    }

    pub(super) fn remap(start: NonNull<u8>, len: usize, new_len: usize) -> Option<NonNull<u8>> {
        if maps_pages() {
            kernel::remap(start, len, new_len)
        } else {
            allocator::remap(start, len, new_len)
        }
    }

    pub(super) fn unmap(start: NonNull<u8>, len: usize) {
        if maps_pages() {
            kernel::unmap(start, len);
        } else {
            allocator::unmap(start, len);
        }
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
#[allow(unsafe_code, reason = "system calls")]
mod kernel {
    use std::ptr::{NonNull, null_mut};

    use crate::numa::topology::NodeId;

    /// The most nodes that a kernel can be configured for.
    const NODES: usize = 1_024;

    pub(super) fn map(len: usize) -> Option<NonNull<u8>> {
        const NO_FILE: libc::c_int = -1;
        // SAFETY: the system chooses new addresses.
        let start = unsafe {
            libc::mmap(
                null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                NO_FILE,
                0,
            )
        };
        mapped(start)
    }

    pub(super) fn bind(start: NonNull<u8>, len: usize, node: NodeId) {
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
                start.as_ptr(),
                len,
                libc::MPOL_PREFERRED as libc::c_ulong,
                mask.as_ptr(),
                NODES as libc::c_ulong,
                0 as libc::c_ulong,
            );
        }
    }

    pub(super) fn remap(start: NonNull<u8>, len: usize, new_len: usize) -> Option<NonNull<u8>> {
        // SAFETY: the caller owns the mapping and has no reference into it.
        let start =
            unsafe { libc::mremap(start.as_ptr().cast(), len, new_len, libc::MREMAP_MAYMOVE) };
        mapped(start)
    }

    pub(super) fn unmap(start: NonNull<u8>, len: usize) {
        // SAFETY: the caller owns the mapping and forgets it. The call fails only for arguments
        // that `map` has not given.
        let _ = unsafe { libc::munmap(start.as_ptr().cast(), len) };
    }

    /// `None` for the address that says that a call has failed.
    fn mapped(start: *mut libc::c_void) -> Option<NonNull<u8>> {
        NonNull::new(start.cast()).filter(|_| start != libc::MAP_FAILED)
    }
}

#[allow(unsafe_code, reason = "the allocator has no safe form")]
mod allocator {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    fn layout(len: usize) -> Option<Layout> {
        Layout::from_size_align(len, crate::numa::system::page_size()).ok()
    }

    pub(super) fn map(len: usize) -> Option<NonNull<u8>> {
        // SAFETY: `Mapping` never maps zero bytes.
        NonNull::new(unsafe { alloc_zeroed(layout(len)?) })
    }

    /// This system does not place memory.
    #[cfg(not(all(target_os = "linux", not(miri))))]
    pub(super) fn bind(_: NonNull<u8>, _: usize, _: crate::numa::topology::NodeId) {}

    pub(super) fn remap(start: NonNull<u8>, len: usize, new_len: usize) -> Option<NonNull<u8>> {
        let new = map(new_len)?;
        // SAFETY: both allocations have at least so many bytes.
        unsafe { new.copy_from_nonoverlapping(start, len.min(new_len)) };
        unmap(start, len);
        Some(new)
    }

    pub(super) fn unmap(start: NonNull<u8>, len: usize) {
        if let Some(layout) = layout(len) {
            // SAFETY: the memory comes from `map`, with the same layout.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    /// Other threads may map some of the addresses meanwhile, but not so many.
    #[test]
    #[cfg(target_os = "linux")]
    #[cfg_attr(miri, ignore = "Miri maps nothing")]
    fn pages_go_back_with_their_owner() {
        let mut mapping = super::Mapping::new(1 << 20).unwrap();
        mapping.grow(1 << 28).unwrap();
        let start = mapping.start().addr().get();
        let len = mapping.len();
        let is_mapped = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines()
                .filter_map(|line| line.split(' ').next()?.split_once('-'))
                .any(|(from, to)| {
                    let [from, to] = [from, to].map(|end| usize::from_str_radix(end, 16).unwrap());
                    from <= start && start + len <= to
                })
        };
        assert!(is_mapped());
        drop(mapping);
        assert!(!is_mapped());
    }
}
