//! How much may go before a charge that waits: the budgets of a line.
//!
//! A line that let no other charge pass would hold up small ones behind a large one with room free;
//! one that let all pass would starve the large one. So what passes is counted in bytes, in five
//! words:
//!
//! | word | of | bytes | who takes from it |
//! |---|---|---|---|
//! | `Waiter::budget` | a waiter | may yet *barge* past it, in whatever line it is; at first as many as it asks for | what the level has counted, by [`count_barged`](Waiting::count_barged) |
//! | `FirstInLine::budget` | a level | the same while the waiter is the first there, or its part of the oldest's patience if that is less | walks without a lock, by [`may_barge`] |
//! | `Line::shown` | a level | the last value of that word that was counted | the difference is what has barged since |
//! | `Waiter::patience` | a waiter | more important charges may yet take before it while it is the oldest: [`PATIENCE`] times what it asks for | waiters that pass it, and what barges past those |
//! | `FirstInLine::bytes` | a level | what the first one asks for: no budget grows beyond it | |
//!
//! A walk holds no lock, so it takes from the level's word alone, and puts its part back where it is
//! refused further up. The lines' lock covers the other four: whoever takes it brings them up to date
//! with what the walks have taken before it decides by them.

use crate::counter::object::Counter;
use crate::counter::watch::WAITING;
use crate::hierarchy::group_object;
use crate::state::waiting::{FirstInLine, PlaceInLine, Waiting};
use crate::thread::context;

/// More important charges take so many times the bytes that the oldest in line asks for, before it
/// goes first.
pub(super) const PATIENCE: u64 = 16;

pub(super) fn first(of: &Counter) -> &FirstInLine {
    &group_object::state(of).first_in_line
}

/// True if a charge of `n` may be admitted here before the first in line. A waiter that comes
/// before the first one barges past none, in whatever line it is: else two of them could send it to
/// and fro. All other charges together may take as many bytes as the first one asks for. Inside
/// reclaim always: what it frees may be what the first waits for.
pub(crate) fn may_barge(level: &Counter, n: u64) -> bool {
    is_before_the_first(level)
        || context::in_reclaim()
        || first(level).change_budget(|left| left.checked_sub(n))
}

/// This thread charges for a waiter whose place is that of the first in line here, or before it.
/// Under the lock, if so.
fn is_before_the_first(level: &Counter) -> bool {
    context::is_no_later_than(first(level).place().number())
}

/// A charge of `n` that may have barged here was refused further up. If another waiter is first by
/// now, so much more may barge past that one, but never more than it asks for at a time.
pub(crate) fn undo_barge(level: &Counter, n: u64) {
    let barged = !is_before_the_first(level) && !context::in_reclaim();
    // Where nobody waits any more, the next that does brings a budget of its own.
    if barged && level.limits.watched.is_for(WAITING) {
        let first = first(level);
        first.change_budget(|left| Some(left.saturating_add(n).min(first.bytes())));
    }
}

/// A queue has served its waiter by bytes of its own side, so the first in line is another one, at
/// the same place: others may barge past that one anew.
pub(super) fn renew(place: &FirstInLine, bytes: u64) {
    if place.budget() < bytes {
        place.change_budget(|left| Some(left.saturating_add(bytes).min(place.bytes())));
    }
}

impl Waiting {
    /// Accounts for the part of the barging budget that walks have spent at the level, of which
    /// `left` remains. Bytes that have barged past one that goes before the oldest for its importance
    /// have passed the oldest, too.
    pub(super) fn count_barged(&mut self, level: &Counter, left: u64) {
        let Some(line) = self.lines.get_mut(&level.key()) else {
            return;
        };
        let place = line.first;
        let shown = std::mem::replace(&mut line.shown, left);
        let barged = shown.saturating_sub(left);
        // More than was shown is left where charges that were refused further up have put their
        // part back.
        if let Some(waiter) = self.waiters.get_mut(&place.ticket()) {
            let budget = waiter
                .budget
                .saturating_sub(barged)
                .saturating_add(left.saturating_sub(shown));
            waiter.budget = budget.min(waiter.bytes);
        }
        if let Some(oldest) = self.passed_by(place, level)
            && let Some(passed) = self.waiters.get_mut(&oldest.ticket())
        {
            // Mutation: past-the-important-others-barge-for-ever
            passed.patience = passed.patience.saturating_sub(barged);
        }
    }

    /// The bytes that may yet go before the oldest in line at `level`, where one at `place` does.
    pub(super) fn patience_behind(&self, place: PlaceInLine, level: &Counter) -> u64 {
        let passed = self
            .passed_by(place, level)
            .and_then(|oldest| self.waiters.get(&oldest.ticket()));
        passed.map_or(u64::MAX, |oldest| oldest.patience)
    }

    /// The oldest charge in line at `level`, where one at `place` would pass it, and more important
    /// ones have taken what they may.
    pub(super) fn tries_patience(
        &self,
        place: PlaceInLine,
        level: &Counter,
    ) -> Option<PlaceInLine> {
        let oldest = self.passed_by(place, level)?;
        (self.waiters.get(&oldest.ticket())?.patience == 0).then_some(oldest)
    }

    /// The oldest charge in line at `level`, where one at `place` goes before it for its importance
    /// alone.
    pub(super) fn passed_by(&self, place: PlaceInLine, level: &Counter) -> Option<PlaceInLine> {
        // Without an importance of its own it passes nobody for that.
        place.next_importance()?;
        self.lines.get(&level.key())?.passed_by(place)
    }

    /// A waiter is served: it takes its bytes off what the oldest in line lets others take before
    /// it.
    pub(super) fn count_passed(&mut self, place: PlaceInLine, group: &Counter, bytes: u64) {
        if place.next_importance().is_none() {
            return;
        }
        for level in group
            .path_to_root()
            .filter(|level| level.limits.watched.is_for(WAITING))
        {
            let oldest = self.passed_by(place, level);
            if let Some(passed) = oldest.and_then(|oldest| self.waiters.get_mut(&oldest.ticket())) {
                passed.patience = passed.patience.saturating_sub(bytes);
            }
        }
    }
}
