//! Other threads, to test with: each does one job at a time, and keeps its stock and its cells until it is dropped.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

pub(crate) struct Other {
    jobs: Option<Sender<Box<dyn FnOnce() + Send>>>,
    thread: Option<JoinHandle<()>>,
}

impl Other {
    pub(crate) fn spawn() -> Self {
        let (jobs, inbox) = channel::<Box<dyn FnOnce() + Send>>();
        let thread = std::thread::spawn(move || inbox.into_iter().for_each(|job| job()));
        Self { jobs: Some(jobs), thread: Some(thread) }
    }

    /// Runs `job` there and waits for its result; what the job owned is dropped by then.
    pub(crate) fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> R {
        let (answer, result) = channel();
        let job = Box::new(move || answer.send(job()).expect("the caller waits"));
        self.jobs.as_ref().expect("alive until dropped").send(job).expect("the thread takes jobs");
        result.recv().expect("the job does not panic")
    }

    /// Runs `job` there with a handle of its own, which is dropped by then.
    pub(crate) fn with<C, R>(&self, of: &C, job: impl FnOnce(&C) -> R + Send + 'static) -> R
    where
        C: Clone + Send + 'static,
        R: Send + 'static,
    {
        let of = of.clone();
        self.run(move || job(&of))
    }
}

impl Drop for Other {
    /// Waits for the end of the thread, thread-local destructors included.
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // A panic has been reported where the answer was missing.
            let _ = thread.join();
        }
    }
}
