//! Two groups of parallel jobs, each with a file cache.

#![cfg(not(loom))]

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::device::Waiters;
use super::lru::PAGE;
use super::policy::Variant;
use super::scene::{Member, Run, Scene};
use super::trace::Requests;

/// Requests that a job takes at a time, as make hands out files.
const CHUNK: usize = 64;

/// Requests that one group may be ahead of the other. Two builds on one machine take equally long;
/// here one may be done before memory is short, and a group that evicts its cache does no harm.
const AHEAD_MAX: usize = 4_096;

/// The work that all runs share.
pub(crate) struct Work {
    pub(crate) requests: [Requests; 2],
    /// Threads of each group.
    pub(crate) jobs: usize,
    /// Work to read a block.
    pub(crate) rounds: u32,
}

impl Work {
    /// So many per cent of all blocks of both groups, in bytes.
    pub(crate) fn budget(&self, per_cent: u64) -> u64 {
        let blocks: usize = self.requests.iter().map(|requests| requests.blocks).sum();
        blocks as u64 * per_cent / 100 * PAGE
    }

    pub(crate) fn run(&self, variant: Variant, budget: u64, soft: u64) -> Run {
        let members = self.requests.iter().map(|requests| Member {
            soft,
            blocks: requests.blocks,
            dirty: false,
        });
        let scene = Scene::new(
            variant,
            budget,
            &members.collect::<Vec<_>>(),
            &Waiters::default(),
        );
        let cursors = [0, 1].map(|_| AtomicUsize::new(0));
        let gate = Barrier::new(2 * self.jobs);
        let mut system = Duration::ZERO;
        let mut first = None;
        let mut last = None;
        thread::scope(|scope| {
            let job = |group: usize| {
                let scene = &scene;
                let cursors = &cursors;
                let gate = &gate;
                move || {
                    gate.wait();
                    let start = Instant::now();
                    let system = self.job(scene, group, cursors);
                    (system, start, Instant::now())
                }
            };
            let threads: Vec<_> = (0..2 * self.jobs)
                .map(|number| scope.spawn(job(number % 2)))
                .collect();
            for thread in threads {
                let (time, start, end) = thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                system += time;
                first = first.min(Some(start)).or(Some(start));
                last = last.max(Some(end));
            }
        });
        let elapsed = last
            .zip(first)
            .map_or(Duration::ZERO, |(last, first)| last - first);
        scene.run(system, elapsed)
    }

    /// Returns the time that it spent in charges.
    fn job(&self, scene: &Scene, group: usize, cursors: &[AtomicUsize; 2]) -> Duration {
        let requests = &self.requests[group].requests;
        let cache = &scene.caches[group];
        let mut system = Duration::ZERO;
        loop {
            let others = || cursors[1 - group].load(Ordering::Relaxed);
            while cursors[group].load(Ordering::Relaxed) > others() + AHEAD_MAX {
                thread::yield_now();
            }
            let start = cursors[group].fetch_add(CHUNK, Ordering::Relaxed);
            let Some(rest) = requests.get(start..).filter(|rest| !rest.is_empty()) else {
                return system;
            };
            for &block in &rest[..rest.len().min(CHUNK)] {
                system += cache.serve(block, self.rounds);
            }
        }
    }
}
