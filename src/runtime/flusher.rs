//! The periodic flush: a thread for each runtime that starts one. It also takes back idle credit.

use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{JoinHandle, current};
use std::time::Duration;

use crate::counter::idle;
use crate::group::Group;
use crate::hierarchy::stats;
use crate::lifecycle::unowned;
use crate::sync::{clock, is_over, park, spawn};
use crate::thread::context;
use crate::thread::foreign::Foreign;

/// A running flusher. Its drop stops it.
pub(super) struct Flusher {
    /// Its drop tells the thread to end, which has to be woken for that.
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
            while sleep_period(period, &stopped) {
                let tree = root.first().tree();
                stats::flush_periodic(root.first());
                idle::release_credit_periodic(tree);
                unowned::may_have_changed();
            }
        };
        let thread = spawn("memcg-flusher", flush)?;
        Ok(Flusher {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

/// Sleeps for a period, by the one clock of the crate. False: the flusher is to stop.
fn sleep_period(period: Duration, stopped: &Receiver<()>) -> bool {
    // `None`: a period that no clock can count, which never ends.
    let until = clock::now().checked_add(period);
    loop {
        // Before each sleep: foreign code that a flush runs may have slept, and taken the token of
        // the thread that stops this one.
        if stopped.try_recv() == Err(TryRecvError::Disconnected) {
            return false;
        }
        if until.is_some_and(is_over) {
            return true;
        }
        // A token of another thread ends it early, and then there is the next look.
        park(until.map(|until| until.saturating_duration_since(clock::now())));
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.stop = None;
        // The end first, then the token: either this wakes the thread, or its next look finds the end.
        self.thread.iter().for_each(|it| it.thread().unpark());
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
