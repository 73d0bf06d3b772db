//! A thread of the crate that starts when there is work, and ends after a second without work.
//!
//! The lock of the work guards the helper, too. So a charge that leaves work either starts the
//! thread or finds it running, and the thread then sees the work. The thread decides under the lock
//! to end.

use std::time::{Duration, Instant};

use crate::sync::{Thread, start_thread};

/// Time that the thread stays after its last work.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Helper {
    /// The thread while it runs, and the number of its process: a fork copies this value and not
    /// the thread.
    thread: Option<(u32, Thread)>,
    /// Time since which the thread has had no work.
    idle: Option<Instant>,
}

impl Helper {
    /// Starts the thread if none runs. False: the system gives none. The caller leaves its work
    /// under the same lock.
    pub(crate) fn start(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> bool {
        let process = std::process::id();
        // The child of a fork has this value and none of the parent's threads.
        self.thread
            .take_if(|(started_in, _)| *started_in != process);
        if self.thread.is_none() {
            self.thread = start_thread(name, body)
                .ok()
                .map(|thread| (process, thread));
        }
        // There is work from now on. A thread that was about to end has not decided so yet, as it
        // decides under this lock.
        self.idle = None;
        self.thread.is_some()
    }

    /// Wakes the thread, or has its next sleep end at once.
    pub(crate) fn wake(&self) {
        self.thread.iter().for_each(|(_, thread)| thread.unpark());
    }

    /// Returns the time that the thread sleeps, which has found no work. `None`: the thread has to
    /// end, because it has had none for [`LINGER`], or because its work is `over`. From then on it
    /// does not count as running.
    pub(crate) fn rest(&mut self, now: Instant, over: bool) -> Option<Duration> {
        let idle = now.saturating_duration_since(*self.idle.get_or_insert(now));
        let left = LINGER
            .checked_sub(idle)
            .filter(|left| !left.is_zero() && !over);
        if left.is_none() {
            self.thread = None;
        }
        left
    }
}

#[cfg(test)]
#[allow(dead_code, reason = "no model asks")]
impl Helper {
    /// A helper whose thread runs in that process, and does nothing.
    pub(crate) fn idle_in(process: u32, thread: Thread) -> Helper {
        Helper {
            thread: Some((process, thread)),
            idle: None,
        }
    }

    pub(crate) fn running(&self) -> Option<&(u32, Thread)> {
        self.thread.as_ref()
    }
}
