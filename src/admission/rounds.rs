//! Rounds of reclaim below the level that refused, and a charge after each.

use std::ops::ControlFlow;

use crate::admission::attempt::{
    Attempt, AttemptTerms, ChargeFailure, EffortsSoFar, PendingMemory, Progress, fits_ever,
};
use crate::counter::cover;
use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::hierarchy::events;
use crate::pressure::line;
use crate::pressure::victims;
use crate::reclaim::repeat::{ROUNDS_MAX, deadline, deadline_from, may_call_out, spare};
use crate::reclaim::round::{ReclaimRequest, earlier, owed};
use crate::reclaim::{registrations, round};
use crate::state::events::Event;
use crate::state::reclaimer::ReclaimCause;
use crate::sync::clock;
use crate::sync::{is_over, pause};

/// A round that frees at most a sixteenth of what is wanted counts as a whole round. One that frees
/// more counts a sixteenth of a round: other charges may have taken what came, and a charge should
/// not be refused for that while reclaimers give plenty.
const MUCH: usize = 16;

/// Reclaims and charges again, as long as reclaimers free anything.
pub(super) fn reclaim_for<'a>(
    attempt: &impl Attempt<'a>,
    mut refusal: LevelRefusal<'a>,
    efforts: &mut EffortsSoFar,
) -> Progress<'a> {
    let &AttemptTerms {
        group,
        bytes,
        may_block,
        end,
        ..
    } = attempt.terms();
    let mut request: Option<ReclaimRequest<'_>> = None;
    let mut rounds = 0;
    let mut want = 0;
    efforts.may_come = 0;
    while rounds < ROUNDS_MAX * MUCH {
        let level = refusal.level;
        events::count(level, Event::Max);
        // Another level may refuse by now than at first, with or without reclaimers below.
        // Mutation: who-waits-for-nothing-asks-nobody
        if !may_ask(group, level, bytes) {
            efforts.may_come = 0;
            break;
        }
        if request.as_ref().is_some_and(ReclaimRequest::is_over) {
            break;
        }
        let mut since = None;
        let new = || {
            let begun = *since.insert(clock::now());
            ReclaimRequest::new(ReclaimCause::Full, deadline_from(level, begun))
                .until(end)
                .waits(may_block)
                .ends_with(group, victims::ends(group))
        };
        let request = request.get_or_insert_with(new);
        // The first round asks for what is missing. If the charge did not get it although it was
        // freed, other charges took it, and as much has to be freed again.
        let short = missing(
            (group, level),
            cover::rise_at(group, bytes, level),
            &refusal,
        );
        want = if want == 0 { short } else { short.max(bytes) };
        efforts.stand_still(group, level, since);
        // If the loop ends now, it ends for time or rounds.
        efforts.may_come = u64::MAX;
        match one_round(attempt.terms(), request, level, want, &refusal) {
            ControlFlow::Continue(part) => rounds += part,
            ControlFlow::Break((pending, owed)) => {
                let ended_early = pending.is_none() && request.is_over();
                efforts.pending = pending;
                efforts.may_come = if ended_early { u64::MAX } else { owed };
                break;
            }
        }
        if request.has_ended() {
            // The group stays offline, so what has ended it is no cancellation.
            let failure = if group.state().is_offline() {
                ChargeFailure::Offline
            } else {
                ChargeFailure::Cancelled
            };
            return Progress::Break(Err(failure));
        }
        refusal = attempt.charge()?;
    }
    Progress::Continue(refusal)
}

/// True if there is any use in reclaim: the charge would fit into an empty tree, this thread is not
/// in reclaim itself, and somebody has registered. Further counters have no reclaimers.
fn may_ask(group: &Counter, level: &Counter, bytes: u64) -> bool {
    fits_ever(group, bytes)
        && may_call_out()
        && level.is_memory()
        && registrations::any_below(level)
}

/// `Continue`: charge again; the round counts so many parts of [`MUCH`]. `Break`: there is no use,
/// for so many bytes are promised and have not come in time, or others are about to free something
/// and the attempt does not wait for them.
fn one_round(
    terms: &AttemptTerms,
    request: &mut ReclaimRequest,
    level: &Counter,
    want: u64,
    refusal: &LevelRefusal<'_>,
) -> ControlFlow<(Option<PendingMemory>, u64), usize> {
    let used = level.usage();
    let Some(round) = round::run(level, want, request) else {
        return ControlFlow::Break((None, 0));
    };
    // A good part of what is wanted, or something for other threads.
    if round.others || round.report.freed > want / MUCH as u64 {
        return ControlFlow::Continue(1);
    }
    if round.report.freed > 0 {
        return ControlFlow::Continue(MUCH);
    }
    // Another thread runs a round here, and this attempt waits for none.
    if round.unwaited {
        return ControlFlow::Break((Some(PendingMemory::Round), u64::MAX));
    }
    let promised = owed(&round.owing);
    // Nothing came, and nobody has promised any, or promises were waited for in vain once before.
    if request.lapsed || round.owing.is_empty() {
        return ControlFlow::Break((None, promised));
    }
    if !terms.may_block {
        return ControlFlow::Break((Some(PendingMemory::Memory), promised));
    }
    // The promised memory is on its way: unless it takes too long no other group gives any. The
    // thread does not spin, because the reclaimer that has promised needs the processor.
    let fits = || level.room(refusal.max) >= cover::rise_at(terms.group, terms.bytes, level);
    while owed(&round.owing) > 0 && !fits() && !is_over(request.deadline) && !request.has_ended() {
        pause();
    }
    // The promise was not kept in time. Others are asked now, with a time of their own, and no
    // promise is waited for a second time.
    if is_over(request.deadline) {
        request.deadline = earlier(deadline(level), terms.end);
        request.lapsed = true;
    }
    // A report is no proof: a promise that is kept by word alone counts as a round that brought
    // little.
    let came = fits() || level.usage() < used;
    ControlFlow::Continue(if came { 1 } else { MUCH })
}

/// Bytes that are missing, or somewhat more, so that the next charges need no reclaim.
fn missing((group, level): (&Counter, &Counter), bytes: u64, refusal: &LevelRefusal<'_>) -> u64 {
    let spare = spare(level, refusal.max);
    // The first in line gets what is freed before this charge does.
    let ahead = line::ahead_of(group, level).saturating_add(bytes);
    refusal
        .usage
        .saturating_add(ahead)
        .saturating_sub(refusal.max)
        .max(spare)
}
