//! Anonymous memory whose pages come by fault and go by advice.

#![cfg(not(loom))]
#![allow(
    unsafe_code,
    reason = "mapping, touching and releasing pages is what is measured"
)]

use std::ptr::{self, NonNull};

/// A mapping of whole small pages.
pub(crate) struct Region {
    base: NonNull<u8>,
    page_size: usize,
    pages: usize,
}

impl Region {
    pub(crate) fn page_size() -> usize {
        // SAFETY: asks for a constant of the system.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size).expect("a page size")
    }

    pub(crate) fn map(pages: usize) -> Self {
        let page_size = Self::page_size();
        let len = page_size * pages;
        // SAFETY: a new private mapping at an address of the system's choice touches nothing that
        // exists.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert!(
            base != libc::MAP_FAILED,
            "cannot map {len} bytes: {}",
            std::io::Error::last_os_error()
        );
        let base = NonNull::<u8>::new(base.cast()).expect("a mapping is not at zero");
        // One fault must bring one page. Systems without huge pages refuse the advice and need
        // none.
        #[cfg(target_os = "linux")]
        // SAFETY: the range is the mapping just made; the advice changes no content.
        unsafe {
            libc::madvise(base.as_ptr().cast(), len, libc::MADV_NOHUGEPAGE);
        }
        Region {
            base,
            page_size,
            pages,
        }
    }

    /// Write to a page, which faults it in after a release.
    #[inline(always)]
    pub(crate) fn touch(&self, page: usize) {
        debug_assert!(page < self.pages);
        // SAFETY: inside the mapping: callers count pages to `self.pages`. No other thread has a
        // pointer into it.
        unsafe {
            self.base
                .as_ptr()
                .add(page * self.page_size)
                .write_volatile(1)
        }
    }

    /// Give all pages back to the system.
    pub(crate) fn release(&self) {
        // SAFETY: the range is our mapping, which holds nothing that any thread reads later.
        let failed =
            unsafe { libc::madvise(self.base.as_ptr().cast(), self.len(), libc::MADV_DONTNEED) };
        assert!(
            failed == 0,
            "cannot release pages: {}",
            std::io::Error::last_os_error()
        );
    }

    fn len(&self) -> usize {
        self.page_size * self.pages
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: our mapping, and the last use of it.
        unsafe {
            libc::munmap(self.base.as_ptr().cast(), self.len());
        }
    }
}
