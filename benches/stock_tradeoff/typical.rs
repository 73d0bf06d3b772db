//! The typical case: tasks of many tenants, queued at home, stolen by a thread that has nothing to
//! do.

#![cfg(not(loom))]

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};

use super::Setup;
use crate::common::slots7::{Random, Slots7};
use crate::common::tree::fan;
use crate::common::{Library, Policy};

/// Popularity of tenants: a few have most of the tasks.
pub(crate) const ZIPF_EXPONENT: f64 = 0.9;

/// The time between two reads of credit while the threads work.
const SAMPLE_EVERY: Duration = Duration::from_micros(500);

/// Turns of an empty loop between two charges of a task: the work that memory is charged for.
const WORK: u32 = 50;

/// The result of one run.
pub(crate) struct Typical {
    /// Units stocked at the highest sample, and after the threads have idled.
    pub(crate) peak: u64,
    pub(crate) idle: u64,
    /// Tasks that did not run at home.
    pub(crate) stolen: u64,
    pub(crate) tasks: u64,
    /// Pairs of thread and counter that met.
    pub(crate) touched: u64,
}

#[derive(Clone, Copy)]
struct Task {
    leaf: usize,
    charges: u32,
    size: u64,
}

pub(crate) fn slots7(setup: &Setup, counters: usize) -> Typical {
    let (_root, leaves) = fan(setup.unstocked(), counters);
    let gauges: Vec<AtomicU64> = (0..setup.threads).map(|_| AtomicU64::new(0)).collect();
    drive(
        setup,
        counters,
        || Slots7::<Random>::new(&leaves),
        |thread, policy| gauges[thread].store(policy.stocked(), Ordering::Relaxed),
        || {
            gauges
                .iter()
                .map(|gauge| gauge.load(Ordering::Relaxed))
                .sum()
        },
    )
}

pub(crate) fn stock(setup: &Setup, counters: usize) -> Typical {
    let (root, leaves) = fan(setup.config(), counters);
    drive(
        setup,
        counters,
        || Library { leaves: &leaves },
        |_, _| {},
        || root.stocked(),
    )
}

/// Run all tasks; the calling thread samples.
fn drive<P: Policy>(
    setup: &Setup,
    counters: usize,
    policy: impl Fn() -> P + Sync,
    after_task: impl Fn(usize, &P) + Sync,
    stocked: impl Fn() -> u64,
) -> Typical {
    let queues = Queues::filled(setup, counters);
    let working = AtomicUsize::new(setup.threads);
    let touched = AtomicU64::new(0);
    let read = Barrier::new(setup.threads + 1);
    let mut peak = 0;
    let mut idle = 0;
    thread::scope(|scope| {
        for home in 0..setup.threads {
            let queues = &queues;
            let policy = &policy;
            let after_task = &after_task;
            let working = &working;
            let touched = &touched;
            let read = &read;
            scope.spawn(move || {
                let mut policy = policy();
                let mut seen = vec![false; counters];
                while let Some(task) = queues.next(home) {
                    run(&mut policy, task);
                    seen[task.leaf] = true;
                    after_task(home, &policy);
                }
                touched.fetch_add(
                    seen.iter().filter(|&&seen| seen).count() as u64,
                    Ordering::Relaxed,
                );
                working.fetch_sub(1, Ordering::Release);
                read.wait();
            });
        }
        while working.load(Ordering::Acquire) > 0 {
            peak = peak.max(stocked());
            thread::sleep(SAMPLE_EVERY);
        }
        peak = peak.max(stocked());
        thread::sleep(setup.idle);
        idle = stocked();
        read.wait();
    });
    Typical {
        peak,
        idle,
        stolen: queues.stolen.into_inner(),
        tasks: queues.tasks,
        touched: touched.into_inner(),
    }
}

/// A task's memory comes piece by piece and goes piece by piece.
fn run(policy: &mut impl Policy, task: Task) {
    for _ in 0..task.charges {
        policy
            .charge(task.leaf, task.size)
            .expect("below the limit");
        (0..WORK).for_each(|turn| {
            black_box(turn);
        });
    }
    for _ in 0..task.charges {
        policy.uncharge(task.leaf, task.size);
    }
}

/// One queue for each thread.
struct Queues {
    queues: Vec<Mutex<VecDeque<Task>>>,
    stolen: AtomicU64,
    tasks: u64,
}

impl Queues {
    /// Tenants have a home; popularity makes some homes fuller than others.
    fn filled(setup: &Setup, counters: usize) -> Self {
        let mut rng = StdRng::seed_from_u64(7);
        let popularity = Zipf::new(counters as f64, ZIPF_EXPONENT).expect("at least one counter");
        let mut queues = vec![VecDeque::new(); setup.threads];
        let tasks = setup.tasks + 4 * counters;
        for _ in 0..tasks {
            let leaf = popularity.sample(&mut rng) as usize - 1;
            let task = Task {
                leaf,
                charges: rng.random_range(1..=8),
                size: rng.random_range(1..=16),
            };
            queues[leaf % setup.threads].push_back(task);
        }
        Queues {
            queues: queues.into_iter().map(Mutex::new).collect(),
            stolen: AtomicU64::new(0),
            tasks: tasks as u64,
        }
    }

    /// The oldest task at home, or half of what another thread has.
    fn next(&self, home: usize) -> Option<Task> {
        if let Some(task) = self.queues[home].lock().pop_front() {
            return Some(task);
        }
        for victim in (0..self.queues.len()).filter(|&victim| victim != home) {
            let mut loot = {
                let mut queue = self.queues[victim].lock();
                let kept = queue.len() / 2;
                queue.split_off(kept)
            };
            if let Some(task) = loot.pop_front() {
                self.stolen
                    .fetch_add(loot.len() as u64 + 1, Ordering::Relaxed);
                self.queues[home].lock().append(&mut loot);
                return Some(task);
            }
        }
        None
    }
}
