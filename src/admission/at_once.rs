//! A charge that never blocks: it waits for no other charge, and no foreign code runs on its
//! thread. What it does where it does not fit is its [`AtOnceEffort`].
//!
//! It has no edge of its own: it is made of the steps that any charge takes before it asks
//! reclaimers. With [`AtOnceEffort::Drain`] it walks, drains below the level that has refused, and
//! walks again (`counter/at_limit.rs`), which is all that "never refused beside credit" needs: the
//! edges of that promise (E5, E10, E48) are those of a charge that may block. What follows a walk,
//! wakers and listeners, is left to the tree's threads (E25, E26).

use crate::admission::attempt::{
    ChargeFailure, ChargeResult, PendingMemory, RefusalKind, fits_ever,
};
use crate::admission::steps::try_with;
use crate::counter::cover;
use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::hierarchy::{events, importance};
use crate::pressure::high::{is_any_above, levels_that_delay};
use crate::pressure::{started, victims};
use crate::reclaim::repeat::may_call_out;
use crate::reclaim::{self, registrations};
use crate::state::events::Event;
use crate::thread::slot::Consume;

/// How far a charge that never blocks goes before it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtOnceEffort {
    /// It drains the credit below the level that refuses. Above a high, the thread of the tree
    /// reclaims what is above.
    Drain,
    /// It takes credit of this thread and of central stocks at most. Other threads begin to make
    /// room, and to reclaim what is above a high.
    Start,
    /// It takes the same credit, and starts nothing.
    Own,
}

/// Makes a charge that did not hit the stock. A refusal of memory counts no event, as in the
/// kernel; a thread that is started counts them. The caller runs it where no foreign code may run.
pub(crate) fn charge(
    group: &Counter,
    bytes: u64,
    missed: Consume,
    effort: AtOnceEffort,
) -> ChargeResult<'_> {
    match charge_spare(group, bytes, missed, effort) {
        Err(ChargeFailure::Refused {
            refusal, counted, ..
        }) => {
            refusal.level.count_refusal();
            // No call has more to try at a counter beside memory, so each counts its refusal.
            if !refusal.level.is_memory() {
                events::count(refusal.level, Event::Max);
            }
            let pending = make_room(group, bytes, &refusal, effort);
            Err(ChargeFailure::Refused {
                refusal,
                counted,
                kind: RefusalKind::Full(pending),
            })
        }
        ended => ended,
    }
}

/// The same for a caller that asks for less if it is refused: such a refusal counts as none, and
/// starts nothing.
pub(crate) fn charge_spare(
    group: &Counter,
    bytes: u64,
    missed: Consume,
    effort: AtOnceEffort,
) -> ChargeResult<'_> {
    let once = match effort {
        AtOnceEffort::Drain => Counter::try_charge_once_slow,
        AtOnceEffort::Start | AtOnceEffort::Own => Counter::try_charge_now_slow,
    };
    // It takes no place in line, not even before less important charges: whoever serves a line
    // wakes its waiters, which is foreign code.
    let walked = try_with(group, bytes, missed, once)?;
    // Left to another thread, which reclaims in the place of this one's delay.
    if effort != AtOnceEffort::Own && may_call_out() && is_any_above(group, walked) {
        levels_that_delay(group)
            .for_each(|level| started::shrink_to_high(level, importance::of(group)));
    }
    Ok(walked)
}

/// Says whether the same charge would find more if it were allowed to block: a reclaimer to ask, a
/// victim, credit in stocks that this one has not drained. The error tells its caller so. With
/// [`AtOnceEffort::Start`] it also has others begin to make room.
fn make_room(
    group: &Counter,
    bytes: u64,
    refusal: &LevelRefusal<'_>,
    effort: AtOnceEffort,
) -> Option<PendingMemory> {
    let level = refusal.level;
    let gives = level.is_memory() && (registrations::any_below(level) || victims::chooses(level));
    let may_come = fits_ever(group, bytes)
        && (gives || (effort != AtOnceEffort::Drain && !refusal.without_credit()));
    if !may_come {
        return None;
    }
    if effort == AtOnceEffort::Start && may_call_out() {
        // Reclaimers that have threads of their own begin; the rest is left to the thread of the
        // tree.
        let adds = cover::rise_at(group, bytes, level);
        let missing = adds.saturating_sub(level.room(level.admits()));
        let promised = registrations::any_below(level) && reclaim::start::begin(level, missing);
        started::make_room(level, adds, importance::of(group), promised);
    }
    Some(PendingMemory::Memory)
}
