//! A thread that works until its owner goes, by the clock or when a bell is rung.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::HostError;

/// Tells a worker that its owner has gone, and that there is something to do.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    state: Mutex<StopState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct StopState {
    stopped: bool,
    rung: bool,
}

impl Stop {
    fn lock(&self) -> MutexGuard<'_, StopState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker ends when it next looks.
    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Wakes the worker from [`wait_for_bell`](Self::wait_for_bell), now or when it next calls that.
    pub(crate) fn ring(&self) {
        self.lock().rung = true;
        self.changed.notify_all();
    }

    /// Sleeps until the bell is rung, or until the owner goes. Returns whether the thread goes on.
    pub(crate) fn wait_for_bell(&self) -> bool {
        let waited = self
            .changed
            .wait_while(self.lock(), |state| !state.stopped && !state.rung);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.rung = false;
        !state.stopped
    }

    /// Sleeps for `time`, or until the owner goes. Returns whether the thread goes on.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        let slept = self
            .changed
            .wait_timeout_while(self.lock(), time, |state| !state.stopped);
        let (state, _) = slept.unwrap_or_else(PoisonError::into_inner);
        !state.stopped
    }

    pub(crate) fn goes_on(&self) -> bool {
        !self.lock().stopped
    }
}

/// Owns a thread. Its drop stops the thread and waits for its end, unless the thread itself drops
/// it.
#[derive(Debug)]
pub(crate) struct Worker {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(crate) fn start(
        name: &str,
        work: impl FnOnce(&Stop) + Send + 'static,
    ) -> Result<Worker, HostError> {
        let stop = Arc::new(Stop::default());
        let of_thread = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name(name.to_string())
            .spawn(move || work(&of_thread));
        Ok(Worker {
            stop,
            thread: Some(thread.map_err(HostError::Thread)?),
        })
    }

    /// For another thread that wakes this one.
    pub(crate) fn bell(&self) -> Arc<Stop> {
        Arc::clone(&self.stop)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.stop();
        // Foreign code that the thread runs, such as a reclaimer, may drop the owner.
        if let Some(thread) = self
            .thread
            .take()
            .filter(|thread| thread.thread().id() != thread::current().id())
        {
            let _ = thread.join();
        }
    }
}
