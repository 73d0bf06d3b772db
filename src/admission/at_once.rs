//! A charge that never blocks: it tries once. Where it does not fit it may start what would make room.

use crate::admission::attempt::{ChargeFailure, ChargeResult, Pending, fits_ever};
use crate::admission::steps::try_with;
use crate::counter::cover;
use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::hierarchy::importance;
use crate::pressure::high::{is_any_above, levels_that_delay};
use crate::pressure::{started, victims};
use crate::reclaim::repeat::may_call_out;
use crate::reclaim::{self, registrations};
use crate::thread::slot::Consume;

/// Work that another thread does for a charge that does not fit, or that is above a high.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Starts {
    Nothing,
    Reclaim,
}

/// Makes a charge that did not hit the stock, with this thread's own credit and that of central stocks at most. A refusal
/// counts no event: the listeners of events are foreign code. The thread that is started counts them.
pub(crate) fn charge(group: &Counter, bytes: u64, missed: Consume, starts: Starts) -> ChargeResult<'_> {
    let starts = starts == Starts::Reclaim && may_call_out();
    match try_with(group, bytes, missed, Counter::try_charge_now_slow) {
        Ok(walked) => {
            if starts && is_any_above(group, walked) {
                levels_that_delay(group).for_each(|level| started::shrink_to_high(level, importance::of(group)));
            }
            Ok(walked)
        }
        Err(ChargeFailure::Refused { refusal, counted, .. }) => {
            refusal.level.count_refusal();
            let may_come = may_come(bytes, &refusal);
            if starts && may_come {
                let level = refusal.level;
                start(group, level, cover::rise_at(group, bytes, level));
            }
            Err(ChargeFailure::Refused { refusal, counted, pending: may_come.then_some(Pending::Unasked) })
        }
        Err(failure) => Err(failure),
    }
}

/// Makes a charge that did not hit the stock, as [`charge`]. A refusal counts nothing: the caller's next step does.
pub(crate) fn charge_uncounted(group: &Counter, bytes: u64, missed: Consume) -> Option<u64> {
    try_with(group, bytes, missed, Counter::try_charge_now_slow).ok()
}

/// Reclaimers that have threads of their own begin; the rest is left to the thread of the tree.
fn start(group: &Counter, level: &Counter, bytes: u64) {
    let missing = bytes.saturating_sub(level.room(level.admits()));
    let promised = registrations::any_below(level) && reclaim::start::begin(level, missing);
    started::make_room(level, bytes, importance::of(group), promised);
}

/// True if a charge that may block could find more room: credit in stocks, a reclaimer to ask, a victim.
fn may_come(bytes: u64, refusal: &LevelRefusal<'_>) -> bool {
    let level = refusal.level;
    fits_ever(bytes, refusal)
        && (!refusal.without_credit() || registrations::any_below(level) || victims::chooses(level))
}
