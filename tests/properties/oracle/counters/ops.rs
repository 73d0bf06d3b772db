#![cfg(not(loom))]
//! Operations on a tree of counters.

use memcg::PageCounter;

pub(crate) use crate::oracle::record::THREADS;
use crate::oracle::record::{self, pick};

/// Sizes with something behind each: nothing, one, around a batch of 64, around two batches, more
/// than any stock, the largest usage, the largest number.
pub(crate) const SIZES: [u64; 16] = [
    0,
    1,
    2,
    7,
    32,
    63,
    64,
    65,
    127,
    128,
    129,
    1_000,
    1 << 20,
    1 << 62,
    PageCounter::USAGE_MAX,
    u64::MAX,
];

/// Batches: off, the smallest, odd, the default, a large one.
pub(crate) const BATCHES: [u64; 8] = [0, 1, 2, 3, 16, 64, 64, 200];

/// The settings of the tree.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) batch: u64,
    pub(crate) adaptive: bool,
    pub(crate) audit: bool,
    /// Fence instead of the best barrier there is.
    pub(crate) fence: bool,
    /// Nodes and statistics, which need a group's object for each counter.
    pub(crate) declares: bool,
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

pub(crate) type Op = record::Op<Action>;

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

pub(crate) fn decode(bytes: &[u8]) -> (Setup, Vec<Op>) {
    record::decode(bytes, setup, action)
}

fn setup([batch, flags, budget, max]: [u8; 4]) -> Setup {
    Setup {
        batch: pick(&BATCHES, batch),
        adaptive: flags & 1 != 0,
        audit: flags & 2 == 0,
        fence: flags & 4 != 0,
        declares: flags & 8 != 0,
        budget: pick(
            &[
                None,
                None,
                Some(0),
                Some(1),
                Some(10),
                Some(128),
                Some(300),
                Some(100_000),
            ],
            budget,
        ),
        max: pick(
            &[
                PageCounter::UNLIMITED,
                0,
                64,
                100,
                1_000,
                5_000,
                100_000,
                1 << 40,
            ],
            max,
        ),
    }
}

fn action([code, _, _, size]: [u8; 4]) -> Action {
    let units = pick(&SIZES, size);
    match code % 24 {
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
    }
}
