//! A level's max: how it is stored, and what readers ask about usage and limits.
//!
//! Edge: E1 (charge/set_max).

use crate::counter::object::Counter;
use crate::counter::watch::{OBSERVED, WAITING};
use crate::error::USAGE_MAX;
use crate::sync::{Ordering, fence_after_exchange};

impl Counter {
    /// Store a max. Where usage is above it, this restores the old max and returns the usage. The caller holds the
    /// tree's lock.
    pub(crate) fn store_max(&self, max: u64) -> Result<(), u64> {
        let old = self.limits.max.load(Ordering::Relaxed);
        // SeqCst (E1): pairs with the exchange in `admit`. Either the charger reads this max, or this thread reads
        // its usage.
        self.limits.max.swap(max, Ordering::SeqCst);
        // Mutation: e1-set-max-without-fence
        fence_after_exchange();
        let usage = self.usage();
        if usage <= max || max >= old {
            return Ok(());
        }
        self.limits.max.store(old, Ordering::SeqCst);
        Err(usage)
    }

    /// Store a max, whatever usage is. An observed level admits every charge. The caller holds the tree's lock.
    pub(crate) fn impose_max(&self, max: u64) {
        self.usage.observed_max.store(max, Ordering::Relaxed);
        let max = if self.is_observed() { u64::MAX } else { max };
        // SeqCst (E1): as in `store_max`.
        self.limits.max.swap(max, Ordering::SeqCst);
        fence_after_exchange();
    }

    /// No thread charges the counter yet.
    pub(crate) fn begin_max(&self, max: u64) {
        self.limits.max.store(max, Ordering::Relaxed);
    }

    pub(crate) fn max(&self) -> u64 {
        if self.is_observed() {
            return self.usage.observed_max.load(Ordering::Relaxed);
        }
        // Acquire (E1): as in `admit`.
        self.limits.max.load(Ordering::Acquire)
    }

    pub(crate) fn room(&self, max: u64) -> u64 {
        max.min(USAGE_MAX).saturating_sub(self.usage())
    }

    /// The usage that charges are admitted to.
    pub(crate) fn admits(&self) -> u64 {
        // SeqCst (E25): a thread that waits for room reads it after its mark.
        self.limits.max.load(Ordering::SeqCst)
    }

    pub(crate) fn is_observed(&self) -> bool {
        self.limits.watched.is_for(OBSERVED)
    }

    /// A charge was refused here lately, or a charge waits for room: no stock below opens.
    pub(crate) fn is_tight(&self) -> bool {
        // Mutation: a-line-does-not-keep-stocks-closed
        self.limits.tight.load(Ordering::Relaxed) || self.limits.watched.is_for(WAITING)
    }

    pub(crate) fn usage(&self) -> u64 {
        // SeqCst (E4, E23): a thread that compares it with a limit or a mark reads it after the fence of that edge.
        self.usage.units.load(Ordering::SeqCst).max(0).cast_unsigned()
    }

    /// Units that a charge can add before one of the levels cannot count them.
    pub(crate) fn countable(&self) -> u64 {
        self.path_to_root().map(|level| USAGE_MAX - level.usage()).min().unwrap_or(USAGE_MAX)
    }

    /// The least max of the levels above. A max that is only observed refuses no charge.
    pub(crate) fn effective_max(&self) -> u64 {
        self.path_to_root().filter(|level| !level.is_observed()).map(Counter::max).min().unwrap_or(u64::MAX)
    }

    /// Units that each level has room for, credit in stocks taken for used.
    pub(crate) fn headroom(&self) -> u64 {
        self.path_to_root().map(|level| level.room(level.admits())).min().unwrap_or(USAGE_MAX)
    }

    /// Units above max: no charge puts them there but a forced one, or a max that was set below usage.
    pub(crate) fn forced(&self) -> u64 {
        self.usage().saturating_sub(self.max())
    }

    pub(crate) fn forced_total(&self) -> u64 {
        self.limits.forced_total.load(Ordering::Relaxed)
    }
}
