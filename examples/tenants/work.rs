//! Worker threads: first they warm the caches up, then they serve requests as they arrive.
//!
//! Arrivals come in slices, and which tenants are in a slice depends on its number and the seed
//! only: each tenant gets as many requests in a run of so many slices, whichever thread serves
//! them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::distr::Distribution;
use rand_distr::weighted::WeightedAliasIndex;

use crate::entry::scramble;
use crate::load::Random;
use crate::service::Service;

/// Requests between two looks at the clock.
pub(crate) const SLICE: u64 = 64;

/// State that the workers share.
pub(crate) struct Work<'a> {
    pub(crate) service: &'a Service,
    pub(crate) threads: usize,
    pub(crate) time: Option<Duration>,
    /// The number of the request that is no longer served.
    pub(crate) requests: Option<u64>,
    pub(crate) seed: u64,
    /// Only this tenant's requests are served, the others' are left out.
    pub(crate) only: Option<usize>,
    /// Tenants by how often their requests arrive.
    pub(crate) arrivals: &'a WeightedAliasIndex<f64>,
    /// Requests that a worker has taken on.
    pub(crate) taken: AtomicU64,
    /// When serving began, after the warm-up.
    pub(crate) started: OnceLock<Instant>,
}

impl Work<'_> {
    /// Warms up the largest tenants first. One that wants more than a fair share gets it while
    /// there is room, the others get theirs from them.
    pub(crate) fn warm_up(&self) {
        let next = AtomicUsize::new(0);
        let order = self.service.largest_first();
        let warm_up = || {
            while let Some(&index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.service.warm_up(index);
            }
        };
        thread::scope(|scope| (0..self.threads).for_each(|_| drop(scope.spawn(warm_up))));
    }

    /// Serves until the time is over, or all requests are.
    pub(crate) fn serve(&self) -> Duration {
        let start = *self.started.get_or_init(Instant::now);
        thread::scope(|scope| {
            (0..self.threads).for_each(|_| drop(scope.spawn(|| self.worker(start))))
        });
        start.elapsed()
    }

    fn worker(&self, start: Instant) {
        while self.time.is_none_or(|time| start.elapsed() < time) {
            let from = self.taken.fetch_add(SLICE, Ordering::Relaxed);
            let left = self
                .requests
                .map_or(SLICE, |all| all.saturating_sub(from).min(SLICE));
            if left == 0 {
                return;
            }
            let mut random = Random::seed_from_u64(scramble(self.seed, from));
            for _ in 0..left {
                let index = self.arrivals.sample(&mut random);
                if self.only.is_none_or(|only| only == index) {
                    self.service.serve(index);
                }
            }
        }
    }
}
