//! A stream that writes four times the budget, beside a group that holds all but an eighth of it
//! and goes on using it.

#![cfg(not(loom))]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::device::{Device, Waiters};
use super::lru::PAGE;
use super::policy::Variant;
use super::scene::{Member, Run, Scene};

/// The stream's length, in budgets.
const BUDGETS: usize = 4;

/// The other group holds all but this part.
const LEFT: usize = 8;

const SEED: u64 = 2013;

pub(crate) struct Stream {
    /// In pages.
    pub(crate) budget: usize,
    /// Threads that write, one behind the other.
    pub(crate) jobs: usize,
    /// Work to make a page.
    pub(crate) rounds: u32,
    /// The bytes that the device writes in a second.
    pub(crate) bytes_per_second: f64,
}

impl Stream {
    fn held(&self) -> usize {
        self.budget - self.budget / LEFT
    }

    pub(crate) fn run(&self, variant: Variant) -> Run {
        let waiters = Waiters::default();
        let blocks = BUDGETS * self.budget;
        let members = [
            Member {
                soft: 0,
                blocks,
                dirty: true,
            },
            Member {
                soft: u64::MAX,
                blocks: self.held(),
                dirty: false,
            },
        ];
        let scene = Scene::new(variant, self.budget as u64 * PAGE, &members, &waiters);
        for block in 0..self.held() {
            scene.caches[1].serve(block as u32, self.rounds);
        }
        let device = Device::start(&scene.caches[0], &waiters, self.bytes_per_second);
        let cursor = AtomicUsize::new(0);
        let done = AtomicBool::new(false);
        let start = Instant::now();
        let (system, elapsed) = thread::scope(|scope| {
            let eater = scope.spawn(|| self.eat(&scene, &done));
            let writers: Vec<_> = (0..self.jobs)
                .map(|_| scope.spawn(|| self.write(&scene, &cursor, blocks)))
                .collect();
            let made: Vec<_> = writers
                .into_iter()
                .map(thread::ScopedJoinHandle::join)
                .collect();
            // A stream ends when all of it is on the device, whichever group has buffered it.
            let mut system = device.stop();
            let elapsed = start.elapsed();
            // Also where a writer has failed: no other group would stop the other group.
            done.store(true, Ordering::Relaxed);
            let resume = |panic| std::panic::resume_unwind(panic);
            system += made
                .into_iter()
                .map(|time| time.unwrap_or_else(resume))
                .sum::<Duration>();
            (system + eater.join().unwrap_or_else(resume), elapsed)
        });
        scene.run(system, elapsed)
    }

    fn write(&self, scene: &Scene, cursor: &AtomicUsize, blocks: usize) -> Duration {
        let mut system = Duration::ZERO;
        loop {
            let block = cursor.fetch_add(1, Ordering::Relaxed);
            if block >= blocks {
                return system;
            }
            system += scene.caches[0].serve(block as u32, self.rounds);
        }
    }

    /// Uses the pages that are held, any of them, until the stream is through.
    fn eat(&self, scene: &Scene, done: &AtomicBool) -> Duration {
        let mut random = SmallRng::seed_from_u64(SEED);
        let mut system = Duration::ZERO;
        while !done.load(Ordering::Relaxed) {
            let block = random.random_range(0..self.held());
            system += scene.caches[1].serve(block as u32, self.rounds);
        }
        system
    }
}
