//! Other threads, to test with: each does one job at a time, and keeps its stock and its cells
//! until it is dropped.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;

pub(crate) struct Other {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Other {
    pub(crate) fn spawn() -> Self {
        let (jobs, inbox) = channel::<Job>();
        let thread = std::thread::spawn(move || inbox.into_iter().for_each(|job| job()));
        Self {
            jobs: Some(jobs),
            thread: Some(thread),
        }
    }

    /// Runs `job` there and waits for its result; what the job owned is dropped by then.
    pub(crate) fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> R {
        let result = Arc::new(Mutex::new(None));
        let place = Arc::clone(&result);
        self.wait_for(Box::new(move || {
            *place.lock().expect("no panic holds it") = Some(job())
        }));
        result
            .lock()
            .expect("no panic holds it")
            .take()
            .expect("the job has ended")
    }

    /// The channels carry no results: a type of its own for each would cost more to compile than
    /// many a test.
    fn wait_for(&self, job: Job) {
        let (ends, ended) = channel();
        let job = Box::new(move || {
            job();
            ends.send(()).expect("the caller waits");
        });
        self.jobs
            .as_ref()
            .expect("alive until dropped")
            .send(job)
            .expect("the thread takes jobs");
        ended.recv().expect("the job does not panic");
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
