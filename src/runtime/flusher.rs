//! The periodic flush: a thread for each runtime that starts one. It also takes back idle credit.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle, current};
use std::time::Duration;

use crate::counter::idle;
use crate::group::Group;
use crate::hierarchy::stats;
use crate::lifecycle::unowned;
use crate::thread::context;
use crate::thread::foreign::Foreign;

/// A running flusher. Its drop stops it.
pub(super) struct Flusher {
    /// Its drop wakes the thread for the last time.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Flusher {
    pub(super) fn start(root: Group, period: Duration) -> io::Result<Flusher> {
        if period.is_zero() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a flusher needs a period longer than nothing",
            ));
        }
        let (stop, stopped) = channel();
        let flush = move || {
            while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                let tree = root.first().tree();
                stats::flush_periodic(root.first());
                tree.close_offline_stocks();
                idle::release_credit_periodic(tree);
                unowned::may_have_changed();
            }
        };
        let thread = Builder::new().name("memcg-flusher".into()).spawn(flush)?;
        Ok(Flusher {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.stop = None;
        // The flusher's own thread may drop it, in foreign code that it runs. That thread ends by
        // itself. In foreign code a thread does not wait for another flusher either: two flushers
        // that stop each other would wait for ever.
        let is_own = |thread: &JoinHandle<()>| thread.thread().id() == current().id();
        if let Some(thread) = self
            .thread
            .take()
            .filter(|thread| !is_own(thread) && !context::in_foreign())
        {
            // If the thread has panicked, the runtime goes on without it.
            drop(Foreign::new(thread.join()));
        }
    }
}
