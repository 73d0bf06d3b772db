//! The errors of counters.

use std::fmt;

/// Names a counter in errors, verdicts and logs. Never reused within a process.
///
/// ```
/// use memcg::{CounterConfig, PageCounter};
///
/// let machine = PageCounter::root(CounterConfig::new());
/// let gone = machine.child().id();
/// assert_ne!(machine.child().id(), gone);
/// assert!(gone.to_string().starts_with("counter "));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CounterId(pub(crate) u64);

impl fmt::Display for CounterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "counter {}", self.0)
    }
}

/// A charge did not fit.
///
/// There was an instant during the call at which live charges, charges in flight and `requested` together were above
/// `max` at `level`. The charge drained the credit stranded in stocks first. Nothing of the charge remains at any
/// level.
///
/// ```
/// use memcg::{CounterConfig, PageCounter};
///
/// let machine = PageCounter::root(CounterConfig::new().max(100));
/// let job = machine.child();
/// job.charge(98);
/// let refused = job.try_charge(5).unwrap_err();
/// let (machine, job) = (machine.id(), job.id());
/// assert_eq!(
///     refused.to_string(),
///     format!("{machine} refused 5 for {job}: usage 98 of max 100, at most 0 of it stocked"),
/// );
/// ```
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

/// A limit was not set because live charge is above it. The old limit holds.
///
/// ```
/// use memcg::{CounterConfig, PageCounter};
///
/// let job = PageCounter::root(CounterConfig::new());
/// job.charge(60);
/// let busy = job.set_max(50).unwrap_err();
/// assert_eq!(busy.to_string(), format!("{} is busy: usage 60 is above the new max 50", job.id()));
/// ```
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
///
/// ```
/// use memcg::{CounterConfig, CounterSet, SetRefused, SetStock};
///
/// let [memory, memsw] = [1_000, 1_500].map(|max| CounterConfig::new().max(max));
/// let job = CounterSet::root(vec![memory, memsw], SetStock::Shared).child();
/// let SetRefused { counter, refused } = job.try_charge(1_200).unwrap_err();
/// assert_eq!((counter, refused.max), (0, 1_000));
/// assert_eq!(Some(refused.requester), job.counter(0).map(|memory| memory.id()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("in counter {counter} of the set, {refused}")]
pub struct SetRefused {
    /// Index in the set of the counter that refused.
    pub counter: usize,
    /// The refusal of that counter.
    pub refused: Refused,
}
