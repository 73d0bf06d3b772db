//! Operations on groups and charges.

use memcg::PageCounter;

pub(crate) use crate::oracle::counters::ops::{BATCHES, SIZES, Size};
pub(crate) use crate::oracle::record::THREADS;
use crate::oracle::record::{self, pick};

/// Most groups at a time: some runs meet it.
pub(crate) const GROUPS_MAX: [u32; 4] = [64, 64, 6, 3];

/// The settings of the runtime.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) batch: u64,
    pub(crate) adaptive: bool,
    pub(crate) audit: bool,
    pub(crate) fence: bool,
    pub(crate) budget: Option<u64>,
    pub(crate) max: u64,
    pub(crate) groups_max: u32,
    /// Objects without a byte between them.
    pub(crate) packed: bool,
}

pub(crate) type Op = record::Op<Action>;

#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// One of few names, a max or none.
    Create {
        name: u8,
        max: u64,
    },
    CloneHandle,
    DropHandle,
    Offline,
    OfflineTree,
    TryCharge(Size),
    /// Forced.
    Charge(u64),
    /// Memory and the further counter as one.
    ChargeBoth(u64, u64),
    Grow(u64),
    TryGrow(Size),
    Shrink(u64),
    Resize(u64),
    Split(u64),
    Take,
    /// With that charge.
    Merge(u8),
    /// To that group.
    Transfer(u8),
    DropCharge,
    /// Without a guard, as the next two.
    TryChargeRaw(Size),
    ChargeRaw(u64),
    /// Of an amount without a guard, at most all of it.
    Uncharge(u64),
    /// A charge becomes an amount.
    IntoRaw,
    /// An amount becomes a charge again.
    FromRaw,
    SetMax(u64),
    /// This far above what is live.
    SetMaxAbove(u64),
    /// Of the further counter.
    SetFurtherMax(u64),
    SetMin(u64),
    SetBatch(u64),
    /// A handle of whatever has that id of all there ever were.
    Find(u8),
    /// A handle of whatever is where that one was.
    FindByPath(u8),
    Drain,
    Settle,
    /// So many visits take idle credit home.
    ReleaseIdle(u8),
    /// The thread gives its own credit back.
    ReleaseOwn,
    /// Settles what is dying, and compares everything.
    Look,
    DropRuntime,
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
        groups_max: pick(&GROUPS_MAX, flags >> 3),
        packed: flags & 32 != 0,
        budget: pick(&[None, None, Some(0), Some(128), Some(1_000)], budget),
        max: pick(&[u64::MAX, 1_000, 5_000, 100_000, 1 << 40], max),
    }
}

/// From this code on operations without a guard: the codes below keep their meaning in the corpus.
const FIRST_RAW: u8 = 240;

fn raw_action(code: u8, bytes: u64) -> Action {
    match code {
        0..=3 => Action::TryChargeRaw(Size::Units(bytes)),
        4 => Action::TryChargeRaw(Size::Margin),
        5 => Action::TryChargeRaw(Size::Beyond),
        6 => Action::ChargeRaw(bytes),
        7..=11 => Action::Uncharge(bytes),
        12 | 13 => Action::IntoRaw,
        _ => Action::FromRaw,
    }
}

fn action([code, _, _, size]: [u8; 4]) -> Action {
    let bytes = pick(&SIZES, size);
    if code >= FIRST_RAW {
        return raw_action(code - FIRST_RAW, bytes);
    }
    match code % 42 {
        0..=3 => Action::Create {
            name: size % 8,
            max: pick(&[u64::MAX, u64::MAX, 100, 1_000], size / 8),
        },
        4 => Action::CloneHandle,
        5 | 6 => Action::DropHandle,
        7 | 8 => Action::Offline,
        9 => Action::OfflineTree,
        10..=13 => Action::TryCharge(Size::Units(bytes)),
        14 => Action::TryCharge(Size::Margin),
        15 => Action::TryCharge(Size::Beyond),
        16 => Action::Charge(bytes),
        17 => Action::ChargeBoth(bytes, pick(&SIZES, size / 16)),
        18 => Action::Grow(bytes),
        19 => Action::TryGrow(Size::Units(bytes)),
        20 => Action::TryGrow(if size % 2 == 0 {
            Size::Margin
        } else {
            Size::Beyond
        }),
        21 => Action::Shrink(bytes),
        22 => Action::Resize(bytes),
        23 => Action::Split(bytes),
        24 => Action::Take,
        25 => Action::Merge(size),
        26 | 27 => Action::Transfer(size),
        28..=30 => Action::DropCharge,
        31 => Action::SetMax(bytes),
        32 => Action::SetMaxAbove(u64::from(size) * 4),
        33 => Action::SetFurtherMax(bytes),
        34 => Action::SetMin(bytes),
        35 => Action::SetBatch(pick(&BATCHES, size)),
        36 if size >= 192 => Action::ReleaseIdle(size % 4),
        36 if size >= 128 => Action::ReleaseOwn,
        36 => [Action::Drain, Action::Settle][usize::from(size % 2)].clone(),
        37 => Action::Look,
        38 if size >= 192 => Action::DropRuntime,
        38 => Action::DropCharge,
        39 => Action::Exit,
        40 => Action::Find(size),
        _ => Action::FindByPath(size),
    }
}

/// The most that one run charges: sums of it stay far from what a counter can hold.
pub(crate) const FORCED_MAX: u64 = PageCounter::USAGE_MAX / 64;
