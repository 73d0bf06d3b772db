//! Threads that take turns: real ones, so that each has its own stock and cells, of which exactly
//! one runs.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

type Job = Box<dyn FnOnce() -> Result<(), Box<dyn Any + Send>> + Send>;

/// No operation takes so long, on any machine, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// One of the threads.
pub(crate) struct Actor {
    jobs: Option<Sender<Job>>,
    ends: Receiver<Result<(), Box<dyn Any + Send>>>,
    thread: Option<JoinHandle<()>>,
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
        }
    }

    /// Runs `job` there and waits for its result. A panic of the job goes on here.
    ///
    /// # Panics
    /// When the job hangs; its thread is left behind then.
    pub(crate) fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> R {
        let (give, result) = channel();
        let job: Job = Box::new(move || {
            catch_unwind(AssertUnwindSafe(|| {
                let _ = give.send(job());
            }))
        });
        let jobs = self.jobs.as_ref().expect("there until the drop");
        jobs.send(job).expect("the thread takes jobs");
        match self.ends.recv_timeout(PATIENCE) {
            Ok(Ok(())) => result.recv().expect("a job that has ended has a result"),
            Ok(Err(panic)) => resume_unwind(panic),
            Err(RecvTimeoutError::Timeout) => panic!("the call hangs"),
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
