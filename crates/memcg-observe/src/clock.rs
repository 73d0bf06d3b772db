//! The clock by which names lose their places, and lines are few: the system's, but where a test of the
//! library moves that of `memcg` by hand. The socket's times are of other processes, and the system's.

#[cfg(all(feature = "_simulated-time", debug_assertions))]
pub(crate) use memcg::simulated_time::now;

/// The present instant.
#[cfg(not(all(feature = "_simulated-time", debug_assertions)))]
#[inline]
pub(crate) fn now() -> std::time::Instant {
    std::time::Instant::now()
}
