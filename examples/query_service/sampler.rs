//! Looks at the memory of the process while the service runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::policy::Service;

const PAUSE: Duration = Duration::from_millis(10);

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
    thread: JoinHandle<Vec<Sample>>,
}

impl Sampler {
    pub(crate) fn start(service: Arc<Service>) -> Sampler {
        let (ends, phase) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (shall_end, in_phase) = (Arc::clone(&ends), Arc::clone(&phase));
        let (begun, before) = (Instant::now(), resident());
        let thread = std::thread::spawn(move || {
            let mut samples = Vec::new();
            // Relaxed, both: nothing is read by them but the figures, and the end is joined.
            while !shall_end.load(Ordering::Relaxed) {
                samples.push(Sample {
                    phase: in_phase.load(Ordering::Relaxed),
                    at_seconds: begun.elapsed().as_secs_f64(),
                    reserved_bytes: service.reserved(),
                    resident_bytes: resident().saturating_sub(before),
                });
                std::thread::sleep(PAUSE);
            }
            samples
        });
        Sampler { ends, phase, thread }
    }

    pub(crate) fn enter(&self, phase: usize) {
        self.phase.store(phase, Ordering::Relaxed);
    }

    pub(crate) fn end(self) -> Vec<Sample> {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
