//! Looks at the memory of the process while the service runs.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::load::Load;
use crate::policy::Service;

const PAUSE: Duration = Duration::from_millis(10);

/// Between two queries that a guard ends: what the first has held comes back.
const GUARD_PAUSE: Duration = Duration::from_millis(100);

/// One look.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Sample {
    pub(crate) phase: usize,
    pub(crate) at_seconds: f64,
    /// By tenant, where the policy knows them.
    pub(crate) reserved_bytes: [u64; 3],
    /// Above what was resident with the tables alone.
    pub(crate) resident_bytes: u64,
}

/// Resident bytes of this process; 0 where the system does not say.
pub(crate) fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// A thread that looks all 10 ms.
pub(crate) struct Sampler {
    ends: Arc<AtomicBool>,
    phase: Arc<AtomicUsize>,
    samples: Arc<Mutex<Vec<Sample>>>,
    thread: JoinHandle<()>,
}

/// Ends the query that has run longest while the process holds more than so much, as services do that watch their
/// resident memory: a flat pool does not know which query holds most.
pub(crate) struct Guard {
    pub(crate) load: Arc<Load>,
    pub(crate) above_bytes: u64,
}

impl Sampler {
    pub(crate) fn start(service: Arc<Service>, guard: Option<Guard>) -> Sampler {
        let (ends, phase) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (shall_end, in_phase) = (Arc::clone(&ends), Arc::clone(&phase));
        let (begun, before) = (Instant::now(), resident());
        let samples = Arc::new(Mutex::new(Vec::new()));
        let taken = Arc::clone(&samples);
        let thread = std::thread::spawn(move || {
            let mut guarded = begun;
            // Relaxed, both: nothing is read by them but the figures, and the end is joined.
            while !shall_end.load(Ordering::Relaxed) {
                let sample = Sample {
                    phase: in_phase.load(Ordering::Relaxed),
                    at_seconds: begun.elapsed().as_secs_f64(),
                    reserved_bytes: service.reserved(),
                    resident_bytes: resident().saturating_sub(before),
                };
                taken.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
                if let Some(guard) = &guard
                    && sample.resident_bytes > guard.above_bytes
                    && guarded.elapsed() >= GUARD_PAUSE
                {
                    guard.load.end_longest();
                    guarded = Instant::now();
                }
                std::thread::sleep(PAUSE);
            }
        });
        Sampler { ends, phase, samples, thread }
    }

    pub(crate) fn enter(&self, phase: usize) {
        self.phase.store(phase, Ordering::Relaxed);
    }

    /// All samples so far.
    pub(crate) fn samples(&self) -> Vec<Sample> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn end(self) -> Vec<Sample> {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        std::mem::take(&mut *self.samples.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
