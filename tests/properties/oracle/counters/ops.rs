#![cfg(not(loom))]
//! Operations on a tree, and their form in bytes.
//!
//! Bytes are read in records of four (one operation each, two bytes of a corpus file apart never shift the rest), so
//! that a mutation changes one operation and leaves the others as they were.

use memcg::PageCounter;

/// Threads that operations are spread over.
pub(crate) const THREADS: usize = 3;

/// Sizes with something behind each: nothing, one, around a batch of 64, around two batches, more than any stock,
/// the largest usage, the largest number.
pub(crate) const SIZES: [u64; 16] =
    [0, 1, 2, 7, 32, 63, 64, 65, 127, 128, 129, 1_000, 1 << 20, 1 << 62, PageCounter::USAGE_MAX, u64::MAX];

/// Batches: off, the smallest, odd, the default, a large one.
pub(crate) const BATCHES: [u64; 8] = [0, 1, 2, 3, 16, 64, 64, 200];

/// How the tree is set up.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) batch: u64,
    pub(crate) adaptive: bool,
    pub(crate) audit: bool,
    /// Fence instead of the best barrier there is.
    pub(crate) fence: bool,
    /// Most stranded credit; `None` leaves the default.
    pub(crate) budget: Option<u64>,
    /// Limit of the root.
    pub(crate) max: u64,
}

/// A size, some of them relative to the state at that moment.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Size {
    Units(u64),
    /// Exactly what still fits.
    Margin,
    /// One more than what still fits.
    Beyond,
}

/// One operation, by one of the threads, on one of the counters (both taken modulo what exists).
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) thread: u8,
    pub(crate) counter: u8,
    pub(crate) action: Action,
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    Child,
    DropHandle,
    TryCharge(Size),
    /// Forced.
    Charge(u64),
    /// At most what is charged to the counter itself.
    Uncharge(u64),
    SetMax(u64),
    /// A limit this far above what is live: the adaptive stock's thresholds lie there.
    SetMaxAbove(u64),
    SetMin(u64),
    SetLow(u64),
    SetBatch(u64),
    Drain,
    /// The thread ends and another takes its place.
    Exit,
}

/// The first record makes the set-up, each further one an operation; a rest of less than a record is ignored.
pub(crate) fn records<S, O>(bytes: &[u8], setup: fn([u8; 4]) -> S, op: fn([u8; 4]) -> O) -> (S, Vec<O>) {
    let mut records = bytes.chunks_exact(4).map(|r| [r[0], r[1], r[2], r[3]]);
    let setup = setup(records.next().unwrap_or_default());
    (setup, records.map(op).collect())
}

pub(crate) fn decode(bytes: &[u8]) -> (Setup, Vec<Op>) {
    records(bytes, setup, op)
}

fn setup([batch, flags, budget, max]: [u8; 4]) -> Setup {
    Setup {
        batch: pick(&BATCHES, batch),
        adaptive: flags & 1 != 0,
        audit: flags & 2 == 0,
        fence: flags & 4 != 0,
        budget: pick(&[None, None, Some(0), Some(1), Some(10), Some(128), Some(300), Some(100_000)], budget),
        max: pick(&[PageCounter::UNLIMITED, 0, 64, 100, 1_000, 5_000, 100_000, 1 << 40], max),
    }
}

fn op([code, counter, thread, size]: [u8; 4]) -> Op {
    let units = pick(&SIZES, size);
    let action = match code % 24 {
        0 | 1 => Action::Child,
        2 => Action::DropHandle,
        3..=7 => Action::TryCharge(Size::Units(units)),
        8 => Action::TryCharge(Size::Margin),
        9 => Action::TryCharge(Size::Beyond),
        10 | 11 => Action::Charge(units),
        12..=15 => Action::Uncharge(units),
        16 => Action::SetMax(units),
        17 => Action::SetMaxAbove(u64::from(size)),
        18 => Action::SetMaxAbove(u64::from(size) * 16),
        19 => Action::SetMin(units),
        20 => Action::SetLow(units),
        21 => Action::SetBatch(pick(&BATCHES, size)),
        22 => Action::Drain,
        _ => Action::Exit,
    };
    Op { thread, counter, action }
}

pub(crate) fn pick<T: Copy>(from: &[T], index: u8) -> T {
    from[usize::from(index) % from.len()]
}
