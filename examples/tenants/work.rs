//! Worker threads: first they warm the caches up, then they serve requests as they arrive.
//!
//! Arrivals come in slices, and which tenants are in a slice depends on its number and the seed only: each tenant gets
//! as many requests in a run of so many slices, whichever tenant serves them.

use std::panic;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::distr::Distribution;
use rand_distr::weighted::WeightedAliasIndex;

use crate::cache::Corrupt;
use crate::entry::scramble;
use crate::load::Random;
use crate::probe::{Costs, Probe, Rounds};
use crate::service::Service;

/// Requests between two looks at the clock.
pub(crate) const SLICE: u64 = 64;

/// The length of the work, and the number of workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) threads: usize,
    pub(crate) time: Option<Duration>,
    /// The number of the request that is no longer served.
    pub(crate) requests: Option<u64>,
    pub(crate) seed: u64,
    /// Only this tenant's requests are served, the others' are left out.
    pub(crate) only: Option<usize>,
}

/// The state that the workers share.
pub(crate) struct Work<'a> {
    pub(crate) service: &'a Service,
    /// `None`: what a charge costs is not measured.
    pub(crate) probe: Option<&'a Probe>,
    pub(crate) extent: Extent,
    /// Tenants by how often their requests arrive.
    pub(crate) arrivals: &'a WeightedAliasIndex<f64>,
    /// Requests that a worker has taken on.
    pub(crate) taken: AtomicU64,
    /// When serving began, after the warm-up.
    pub(crate) started: OnceLock<Instant>,
    /// A worker has found a fault: the others need not go on.
    pub(crate) broken: AtomicBool,
}

/// The work that was done.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// Time for which one worker served, on average.
    pub(crate) seconds: f64,
    pub(crate) costs: Costs,
}

impl<'a> Work<'a> {
    /// Work that begins with the request of this number, a multiple of [`SLICE`].
    pub(crate) fn new(
        service: &'a Service,
        arrivals: &'a WeightedAliasIndex<f64>,
        probe: Option<&'a Probe>,
        extent: Extent,
        from: u64,
    ) -> Self {
        let (taken, started, broken) = (AtomicU64::new(from), OnceLock::new(), AtomicBool::new(false));
        Self { service, probe, extent, arrivals, taken, started, broken }
    }

    /// Warms up the tenants in the order of `largest_first`. One that wants more than a fair share gets it while there
    /// is room, the others get theirs from them.
    pub(crate) fn warm_up(&self, largest_first: &[usize]) {
        let next = AtomicUsize::new(0);
        let warm_up = || {
            while let Some(&index) = largest_first.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.service.warm_up(index);
            }
        };
        thread::scope(|scope| (0..self.extent.threads).for_each(|_| drop(scope.spawn(warm_up))));
    }

    /// Serves until the time is over, or all requests are.
    pub(crate) fn serve(&self) -> Result<Done, Corrupt> {
        let barrier = Barrier::new(self.extent.threads);
        let start = *self.started.get_or_init(Instant::now);
        thread::scope(|scope| {
            let worker = |_| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    let mut rounds = Rounds::new(self.probe, start);
                    let served = self.worker(start, &mut rounds);
                    self.broken.fetch_or(served.is_err(), Ordering::Relaxed);
                    served.map(|()| (start.elapsed() - rounds.spent, rounds.costs))
                })
            };
            let workers: Vec<_> = (0..self.extent.threads as u64).map(worker).collect();
            let mut done = Done::default();
            for worker in workers {
                let (time, costs) = worker.join().unwrap_or_else(|panic| panic::resume_unwind(panic))?;
                done.seconds += time.as_secs_f64() / self.extent.threads as f64;
                done.costs.append(costs);
            }
            Ok(done)
        })
    }

    fn worker(&self, start: Instant, rounds: &mut Rounds<'_>) -> Result<(), Corrupt> {
        loop {
            let now = Instant::now();
            let in_time = self.extent.time.is_none_or(|time| now - start < time);
            if !in_time || self.broken.load(Ordering::Relaxed) {
                return Ok(());
            }
            rounds.pass(now);
            let (from, mut left) = self.take();
            if left == 0 {
                return Ok(());
            }
            let mut random = Random::seed_from_u64(scramble(self.extent.seed, from));
            while left > 0 {
                let index = self.arrivals.sample(&mut random);
                let tenant = &self.service.tenants[index];
                if self.extent.only.is_some_and(|only| only != index) {
                    left -= tenant.burst(left);
                } else if !tenant.is_done() {
                    left -= self.service.serve(index, left)?;
                } else if self.service.is_done() {
                    return Ok(());
                }
            }
        }
    }

    /// The next requests: the number of the first and how many, 0 when all are taken.
    fn take(&self) -> (u64, usize) {
        let from = self.taken.fetch_add(SLICE, Ordering::Relaxed);
        let left = self.extent.requests.map_or(SLICE, |all| all.saturating_sub(from).min(SLICE));
        (from, left as usize)
    }
}
