//! Threads that run laps together: each is started once, builds what it needs, and then waits for
//! orders.

#![cfg(not(loom))]

use std::process::abort;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The report of one thread of a team about one lap.
struct Lap {
    start: Instant,
    end: Instant,
    /// The time that the lap itself reports.
    timed: Duration,
}

/// Threads that stay, each at its [`Station`], until the team is dropped.
pub(crate) struct Team {
    orders: Vec<Sender<u64>>,
    laps: Receiver<Lap>,
    threads: Vec<JoinHandle<()>>,
}

impl Team {
    /// Start `threads` threads. `body` sets up its thread, touches the stock, and ends in
    /// [`Station::serve`] or [`Station::serve_timed`]. Returns when all have come so far: what they
    /// set up is in no lap.
    pub(crate) fn new(threads: usize, body: impl Fn(Station) + Send + Sync + 'static) -> Self {
        let body = Arc::new(body);
        let gate = Arc::new(Gate {
            size: threads,
            arrived: AtomicUsize::new(0),
        });
        let (report, laps) = channel();
        let (arrive, arrivals) = channel();
        let mut orders = Vec::new();
        let mut handles = Vec::new();
        for index in 0..threads {
            let (order, inbox) = channel();
            let report = report.clone();
            let arrive = arrive.clone();
            let station = Station {
                index,
                threads,
                inbox,
                report,
                arrive,
                gate: Arc::clone(&gate),
            };
            let body = Arc::clone(&body);
            orders.push(order);
            handles.push(thread::spawn(move || {
                let _guard = AbortOnPanic;
                if threads > 1 {
                    pin(index);
                }
                body(station);
            }));
        }
        for _ in 0..threads {
            arrivals.recv().expect("a thread of the team has left");
        }
        Team {
            orders,
            laps,
            threads: handles,
        }
    }

    /// One lap of `iters` iterations by each thread: wall time from the first start to the last
    /// end, so that divided by `iters` it is the time of one iteration of one thread.
    pub(crate) fn wall(&self, iters: u64) -> Duration {
        let laps = self.lap(iters);
        let start = laps.iter().map(|lap| lap.start).min();
        let end = laps.iter().map(|lap| lap.end).max();
        start
            .zip(end)
            .map_or(Duration::ZERO, |(start, end)| end - start)
    }

    /// One lap; the sum of what the threads themselves called their time.
    pub(crate) fn timed(&self, iters: u64) -> Duration {
        self.lap(iters).iter().map(|lap| lap.timed).sum()
    }

    fn lap(&self, iters: u64) -> Vec<Lap> {
        for order in &self.orders {
            order.send(iters).expect("a thread of the team has left");
        }
        self.orders
            .iter()
            .map(|_| self.laps.recv().expect("a thread of the team has left"))
            .collect()
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.orders.clear();
        for thread in self.threads.drain(..) {
            // A panic has aborted the process already.
            let _ = thread.join();
        }
    }
}

/// A thread's place in its team.
pub(crate) struct Station {
    pub(crate) index: usize,
    pub(crate) threads: usize,
    inbox: Receiver<u64>,
    report: Sender<Lap>,
    arrive: Sender<()>,
    gate: Arc<Gate>,
}

impl Station {
    /// Run laps of so many iterations until the team is dropped.
    pub(crate) fn serve(&self, mut lap: impl FnMut(u64)) {
        self.serve_timed(|iters| {
            let start = Instant::now();
            lap(iters);
            start.elapsed()
        });
    }

    /// The same, for a lap that times itself.
    pub(crate) fn serve_timed(&self, mut lap: impl FnMut(u64) -> Duration) {
        // No thread waits for it only if the team is gone, and then there are no orders either.
        let _ = self.arrive.send(());
        while let Ok(iters) = self.inbox.recv() {
            self.meet();
            let start = Instant::now();
            let timed = lap(iters);
            let end = Instant::now();
            if self.report.send(Lap { start, end, timed }).is_err() {
                break;
            }
        }
    }

    /// Wait for the rest of the team. In the middle of a lap, too, if all do.
    pub(crate) fn meet(&self) {
        self.gate.pass();
    }
}

/// A barrier that spins: a thread that slept would start its lap late by a wake-up.
struct Gate {
    size: usize,
    arrived: AtomicUsize,
}

impl Gate {
    /// Long enough for a thread that is awake, short enough for a machine with fewer cores than
    /// threads.
    const SPINS_MAX: u32 = 10_000;

    fn pass(&self) {
        let ticket = self.arrived.fetch_add(1, Ordering::AcqRel);
        let full = (ticket / self.size + 1) * self.size;
        let mut spins = 0;
        while self.arrived.load(Ordering::Acquire) < full {
            if spins < Self::SPINS_MAX {
                spins += 1;
                std::hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
    }
}

/// A thread that panicked would leave the others at the gate for ever.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            abort();
        }
    }
}

/// Keep this thread on the `index`th of the processors that the process may use, if there are that
/// many. Best effort: it only saves the samples in which the scheduler has both threads share one
/// core.
#[cfg(target_os = "linux")]
pub(crate) fn pin(index: usize) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    if let Some(processor) = (0..CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .nth(index)
    {
        let mut one = CpuSet::new();
        one.set(processor);
        let _ = sched_setaffinity(None, &one);
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn pin(_index: usize) {}
