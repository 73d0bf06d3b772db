//! A thread that looks at every limit while the others charge.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use memcg::Group;

/// Between two samples: some thousands in a run, for a hundredth of a processor.
const PAUSE: Duration = Duration::from_micros(500);

/// The samples.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Samples {
    /// Looks at all groups.
    pub(crate) samples: u64,
    /// The most that usage, less what was forced, was above max anywhere.
    pub(crate) excess: u64,
}

/// Ends the sampling when it goes, in a panic, too: no thread waits for a thread that does not know.
pub(crate) struct End<'a>(pub(crate) &'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Looks at the groups until told to end, once at least, and calls `tick` each time.
pub(crate) fn sample(groups: &[Group], end: &AtomicBool, mut tick: impl FnMut()) -> Samples {
    let maxes: Vec<u64> = groups.iter().map(Group::max).collect();
    let mut seen = Samples::default();
    loop {
        for (group, max) in groups.iter().zip(&maxes) {
            let excess = group.usage().saturating_sub(group.forced()).saturating_sub(*max);
            seen.excess = seen.excess.max(excess);
        }
        seen.samples += 1;
        tick();
        if end.load(Ordering::Relaxed) {
            return seen;
        }
        thread::sleep(PAUSE);
    }
}
