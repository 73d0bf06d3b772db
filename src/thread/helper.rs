//! A thread of the crate that comes with work, and ends when there has been none for a second.
//!
//! The lock of the work guards the helper, too. So a charge that leaves work starts the thread, or finds it running, and
//! then the thread sees the work. The thread decides to end under the lock.

use std::time::{Duration, Instant};

use crate::sync::{Thread, start_thread};

/// The thread stays so long after the last work.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Helper {
    /// The thread, as long as it runs, and the process that it runs in: a fork copies this and not the thread.
    thread: Option<(u32, Thread)>,
    /// Since when there has been no work.
    idle: Option<Instant>,
}

impl Helper {
    /// Starts the thread where there is none. False: there is none. The caller leaves its work under the same lock.
    pub(crate) fn start(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> bool {
        let process = std::process::id();
        self.thread.take_if(|(started_in, _)| *started_in != process);
        if self.thread.is_none() {
            self.thread = start_thread(name, body).ok().map(|thread| (process, thread));
        }
        self.idle = None;
        self.thread.is_some()
    }

    /// Ends the thread's sleep, or its next one.
    pub(crate) fn wake(&self) {
        self.thread.iter().for_each(|(_, thread)| thread.unpark());
    }

    /// How long the thread sleeps, which has no work. `None`: it ends, now that there is none for too long or where the work is
    /// `over`, and does not count as running from here on.
    pub(crate) fn rest(&mut self, now: Instant, over: bool) -> Option<Duration> {
        let idle = now.saturating_duration_since(*self.idle.get_or_insert(now));
        let left = LINGER.checked_sub(idle).filter(|left| !left.is_zero() && !over);
        if left.is_none() {
            self.thread = None;
        }
        left
    }
}

#[cfg(test)]
#[allow(dead_code, reason = "no model asks")]
impl Helper {
    /// One whose thread is in that process, and does nothing.
    pub(crate) fn idle_in(process: u32, thread: Thread) -> Helper {
        Helper { thread: Some((process, thread)), idle: None }
    }

    pub(crate) fn running(&self) -> Option<&(u32, Thread)> {
        self.thread.as_ref()
    }
}
