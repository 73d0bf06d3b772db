//! The memory that the system's allocator keeps for each thread.

/// glibc's allocator keeps free memory in eight arenas a core, each for some threads: what one has
/// freed the others do not use. Blocked workers are replaced by new threads, so a service would
/// hold several times what it needs. A large block has pages of its own here, whatever was freed
/// before: a free gives them back to the system.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(
    unsafe_code,
    reason = "the standard library does not know the allocator"
)]
pub(crate) fn hold_little() {
    const LARGE: libc::c_int = 128 << 10;
    for (name, value) in [
        (libc::M_ARENA_MAX, 2),
        (libc::M_MMAP_THRESHOLD, LARGE),
        (libc::M_TRIM_THRESHOLD, LARGE),
    ] {
        // SAFETY: the call takes two numbers.
        unsafe {
            libc::mallopt(name, value);
        }
    }
}

/// Other allocators are as they are.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn hold_little() {}
