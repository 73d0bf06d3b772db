//! The ways in which the tenants share the budget, and the promise to each of them.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use serde::Serialize;

/// Of the budget, in percent, what tenants may be promised while others flood; those get the rest.
pub(crate) const PROTECTED_PERCENT: u64 = 75;

/// A tenant that has to go when the budget is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Policy {
    /// The oldest entry of all: one LRU under one limit.
    Shared,
    /// The tenant's own: each is held to its fair share, whether or not others use theirs.
    Static,
    /// Groups under one limit. Those above their soft limit give first, then those above their low.
    Memcg,
    /// As under memcg, but no tenant evicts in the middle of a request: it waits, and another thread makes room.
    Waiting,
    /// No tenant, and there is no limit: what `--kill` is there to show.
    #[value(skip)]
    Unlimited,
}

/// A part of a tenant's fair share, in percent; `Share(None)` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct Share(Option<u16>);

/// The promise to a tenant, the usage from which on it has to give, and the usage from which on more has its price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Promise {
    pub(crate) low: Share,
    pub(crate) soft: Share,
    pub(crate) high: Share,
}

impl Promise {
    /// The promise where the command line names none.
    pub(crate) const DEFAULT: Self = Self { low: Share(Some(90)), soft: Share(Some(100)), high: Share(None) };
}

impl Policy {
    /// Those that hold the budget.
    pub(crate) const ALL: [Self; 4] = [Self::Shared, Self::Static, Self::Memcg, Self::Waiting];
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Shared => "shared",
            Self::Static => "static",
            Self::Memcg => "memcg",
            Self::Waiting => "waiting",
            Self::Unlimited => "unlimited",
        })
    }
}

impl Share {
    /// Bytes of a fair share; none is the most there is.
    pub(crate) fn of(self, share: u64) -> u64 {
        let Some(percent) = self.0 else { return u64::MAX };
        let bytes = u128::from(share) * u128::from(percent) / 100;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// From the command line, where no more than the whole can be promised.
    pub(crate) fn promised(text: &str) -> Result<Self, String> {
        match text.parse()? {
            share @ Self(Some(..=100)) => Ok(share),
            _ => Err("no tenant can be promised more than its fair share".to_string()),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(percent) => write!(f, "{percent} %"),
            None => f.write_str("max"),
        }
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let percent = text.strip_suffix('%').and_then(|percent| percent.trim_end().parse().ok());
        match percent {
            Some(percent) => Ok(Self(Some(percent))),
            None if text == "max" => Ok(Self(None)),
            None => Err("expected a percentage, as 90%, or max".to_string()),
        }
    }
}
