//! One victim after another, for a charge that does not fit.

use crate::admission::attempt::{
    Attempt, AttemptTerms, ChargeFailure, EffortsSoFar, PendingMemory, Progress, fits_ever,
};
use crate::counter::cover;
use crate::counter::refusal::LevelRefusal;
use crate::hierarchy::{events, group_tree, importance};
use crate::pressure::victims::{self, VictimChoice, VictimRequest};
use crate::reclaim::repeat::may_call_out;
use crate::reclaim::round::{TIME_MAX, earlier};
use crate::state::events::Event;
use crate::sync::clock;
use crate::sync::is_over;

/// Cancels one victim after another, where the refusing level chooses, until the charge fits or no
/// candidate is left.
pub(super) fn cancel_for<'a>(
    attempt: &impl Attempt<'a>,
    refusal: LevelRefusal<'a>,
    efforts: &mut EffortsSoFar,
) -> Progress<'a> {
    let terms = attempt.terms();
    let level = refusal.level;
    let &AttemptTerms {
        group,
        bytes,
        adds,
        may_block,
        end,
        ..
    } = terms;
    // No group gives its memory up for a charge that would not fit into an empty tree, nor for one
    // that has no time left. Inside reclaim no hook may run: the victim might wait for this thread.
    if !fits_ever(group, bytes)
        || !may_call_out()
        || !terms.may_cancel()
        || !victims::chooses(level)
    {
        return Progress::Continue(refusal);
    }
    if !std::mem::replace(&mut efforts.counted, true) {
        events::count(level, Event::Oom);
    }
    let tree = level.tree();
    // In a group that covers, a part of the bytes may be paid for already. At least one is missing,
    // or the level would not have refused.
    let adds = if adds > 0 {
        cover::rise_at(group, adds, level).max(1)
    } else {
        0
    };
    let importance = importance::of(group);
    let may_come = efforts.may_come;
    let want = VictimRequest {
        asker: Some(group),
        importance,
        bytes,
        adds,
        may_come,
    };
    let mut turn = None;
    while terms.may_cancel() {
        let (until, awaited) = match victims::choose(level, &want, &mut efforts.excluded) {
            VictimChoice::NoCandidate => break,
            // This group is the least important one: nobody gives memory up for it.
            VictimChoice::Asker => return Progress::Break(Err(ChargeFailure::Cancelled)),
            // Charges in line before this one may take the room that there is. That is no reason to
            // refuse this one.
            VictimChoice::Room => {
                let time = group_tree::shared(tree).settings.oom_time.min(TIME_MAX);
                let turn = *turn.get_or_insert_with(|| clock::now() + time);
                if is_over(turn) {
                    break;
                }
                (turn, None)
            }
            // Another thread has cancelled a group here that has not given its memory back yet. To
            // cancel a second one for the same shortage would be one too many.
            VictimChoice::Awaited(victim) => (victim.until, Some(victim)),
            VictimChoice::Victim(mut chosen) => {
                // A thread may have made this charge in line meanwhile.
                if let Some(ended) = terms.ended() {
                    chosen.spare();
                    return Progress::Break(ended);
                }
                // The choice has run foreign code, or waited.
                if !terms.may_cancel() {
                    chosen.spare();
                    break;
                }
                efforts.stand_still(group, level, None);
                chosen.cancel();
                // The victim's whole subtree goes, and this charge with it.
                if chosen.victim.includes(group) {
                    return Progress::Break(Err(ChargeFailure::Cancelled));
                }
                (chosen.victim.until, Some(chosen.victim))
            }
        };
        // The thread drives futures, and the victim's task may be one of them: to wait here could
        // keep it from ending.
        if !may_block {
            efforts.pending = Some(PendingMemory::Memory);
            return attempt.charge();
        }
        efforts.stand_still(group, level, None);
        let until = earlier(until, end);
        let more = || {
            awaited
                .as_ref()
                .is_none_or(|victim| victims::is_awaited(tree, victim))
        };
        // Mutation: a-victims-memory-is-not-waited-for
        if let Some(ended) = attempt.wait(level, until, &more) {
            return Progress::Break(ended);
        }
    }
    if let Some(ended) = terms.leave() {
        return Progress::Break(ended);
    }
    // It stays in line, and is made there.
    if terms.is_in_line() {
        return Progress::Continue(refusal);
    }
    // The level that refuses may be another one by now.
    attempt.charge()
}
