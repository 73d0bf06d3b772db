//! `Limits`: what a group may hold, as plain data, and whether that makes sense.

use crate::units::Limit;
use std::fmt;

/// Limits of a group, to be set together. A limit that is not given keeps its default: none, and nothing protected.
///
/// ```
/// use memcg::{Limit, Limits};
///
/// let tenant = Limits::new().max(Limit::mib(512)).high(500 << 20).low(Limit::percent(25));
/// assert_eq!((tenant.max, tenant.high), (Some(Limit::mib(512)), Some(Limit::mib(500))));
/// assert_eq!((tenant.low, tenant.min, tenant.soft), (Some("25%".parse()?), None, None));
/// let kept = Limits::new().min(4096).soft(Limit::Unlimited);
/// assert_eq!((kept.min, kept.soft), (Some(Limit::kib(4)), Some(Limit::Unlimited)));
/// # Ok::<(), memcg::ParseLimitError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct Limits {
    /// Bytes that reclaim never touches.
    pub min: Option<Limit>,
    /// Bytes that reclaim touches last.
    pub low: Option<Limit>,
    /// Usage above which charges are slowed down.
    pub high: Option<Limit>,
    /// The most bytes that charges may bring usage to.
    pub max: Option<Limit>,
    /// Usage above which the group is reclaimed first.
    pub soft: Option<Limit>,
    /// Usage is the larger of what is reserved and what is allocated: see [`cover_allocations`](Self::cover_allocations).
    pub cover_allocations: bool,
}

impl Limits {
    /// Gives no limit: each keeps its default.
    #[must_use]
    pub const fn new() -> Self {
        Limits { min: None, low: None, high: None, max: None, soft: None, cover_allocations: false }
    }

    /// Sets the bytes that reclaim never touches.
    #[must_use]
    pub fn min(mut self, limit: impl Into<Limit>) -> Self {
        self.min = Some(limit.into());
        self
    }

    /// Sets the bytes that reclaim touches last.
    #[must_use]
    pub fn low(mut self, limit: impl Into<Limit>) -> Self {
        self.low = Some(limit.into());
        self
    }

    /// Sets the usage above which charges are slowed down, never refused.
    #[must_use]
    pub fn high(mut self, limit: impl Into<Limit>) -> Self {
        self.high = Some(limit.into());
        self
    }

    /// Sets the most bytes that charges may bring usage to.
    #[must_use]
    pub fn max(mut self, limit: impl Into<Limit>) -> Self {
        self.max = Some(limit.into());
        self
    }

    /// Sets the usage above which the group, and all groups below it, is reclaimed first. 0: whenever it holds
    /// anything.
    #[must_use]
    pub fn soft(mut self, limit: impl Into<Limit>) -> Self {
        self.soft = Some(limit.into());
        self
    }

    /// Asks that what is reserved pays for what an allocator hands out: usage of the group is the larger of what is
    /// [reserved](crate::Ledger::reserved) in it and below, and what is [allocated](crate::Ledger::allocated) there; else it
    /// is their sum. What is allocated beyond what is reserved is [unpaid](crate::Ledger::unpaid), and charged by force.
    ///
    /// It is for a service that charges before it works, and for the memory pool of a query engine: neither pays twice where
    /// the process's allocator charges groups too. A group asks when it is created, and for as long as it lives. Each group
    /// below it covers as well, so a reservation in one pays for objects of another. The parent is charged once.
    ///
    /// A charge of such a group takes no credit: it walks, and costs a few hundred nanoseconds where other threads charge at
    /// the same time. An object costs what it costs in any group.
    ///
    /// ```
    /// use memcg::allocator::Owner; // stands for what an allocator does
    /// use memcg::{Limits, Runtime};
    ///
    /// let runtime = Runtime::builder().build()?;
    /// let query = runtime.root().create("q17", Limits::new().max(4 << 20).cover_allocations())?;
    /// let charge = query.try_charge(2 << 20)?; // before the work: it may be refused
    /// let batch = query.run(|| Owner::charge(3 << 20));
    /// assert_eq!((query.live(), query.ledger().unpaid()), (3 << 20, 1 << 20), "paid once");
    /// drop(charge);
    /// assert_eq!((query.live(), query.ledger().unpaid()), (3 << 20, 3 << 20), "the memory is there still");
    /// # unsafe { batch.uncharge(3 << 20) };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn cover_allocations(mut self) -> Self {
        self.cover_allocations = true;
        self
    }

    /// Finds two limits that contradict each other, so that one of them cannot do what it is for. It compares bytes with
    /// bytes and percentages with percentages.
    ///
    /// A group takes such limits all the same, as the kernel does, unless its runtime is
    /// [strict](crate::RuntimeBuilder::strict_limits): a program that changes one limit after the other passes through
    /// such states.
    ///
    /// # Errors
    ///
    /// [`ContradictionError`] names the two.
    ///
    /// ```
    /// use memcg::Limits;
    ///
    /// assert_eq!(Limits::new().low(1 << 20).max(2 << 20).check(), Ok(()));
    /// let contradiction = Limits::new().low(2 << 20).max(1 << 20).check().unwrap_err();
    /// assert_eq!(contradiction.to_string(), "low 2 MiB is above max 1 MiB: no usage is above max");
    /// ```
    pub fn check(&self) -> Result<(), ContradictionError> {
        let Limits { min, low, high, max, soft, .. } = *self;
        let held = [("min", min), ("low", low)];
        let pairs = [("high", high), ("soft", soft)].map(|lower| (lower, ("max", max))).into_iter();
        let pairs = pairs.chain(
            [("max", max), ("high", high), ("soft", soft)]
                .into_iter()
                .flat_map(|upper| held.map(|lower| (lower, upper))),
        );
        for (lower, upper) in pairs {
            let is_above = match (lower.1, upper.1) {
                (Some(Limit::Bytes(lower)), Some(Limit::Bytes(upper))) => lower > upper,
                (Some(Limit::Percent(lower)), Some(Limit::Percent(upper))) => lower > upper,
                _ => false,
            };
            if let ((lower, Some(lower_limit)), (upper, Some(upper_limit)), true) = (lower, upper, is_above) {
                return Err(ContradictionError { lower, lower_limit, upper, upper_limit });
            }
        }
        Ok(())
    }
}

/// Two limits of which one keeps the other from doing what it is for; see [`Limits::check`].
///
/// ```
/// let limits = memcg::Limits::new().min(4096).soft(100);
/// let contradiction = limits.check().unwrap_err();
/// assert_eq!((contradiction.lower(), contradiction.upper()), (("min", limits.min.unwrap()), ("soft", limits.soft.unwrap())));
/// assert_eq!(contradiction.to_string(), "min 4 KiB is above soft 100 B: above soft the group gives first what min keeps");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContradictionError {
    lower: &'static str,
    lower_limit: Limit,
    upper: &'static str,
    upper_limit: Limit,
}

impl fmt::Display for ContradictionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lower, lower_limit, upper, upper_limit } = self;
        write!(f, "{lower} {lower_limit} is above {upper} {upper_limit}: {}", self.why())
    }
}

impl std::error::Error for ContradictionError {}

impl ContradictionError {
    /// The limit that belongs below the other one: its name and its value.
    #[must_use]
    pub fn lower(&self) -> (&'static str, Limit) {
        (self.lower, self.lower_limit)
    }

    /// The limit that belongs above: its name and its value.
    #[must_use]
    pub fn upper(&self) -> (&'static str, Limit) {
        (self.upper, self.upper_limit)
    }

    fn why(&self) -> String {
        match self.upper {
            "max" => "no usage is above max".to_owned(),
            upper => format!("above {upper} the group gives first what {} keeps", self.lower),
        }
    }
}
