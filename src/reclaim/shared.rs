//! What the groups of a tree share for reclaim.

use std::time::Duration;

use crate::reclaim::reclaimer::Reclaimer;
use crate::reclaim::turns::Rings;
use crate::stat::Stat;
use crate::sync::Arc;
use crate::sync::lock::{Lock, Rank};

/// The time that one charge may spend in reclaim, unless configured otherwise.
const TIME: Duration = Duration::from_millis(100);

/// The longest delay of a charge above high, unless configured otherwise: MEMCG_MAX_HIGH_DELAY_JIFFIES.
pub(crate) const DELAY_MAX: Duration = Duration::from_secs(2);

/// The time that a charge waits for one victim's memory, unless configured otherwise.
const OOM_TIME: Duration = Duration::from_secs(1);

/// How a tree reclaims, and what it does where that brings nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReclaimConfig {
    pub(crate) time: Duration,
    /// The longest delay of a charge above high.
    pub(crate) delay_max: Duration,
    /// How long a charge waits for one victim's memory.
    pub(crate) oom_time: Duration,
    /// Weighs groups, in place of what reclaimers say.
    pub(crate) weight: Option<Stat>,
}

impl Default for ReclaimConfig {
    fn default() -> Self {
        ReclaimConfig { time: TIME, delay_max: DELAY_MAX, oom_time: OOM_TIME, weight: None }
    }
}

/// Registrations by ring, and the rings. `M` is a group.
pub(crate) struct ReclaimShared<M> {
    /// The reclaimers of each group, by the number of its ring, lowest priority first.
    pub(crate) reclaimers: Lock<Vec<Vec<Arc<Reclaimer>>>>,
    pub(crate) rings: Lock<Rings<M>>,
}

impl<M> ReclaimShared<M> {
    pub(crate) fn new() -> Self {
        ReclaimShared {
            reclaimers: Lock::new(Rank::Bookkeeping, Vec::new()),
            rings: Lock::new(Rank::Rings, Rings::default()),
        }
    }
}
