//! Usage above a max that was lowered, or that acts again: reclaim, then victims.

use crate::counter::handle::Handle;
use crate::counter::links::pin_below;
use crate::counter::object::Counter;
use crate::hierarchy::{events, limits};
use crate::pressure::victims::{self, ExcludedVictims, VictimChoice, VictimRequest};
use crate::pressure::{line, throttle};
use crate::reclaim::repeat::{self, deadline, may_call_out};
use crate::reclaim::round::ReclaimRequest;
use crate::state::events::Event;
use crate::state::limits::LimitKind;
use crate::state::reclaimer::ReclaimCause;
use crate::sync::pause;
use crate::units::Limit;

/// The max of `group` was set, and percentages below have followed. Returns the bytes that stay
/// above its max.
pub(crate) fn shrink_to_max(group: &Counter) -> u64 {
    let mut request = ReclaimRequest::new(ReclaimCause::Lowered, deadline(group));
    // A percentage is of the max above, so those below have fallen with it. They come first: what
    // they give back is no longer above the max of the group itself.
    if limits::any_percent(group.tree()) {
        let follows =
            |below: &Counter, kind| matches!(limits::set_to(below, kind), Limit::Percent(_));
        for below in pin_below(group).iter().skip(1) {
            if follows(below, LimitKind::Max) {
                let may_come = reclaim_excess(below, &mut request);
                cancel_excess(below, may_come);
            }
            // Mutation: a-high-that-follows-asks-nobody
            if follows(below, LimitKind::High) {
                throttle::shrink_to_high(below, u8::MAX);
            }
        }
    }
    let may_come = reclaim_excess(group, &mut request);
    // Mutation: the-excess-is-told-before-it-goes
    cancel_excess(group, may_come)
}

/// The max of `group` was set, and percentages below have followed: the waits that can never be
/// served any more end.
pub(crate) fn end_vain_waits(group: &Counter) {
    line::end_vain_waits(group);
    if group.is_memory() && limits::any_percent(group.tree()) {
        let follows =
            |below: &&Handle| matches!(limits::set_to(below, LimitKind::Max), Limit::Percent(_));
        for below in pin_below(group).iter().skip(1).filter(follows) {
            line::end_vain_waits(below);
        }
    }
}

/// The limits of `group` and of all groups below act again after they were only observed.
pub(crate) fn shrink_all(group: &Counter) {
    let mut request = ReclaimRequest::new(ReclaimCause::Lowered, deadline(group));
    let groups = pin_below(group);
    groups.iter().for_each(|group| line::end_vain_waits(group));
    // From below, as in `shrink_to_max`.
    for group in groups[1..].iter().map(|below| &**below).chain([group]) {
        reclaim_excess(group, &mut request);
    }
}

/// Reclaims what is above a max, as long as reclaimers free something. A max that is only observed
/// asks no group. Returns what may still come.
fn reclaim_excess(group: &Counter, request: &mut ReclaimRequest<'_>) -> u64 {
    if group.is_observed() {
        0
    } else {
        repeat::shrink(group, request, || group.forced())
    }
}

/// Cancels one victim after another while usage is above a max. Returns the bytes that remain above
/// it.
fn cancel_excess(group: &Counter, may_come: u64) -> u64 {
    let goes_on = || group.forced() > 0 && !group.state().is_offline() && may_call_out();
    if group.is_observed() || !goes_on() || !victims::chooses(group) {
        return group.forced();
    }
    events::count(group, Event::Oom);
    let mut excluded = ExcludedVictims::default();
    while goes_on() {
        let want = VictimRequest {
            asker: None,
            importance: u8::MAX,
            bytes: group.forced(),
            adds: 0,
            may_come,
        };
        let victim = match victims::choose(group, &want, &mut excluded) {
            VictimChoice::NoCandidate | VictimChoice::Asker | VictimChoice::Room => break,
            VictimChoice::Awaited(victim) => victim,
            VictimChoice::Victim(mut chosen) => {
                // The choice has run foreign code, or waited.
                if !goes_on() {
                    chosen.spare();
                    break;
                }
                chosen.cancel();
                chosen.victim
            }
        };
        // Its memory comes back as its tasks end. A second victim before that might be one too
        // many.
        while group.forced() > 0
            && !group.state().is_offline()
            && victims::is_awaited(group.tree(), &victim)
        {
            pause();
        }
    }
    group.forced()
}
