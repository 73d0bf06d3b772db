//! Operations on statistics.

pub(crate) use crate::oracle::record::THREADS;
use crate::oracle::record::{self, pick};

use super::ITEMS;

/// Grains that come up as a batch.
pub(crate) const BATCHES: [u64; 8] = [64, 64, 8, 2, 1, 0, 300, 1 << 40];

/// Changes that come up, of either sign: just what a thread of a batch of 64 may hold back, in each
/// unit, and one more.
pub(crate) const DELTAS: [i64; 16] = [
    1,
    1,
    2,
    4,
    31,
    32,
    33,
    64,
    4_095,
    4_096,
    32 * 4_096,
    32 * 4_096 + 1,
    65_536 * 33,
    1_000_000,
    1 << 40,
    1 << 50,
];

/// The settings of the runtime.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) batch: u64,
    pub(crate) fence: bool,
    pub(crate) audit: bool,
    /// Further items, so that the cells are longer.
    pub(crate) more: u8,
}

pub(crate) type Op = record::Op<Action>;

#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// One of few names.
    Create(u8),
    CloneHandle,
    DropHandle,
    Offline,
    OfflineTree,
    Add {
        item: usize,
        delta: i64,
        times: u8,
    },
    /// To an item of another builder.
    AddForeign,
    /// A guard that keeps its group, of some bytes or of none.
    Hold(u64),
    AddByCharge {
        item: usize,
        delta: i64,
    },
    DropCharge,
    Flush,
    FlushRatelimited,
    ReadStale,
    Read,
    ReadWithin(u64),
    ReadExact,
    Settle,
    /// No thread writes until no thread is listed.
    Idle,
    /// Flushes in a row.
    FlushAll(u8),
    DropRuntime,
    /// The thread ends and another takes its place.
    Exit,
    /// A thread of its own adds, and once more when it ends and has nothing any more.
    AtExit {
        item: usize,
        delta: i64,
    },
}

pub(crate) fn decode(bytes: &[u8]) -> (Setup, Vec<Op>) {
    record::decode(bytes, setup, action)
}

fn setup([batch, flags, more, _]: [u8; 4]) -> Setup {
    Setup {
        batch: pick(&BATCHES, batch),
        fence: flags & 1 != 0,
        audit: flags & 2 != 0,
        more: more % 49,
    }
}

fn action([code, _, _, size]: [u8; 4]) -> Action {
    let item = usize::from(size / 32) % ITEMS;
    let delta = pick(&DELTAS, size % 16) * if size & 16 == 0 { 1 } else { -1 };
    match code % 40 {
        0..=3 => Action::Create(size % 6),
        4 => Action::CloneHandle,
        5 | 6 => Action::DropHandle,
        7 | 8 => Action::Offline,
        9 => Action::OfflineTree,
        10..=18 => Action::Add {
            item,
            delta,
            times: 1,
        },
        19 | 20 => Action::Add {
            item,
            delta: delta.signum(),
            times: size,
        },
        21 => Action::AddForeign,
        22 => Action::Hold(u64::from(size)),
        23 | 24 => Action::AddByCharge { item, delta },
        25 => Action::DropCharge,
        26 | 27 => Action::Flush,
        28 => Action::FlushRatelimited,
        29 => Action::ReadStale,
        30 | 31 => Action::Read,
        32 => Action::ReadWithin(u64::from(size)),
        33 => Action::ReadExact,
        34 => Action::Settle,
        35 if size < 32 => Action::Idle,
        35 => Action::FlushAll(size % 7),
        36 if size >= 192 => Action::DropRuntime,
        36 => Action::DropCharge,
        37 => Action::AtExit { item, delta },
        _ => Action::Exit,
    }
}
