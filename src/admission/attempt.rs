//! What happens before a group says no: reclaim, a charge again, somebody else's memory.

use std::ptr;
use std::time::Instant;

use crate::counter::object::{Counter, USAGE_MAX};
use crate::counter::refusal::Refusal as NodeRefusal;
use crate::group::error::ChargeError;
use crate::group::refused;
use crate::pressure::victims::{Choice, Excluded};
use crate::reclaim::round::{Promises, Request, TIME_MAX};
use crate::reclaim::{ReclaimCause, registrations, round};
use crate::state::events::Event;
use crate::sync::{is_over, pause};
use crate::thread::{context, slow_path};

/// Rounds of reclaim for one charge, or one max: the kernel's MAX_RECLAIM_RETRIES.
pub(crate) const ROUNDS_MAX: usize = 16;

/// Rounds that free this part of what is wanted count this part: what came may have gone to others.
const MUCH: usize = 16;

/// What one charge reclaims at least, where so much is wanted soon anyway: this share of the max, as a shift.
const WANT_SHIFT: u32 = 8;

/// What is reclaimed beyond what is missing below `limit`, so that the next charges need no reclaim.
pub(crate) fn spare(level: &Counter, limit: u64) -> u64 {
    (level.batch() / 2).min(limit >> WANT_SHIFT)
}

/// A charge that did not fit and is excluded again.
pub(crate) trait Attempt {
    /// Who is charged.
    fn node(&self) -> &'static Counter;

    fn bytes(&self) -> u64;

    fn charge(&self) -> Result<(), NodeRefusal<'static>>;

    /// Waits until it fits at `level`, until then at most, and as long as there is more to come. `None`: it has not,
    /// and may have a place in line yet.
    fn wait(
        &self,
        level: &'static Counter,
        until: Instant,
        more: &dyn Fn() -> bool,
    ) -> Option<Result<(), ChargeFailure>>;

    /// Gives its place in line up. What was decided in time holds.
    fn leave(&self) -> Option<Result<(), ChargeFailure>> {
        None
    }

    /// How it ended, if it has a place in line and was decided.
    fn ended(&self) -> Option<Result<(), ChargeFailure>> {
        None
    }

    /// It has a place in line, and keeps it: nobody charges it any other way.
    fn is_in_line(&self) -> bool {
        false
    }

    /// Whether the thread may wait for others: for victims, promises, and rounds of reclaim on other threads.
    fn may_block(&self) -> bool {
        true
    }

    /// Whether others may be cancelled for it, and there is time for that.
    fn may_cancel(&self) -> bool {
        true
    }
}

/// Who is about to give memory back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pending {
    /// A victim, or a reclaimer that has promised: whoever stands in line gets it.
    Promised,
    /// A round of reclaim on another thread, which may come to nothing.
    Round,
}

/// Why a charge is not made.
pub(crate) enum ChargeFailure {
    Refused {
        refusal: NodeRefusal<'static>,
        /// [`Event::Oom`] has been counted for it.
        counted: bool,
        /// Who is about to give memory back there, where the attempt waits for nobody.
        pending: Option<Pending>,
    },
    /// The group went offline meanwhile, perhaps by a reclaimer.
    Offline,
    /// The group was chosen to give its memory back.
    Cancelled,
}

/// This thread may call foreign code: it neither is in reclaim nor has an allocator of ours on its stack.
pub(crate) fn may_call_out() -> bool {
    !context::in_reclaim() && !slow_path::is_running()
}

pub(crate) fn deadline(node: &Counter) -> Instant {
    Instant::now() + node.tree().reclaim.time.min(TIME_MAX)
}

/// An event outside of any slow path: whoever waits for it is told at once.
pub(crate) fn note(level: &Counter, event: Event) {
    crate::hierarchy::events::count_and_notify(level, event);
}

/// A charge that was refused, after a drain: reclaim below the level that refused, and once more, as long as somebody
/// frees something; then whoever can be cancelled there. The same at another level, where that one refuses then.
/// Foreign code runs, on this thread, which holds no lock of ours.
#[cold]
pub(crate) fn reclaim_and_retry(
    attempt: &impl Attempt,
    mut refusal: NodeRefusal<'static>,
) -> Result<(), ChargeFailure> {
    let mut pressing = Pressing::default();
    for _ in 0..ROUNDS_MAX {
        pressing.pending = None;
        refusal = match reclaim_for(attempt, refusal, &mut pressing) {
            Ok(ended) => return ended,
            Err(refusal) => refusal,
        };
        let level = refusal.level;
        refusal = match cancel_others(attempt, refusal, &mut pressing) {
            Ok(ended) => return ended,
            Err(refusal) => refusal,
        };
        if ptr::eq(refusal.level, level) || attempt.is_in_line() {
            break;
        }
    }
    Err(ChargeFailure::Refused { refusal, counted: pressing.counted, pending: pressing.pending })
}

/// What has been done for one charge.
#[derive(Default)]
struct Pressing {
    /// [`Event::Oom`] has been counted.
    counted: bool,
    /// See [`ChargeFailure::Refused`].
    pending: Option<Pending>,
    excluded: Excluded,
}

/// How it ended, or who refuses now.
type Pressed = Result<Result<(), ChargeFailure>, NodeRefusal<'static>>;

fn reclaim_for(attempt: &impl Attempt, mut refusal: NodeRefusal<'static>, pressing: &mut Pressing) -> Pressed {
    let (node, requested) = (attempt.node(), attempt.bytes());
    let mut request: Option<Request> = None;
    let (mut rounds, mut want) = (0, 0);
    while rounds < ROUNDS_MAX * MUCH {
        let level = refusal.level.header.node();
        note(level, Event::Max);
        if !may_ask(level, requested, &refusal) || request.as_ref().is_some_and(Request::is_over) {
            break;
        }
        let new = || Request::new(ReclaimCause::Full, deadline(level)).waits(attempt.may_block());
        let request = request.get_or_insert_with(new);
        // What came once and went to others has to come again, for this charge as a whole.
        let short = wanted(level, requested, &refusal);
        want = if want == 0 { short } else { short.max(requested) };
        match one_round(attempt, request, level, want, &refusal) {
            RoundOutcome::Enough => rounds += 1,
            RoundOutcome::Little => rounds += MUCH,
            RoundOutcome::Nothing => break,
            RoundOutcome::Pending(pending) => {
                pressing.pending = Some(pending);
                break;
            }
        }
        if node.state().is_offline() {
            return Ok(Err(ChargeFailure::Offline));
        }
        refusal = match attempt.charge() {
            Ok(()) => return Ok(Ok(())),
            Err(again) => again,
        };
    }
    Err(refusal)
}

/// Where the refusing level chooses: one victim after another, until the charge fits or nobody is left.
fn cancel_others(attempt: &impl Attempt, refusal: NodeRefusal<'static>, pressing: &mut Pressing) -> Pressed {
    let (node, level) = (attempt.node(), refusal.level.header.node());
    if !fits_ever(attempt.bytes(), &refusal) || !may_call_out() || !attempt.may_cancel() || !level.chooses() {
        return Err(refusal);
    }
    if !std::mem::replace(&mut pressing.counted, true) {
        note(level, Event::Oom);
    }
    let mut turn = None;
    while attempt.may_cancel() {
        let (until, awaited) = match level.tree().choose(level, Some(node), attempt.bytes(), &mut pressing.excluded) {
            Choice::Unsettled => {
                level.tree().settle_victims();
                continue;
            }
            Choice::Nobody => break,
            Choice::Asker => return Ok(Err(ChargeFailure::Cancelled)),
            // Others may be in line for the room that there is: this one is behind them, and that is no reason to
            // refuse it.
            Choice::Room => {
                let time = level.tree().reclaim.oom_time.min(TIME_MAX);
                let turn = *turn.get_or_insert_with(|| Instant::now() + time);
                if is_over(turn) {
                    break;
                }
                (turn, None)
            }
            Choice::Awaited(awaited) => (awaited.until, Some(awaited)),
            Choice::Victim(mut victim) => {
                // What there was may be this charge's by now.
                if let Some(ended) = attempt.ended() {
                    victim.spare();
                    return Ok(ended);
                }
                victim.cancel();
                if victim.includes(node) {
                    return Ok(Err(ChargeFailure::Cancelled));
                }
                (victim.awaited.until, Some(victim.awaited))
            }
        };
        if !attempt.may_block() {
            pressing.pending = Some(Pending::Promised);
            return attempt.charge().map(Ok);
        }
        if let Some(ended) = attempt.wait(level, until, &|| awaited.is_none_or(|victim| level.tree().awaits(victim))) {
            return Ok(ended);
        }
    }
    if let Some(ended) = attempt.leave() {
        return Ok(ended);
    }
    if attempt.is_in_line() {
        return Err(refusal);
    }
    // Perhaps it is another level by now, that nobody has asked for anything.
    attempt.charge().map(Ok)
}

impl ChargeFailure {
    /// What the caller is told, and the events tell.
    pub(crate) fn into_error(self, node: &'static Counter, requested: u64) -> ChargeError {
        let group = || crate::group::Group::pinned(node.first());
        match self {
            ChargeFailure::Refused { refusal, counted, pending } => {
                let refusal = refuse(node, requested, &refusal, counted);
                match pending {
                    _ if context::in_reclaim() => ChargeError::InReclaim(refusal),
                    Some(_) => ChargeError::WouldBlock(refusal),
                    None => refusal.into(),
                }
            }
            ChargeFailure::Offline => ChargeError::Offline { group: group(), requested },
            ChargeFailure::Cancelled => ChargeError::Cancelled { group: group(), requested },
        }
    }
}

/// A refusal is final: counted, with handles of its own.
pub(crate) fn refuse(
    node: &'static Counter,
    requested: u64,
    refusal: &NodeRefusal<'_>,
    counted: bool,
) -> crate::group::Refusal {
    refusal.level.count_refusal();
    // Inside reclaim nobody was asked, so it says nothing about what others hold.
    if !counted && !context::in_reclaim() {
        note(refusal.level, Event::Oom);
    }
    refused(node, requested, refusal)
}

/// Nobody gives anything for what can never fit, at the level that refused or further up.
pub(crate) fn fits_ever(requested: u64, refusal: &NodeRefusal<'_>) -> bool {
    requested <= refusal.max.min(USAGE_MAX).saturating_sub(refusal.reserve)
        && refusal.level.path_to_root().all(|level| requested <= level.admits())
}

/// CounterDecl counters have nobody to ask.
fn may_ask(level: &Counter, requested: u64, refusal: &NodeRefusal<'_>) -> bool {
    fits_ever(requested, refusal) && may_call_out() && level.is_memory() && registrations::any_below(level)
}

/// What a round for a charge came to.
enum RoundOutcome {
    /// A good part of what is wanted, a promise that was waited for, or something for other threads, which was waited
    /// for: charge again.
    Enough,
    /// Little. Charge again, but not as often.
    Little,
    /// No use to charge again.
    Nothing,
    /// Others are about to free something, and the attempt does not wait for them.
    Pending(Pending),
}

/// One round for a charge.
fn one_round(
    attempt: &impl Attempt,
    request: &mut Request,
    level: &'static Counter,
    want: u64,
    refusal: &NodeRefusal<'_>,
) -> RoundOutcome {
    let Some(round) = round::run(level, want, request) else { return RoundOutcome::Nothing };
    if round.others || round.report.freed > want / MUCH as u64 {
        return RoundOutcome::Enough;
    }
    if round.report.freed > 0 {
        return RoundOutcome::Little;
    }
    if round.unwaited {
        return RoundOutcome::Pending(Pending::Round);
    }
    if request.promises == Promises::Lapse || round.owing.is_empty() {
        return RoundOutcome::Nothing;
    }
    if !attempt.may_block() {
        return RoundOutcome::Pending(Pending::Promised);
    }
    // It is on its way; others do not pay for it, unless it takes too long. No spinning: who has promised needs the
    // processor.
    let fits = || level.room(refusal.max.saturating_sub(refusal.reserve)) >= attempt.bytes();
    while round.owing.is_open() && !fits() && !is_over(request.deadline) {
        pause();
    }
    if is_over(request.deadline) {
        (request.deadline, request.promises) = (deadline(level), Promises::Lapse);
    }
    RoundOutcome::Enough
}

/// What is missing, or somewhat more, so that the next charges need no reclaim.
fn wanted(level: &Counter, requested: u64, refusal: &NodeRefusal<'_>) -> u64 {
    let most = refusal.max.saturating_sub(refusal.reserve);
    let spare = spare(level, refusal.max);
    // Who is first in line comes before.
    let ahead = refusal.ahead.saturating_add(requested);
    refusal.usage.saturating_add(ahead).saturating_sub(most).max(spare)
}
