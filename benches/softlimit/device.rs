//! A device that a stream's pages are written to, one cluster after the other, from the moment they
//! are there: as the kernel's flusher does, and as fast as the device is, which is slower than the
//! stream.

#![cfg(not(loom))]

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use memcg::ReclaimPromise;
use parking_lot::{Condvar, Mutex};

use super::cache::Cache;
use super::lru::PAGE;
use super::policy::CLUSTER;
use crate::common::clock::thread_time;

/// The time between two looks for pages while there are none.
const IDLE: Duration = Duration::from_micros(200);

/// A reclaim that waits for pages to be written.
struct Waiter {
    later: ReclaimPromise,
    want: u64,
    freed: u64,
}

#[derive(Default)]
struct Orders {
    waiters: Vec<Waiter>,
    stop: bool,
}

/// The place where reclaimers wait.
#[derive(Clone, Default)]
pub(crate) struct Waiters(Arc<(Mutex<Orders>, Condvar)>);

impl Waiters {
    /// Reports when `want` bytes more have been written that reclaim had taken, or there are no
    /// such.
    pub(crate) fn wait(&self, later: ReclaimPromise, want: u64) {
        self.0.0.lock().waiters.push(Waiter {
            later,
            want,
            freed: 0,
        });
        self.0.1.notify_one();
    }

    /// So much more is free; with `all`, nothing more is to come. Waiters that have what they want
    /// are woken.
    fn tell(&self, freed: u64, all: bool) {
        let served: Vec<Waiter> = {
            let mut orders = self.0.0.lock();
            orders
                .waiters
                .iter_mut()
                .for_each(|waiter| waiter.freed += freed);
            orders
                .waiters
                .extract_if(.., |waiter| all || waiter.freed >= waiter.want)
                .collect()
        };
        for Waiter { later, freed, .. } in served {
            later.report(freed);
        }
    }

    /// Nothing to write. False when there never will be.
    fn rest(&self) -> bool {
        let mut orders = self.0.0.lock();
        if orders.waiters.is_empty() && !orders.stop {
            self.0.1.wait_for(&mut orders, IDLE);
        }
        !orders.stop
    }
}

/// The thread that writes.
pub(crate) struct Device {
    waiters: Waiters,
    thread: JoinHandle<Duration>,
}

impl Device {
    pub(crate) fn start(cache: &Arc<Cache>, waiters: &Waiters, bytes_per_second: f64) -> Self {
        let cache = Arc::clone(cache);
        let ours = waiters.clone();
        let thread = thread::spawn(move || {
            serve(&cache, &ours, bytes_per_second);
            thread_time().unwrap_or_default()
        });
        Device {
            waiters: waiters.clone(),
            thread,
        }
    }

    /// Waits until all is written. Returns the processor time that it took.
    pub(crate) fn stop(self) -> Duration {
        self.waiters.0.0.lock().stop = true;
        self.waiters.0.1.notify_one();
        self.thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn serve(cache: &Cache, waiters: &Waiters, bytes_per_second: f64) {
    let mut ready = Instant::now();
    loop {
        let pages = cache.unwritten().min(CLUSTER);
        if pages == 0 {
            waiters.tell(0, true);
            if !waiters.rest() && cache.unwritten() == 0 {
                return;
            }
            ready = ready.max(Instant::now());
            continue;
        }
        // Late wake-ups are made up for, while there is something to do.
        ready += Duration::from_secs_f64((pages as u64 * PAGE) as f64 / bytes_per_second);
        thread::sleep(ready.saturating_duration_since(Instant::now()));
        let freed = cache.written(pages) as u64 * PAGE;
        waiters.tell(freed, !cache.owes());
    }
}
