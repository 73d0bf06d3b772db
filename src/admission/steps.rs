//! The steps of a charge in their order: the first try; after a refusal reclaim and victims, then the line.

use std::ptr;

use crate::admission::attempt::{Attempt, ChargeFailure, ChargeResult, Efforts, Progress};
use crate::admission::cancelling::cancel_for;
use crate::admission::plain::{Plain, WaitFor};
use crate::admission::rounds::reclaim_for;
use crate::admission::wait::{decided, may_wait, wait_in_line};
use crate::counter::handle::Handle;
use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::reclaim::repeat::ROUNDS_MAX;
use crate::thread::slot::Consume;

/// Makes a charge that did not hit the stock. A charge of 0 bytes takes a handle. The caller sleeps the delay.
#[inline]
pub(crate) fn charge(group: &Counter, bytes: u64, missed: Consume, wait_for: WaitFor) -> ChargeResult<'_> {
    try_once(group, bytes, missed).or_else(|failure| charge_refused(group, bytes, wait_for, failure))
}

/// After a refusal: reclaim, victims, the line.
#[cold]
#[inline(never)]
fn charge_refused<'a>(
    group: &'a Counter,
    bytes: u64,
    wait_for: WaitFor,
    failure: ChargeFailure<'a>,
) -> ChargeResult<'a> {
    let plain = Plain::new(group, bytes, wait_for);
    let (refusal, counted, time) = match (go_on(&plain, failure), wait_for) {
        (Err(ChargeFailure::Refused { refusal, counted, .. }), WaitFor::Until(time)) if may_wait(bytes, &refusal) => {
            (refusal, counted, time)
        }
        (ended, _) => return ended.map_err(ChargeFailure::count),
    };
    let ticket = plain.into_line(refusal.level);
    let ended = match wait_in_line(group, ticket, bytes, time.until) {
        Ok(decision) => decided(group, decision, bytes, counted),
        Err(level) => {
            let waited = time.begun.elapsed();
            Err(ChargeFailure::TimedOut { refusal: group.level(&level).refusal_now(), counted, waited })
        }
    };
    ended.map_err(ChargeFailure::count)
}

/// The first try, with which most charges end.
#[inline]
pub(super) fn try_once(group: &Counter, bytes: u64, missed: Consume) -> ChargeResult<'_> {
    try_with(group, bytes, missed, Counter::try_charge_once_slow)
}

/// The first try, by `charge`.
#[inline]
pub(super) fn try_with<'a>(
    group: &'a Counter,
    bytes: u64,
    missed: Consume,
    charge: impl FnOnce(&'a Counter, u64, Consume) -> Result<u64, LevelRefusal<'a>>,
) -> ChargeResult<'a> {
    if group.state().is_offline() {
        group.undo_slow(bytes, missed);
        return Err(ChargeFailure::Offline);
    }
    if bytes == 0 {
        Handle::pin(group).into_raw();
        return Ok(0);
    }
    charge(group, bytes, missed).map_err(ChargeFailure::refused)
}

/// Asks reclaimers, cancels no group and counts no refusal: where the charge does not fit its caller forces it.
pub(crate) fn charge_without_victims(group: &Counter, bytes: u64, missed: Consume) -> ChargeResult<'_> {
    let mut plain = Plain::new(group, bytes, WaitFor::Others);
    plain.cancels = false;
    try_once(group, bytes, missed).or_else(|failure| go_on(&plain, failure))
}

/// A place before less important charges, reclaim and victims, where the first try was refused.
pub(super) fn go_on<'a>(plain: &Plain<'a>, failure: ChargeFailure<'a>) -> ChargeResult<'a> {
    match failure {
        ChargeFailure::Refused { refusal, .. } => match plain.go_first(refusal) {
            Progress::Ended(ended) => ended,
            Progress::Refused(refusal) => reclaim_and_retry(plain, refusal),
        },
        failure => Err(failure),
    }
}

/// Reclaims below the level that refused while reclaimers free anything, then cancels groups there. It does the same at
/// another level, where that one refuses then. Foreign code runs on this thread, which holds no lock of this crate.
#[cold]
pub(super) fn reclaim_and_retry<'a>(attempt: &impl Attempt<'a>, mut refusal: LevelRefusal<'a>) -> ChargeResult<'a> {
    let mut efforts = Efforts::default();
    for _ in 0..ROUNDS_MAX {
        efforts.pending = None;
        refusal = match reclaim_for(attempt, refusal, &mut efforts) {
            Progress::Ended(ended) => return ended,
            Progress::Refused(refusal) => refusal,
        };
        let level = refusal.level;
        refusal = match cancel_for(attempt, refusal, &mut efforts) {
            Progress::Ended(ended) => return ended,
            Progress::Refused(refusal) => refusal,
        };
        if ptr::eq(refusal.level, level) || attempt.is_in_line() {
            break;
        }
    }
    Err(ChargeFailure::Refused { refusal, counted: efforts.counted, pending: efforts.pending })
}
