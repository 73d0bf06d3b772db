//! The refusal of a level that has no room: it also says if the charge must first drain credit.
//!
//! Edges: E10 (open count), E48 (a stock is uncounted/a refusal looks at its bound).

use crate::counter::object::Counter;
use crate::error::{CounterChargeError, USAGE_MAX};
use crate::sync::Ordering;

pub(crate) struct LevelRefusal<'a> {
    pub(crate) level: &'a Counter,
    /// `LimitWords::open` as the thread read it before the usage that it refused by.
    pub(crate) open: u64,
    pub(crate) usage: u64,
    pub(crate) max: u64,
    /// Charges waited in line there as the level refused.
    pub(crate) is_behind: bool,
}

impl LevelRefusal<'_> {
    /// Find the max that explains the refusal. A level without a max refuses only what it cannot
    /// count; then this is the nearest max above.
    pub(crate) fn limited(self) -> Self {
        if self.max < USAGE_MAX {
            return self;
        }
        match self
            .level
            .path_to_root()
            .skip(1)
            .find(|level| level.max() < USAGE_MAX)
        {
            Some(level) => level.refusal_now(),
            None => self,
        }
    }

    /// No stock was open below the level from before the refusal until now, so there is no credit
    /// to drain.
    pub(crate) fn without_credit(&self) -> bool {
        // Acquire (E10): pairs with the exchanges in `Tree::open` and `uncount`.
        // Mutation: e10-refused-without-a-second-look
        // Mutation: e10-refusal-trusts-one-zero
        self.open & u64::from(u32::MAX) == 0
            && self.level.limits.open.load(Ordering::Acquire) == self.open
    }

    /// Even if all credit came back that may lie below the level, `n` would not fit: there is no
    /// use to drain.
    pub(crate) fn is_beyond_credit(&self, n: u64) -> bool {
        // Acquire (E48): the bound, then the count; pairs with `stocks::unreserve`. Where the count
        // is as before the refusal, the bound holds for the usage that refused.
        let bound = self.level.usage.bound.load(Ordering::Acquire);
        let after = self.usage.saturating_sub(bound).saturating_add(n);
        // Mutation: e48-bound-of-another-count
        after > self.max && self.level.limits.open.load(Ordering::Acquire) == self.open
    }

    /// A drain cannot make room for `n`, and no line of waiting charges has refused: a forced
    /// charge may go above max.
    pub(crate) fn is_for_good(&self, n: u64) -> bool {
        let after = self.usage.saturating_add(n);
        after > self.max && after <= USAGE_MAX && self.without_credit()
    }

    /// The published bound on the credit in the usage that refused. It is read later than usage, so
    /// it may have risen above it: a part is never shown as more than the whole.
    pub(crate) fn stocked_bound(&self) -> u64 {
        self.level.bound().min(self.usage)
    }

    pub(crate) fn refused(&self, requester: &Counter, requested: u64) -> CounterChargeError {
        CounterChargeError {
            level: self.level.incarnation().id,
            requester: requester.incarnation().id,
            requested,
            usage: self.usage,
            max: self.max,
            stocked_bound: self.stocked_bound(),
        }
    }
}
