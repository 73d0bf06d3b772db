//! Charges above high: reclaim first, then a delay.

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::counter::object::Counter;
use crate::counter::thresholds;
use crate::hierarchy::events;
use crate::pressure::high::{
    DELAY_MIN, LOOK, above, delay_of, drain_credit, drain_excess, is_any_above, is_delayed,
    levels_above, levels_that_delay,
};
use crate::pressure::stalls::Stall;
use crate::pressure::victims::{self, has_ended};
use crate::reclaim::repeat::{ROUNDS_MAX, deadline, deadline_from, may_call_out, shrink, spare};
use crate::reclaim::round::{ReclaimRequest, TIME_MAX};
use crate::reclaim::{registrations, round};
use crate::state::events::Event;
use crate::state::reclaimer::ReclaimCause;
use crate::sync::clock;
use crate::sync::{is_over, sleep};

/// Bytes to reclaim at a time, at least: the kernel's SWAP_CLUSTER_MAX.
const RECLAIM_MIN: u64 = 32 * 4096;

/// After a charge that took `bytes` up the tree: reclaim where a level is above its high, whichever
/// charge put it there. The reclaim waits for the rounds of other threads or does not. Returns the
/// delay that remains, to `end` at most, where the caller's time is over. Inside another slow path
/// the events are all: the charge that it is part of is delayed.
#[inline]
pub(crate) fn delay_after(
    group: &Counter,
    bytes: u64,
    waits: bool,
    end: Option<Instant>,
) -> Duration {
    if is_any_above(group, bytes) {
        throttle(group, bytes, waits, end)
    } else {
        Duration::ZERO
    }
}

/// [`delay_after`], and sleep the delay.
#[inline]
pub(crate) fn sleep_after(group: &Counter, bytes: u64, end: Option<Instant>) {
    let delay = delay_after(group, bytes, true, end);
    if !delay.is_zero() {
        sleep_slow(group, delay);
    }
}

#[cold]
fn throttle(group: &Counter, bytes: u64, waits: bool, end: Option<Instant>) -> Duration {
    // Credit may be all that is above. Nobody is delayed for that, and no event is counted.
    if may_call_out() {
        levels_above(group).for_each(drain_excess);
    }
    levels_above(group).for_each(|level| events::count(level, Event::High));
    // Inside a reclaimer or a listener a thread neither asks reclaimers nor sleeps: what it waits
    // for may be what it holds itself. The event is counted all the same.
    if !may_call_out() || end.is_some_and(is_over) {
        return Duration::ZERO;
    }
    let mut request = None;
    let mut fruitless = 0;
    let mut stall = None;
    loop {
        let mut asked = false;
        let mut freed = 0;
        // Collected first: reclaimers run inside the loop, and move what is above which high.
        for level in levels_that_delay(group).collect::<SmallVec<[&Counter; 4]>>() {
            if !registrations::any_below(level) {
                continue;
            }
            // Freed bytes are to show in usage, and not in a stock.
            level.tree().close_below(level);
            let above = above(level);
            // Not all that is above in one go: each charge above high gives back about as much as
            // it took, as in the kernel, so that one charge does not pay for all.
            let want = above.min(bytes.max(RECLAIM_MIN)) + spare(level, thresholds::high(level));
            // The drain has shown that only credit was above.
            if above == 0 {
                continue;
            }
            let request = request.get_or_insert_with(|| {
                let begun = clock::now();
                stall = stand_still(group, begun);
                ReclaimRequest::new(ReclaimCause::High, deadline_from(group, begun))
                    .until(end)
                    .waits(waits)
                    .ends_with(group, victims::ends(group))
            });
            if let Some(round) = round::run(level, want, request) {
                asked = true;
                freed += round.report.freed;
            }
        }
        let delay = delay_of(group, bytes);
        // A sleep that short would mostly be the system's own time to wake the thread.
        if delay <= DELAY_MIN {
            return Duration::ZERO;
        }
        // A round that frees nothing may still have been in time for others. After some of these
        // the charge takes its delay: reclaim that goes on without result would be a delay of its
        // own, and not bounded by `delay_max`.
        fruitless += usize::from(freed == 0);
        if !asked || fruitless > ROUNDS_MAX || request.as_ref().is_some_and(ReclaimRequest::is_over)
        {
            return end.map_or(delay, |end| {
                delay.min(end.saturating_duration_since(clock::now()))
            });
        }
    }
}

/// From now on a charger of the group is delayed: since an instant that this thread has read just
/// before. The caller keeps the group.
pub(super) fn stand_still(group: &Counter, since: Instant) -> Option<Stall> {
    Stall::begin(group, levels_that_delay(group).last()?, since)
}

#[cold]
fn sleep_slow(group: &Counter, delay: Duration) {
    let now = clock::now();
    let _stall = stand_still(group, now);
    let until = now + delay.min(TIME_MAX);
    // In short sleeps: nobody wakes the thread when the group has ended or is below its high again.
    while !has_ended(group) && !is_over(until) && is_delayed(group) {
        sleep(LOOK.min(until.saturating_duration_since(clock::now())));
        // What comes back while it sleeps may lie in a stock, and would keep it asleep.
        drain_credit(group);
    }
}

/// The delay of a charge of `bytes` as things stand. Credit that may be all that is above a high is
/// drained first.
pub(crate) fn delay_now(group: &Counter, bytes: u64) -> Duration {
    if may_call_out() {
        levels_above(group).for_each(drain_excess);
    }
    delay_of(group, bytes)
}

/// Called when `high` drops below usage: drains and reclaims the excess, as far as reclaimers give
/// it. No `low` of a group above that importance is broken for it.
pub(crate) fn shrink_to_high(level: &Counter, importance: u8) {
    if above(level) > 0 && !level.is_observed() && may_call_out() {
        level.tree().close_below(level);
        let mut request =
            ReclaimRequest::new(ReclaimCause::High, deadline(level)).breaks_low(Some(importance));
        shrink(level, &mut request, || above(level));
        // Bytes that came back may be credit of this thread.
        level.tree().close_below(level);
    }
}
