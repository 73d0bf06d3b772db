//! Reclaim that reclaimers begin by themselves, on threads of their own, for a charge that never
//! blocks.
//!
//! The charge looks at the groups with reclaimers below the level that has refused it, in the order
//! of their rings. It takes no turn: a turn is for a call that frees. It passes over what is
//! protected, what is spared, and what owes memory already, and counts what is owed. What promises
//! do not cover is left to the thread of the tree.

use smallvec::SmallVec;

use crate::counter::effective::views;
use crate::counter::handle::{Handle, WeakCounter};
use crate::counter::object::Counter;
use crate::counter::protection::Protection;
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::{events, group_tree};
use crate::reclaim::repeat::deadline;
use crate::reclaim::turns::WITH_RECLAIMERS_MAX;
use crate::reclaim::{registrations, rings, watch};
use crate::state::events::Event;
use crate::state::history::ReclaimerStanding;
use crate::state::reclaim::NO_RING;
use crate::state::reclaimer::{ReclaimCause, ReclaimContext, ReclaimPass, Reclaimer};
use crate::thread::context;

/// Has reclaimers below `level` begin to free `want` bytes. Returns whether what they have promised
/// covers them. The thread [may call out](crate::reclaim::repeat::may_call_out).
pub(crate) fn begin(level: &Counter, want: u64) -> bool {
    let owed = context::in_hook(|| {
        let mut owed: u64 = 0;
        for (group, ring) in groups_below(level) {
            // Also for groups that are asked for nothing more: the handle is given up with the
            // value.
            let group = Handle::adopt(group.object);
            if owed < want {
                owed = owed.saturating_add(begin_in(level, &group, ring, want - owed));
            }
        }
        owed
    });
    want > 0 && owed.is_some_and(|owed| owed >= want)
}

/// Returns the groups with reclaimers at and below `level`, with a handle each, which the caller
/// adopts.
fn groups_below(level: &Counter) -> SmallVec<[(WeakCounter, u32); WITH_RECLAIMERS_MAX]> {
    let ring = rings::number(level);
    if ring == NO_RING {
        return SmallVec::new();
    }
    let _path = SlowPath::enter();
    rings::lock(level.tree()).with_reclaimers(ring)
}

/// Has the reclaimers of one group begin, where they owe nothing yet. Returns what they owe by
/// then.
fn begin_in(level: &Counter, group: &Counter, ring: u32, want: u64) -> u64 {
    let patience = group_tree::of(level).settings.reclaim_time;
    let kinds = [Protection::Min, Protection::Low];
    let protected =
        views(group, level).map_or([0; 2], |views| kinds.map(|kind| views.protected(kind)));
    // What neither min nor low covers may be asked for, and no more than is wanted.
    let mut open = group
        .usage()
        .saturating_sub(protected[0].max(protected[1]))
        .min(want);
    let mut owed: u64 = 0;
    for reclaimer in registrations::listed(level.tree(), ring) {
        let standing = reclaimer
            .history
            .standing_before_start(group.usage(), patience);
        // One that owes memory already is not asked twice for it; what it owes counts all the same.
        // One that is spared is left alone.
        if standing == ReclaimerStanding::Ready && open > 0 {
            call(level, group, &reclaimer, open);
        }
        if matches!(standing, ReclaimerStanding::Ready | ReclaimerStanding::Owes) {
            let more = reclaimer.history.owed();
            owed = owed.saturating_add(more);
            open = open.saturating_sub(more);
        }
        registrations::drop_last(group, reclaimer);
    }
    owed
}

fn call(level: &Counter, group: &Counter, reclaimer: &Reclaimer, want: u64) {
    let context = ReclaimContext {
        group,
        target: level,
        cause: ReclaimCause::Full,
        pass: ReclaimPass::Unprotected,
        deadline: deadline(level),
        want,
        usage: group.usage(),
        history: &reclaimer.history,
    };
    if watch::during(group, || reclaimer.start(want, &context)).is_err() {
        events::count(group, Event::Panic);
    }
}
