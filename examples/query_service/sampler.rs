//! Looks at the memory of the process while the service runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::policy::Service;
use crate::scene::PHASES;

const PAUSE: Duration = Duration::from_millis(10);

/// The most that a look has seen in a phase.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Most {
    pub(crate) reserved_bytes: u64,
    /// Above what was resident with the tables alone.
    pub(crate) resident_bytes: u64,
}

/// Resident bytes of this process; 0 where the system does not say.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok())
        .unwrap_or(0)
        * 4096
}

/// A thread that looks all 10 ms.
pub(crate) struct Sampler {
    ends: Arc<AtomicBool>,
    phase: Arc<AtomicUsize>,
    thread: JoinHandle<[Most; PHASES.len()]>,
}

impl Sampler {
    pub(crate) fn start(service: Arc<Service>) -> Sampler {
        let ends = Arc::new(AtomicBool::new(false));
        let phase = Arc::new(AtomicUsize::new(0));
        let shall_end = Arc::clone(&ends);
        let in_phase = Arc::clone(&phase);
        let before = resident();
        let thread = std::thread::spawn(move || {
            let mut phases = [Most::default(); PHASES.len()];
            // Relaxed, both: nothing is read by them but the figures, and the end is joined.
            while !shall_end.load(Ordering::Relaxed) {
                let most = &mut phases[in_phase.load(Ordering::Relaxed)];
                most.reserved_bytes = most.reserved_bytes.max(service.reserved());
                most.resident_bytes = most.resident_bytes.max(resident().saturating_sub(before));
                std::thread::sleep(PAUSE);
            }
            phases
        });
        Sampler {
            ends,
            phase,
            thread,
        }
    }

    pub(crate) fn enter(&self, phase: usize) {
        self.phase.store(phase, Ordering::Relaxed);
    }

    pub(crate) fn end(self) -> [Most; PHASES.len()] {
        self.ends.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
