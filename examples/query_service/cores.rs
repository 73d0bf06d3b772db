//! Threads that stay on one core, and what the system's allocator keeps for each of them.

/// Keeps the calling thread on a core, where the system can; the core counts from 0, among all of the machine.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "the standard library cannot pin a thread")]
pub(crate) fn pin(core: usize) {
    // SAFETY: the set is plain bits, for which zeros are valid. It lives during the calls, which keep no pointer to it.
    // `CPU_SET` checks the number against the size of the set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

/// Other systems move threads as they like.
#[cfg(not(target_os = "linux"))]
pub(crate) fn pin(_core: usize) {}

/// glibc's allocator keeps free memory in eight arenas a core, each for some threads: what one has freed the others do
/// not use. Blocked workers are replaced by new threads, so a service would hold several times what it needs. A large
/// block has pages of its own here, whatever was freed before: a free gives them back to the system.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "the standard library does not know the allocator")]
pub(crate) fn hold_little() {
    const LARGE: libc::c_int = 128 << 10;
    for (name, value) in [(libc::M_ARENA_MAX, 2), (libc::M_MMAP_THRESHOLD, LARGE), (libc::M_TRIM_THRESHOLD, LARGE)] {
        // SAFETY: the call takes two numbers.
        unsafe {
            libc::mallopt(name, value);
        }
    }
}

/// Other allocators are as they are.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn hold_little() {}
