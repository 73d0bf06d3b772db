//! Calls of the system that fail from now on, to test with: by a seccomp filter, on the thread that
//! asks.

// A seccomp filter has no safe form.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: Option<u32> = Some(0xC000_003E);
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: Option<u32> = Some(0xC000_00B7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const AUDIT_ARCH: Option<u32> = None;

/// From here on a call fails with that error on this thread and those it spawns. False where that
/// cannot be had.
pub(crate) fn deny(call: libc::c_long, error: libc::c_int) -> bool {
    let Some(arch) = AUDIT_ARCH else { return false };
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let ret = (libc::BPF_RET | libc::BPF_K) as u16;
    let line = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        line(
            load,
            std::mem::offset_of!(libc::seccomp_data, arch) as u32,
            0,
            0,
        ),
        line(equal, arch, 0, 3),
        line(
            load,
            std::mem::offset_of!(libc::seccomp_data, nr) as u32,
            0,
            0,
        ),
        line(equal, call as u32, 0, 1),
        line(ret, libc::SECCOMP_RET_ERRNO | error as u32, 0, 0),
        line(ret, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: no pointers; without this an unprivileged process may not set a filter.
    let quiet = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: the kernel copies the program, which outlives the call.
    let set = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    };
    quiet == 0 && set == 0
}
