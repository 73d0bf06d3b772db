//! Ends a test program in which nothing moves any more, and says where each of its threads is.

mod stacks;

use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The time between two looks.
const TICK: Duration = Duration::from_millis(100);

/// The time that a thread may take to describe the state: it may want a lock that is the very
/// trouble.
const DESCRIBE_WITHIN: Duration = Duration::from_secs(3);

/// Says what the program was doing, for the reader of a failure.
pub(crate) type Describe = Arc<dyn Fn() -> String + Send + Sync>;

/// A thread that watches, until it is dropped.
pub(crate) struct Watchdog {
    thread: Option<JoinHandle<()>>,
    stop: Option<Sender<()>>,
}

impl Watchdog {
    /// Aborts, the stacks of all threads printed, when `progress` gives the same number for as long
    /// as `patience`.
    ///
    /// Time is counted by its own short sleeps: a machine that stood still does not make a program
    /// that hangs.
    pub(crate) fn start(
        what: &'static str,
        patience: Duration,
        progress: impl Fn() -> u64 + Send + 'static,
        describe: Describe,
    ) -> Self {
        stacks::prepare();
        let (stop, stopped) = channel();
        let watch = move || {
            let mut last = progress();
            let mut idle = Duration::ZERO;
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                let now = progress();
                idle = if now == last {
                    idle + TICK
                } else {
                    Duration::ZERO
                };
                last = now;
                if idle >= patience {
                    fail(
                        &format!("{what}: nothing for {patience:?}, after {now}"),
                        &describe,
                    );
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(watch)
            .expect("a thread");
        Self {
            thread: Some(thread),
            stop: Some(stop),
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Prints where all threads are, and aborts. A [`Watchdog`] has been started.
pub(crate) fn fail(why: &str, describe: &Describe) -> ! {
    // Not by `eprintln`: what a test prints so is kept until it ends, and this one does not.
    let mut stderr = std::io::stderr();
    let _ = writeln!(stderr, "\nwatchdog: {why}\n{}", stacks::of_all_threads());
    let _ = stderr.flush();
    let (say, said) = channel();
    let describe = Arc::clone(describe);
    std::thread::spawn(move || say.send(describe()));
    match said.recv_timeout(DESCRIBE_WITHIN) {
        Ok(text) => drop(writeln!(stderr, "{text}")),
        Err(_) => drop(writeln!(
            stderr,
            "watchdog: nothing can be said of the state, the thread that asks hangs too"
        )),
    }
    let _ = writeln!(stderr, "watchdog: {why}");
    std::process::abort();
}
