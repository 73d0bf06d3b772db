//! How a tree of counters behaves.

use std::fmt;

use crate::error::{CounterId, Refused};
use crate::sync::Arc;
use crate::sync::barrier::BarrierMode;

/// Units that a thread charges in advance, unless configured otherwise: the kernel's MEMCG_CHARGE_BATCH.
pub(crate) const BATCH: u64 = 64;

/// The largest batch. Two of them are a slot's capacity, which must stay far from the sign bit.
pub(crate) const BATCH_MAX: u64 = 1 << 40;

/// Share of the root's max that may be stranded as credit, unless configured otherwise.
pub(crate) const BUDGET_SHARE: u64 = 16;

type Hook = dyn Fn(&Pressure<'_>) -> u64 + Send + Sync;

/// Configuration of a tree of [`PageCounter`](crate::PageCounter)s, fixed at its root.
///
/// ```
/// use memcg::{CounterConfig, PageCounter};
///
/// let machine = PageCounter::root(CounterConfig::new().batch(32).audit(true));
/// assert_eq!(machine.batch(), 32);
/// ```
#[derive(Clone)]
pub struct CounterConfig {
    pub(crate) batch: u64,
    pub(crate) adaptive: bool,
    pub(crate) audit: bool,
    pub(crate) budget: Option<u64>,
    pub(crate) max: u64,
    pub(crate) barrier: BarrierMode,
    pub(crate) hook: Option<Arc<Hook>>,
}

impl CounterConfig {
    /// Batch 64, adaptive, no audit, a sixteenth of the root's max for stranded credit, no max, the best barrier.
    pub fn new() -> Self {
        CounterConfig {
            batch: BATCH,
            adaptive: true,
            audit: false,
            budget: None,
            max: u64::MAX,
            barrier: BarrierMode::Auto,
            hook: None,
        }
    }

    /// Units that a thread charges in advance. 0 switches the stock off. At most 2^40.
    pub fn batch(mut self, units: u64) -> Self {
        self.batch = units.min(BATCH_MAX);
        self
    }

    /// Whether a counter closes its stock near a limit and opens it again with room (default), or keeps it open always.
    pub fn adaptive(mut self, adaptive: bool) -> Self {
        self.adaptive = adaptive;
        self
    }

    /// Whether a second, independent count is kept for [`PageCounter::verify`](crate::PageCounter::verify). Costs a
    /// call and a store for each charge: for tests and for hunting drift.
    pub fn audit(mut self, audit: bool) -> Self {
        self.audit = audit;
        self
    }

    /// Most units that may be stranded as credit below the root, over all threads and counters. Default: a sixteenth
    /// of the root's max. At the budget, charges go up the tree one by one.
    pub fn budget(mut self, units: u64) -> Self {
        self.budget = Some(units);
        self
    }

    /// Max of the root, in units.
    pub fn max(mut self, units: u64) -> Self {
        self.max = units;
        self
    }

    /// The barrier pair of charges and drains.
    pub fn barrier(mut self, mode: BarrierMode) -> Self {
        self.barrier = mode;
        self
    }

    /// Called when a charge does not fit even after stranded credit was drained, before it is refused.
    ///
    /// Runs on the charging thread with no lock held; may charge and uncharge; returns the units that it freed. While it
    /// returns more than 0 the charge is tried again, at most 16 times. Pressure does not nest: a charge made inside
    /// the hook that does not fit is refused at once.
    pub fn on_pressure(mut self, hook: impl Fn(&Pressure<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.hook = Some(Arc::new(hook));
        self
    }
}

impl Default for CounterConfig {
    fn default() -> Self {
        CounterConfig::new()
    }
}

impl fmt::Debug for CounterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CounterConfig")
            .field("batch", &self.batch)
            .field("adaptive", &self.adaptive)
            .field("audit", &self.audit)
            .field("budget", &self.budget)
            .field("max", &self.max)
            .field("barrier", &self.barrier)
            .field("on_pressure", &self.hook.is_some())
            .finish()
    }
}

/// A charge that does not fit, as the pressure hook sees it.
#[derive(Debug)]
pub struct Pressure<'a> {
    pub(crate) refused: &'a Refused,
}

impl Pressure<'_> {
    /// The counter at its max: room is needed in its subtree.
    pub fn level(&self) -> CounterId {
        self.refused.level
    }

    /// Units that must be freed there for the charge to fit.
    pub fn want(&self) -> u64 {
        self.refused.requested.saturating_sub(self.refused.max.saturating_sub(self.refused.usage))
    }

    /// What the charger will be told if nothing is freed.
    pub fn refused(&self) -> &Refused {
        self.refused
    }
}
