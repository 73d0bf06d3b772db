//! One victim after another, for a charge that does not fit.

use crate::admission::attempt::{
    Attempt, ChargeFailure, Efforts, Pending, Progress, Terms, fits_ever,
};
use crate::counter::cover;
use crate::counter::refusal::LevelRefusal;
use crate::hierarchy::{events, group_tree, importance};
use crate::pressure::victims::{self, Choice, Want};
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
    efforts: &mut Efforts,
) -> Progress<'a> {
    let terms = attempt.terms();
    let level = refusal.level;
    let &Terms {
        group,
        bytes,
        adds,
        may_block,
        end,
        ..
    } = terms;
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
    let adds = if adds > 0 {
        cover::rise_at(group, adds, level).max(1)
    } else {
        0
    };
    let importance = importance::of(group);
    let may_come = efforts.may_come;
    let want = Want {
        asker: Some(group),
        importance,
        bytes,
        adds,
        may_come,
    };
    let mut turn = None;
    while terms.may_cancel() {
        let (until, awaited) = match victims::choose(level, &want, &mut efforts.excluded) {
            Choice::NoCandidate => break,
            Choice::Asker => return Progress::Break(Err(ChargeFailure::Cancelled)),
            // Charges in line before this one may take the room that there is. That is no reason to
            // refuse this one.
            Choice::Room => {
                let time = group_tree::shared(tree).settings.oom_time.min(TIME_MAX);
                let turn = *turn.get_or_insert_with(|| clock::now() + time);
                if is_over(turn) {
                    break;
                }
                (turn, None)
            }
            Choice::Awaited(victim) => (victim.until, Some(victim)),
            Choice::Victim(mut chosen) => {
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
                if chosen.victim.includes(group) {
                    return Progress::Break(Err(ChargeFailure::Cancelled));
                }
                (chosen.victim.until, Some(chosen.victim))
            }
        };
        if !may_block {
            efforts.pending = Some(Pending::Memory);
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
    if terms.is_in_line() {
        return Progress::Continue(refusal);
    }
    // The level that refuses may be another one by now.
    attempt.charge()
}
