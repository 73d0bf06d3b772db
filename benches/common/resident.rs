//! The memory that this process really has.

#![cfg(not(loom))]

/// Bytes resident; `None` where the system does not say. Counted from the page tables: its cheaper
/// figures lag by pages for each thread.
pub(crate) fn bytes() -> Option<u64> {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:"))?;
    line.trim()
        .strip_suffix(" kB")?
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1_024)
}
