//! Bytes that the process holds, as the system sees it, and one heap for all threads.

use std::fs;

/// Resident bytes; `None` where the system does not say.
pub(crate) fn resident() -> Option<u64> {
    // The rolled-up map is counted at the moment; `statm` and `status` may lag behind by some pages
    // of each thread.
    let map = fs::read_to_string("/proc/self/smaps_rollup")
        .or_else(|_| fs::read_to_string("/proc/self/status"))
        .ok()?;
    bytes(&map, "Rss:").or_else(|| bytes(&map, "VmRSS:"))
}

/// Bytes that the machine could still give; `None` where the system does not say.
pub(crate) fn available() -> Option<u64> {
    bytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
}

/// The bytes of the line that begins so.
fn bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// All threads allocate from one heap. With one for each, as is glibc's habit, a cache that many
/// threads fill and empty leaves each heap at its highest, and resident memory far above what is in
/// use.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "there is no safe way to tell glibc")]
pub(crate) fn one_heap() {
    // SAFETY: a number is passed and a number returned; no other thread runs yet. Refused, nothing
    // changes.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Other allocators have nothing to be told.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn one_heap() {}
