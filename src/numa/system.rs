//! System calls: the size of a page, the nodes of pages, whether an address is mapped.
//!
//! Two of the calls have no safe form and exist on Linux alone.

/// Bytes of a base page.
pub(crate) use calls::page_size;
pub(super) use calls::{is_resident, nodes_of};

/// The number of this error on each system.
pub(super) const EFAULT: i32 = 14;

#[cfg(all(target_os = "linux", not(miri)))]
mod calls {
    use std::io;
    use std::sync::OnceLock;

    /// The C library tells the size, once.
    #[allow(unsafe_code)]
    pub(crate) fn page_size() -> usize {
        static BYTES: OnceLock<usize> = OnceLock::new();
        // SAFETY: the call returns a constant.
        let ask = || usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4_096);
        *BYTES.get_or_init(ask)
    }

    /// Has the kernel fill `status` with the node of each page, or the negative number of an error.
    /// The call moves nothing. `Err` is an error of the whole call.
    #[allow(unsafe_code)]
    pub(crate) fn nodes_of(pages: &[usize], status: &mut [libc::c_int]) -> io::Result<()> {
        let count = pages.len().min(status.len()) as libc::c_ulong;
        // SAFETY: without nodes to move to, the call reads `count` addresses from `pages`, where a
        // usize is an address. It writes as many numbers to `status` and follows none of the
        // addresses. 0 is this process.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0 as libc::c_long,
                count,
                pages.as_ptr(),
                std::ptr::null::<libc::c_int>(),
                status.as_mut_ptr(),
                0 as libc::c_long,
            )
        };
        if answer < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// Asks `mincore(2)` whether a page is at an address: it may be the shared zero page.
    /// [`OutOfMemory`](io::ErrorKind::OutOfMemory): no mapping has the address.
    #[allow(unsafe_code)]
    pub(crate) fn is_resident(address: usize) -> io::Result<bool> {
        let page = address & !(page_size() - 1);
        let mut resident = 0_u8;
        // SAFETY: one byte of length is one page, for which the call writes one byte to `resident`.
        // The call does not follow the address.
        let answer = unsafe { libc::mincore(page as *mut libc::c_void, 1, &raw mut resident) };
        if answer == 0 {
            Ok(resident & 1 == 1)
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod calls {
    use std::io;

    pub(crate) fn page_size() -> usize {
        4_096
    }

    pub(crate) fn nodes_of(_: &[usize], _: &mut [i32]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn is_resident(_: usize) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
