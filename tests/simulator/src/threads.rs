//! Threads that take turns: real ones, so that each has its own stock and cells, of which exactly
//! one runs.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memcg::simulated_time as clock;

type Job = Box<dyn FnOnce() -> Result<(), Box<dyn Any + Send>> + Send>;

/// No operation takes so long, on any machine, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// For so long a thread that is at work is left alone, before a look whether it waits by the clock.
const LOOK: Duration = Duration::from_micros(100);

/// A job that was begun, and may wait by the clock.
pub(crate) struct Begun<R>(Receiver<R>);

/// One of the threads.
pub(crate) struct Actor {
    jobs: Option<Sender<Job>>,
    ends: Receiver<Result<(), Box<dyn Any + Send>>>,
    thread: Option<JoinHandle<()>>,
    /// It has a job that was begun and has not ended.
    busy: Cell<bool>,
}

impl Actor {
    pub(crate) fn spawn() -> Self {
        let (jobs, inbox) = channel::<Job>();
        let (say, ends) = channel();
        let thread = std::thread::spawn(move || {
            for job in inbox {
                let _ = say.send(job());
            }
        });
        Actor {
            jobs: Some(jobs),
            ends,
            thread: Some(thread),
            busy: Cell::new(false),
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.busy.get()
    }

    /// Runs `job` there and waits for its result. Where the job waits by the clock, the clock goes on
    /// to the end of that wait. A panic of the job goes on here.
    ///
    /// # Panics
    /// When the job hangs; its thread is left behind then.
    pub(crate) fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> R {
        let begun = self.begin(job);
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(result) = self.ended(&begun) {
                return result;
            }
            if let Some(wait) = self.wait() {
                let end = wait
                    .until
                    .unwrap_or_else(|| panic!("the call waits for ever"));
                clock::advance(end.saturating_duration_since(clock::now()));
            }
            assert!(Instant::now() < until, "the call hangs");
        }
    }

    /// Begins a job that may wait by the clock.
    pub(crate) fn begin<R: Send + 'static>(
        &self,
        job: impl FnOnce() -> R + Send + 'static,
    ) -> Begun<R> {
        assert!(!self.busy.replace(true), "one job at a time");
        let (give, result) = channel();
        let job: Job = Box::new(move || {
            catch_unwind(AssertUnwindSafe(|| {
                let _ = give.send(job());
            }))
        });
        let jobs = self.jobs.as_ref().expect("there until the drop");
        jobs.send(job).expect("the thread takes jobs");
        Begun(result)
    }

    /// The result of a job. `None`: it waits by the clock, and has nothing else to do. What woke it
    /// before this call it has looked at.
    ///
    /// # Panics
    /// When the job hangs.
    pub(crate) fn look<R>(&self, begun: &Begun<R>) -> Option<R> {
        let until = Instant::now() + PATIENCE;
        let mut seen = None;
        loop {
            if let Some(result) = self.ended(begun) {
                return Some(result);
            }
            match (self.wait(), seen) {
                // It has looked since, and waits anew.
                (Some(wait), Some(number)) if wait.number > number => return None,
                (Some(wait), None) => {
                    seen = Some(wait.number);
                    clock::advance(Duration::ZERO);
                }
                _ => {}
            }
            assert!(Instant::now() < until, "the call hangs");
        }
    }

    fn wait(&self) -> Option<clock::Wait> {
        clock::wait_of(self.thread.as_ref()?.thread().id())
    }

    fn ended<R>(&self, begun: &Begun<R>) -> Option<R> {
        match self.ends.recv_timeout(LOOK) {
            Ok(ended) => {
                self.busy.set(false);
                ended.unwrap_or_else(|panic| resume_unwind(panic));
                Some(begun.0.recv().expect("a job that has ended has a result"))
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("the thread has gone"),
        }
    }
}

impl Drop for Actor {
    /// Waits for the end of the thread, with the destructors of its thread-locals.
    fn drop(&mut self) {
        drop(self.jobs.take());
        let thread = self.thread.take();
        if !std::thread::panicking()
            && let Some(thread) = thread
        {
            let _ = thread.join();
        }
    }
}

/// The threads that the crate has started do what they were told to, until each waits by the clock or
/// has ended.
///
/// # Panics
/// When one hangs.
pub(crate) fn rest() {
    assert!(clock::rest(PATIENCE), "a thread of the crate hangs");
}

/// The names of the threads that the crate has started and that have not ended, where the system
/// says.
pub(crate) fn of_the_crate() -> Vec<String> {
    let threads = std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    threads
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok())
        .map(|name| name.trim().to_string())
        .filter(|name| name.starts_with("memcg-") && !name.starts_with("memcg-simulat"))
        // The process has one for all layers from the first alarm on.
        .filter(|name| name != "memcg-tower")
        .collect()
}
