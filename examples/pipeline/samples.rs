//! Samples at random moments: what the ledger shows, beside the program's own counts.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use memcg::Group;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::allocator::COUNTS;
use crate::scene::Progress;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Samples {
    pub(crate) taken: u64,
    /// Samples outside of what the group may have had at the time.
    pub(crate) beyond: u64,
    /// The error of the worst of them, in bytes.
    pub(crate) error: u64,
}

/// The true figure of a group at one moment of `read` lies within the bounds that come with the
/// result.
fn between<R>(number: usize, read: impl FnOnce() -> R) -> (R, RangeInclusive<u64>) {
    let counts = &COUNTS[number];
    let load = |count: &AtomicU64| count.load(Ordering::SeqCst);
    let allocated = load(&counts.allocated.done);
    let freed = load(&counts.freed.done);
    fence(Ordering::SeqCst);
    let result = read();
    fence(Ordering::SeqCst);
    let allocating = load(&counts.allocated.begun);
    let freeing = load(&counts.freed.begun);
    (
        result,
        allocated.saturating_sub(freeing)..=allocating.saturating_sub(freed),
    )
}

impl Samples {
    fn take(&mut self, number: usize, group: &Group) {
        // Of this group alone: the groups below it are not in the program's counts.
        let (figure, bounds) = between(number, || group.inspect().allocated_local());
        let error = bounds
            .start()
            .saturating_sub(figure)
            .max(figure.saturating_sub(*bounds.end()));
        self.taken += 1;
        self.error = self.error.max(error);
        self.beyond += u64::from(error > 0);
    }
}

/// Takes samples until the program stops.
pub(crate) fn take(groups: &[Group], progress: &Progress) -> Samples {
    let mut random = SmallRng::seed_from_u64(7);
    let mut samples = Samples::default();
    while !progress.stop.load(Ordering::Relaxed) {
        let number = random.random_range(0..groups.len());
        samples.take(number + 1, &groups[number]);
        std::thread::sleep(Duration::from_micros(random.random_range(0..2_000)));
    }
    samples
}

/// Bytes by which the program's counts and the ledgers differ at the end, over all groups.
pub(crate) fn residual(groups: &[Group]) -> u64 {
    let each = groups.iter().enumerate().map(|(number, group)| {
        let own = *between(number + 1, || ()).1.start();
        (group.ledger().allocated() + group.live()).abs_diff(2 * own)
    });
    each.sum()
}
