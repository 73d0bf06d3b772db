//! The errors of counters, and figures of a type as text.

use std::fmt;

/// Implements `Debug` for a type that shows some figures of its own and is not all shown by them.
macro_rules! debug_figures {
    ($name:ident $(<$lifetime:lifetime>)?, |$this:ident| $($figure:ident: $value:expr),*) => {
        impl std::fmt::Debug for $name $(<$lifetime>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $this = self;
                f.debug_struct(stringify!($name))$(.field(stringify!($figure), &$value))*.finish_non_exhaustive()
            }
        }
    };
}

/// The most units that a counter may hold.
pub(crate) const USAGE_MAX: u64 = i64::MAX as u64;

/// The id of a counter in errors, reports and logs. It is never used again within a process.
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
/// There was an instant during the call at which live charges, charges in flight and `requested`
/// together were above `max` at `level`. The charge drained the credit stranded in stocks first,
/// where that could have helped. Nothing of the charge remains at any level.
///
/// ```
/// use memcg::{CounterConfig, PageCounter};
///
/// let machine = PageCounter::root(CounterConfig::new().max(100));
/// let job = machine.child();
/// job.force_charge(98);
/// let refused = job.charge(5).unwrap_err();
/// let machine = machine.id();
/// let job = job.id();
/// assert_eq!(
///     refused.to_string(),
///     format!("{machine} refused 5 for {job}: short by 3, usage 98 of max 100; to fit, uncharge there or raise its max"),
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CounterChargeError {
    /// The counter whose max was met: the requester itself or an ancestor.
    pub level: CounterId,
    /// The counter that was charged.
    pub requester: CounterId,
    /// The units asked for.
    pub requested: u64,
    /// The usage of `level` when it refused. At most `stocked_bound` of it was credit; the rest was
    /// live.
    pub usage: u64,
    /// The max of `level` when it refused.
    pub max: u64,
    /// The published bound on the credit in stocks below `level`. It is 0, unless the charge would
    /// not even have fit beside the live charge alone, or in rare races.
    pub stocked_bound: u64,
}

impl fmt::Display for CounterChargeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CounterChargeError {
            level,
            requester,
            requested,
            usage,
            max,
            stocked_bound,
        } = *self;
        write!(
            f,
            "{level} refused {requested} for {requester}: short by {}",
            self.want()
        )?;
        if usage > 0 {
            write!(f, ", usage {usage}")?;
        }
        if max < USAGE_MAX {
            write!(f, "{} max {max}", if usage > 0 { " of" } else { "," })?;
        }
        if stocked_bound > 0 {
            write!(f, ", at most {stocked_bound} of it unused credit")?;
        }
        if max >= USAGE_MAX {
            write!(f, "; charge less: no counter counts more than {USAGE_MAX}")
        } else if requested > max {
            f.write_str("; to fit, raise its max or charge less")
        } else {
            f.write_str("; to fit, uncharge there or raise its max")
        }
    }
}

impl std::error::Error for CounterChargeError {}

impl CounterChargeError {
    /// Returns the units by which the charge was short: had so many been uncharged at `level`, it
    /// would have fit.
    pub fn want(&self) -> u64 {
        self.usage
            .saturating_add(self.requested)
            .saturating_sub(self.max.min(USAGE_MAX))
    }
}

/// A limit was not set because live charge is above it. The old limit stays in force.
///
/// ```
/// use memcg::{CounterConfig, PageCounter};
///
/// let job = PageCounter::root(CounterConfig::new());
/// job.force_charge(60);
/// let busy = job.set_max(50).unwrap_err();
/// assert_eq!(busy.to_string(), format!("{} is busy: usage 60 is 10 above the new max 50; uncharge there", job.id()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CounterLimitError {
    /// The counter whose max was to be set.
    pub level: CounterId,
    /// Its usage, after its credit was drained.
    pub usage: u64,
    /// The max that was asked for.
    pub max: u64,
}

impl fmt::Display for CounterLimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { level, max, usage } = self;
        write!(
            f,
            "{level} is busy: usage {usage} is {} above the new max {max}; uncharge there",
            usage.saturating_sub(*max)
        )
    }
}

impl std::error::Error for CounterLimitError {}
