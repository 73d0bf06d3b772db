//! Moving a charge to another group: a charge of the levels below the first common ancestor.

use std::cell::Cell;
use std::ptr;
use std::time::Instant;

use crate::admission::attempt::{Attempt, AttemptTerms, ChargeFailure, ChargeResult, Progress};
use crate::admission::steps::reclaim_and_retry;
use crate::counter::cover;
use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::counter::transfer::{self, TakenBytes};
use crate::sync::{is_over, pause};

/// A charge of the levels from the new group up to the common ancestor, which has the bytes
/// already.
struct TransferBelow<'a> {
    terms: AttemptTerms<'a>,
    from: &'a Counter,
    common: &'a Counter,
    taken: Cell<TakenBytes>,
}

impl<'a> TransferBelow<'a> {
    fn charge_below(&self) -> Result<u64, LevelRefusal<'a>> {
        let taken =
            transfer::transfer_in(self.terms.group, self.terms.bytes, self.from, self.common)?;
        self.taken.set(taken);
        Ok(0)
    }
}

impl<'a> Attempt<'a> for TransferBelow<'a> {
    fn terms(&self) -> &AttemptTerms<'a> {
        &self.terms
    }

    /// Charges nothing that a delay above a high would be for: at the levels that both groups
    /// share, usage stays as it is.
    fn charge(&self) -> Progress<'a> {
        match self.charge_below() {
            Ok(walked) => Progress::Break(Ok(walked)),
            Err(refusal) => Progress::Continue(refusal),
        }
    }

    /// Looks again and again, outside of the line: whoever serves that charges whole paths, up to
    /// the root.
    fn wait(
        &self,
        level: &'a Counter,
        until: Instant,
        more: &dyn Fn() -> bool,
    ) -> Option<ChargeResult<'a>> {
        while !is_over(until) && more() {
            // A look at one level is cheaper than a walk that is refused.
            let needs = cover::rise_at(self.terms.group, self.terms.bytes, level);
            if (ptr::eq(level, self.common) || level.room(level.admits()) >= needs)
                && self.charge_below().is_ok()
            {
                return Some(Ok(0));
            }
            pause();
        }
        None
    }
}

/// Moves `bytes` from a counter to the same counter of another group of its tree. `common` is the
/// first ancestor of both.
pub(crate) fn move_charge<'a>(
    (from, to, common): (&'a Counter, &'a Counter, &'a Counter),
    bytes: u64,
) -> Result<(), ChargeFailure<'a>> {
    // New bytes do not go where a group is about to end.
    // Mutation: a-charge-moves-to-where-a-group-has-ended
    if to.state().is_offline() {
        return Err(ChargeFailure::Offline);
    }
    if bytes > 0 {
        let attempt = TransferBelow {
            terms: AttemptTerms::new(to, bytes, true),
            from,
            common,
            taken: Cell::default(),
        };
        let charged = attempt
            .charge_below()
            .or_else(|refusal| reclaim_and_retry(&attempt, refusal));
        charged.map_err(ChargeFailure::count)?;
        // The new side is charged before the old one is given back, so that no level shows less
        // than is live. Below the common ancestor both show the bytes for a moment.
        // Mutation: transfer-leaves-the-old-side-charged
        transfer::transfer_out(from, bytes, common, attempt.taken.get());
    }
    Ok(())
}

/// The same between counters that do not cover, whatever the limits are, and also to a group that
/// is offline.
pub(crate) fn move_by_force((from, to, common): (&Counter, &Counter, &Counter), bytes: u64) {
    if bytes > 0 {
        let taken = transfer::transfer_in_by_force(to, bytes, common);
        transfer::transfer_out(from, bytes, common, taken);
    }
}
