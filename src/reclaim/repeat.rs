//! Round after round: how many, for how long, and how much beyond what is missing.

use std::time::{Duration, Instant};

use crate::counter::object::Counter;
use crate::hierarchy::group_tree;
use crate::reclaim::registrations;
use crate::reclaim::round::{self, ReclaimReport, ReclaimRequest, TIME_MAX, owed};
use crate::state::reclaimer::ReclaimCause;
use crate::sync::clock;
use crate::thread::context;
use crate::thread::slow_path::is_running;

/// Rounds of reclaim for one charge, or one max: the kernel's MAX_RECLAIM_RETRIES.
pub(crate) const ROUNDS_MAX: usize = 16;

/// Period in which reclaimers are asked again for a charge in line.
const ASK_AGAIN_MIN: Duration = Duration::from_millis(10);
pub(crate) const ASK_AGAIN_MAX: Duration = Duration::from_secs(1);

/// The most that one charge reclaims beyond what is missing: this part of the limit, as a shift.
const WANT_SHIFT: u32 = 8;

/// Bytes to reclaim beyond what is missing below `limit`, so that the next charges need no reclaim:
/// half a batch, or less where the limit is small.
pub(crate) fn spare(level: &Counter, limit: u64) -> u64 {
    (level.batch() / 2).min(limit >> WANT_SHIFT)
}

/// True if this thread may call reclaimers: it is not inside one, for reclaim does not nest, and it
/// is in no slow path, where an allocator that charges would find it.
pub(crate) fn may_call_out() -> bool {
    !context::in_reclaim() && !is_running()
}

/// Returns when reclaim for one charge ends, if it begins now.
pub(crate) fn deadline(level: &Counter) -> Instant {
    deadline_from(level, clock::now())
}

pub(crate) fn deadline_from(level: &Counter, begun: Instant) -> Instant {
    begun + group_tree::of(level).settings.reclaim_time.min(TIME_MAX)
}

/// Returns after which time reclaimers are asked again for a charge in line. They are asked by the
/// charge itself, or, for a task, by a thread of the tree.
pub(crate) fn ask_again_after(level: &Counter) -> Duration {
    group_tree::of(level)
        .settings
        .reclaim_time
        .clamp(ASK_AGAIN_MIN, ASK_AGAIN_MAX)
}

/// Runs rounds of reclaim for what `excess` says is too much, as long as anything comes. Returns
/// what may still come: the bytes that are promised, or `u64::MAX` where time or rounds ended it,
/// so that nothing is known.
pub(crate) fn shrink(
    level: &Counter,
    request: &mut ReclaimRequest<'_>,
    excess: impl Fn() -> u64,
) -> u64 {
    // Mutation: each-round-asks-for-the-first-excess
    for _ in 0..ROUNDS_MAX {
        if excess() == 0 || !may_call_out() || !registrations::any_below(level) {
            return 0;
        }
        match round::run(level, excess(), request) {
            // It brought something, here or for other threads: the next round may bring more.
            Some(round) if round.report.freed > 0 || round.others => {}
            // There was time, and nothing came: only what is promised is still to come.
            Some(round) if !request.is_over() => return owed(&round.owing),
            Some(_) => break,
            None => return 0,
        }
    }
    u64::MAX
}

/// Runs rounds of reclaim for `bytes` that are wanted before they are needed, as long as anything
/// comes. `None`: this thread may not call foreign code.
pub(crate) fn reclaim_now(target: &Counter, bytes: u64) -> Option<ReclaimReport> {
    if !may_call_out() {
        return None;
    }
    // What reclaimers free goes up the tree at once then, and the round sees it. In an open stock
    // it would stay hidden as credit.
    target.tree().close_below(target);
    let mut total = ReclaimReport {
        requested: bytes,
        ..ReclaimReport::default()
    };
    let mut request = ReclaimRequest::new(ReclaimCause::Asked, deadline(target));
    for _ in 0..ROUNDS_MAX {
        // What is promised is on its way, and is not asked for a second time.
        let left = bytes
            .saturating_sub(total.freed)
            .saturating_sub(total.pending);
        if !registrations::any_below(target) {
            break;
        }
        let Some(round) = round::run(target, left, &mut request) else {
            break;
        };
        total.add(&round.report);
        // Nothing has come, nothing is promised, and other threads got nothing, either: a further
        // round would find the same.
        if round.report.freed == 0 && round.report.pending == 0 && !round.others {
            break;
        }
    }
    Some(total)
}
