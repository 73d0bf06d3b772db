//! A thread that works until its owner goes.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::HostError;

/// Tells a worker that its owner has gone.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps for `time`, or until the owner goes. Returns whether the thread goes on.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        let slept = self
            .changed
            .wait_timeout_while(self.lock(), time, |stopped| !*stopped);
        let (stopped, _) = slept.unwrap_or_else(PoisonError::into_inner);
        !*stopped
    }

    pub(crate) fn goes_on(&self) -> bool {
        !*self.lock()
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
}

impl Drop for Worker {
    fn drop(&mut self) {
        *self.stop.lock() = true;
        self.stop.changed.notify_all();
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
