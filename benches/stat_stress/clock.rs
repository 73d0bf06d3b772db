//! What the system counts of a thread's time.

#![cfg(not(loom))]

use std::time::Duration;

/// How long the thread that opened it was ready to run and had no processor.
pub(crate) struct RunQueue {
    #[cfg(target_os = "linux")]
    schedstat: std::fs::File,
}

impl RunQueue {
    /// `None` where the system does not say.
    #[cfg(target_os = "linux")]
    pub(crate) fn of_this_thread() -> Option<Self> {
        let run_queue = RunQueue { schedstat: std::fs::File::open("/proc/thread-self/schedstat").ok()? };
        run_queue.waited().is_some().then_some(run_queue)
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn of_this_thread() -> Option<Self> {
        None
    }

    /// The second figure of three: time run, time waited, times run.
    #[cfg(target_os = "linux")]
    pub(crate) fn waited(&self) -> Option<Duration> {
        use std::os::unix::fs::FileExt;

        let mut text = [0; 96];
        let len = self.schedstat.read_at(&mut text, 0).ok()?;
        let nanos = std::str::from_utf8(&text[..len]).ok()?.split_ascii_whitespace().nth(1)?;
        nanos.parse().ok().map(Duration::from_nanos)
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn waited(&self) -> Option<Duration> {
        None
    }
}

/// How long something took, and how much of it the thread did not wait for a processor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Latency {
    pub(crate) wall: Duration,
    pub(crate) own: Duration,
}

impl Latency {
    /// `waited` was read just before and just after `wall`: a wait that is longer lay outside, at least in part, and is
    /// not taken off.
    pub(crate) fn new(wall: Duration, waited: Duration) -> Self {
        Latency { wall, own: wall.checked_sub(waited).unwrap_or(wall) }
    }
}

/// What the calling thread has run.
#[cfg(target_os = "linux")]
pub(crate) fn thread_time() -> Option<Duration> {
    use rustix::time::{ClockId, clock_gettime};

    let time = clock_gettime(ClockId::ThreadCPUTime);
    Some(Duration::new(time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn thread_time() -> Option<Duration> {
    None
}
