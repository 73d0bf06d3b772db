//! Memory straight from the system, and what a test does to it.

// A mapping has no safe form.
#![allow(unsafe_code)]

use std::ptr;

/// Bytes of a base page.
pub(crate) fn page_size() -> usize {
    // SAFETY: reads a constant of the process.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("a size")
}

/// Anonymous memory of this test alone, given back when dropped.
pub(crate) struct Mapping {
    address: usize,
    len: usize,
}

impl Mapping {
    /// Base pages, none of them touched.
    pub(crate) fn of_pages(count: usize) -> Self {
        let mapping = Self::of(count * page_size(), 0).expect("room for a few pages");
        mapping.advise(libc::MADV_NOHUGEPAGE);
        mapping
    }

    /// So many bytes, with further flags of `mmap`.
    pub(crate) fn of(len: usize, flags: libc::c_int) -> Option<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
        // SAFETY: new memory at an address that the system chooses.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            )
        };
        (address != libc::MAP_FAILED).then(|| Self {
            address: address.expose_provenance(),
            len,
        })
    }

    pub(crate) fn page(&self, number: usize) -> usize {
        let page = self.address + number * page_size();
        assert!(page < self.address + self.len);
        page
    }

    pub(crate) fn pages(&self) -> Vec<usize> {
        (0..self.len / page_size())
            .map(|number| self.page(number))
            .collect()
    }

    pub(crate) fn write(&self, number: usize) {
        let byte = ptr::with_exposed_provenance_mut::<u8>(self.page(number));
        // SAFETY: within the mapping, which no reference points to.
        unsafe { byte.write_volatile(1) };
    }

    pub(crate) fn read(&self, number: usize) -> u8 {
        let byte = ptr::with_exposed_provenance::<u8>(self.page(number));
        // SAFETY: within the mapping, all of which is zero until it is written.
        unsafe { byte.read_volatile() }
    }

    /// From here on the address of that page stands for nothing.
    pub(crate) fn unmap(&self, number: usize) {
        let page = ptr::with_exposed_provenance_mut(self.page(number));
        // SAFETY: within the mapping, which no reference points to.
        assert_eq!(unsafe { libc::munmap(page, page_size()) }, 0);
    }

    /// Takes the rights to read and write it.
    pub(crate) fn protect(&self, number: usize) {
        let page = ptr::with_exposed_provenance_mut(self.page(number));
        // SAFETY: as `unmap`.
        let failed = unsafe { libc::mprotect(page, page_size(), libc::PROT_NONE) };
        assert_eq!(failed, 0);
    }

    /// Gives the page back; the address stays mapped.
    pub(crate) fn release(&self, number: usize) {
        let page = ptr::with_exposed_provenance_mut(self.page(number));
        // SAFETY: as `unmap`.
        let failed = unsafe { libc::madvise(page, page_size(), libc::MADV_DONTNEED) };
        assert_eq!(failed, 0);
    }

    /// Advice about all of it. A kernel that does not know it, ignores it.
    pub(crate) fn advise(&self, advice: libc::c_int) {
        // SAFETY: neither of the two that are given changes what is in memory.
        let _ = unsafe {
            libc::madvise(
                ptr::with_exposed_provenance_mut(self.address),
                self.len,
                advice,
            )
        };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours; a page in it that is unmapped already is passed over.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(self.address), self.len) };
    }
}
