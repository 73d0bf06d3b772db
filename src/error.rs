//! What is said when a counter says no.

use std::fmt;

/// Names a counter in errors, verdicts and logs. Never reused within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CounterId(pub(crate) u64);

impl fmt::Display for CounterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "counter {}", self.0)
    }
}

/// A charge did not fit.
///
/// It implies an instant during the call at which live charges, charges in flight and `requested` together were above
/// `max` at `level`: credit stranded in stocks was drained first. Nothing of the charge remains at any level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{level} refused {requested} for {requester}: usage {usage} of max {max}, at most {stocked_bound} of it stocked"
)]
pub struct Refused {
    /// The counter whose max was met: the requester itself or an ancestor.
    pub level: CounterId,
    /// The counter that was charged.
    pub requester: CounterId,
    /// Units asked for.
    pub requested: u64,
    /// Usage of `level` when it refused.
    pub usage: u64,
    /// Max of `level` when it refused.
    pub max: u64,
    /// Published bound on the credit in stocks below `level`; 0 in all but rare races.
    pub stocked_bound: u64,
}

/// A limit was not lowered because live charge is above it. The old limit holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{level} is busy: usage {usage} is above the new max {max}")]
pub struct Busy {
    /// The counter whose max was to be set.
    pub level: CounterId,
    /// Its usage, after its credit was drained.
    pub usage: u64,
    /// The max that was asked for.
    pub max: u64,
}

/// A charge to a set of counters did not fit one of them. No counter of the set was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("in counter {counter} of the set, {refused}")]
pub struct SetRefused {
    /// Index in the set of the counter that refused.
    pub counter: usize,
    /// What it said.
    pub refused: Refused,
}
