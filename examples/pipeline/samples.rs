//! Samples at random moments: what the ledger shows, beside the program's own counts.

use std::sync::atomic::Ordering;
use std::time::Duration;

use memcg::Group;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::allocator::{COUNTS, Wrapper};
use crate::scene::Progress;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Samples {
    pub(crate) taken: u64,
    /// Samples that were further off than shown.
    pub(crate) beyond: u64,
    /// The largest error, and the largest that a sample has shown, in bytes.
    pub(crate) error: u64,
    pub(crate) shown: u64,
    /// The largest difference between the ledger's parts and live.
    pub(crate) apart: u64,
}

fn counts(number: usize) -> (u64, u64) {
    let counts = &COUNTS[number];
    let freed = counts.freed.load(Ordering::Acquire);
    (counts.allocated.load(Ordering::Acquire), freed)
}

impl Samples {
    fn take(&mut self, number: usize, group: &Group) {
        let before = counts(number);
        // Of this group alone: the groups below it are not in the program's counts.
        let figure = group.allocated_local();
        let after = counts(number);
        // At one moment of the call, what is there lies between these.
        let least = before.0.wrapping_sub(after.1).cast_signed().max(0).cast_unsigned();
        let most = after.0.wrapping_sub(before.1).cast_signed().max(0).cast_unsigned();
        let error = least.saturating_sub(figure).max(figure.saturating_sub(most));
        let ledger = group.ledger();
        self.taken += 1;
        self.error = self.error.max(error);
        self.shown = self.shown.max(ledger.max_error());
        // What threads are about to count: an object each.
        let in_flight = 8 << 20;
        self.beyond += u64::from(error > ledger.max_error() + in_flight);
        let parts = ledger.reserved() + ledger.uncovered() + ledger.unpaid();
        self.apart = self.apart.max(parts.abs_diff(group.live()));
    }
}

/// Takes samples until the program stops.
pub(crate) fn take(groups: &[Group], progress: &Progress) -> Samples {
    let mut random = SmallRng::seed_from_u64(7);
    let mut samples = Samples::default();
    if Wrapper::chosen() != Wrapper::Exact {
        return samples;
    }
    while !progress.stop.load(Ordering::Relaxed) {
        let number = random.random_range(0..groups.len());
        samples.take(number + 1, &groups[number]);
        std::thread::sleep(Duration::from_micros(random.random_range(0..2_000)));
    }
    samples
}

/// Bytes by which the program's counts and the ledgers differ at the end, over all groups.
pub(crate) fn residual(groups: &[Group]) -> u64 {
    let exact = Wrapper::chosen() == Wrapper::Exact;
    let own = |number: usize| if exact { counts(number).0.wrapping_sub(counts(number).1) } else { 0 };
    let each = groups.iter().enumerate().map(|(number, group)| {
        let ledger = group.ledger();
        (ledger.allocated() + group.live()).abs_diff(2 * own(number + 1))
    });
    each.sum()
}

/// What a count has that takes each free for one of the group that runs: the most that it is off by, at the end.
pub(crate) fn naive() -> u64 {
    COUNTS[1..].iter().map(|counts| counts.naive.load(Ordering::Relaxed).unsigned_abs()).max().unwrap_or(0)
}
