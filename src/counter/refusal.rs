//! The refusal of a level that has no room: it also says if the charge must first drain credit.
//!
//! Edges: E10 (open count), E48 (a stock is uncounted/a refusal looks at its bound).

use crate::counter::object::Counter;
use crate::counter::open_count::OpenCount;
use crate::counter::watch::WAITING;
use crate::error::{CounterChargeError, USAGE_MAX};
use crate::sync::Ordering;

pub(crate) struct LevelRefusal<'a> {
    pub(crate) level: &'a Counter,
    /// `LimitWords::open` as the thread read it before the usage that it refused by.
    pub(crate) open: OpenCount,
    pub(crate) usage: u64,
    pub(crate) max: u64,
    /// Charges waited in line there as the level refused.
    pub(crate) is_behind: bool,
}

impl LevelRefusal<'_> {
    /// Finds the max that explains the refusal. A level without a max refuses only what it cannot
    /// count; then this is the nearest max above.
    pub(crate) fn limited(self) -> Self {
        // A refusal is read by people: one that names a level without a max would say nothing that
        // they can change.
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
        // The same count, and not only zero twice: a stock that has opened and closed in between
        // had credit for a while, and the count's other half tells that.
        // Acquire (E10): pairs with `OpenStocks::add_one` and `remove_one`.
        // Mutation: e10-refused-without-a-second-look
        // Mutation: e10-refusal-trusts-one-zero
        !self.open.is_any() && self.level.limits.open.load(Ordering::Acquire) == self.open
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
        // What does not fit into usage at all is not forced either, whoever drains.
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

impl Counter {
    /// The refusal by what the thread has read.
    pub(super) fn refusal(&self, open: OpenCount, usage: i64, max: u64) -> LevelRefusal<'_> {
        // Mutation: refusal-tells-a-later-max
        LevelRefusal {
            level: self,
            open,
            usage: usage.max(0).cast_unsigned(),
            max,
            is_behind: self.limits.watched.is_for(WAITING),
        }
    }

    /// A refusal for a charge that has not read usage before.
    pub(crate) fn refusal_now(&self) -> LevelRefusal<'_> {
        // Acquire (E10): as in `take`.
        let open = self.limits.open.load(Ordering::Acquire);
        let usage = self.usage.units.load(Ordering::Acquire);
        self.refusal(open, usage, self.limits.max.load(Ordering::Acquire))
    }
}
