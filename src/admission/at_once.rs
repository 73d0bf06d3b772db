//! A charge that never blocks: it tries once. Where it does not fit it may start what would make
//! room.

use crate::admission::attempt::{ChargeFailure, ChargeResult, Pending, RefusalKind, fits_ever};
use crate::admission::steps::try_with;
use crate::counter::cover;
use crate::counter::object::Counter;
use crate::hierarchy::importance;
use crate::pressure::high::{is_any_above, levels_that_delay};
use crate::pressure::{started, victims};
use crate::reclaim::repeat::may_call_out;
use crate::reclaim::{self, registrations};
use crate::thread::slot::Consume;

/// Makes a charge that did not hit the stock, with this thread's own credit and that of central
/// stocks at most. If it `starts` work, another thread makes room for a charge that does not fit,
/// or takes what is above a high. A refusal counts no event: the listeners of events are foreign
/// code. The thread that is started counts them.
pub(crate) fn charge(
    group: &Counter,
    bytes: u64,
    missed: Consume,
    starts: bool,
) -> ChargeResult<'_> {
    let starts = starts && may_call_out();
    match try_with(group, bytes, missed, Counter::try_charge_now_slow) {
        Ok(walked) => {
            if starts && is_any_above(group, walked) {
                levels_that_delay(group)
                    .for_each(|level| started::shrink_to_high(level, importance::of(group)));
            }
            Ok(walked)
        }
        Err(ChargeFailure::Refused {
            refusal, counted, ..
        }) => {
            refusal.level.count_refusal();
            let level = refusal.level;
            // A charge that may block could find more room: credit in stocks, a reclaimer to ask, a
            // victim.
            let may_come = fits_ever(group, bytes)
                && (!refusal.without_credit()
                    || registrations::any_below(level)
                    || victims::chooses(level));
            if starts && may_come {
                // Reclaimers that have threads of their own begin; the rest is left to the thread
                // of the tree.
                let adds = cover::rise_at(group, bytes, level);
                let missing = adds.saturating_sub(level.room(level.admits()));
                let promised =
                    registrations::any_below(level) && reclaim::start::begin(level, missing);
                started::make_room(level, adds, importance::of(group), promised);
            }
            let kind = RefusalKind::Full(may_come.then_some(Pending::Memory));
            Err(ChargeFailure::Refused {
                refusal,
                counted,
                kind,
            })
        }
        Err(failure) => Err(failure),
    }
}
