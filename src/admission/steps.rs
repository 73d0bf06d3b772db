//! The steps of a charge in their order: the first try; after a refusal reclaim and victims, then
//! the line.

use std::ptr;

use crate::admission::attempt::{
    Attempt, AttemptTerms, ChargeFailure, ChargeResult, EffortsSoFar, Progress, RefusalKind,
};
use crate::admission::cancelling::cancel_for;
use crate::admission::plain::WaitFor;
use crate::admission::rounds::reclaim_for;
use crate::admission::wait::{InLine, LineTime, may_wait};
use crate::counter::handle::Handle;
use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::hierarchy::events;
use crate::pressure::{line, victims};
use crate::reclaim::repeat::ROUNDS_MAX;
use crate::state::events::Event;
use crate::state::waiting::PlaceHolder;
use crate::thread::slot::Consume;

/// Makes a charge that did not hit the stock. A charge of 0 bytes takes a handle. The caller sleeps
/// the delay.
#[inline]
pub(crate) fn charge(
    group: &Counter,
    bytes: u64,
    missed: Consume,
    wait_for: WaitFor,
) -> ChargeResult<'_> {
    try_once(group, bytes, missed)
        .or_else(|failure| charge_refused(group, bytes, wait_for, failure))
}

/// Makes a charge that did not hit, for a caller that asks for less if it is refused: such a
/// refusal counts as none. It does not wait in line.
pub(crate) fn charge_spare(
    group: &Counter,
    bytes: u64,
    missed: Consume,
    wait_for: WaitFor,
) -> Option<u64> {
    try_once(group, bytes, missed)
        .or_else(|failure| go_on(&AttemptTerms::plain(group, bytes, wait_for), failure))
        .ok()
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
    let plain = AttemptTerms::plain(group, bytes, wait_for);
    match (go_on(&plain, failure), wait_for) {
        (
            Err(ChargeFailure::Refused {
                refusal,
                counted,
                kind: RefusalKind::Full(_),
            }),
            WaitFor::Until(time),
        ) if may_wait(group, bytes, &refusal) => {
            let level = refusal.level;
            InLine::begin(plain.into_line(level), level, counted, time).wait(group)
        }
        (ended, WaitFor::Until(_)) => name_what_is_in_the_way(group, bytes, ended),
        (ended, _) => ended.map_err(ChargeFailure::count),
    }
}

/// A charge that would wait is refused: where a max can never admit it, that one is named, and not
/// the level that was full.
fn name_what_is_in_the_way<'a>(
    group: &'a Counter,
    bytes: u64,
    ended: ChargeResult<'a>,
) -> ChargeResult<'a> {
    ended.map_err(|mut failure| {
        if let ChargeFailure::Refused {
            refusal,
            kind: RefusalKind::Full(pending),
            ..
        } = &mut failure
            && let Some((level, max)) = line::in_the_way(group, bytes)
        {
            // Whatever is about to give memory back, none of it is for this charge: nobody is to
            // try again for it.
            *pending = None;
            // Where the max of the level that has refused is too small, too, that one stays named.
            if bytes <= refusal.level.admits() {
                *refusal = LevelRefusal {
                    max,
                    ..level.refusal_now()
                };
            }
        }
        failure.count()
    })
}

/// What the first poll of a future has come to. Its charge may be made by then, so an end is no
/// error, which a `?` would hand on together with the charge.
pub(crate) enum FirstPoll<'a> {
    InLine(InLine),
    Ended(ChargeResult<'a>),
}

/// The first poll of a future that misses. It drains as a charge does, and waits for no other
/// thread; reclaimers and victims are left to a thread of the tree, and the charge waits in line
/// meanwhile.
pub(crate) fn begin<'a>(
    group: &'a Counter,
    bytes: u64,
    missed: Consume,
    time: LineTime,
    holder: PlaceHolder,
) -> FirstPoll<'a> {
    let refusal = match try_once(group, bytes, missed) {
        Err(ChargeFailure::Refused { refusal, .. }) => refusal,
        ended => return FirstPoll::Ended(ended),
    };
    let level = refusal.level;
    events::count(level, Event::Max);
    if !may_wait(group, bytes, &refusal) {
        let refused = Err(ChargeFailure::refused(refusal));
        return FirstPoll::Ended(name_what_is_in_the_way(group, bytes, refused));
    }
    let chooses = victims::chooses(level);
    // A group that is to give its memory back gets no more.
    if chooses && victims::is_cancelled(group) {
        return FirstPoll::Ended(Err(ChargeFailure::Cancelled));
    }
    // The thread that chooses a victim counts the event. For a charge without time none chooses.
    let counted = chooses && !time.is_zero();
    let ticket = line::enqueue(group, bytes, level, holder, None);
    let in_line = InLine::begin(ticket, level, counted, time);
    in_line.has_room_made();
    FirstPoll::InLine(in_line)
}

/// The first try, with which most charges end.
#[inline]
pub(super) fn try_once(group: &Counter, bytes: u64, missed: Consume) -> ChargeResult<'_> {
    try_with(group, bytes, missed, Counter::try_charge_once_slow)
}

/// The first try, by `charge`.
#[inline]
pub(crate) fn try_with<'a>(
    group: &'a Counter,
    bytes: u64,
    missed: Consume,
    charge: impl FnOnce(&'a Counter, u64, Consume) -> Result<u64, LevelRefusal<'a>>,
) -> ChargeResult<'a> {
    if group.state().is_offline() {
        // The hit may have taken credit just before it missed.
        group.undo_slow(bytes, missed);
        return Err(ChargeFailure::Offline);
    }
    // No byte keeps the group's object, so a handle does.
    if bytes == 0 {
        Handle::pin(group).into_raw();
        return Ok(0);
    }
    charge(group, bytes, missed).map_err(ChargeFailure::refused)
}

/// A place before less important charges, reclaim and victims, where the first try was refused.
pub(super) fn go_on<'a>(plain: &AttemptTerms<'a>, failure: ChargeFailure<'a>) -> ChargeResult<'a> {
    match failure {
        ChargeFailure::Refused { refusal, .. } => match plain.go_first(refusal) {
            Progress::Break(ended) => ended,
            Progress::Continue(refusal) => reclaim_and_retry(plain, refusal),
        },
        failure => Err(failure),
    }
}

/// Reclaims below the level that refused while reclaimers free anything, then cancels groups there.
/// It does the same at another level, where that one refuses then. Foreign code runs on this
/// thread, which holds no lock of this crate.
#[cold]
pub(super) fn reclaim_and_retry<'a>(
    attempt: &impl Attempt<'a>,
    refusal: LevelRefusal<'a>,
) -> ChargeResult<'a> {
    let mut efforts = EffortsSoFar::default();
    match make_room(attempt, refusal, &mut efforts) {
        Progress::Break(ended) => ended,
        Progress::Continue(refusal) => {
            let kind = RefusalKind::Full(efforts.pending);
            Err(ChargeFailure::Refused {
                refusal,
                counted: efforts.counted,
                kind,
            })
        }
    }
}

fn make_room<'a>(
    attempt: &impl Attempt<'a>,
    mut refusal: LevelRefusal<'a>,
    efforts: &mut EffortsSoFar,
) -> Progress<'a> {
    // A level that has room again may let the charge up to another one that has none. Levels that
    // refuse in turn could go on for ever where others charge, too.
    for _ in 0..ROUNDS_MAX {
        efforts.pending = None;
        refusal = reclaim_for(attempt, refusal, efforts)?;
        let level = refusal.level;
        refusal = cancel_for(attempt, refusal, efforts)?;
        if ptr::eq(refusal.level, level) || attempt.terms().is_in_line() {
            break;
        }
    }
    Progress::Continue(refusal)
}
