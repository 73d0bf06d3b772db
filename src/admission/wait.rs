//! In line: until the wait is decided or time is over, with reclaimers asked again from time to time.

use std::ptr;
use std::time::{Duration, Instant};

use crate::admission::attempt::{ChargeFailure, ChargeResult, fits_ever};
use crate::counter::cover;
use crate::counter::object::{Counter, Kept};
use crate::counter::refusal::LevelRefusal;
use crate::hierarchy::group_tree;
use crate::pressure::line::Ticket;
use crate::pressure::stalls::Stall;
use crate::pressure::victims;
use crate::pressure::wakers::{park_until, parked_waker};
use crate::reclaim::repeat::{deadline, earlier, may_call_out};
use crate::reclaim::round::Request;
use crate::reclaim::{registrations, round};
use crate::state::reclaimer::ReclaimCause;
use crate::state::waiting::Decision;
use crate::sync::is_over;

/// Period in which a charge looks whether a victim has more to give.
const LOOK: Duration = Duration::from_millis(5);

/// Period in which a charge in line has reclaimers asked again.
const ASK_AGAIN_MIN: Duration = Duration::from_millis(10);
const ASK_AGAIN_MAX: Duration = Duration::from_secs(1);

/// True if a charge may wait in line. Inside reclaim none may: it could wait for what its own thread is to free.
pub(super) fn may_wait(bytes: u64, refusal: &LevelRefusal<'_>) -> bool {
    may_call_out() && fits_ever(bytes, refusal) && refusal.level.is_memory()
}

/// The decision as the result of an attempt for `bytes`. `counted`: the failure is counted already.
pub(super) fn decided(group: &Counter, decision: Decision, bytes: u64, counted: bool) -> ChargeResult<'_> {
    let now = |level: Kept| group.level(&level).refusal_now();
    match decision {
        Decision::Granted => Ok(bytes),
        Decision::Full(level) => Err(ChargeFailure::Refused { refusal: now(level), counted, pending: None }),
        Decision::Deadlock(level) => Err(ChargeFailure::Deadlock { refusal: now(level), counted }),
        Decision::Offline => Err(ChargeFailure::Offline),
        Decision::Cancelled => Err(ChargeFailure::Cancelled),
    }
}

/// Waits in line until a charge of the group is decided. `Err`: time is over; the level in whose line the charge was.
pub(super) fn wait_in_line(
    group: &Counter,
    mut ticket: Ticket,
    bytes: u64,
    until: Option<Instant>,
) -> Result<Decision, Kept> {
    let waker = parked_waker();
    let mut asked = ticket.level();
    let mut stall = None;
    loop {
        let level = match ticket.poll(&waker) {
            Ok(decision) => return Ok(decision),
            Err(level) => level,
        };
        if until.is_some_and(is_over) {
            return ticket.leave().ok_or(level);
        }
        // A reclaimer that had nothing to give when this charge came may have something by now, and there may be a new
        // one; and in another line no reclaimer has been asked.
        let now = Instant::now();
        match &mut stall {
            None => stall = Stall::begin(group, &level, now),
            Some(stall) => stall.moves_to(&level),
        }
        let time = if registrations::any_below(&level) { ask_again_after(&level) } else { ASK_AGAIN_MAX };
        let again = if ptr::eq(&*asked, &*level) { now + time } else { now };
        park_until(Some(until.map_or(again, |until| until.min(again))));
        if is_over(again) && !ticket.is_decided() {
            asked = level;
            ask_reclaimers((group, bytes), &level, until, true);
        }
    }
}

/// Waits in line while a victim is about to give memory back, as long as the caller goes on.
pub(super) fn wait_for_victim(ticket: &mut Ticket, until: Instant, goes_on: impl Fn() -> bool) -> Option<Decision> {
    let waker = parked_waker();
    loop {
        if let Ok(decision) = ticket.poll(&waker) {
            return Some(decision);
        }
        if is_over(until) || !goes_on() {
            return None;
        }
        // No waker is called when there is no more to come.
        park_until(Some(until.min(Instant::now() + LOOK)));
    }
}

/// Runs one round of reclaim for a charge in line. The round waits for those of other threads or does not. True: the
/// round freed nothing, and has not waited for others that may free something.
pub(super) fn ask_reclaimers(
    (group, bytes): (&Counter, u64),
    level: &Counter,
    until: Option<Instant>,
    waits: bool,
) -> bool {
    if !registrations::any_below(level) {
        return false;
    }
    let end = earlier(deadline(level), until);
    let mut request = Request::new(ReclaimCause::Full, end).waits(waits).ends_with(group, victims::ends(group));
    let adds = cover::rise_at(group, bytes, level);
    let round = round::run(level, adds.saturating_sub(level.room(level.admits())), &mut request);
    round.is_some_and(|round| round.unwaited)
}

/// When a charge in line has reclaimers asked again.
pub(super) fn ask_again_after(level: &Counter) -> Duration {
    group_tree::of(level).settings.reclaim_time.clamp(ASK_AGAIN_MIN, ASK_AGAIN_MAX)
}
