//! Worker threads that replay the tenants' traces.
//!
//! A tenant is in one worker's hands at a time: its requests keep their order and its cache needs
//! no lock. After a slice it goes back to the queue and on to whoever is free, so that charge and
//! uncharge of an entry often happen on two threads, as in a service that steals work.

use std::collections::VecDeque;
use std::panic;
use std::thread;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use parking_lot::Mutex;

use crate::cache::{Cache, Corrupt};
use crate::trace::{Request, Trace};

/// Requests that a worker serves before it takes the next tenant: few enough that all tenants
/// compete for the budget, many enough that the queue's lock is no part of the figures.
const SLICE: usize = 1_024;

/// A trace and the cache it runs against.
pub(crate) struct Tenant {
    pub(crate) name: String,
    pub(crate) cache: Cache,
    trace: Vec<Request>,
    /// How many requests of the trace are served.
    served: usize,
}

impl Tenant {
    pub(crate) fn new(trace: Trace, cache: Cache) -> Self {
        Self { name: trace.name, cache, trace: trace.requests, served: 0 }
    }

    /// How many requests the trace has.
    pub(crate) fn requests(&self) -> u64 {
        self.trace.len() as u64
    }

    /// Serves the next slice; how many requests that were, 0 at the end.
    fn serve(&mut self) -> Result<usize, Corrupt> {
        let rest = &self.trace[self.served..];
        let slice = &rest[..rest.len().min(SLICE)];
        for &request in slice {
            self.cache.request(request)?;
        }
        self.served += slice.len();
        Ok(slice.len())
    }
}

/// The tenants that wait for a worker, and those whose trace is at its end.
struct Queue {
    waiting: VecDeque<(usize, Tenant)>,
    done: Vec<(usize, Tenant)>,
}

/// Replays all traces to their end, then returns the tenants in their order and the time it took.
pub(crate) fn replay(
    tenants: Vec<Tenant>,
    threads: usize,
    progress: &ProgressBar,
) -> Result<(Vec<Tenant>, Duration), Corrupt> {
    let waiting = tenants.into_iter().enumerate().collect();
    let queue = Mutex::new(Queue { waiting, done: Vec::new() });
    let start = Instant::now();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| work(&queue, progress))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|panic| panic::resume_unwind(panic)))
    })?;
    let elapsed = start.elapsed();

    let mut done = queue.into_inner().done;
    done.sort_by_key(|&(index, _)| index);
    Ok((done.into_iter().map(|(_, tenant)| tenant).collect(), elapsed))
}

/// Takes the tenant that has waited longest, serves a slice, puts it back.
///
/// With an empty queue each tenant left is in the hands of a worker of its own, and this one is
/// not needed any more.
fn work(queue: &Mutex<Queue>, progress: &ProgressBar) -> Result<(), Corrupt> {
    loop {
        let Some((index, mut tenant)) = queue.lock().waiting.pop_front() else { return Ok(()) };
        let served = tenant.serve()?;
        progress.inc(served as u64);

        let mut queue = queue.lock();
        if served == 0 {
            queue.done.push((index, tenant));
        } else {
            queue.waiting.push_back((index, tenant));
        }
    }
}
