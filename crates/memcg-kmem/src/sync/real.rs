//! The real side of the door.

#[cfg(not(miri))]
pub(crate) use parking_lot::Mutex;

/// So many rounds of a test, or what Miri has time for.
#[cfg(test)]
pub(crate) const fn many(rounds: u64) -> u64 {
    rounds / if cfg!(miri) { 250 } else { 1 }
}

/// The processor that this thread runs on; another one a moment later. No system call where the C
/// library or the kernel lends the number.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn processor() -> usize {
    rustix::thread::sched_getcpu()
}

/// The system does not say.
#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn processor() -> usize {
    0
}

/// Only a failed model forbids to touch its objects.
pub(crate) const fn model_failed() -> bool {
    false
}
