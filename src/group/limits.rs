//! `Limits`: what a group may hold, as plain data.

use crate::units::Limit;

/// Limits of a group, to be set together. A limit that is not given keeps its default: none, and nothing protected.
///
/// ```
/// use memcg::{Limit, Limits};
///
/// let tenant = Limits::new().max("512MiB".parse::<Limit>()?).high(500 << 20).low(Limit::percent(25));
/// assert_eq!((tenant.max, tenant.high), (Some(Limit::mib(512)), Some(Limit::mib(500))));
/// assert_eq!((tenant.low, tenant.min, tenant.soft), (Some("25%".parse()?), None, None));
/// let kept = Limits::new().min(4096).soft(Limit::Unlimited);
/// assert_eq!((kept.min, kept.soft), (Some(Limit::kib(4)), Some(Limit::Unlimited)));
/// # Ok::<(), memcg::ParseLimitError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
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
}

impl Limits {
    /// Gives no limit: each keeps its default.
    #[must_use]
    pub const fn new() -> Self {
        Limits { min: None, low: None, high: None, max: None, soft: None }
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
}
