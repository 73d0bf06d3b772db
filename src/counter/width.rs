//! The width of a stock: by how much its batch is larger than the tree's, for charges that are
//! larger than that. `width.md` has the reasons, and the bounds.
//!
//! Only the holder of the tree's lock sets it, before the stock counts as open. So it changes as a
//! batch does: a close, with its barrier, then the new width. No protocol knows of it beyond that:
//! a charge reads the capacity.

use crate::counter::config::BATCH_MAX;
use crate::counter::object::Counter;
use crate::counter::stocks;
use crate::counter::thresholds;
use crate::sync::Ordering;

/// A batch is doubled so many times at most: 4 MiB, where it is 256 KiB.
const WIDEST: u8 = 4;

/// Where a stock gets wider, all credit that may lie below a level is at most so small a part of
/// the level's room; at the root, that of wide stocks.
const ROOM_SHARE: u64 = 32;

/// Part of the budget of a root that wide stocks may have: the rest is for the first batches of all
/// others.
const BUDGET_PART: u64 = 2;

/// The room of a root without a max, in batches: 4 GiB, where a batch is 256 KiB.
const ENDLESS_ROOM: u64 = 1 << 14;

/// Part of a level's room beyond which the credit below is too much, where max has been lowered.
const TOO_WIDE_SHARE: u64 = 4;

/// The stock opens with this width, and may have `most` credit now.
pub(crate) fn set(counter: &Counter, width: u8, most: u64) {
    counter.width.store(width, Ordering::Relaxed);
    touch(counter, most);
}

/// Threads that may have `most` credit in the stock are new to it.
pub(crate) fn touch(counter: &Counter, most: u64) {
    if counter.width.load(Ordering::Relaxed) > 0 {
        // The tree adds up what its wide stocks may hold, because together they may have a part of
        // the budget only.
        counter.tree().wide_bound.fetch_add(most, Ordering::Relaxed);
    }
}

/// The stock counts as open no more, and might have had `most` credit. Its next opening is narrow,
/// unless large charges ask again.
pub(crate) fn reset(counter: &Counter, most: u64) {
    if counter.width.swap(0, Ordering::Relaxed) > 0 {
        counter.tree().wide_bound.fetch_sub(most, Ordering::Relaxed);
    }
    counter.asked_wide.store(false, Ordering::Relaxed);
}

/// A charge of `n` is too large for the stock that its counter has or would get. One comparison.
#[inline]
pub(crate) fn is_large(counter: &Counter, n: u64) -> bool {
    n > counter.open_batch()
}

/// Notes that a charge above the tree's batch has missed. Returns whether one had before: to widen
/// an open stock takes a barrier, which one large charge alone is not worth.
pub(crate) fn ask(counter: &Counter) -> bool {
    let asked = &counter.asked_wide;
    // The load first: where large charges are frequent they do not write the word each time.
    asked.load(Ordering::Relaxed) || asked.swap(true, Ordering::Relaxed)
}

/// The width with which the stock serves charges of `n`: a batch of twice `n`, as far as the widest
/// and the room allow it. 0 where even a batch of `n` is too much.
pub(crate) fn for_charge(counter: &Counter, n: u64) -> u8 {
    let batch = counter.batch();
    // A batch serves it, or the stock is not to adapt at all.
    if n <= batch || batch == 0 || !counter.tree().config.adaptive {
        return 0;
    }
    let all = of_all_threads(counter);
    // The capacity is two batches, in the slot of each thread.
    let most = spare_room(counter) / all.saturating_mul(2);
    let fits = |&width: &u8| batch << width <= most.min(BATCH_MAX);
    let enough = |width: &u8| batch << width >= n.saturating_mul(2);
    let least = |width: &u8| batch << width >= n;
    // Twice the charge, so that the next one of this size hits. Where the room forbids that, the
    // widest batch that it allows, as long as one charge fits in.
    let wanted = (1..=WIDEST).find(enough).unwrap_or(WIDEST);
    (1..=wanted).rev().filter(least).find(fits).unwrap_or(0)
}

/// The number of threads that may come to have credit in the stock: those that are registered, or
/// those that have had credit there, where these are more.
fn of_all_threads(counter: &Counter) -> u64 {
    let threads = u64::from(counter.tree().registry.threads()).max(2);
    threads.max(counter.touched())
}

/// The credit that may come below each level of the path, beside what may lie there: in this group
/// and in all others.
fn spare_room(counter: &Counter) -> u64 {
    let spare = |level: &Counter| {
        let limit = level.max().min(thresholds::high(level));
        let part = level.room(limit) / ROOM_SHARE;
        match level.parent() {
            Some(_) if limit == u64::MAX => u64::MAX,
            Some(_) => part.saturating_sub(level.bound()),
            // All groups are below the root, and most have a stock that has its first batch: these
            // have the budget.
            None => {
                let endless = level.batch().saturating_mul(ENDLESS_ROOM) / ROOM_SHARE;
                let part = if limit == u64::MAX { endless } else { part };
                part.min(stocks::budget(level) / BUDGET_PART)
                    .saturating_sub(level.tree().wide_bound.load(Ordering::Relaxed))
            }
        }
    };
    let all = counter.path_to_root().map(spare);
    all.min().unwrap_or(0)
}

/// There are wide stocks, and the credit that may lie below a level is much of the room that a
/// lower max leaves.
pub(crate) fn is_too_wide(level: &Counter, max: u64) -> bool {
    level.tree().wide_bound.load(Ordering::Relaxed) > 0
        && level.bound() > level.room(max) / TOO_WIDE_SHARE
}
