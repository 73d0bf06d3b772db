//! Bytes that come and go in groups that cover: usage is the larger of what is reserved and what is
//! allocated. `cover.md` is the protocol. What an allocator calls takes no lock and runs no foreign
//! code, as the rest of `allocator`.
//!
//! `central` has a shared word of prepaid bytes, too; its head says why the two are not one.

use std::ptr;

use crate::counter::handle::{Handle, WeakCounter};
use crate::counter::level::ChargeMode;
use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::counter::slow_path::LazySlowPath;
use crate::counter::spare_word::{CoverSide, above_zero};
use crate::counter::walk::{self, Walked};
use crate::counter::watch::WAITING;
use crate::counter::{bookkeeping, look};
use crate::error::USAGE_MAX;
use crate::sync::{Ordering, fence_after_exchange};

/// The highest covering level of a counter's path.
pub(crate) fn top(counter: &Counter) -> Option<&Counter> {
    covering(counter).last()
}

/// A covering counter and the covering levels above it.
fn covering(counter: &Counter) -> impl Iterator<Item = &Counter> {
    std::iter::successors(counter.cover().map(|_| counter), |level| {
        level.cover_above()
    })
}

/// The covering levels of a counter's path that lie below `end`; all of them without one.
fn covering_below<'a>(
    counter: &'a Counter,
    end: Option<&'a Counter>,
) -> impl Iterator<Item = &'a Counter> {
    covering(counter).take_while(move |&level| end.is_none_or(|end| !ptr::eq(level, end)))
}

/// Returns by how much usage of a level of the path rises if `n` bytes are reserved in `counter`. A
/// hint: spare may move until then.
pub(crate) fn rise_at(counter: &Counter, n: u64, level: &Counter) -> u64 {
    let mut covers = covering(counter);
    // A covering level has spare of its own. Any level above the top rises with the top, which
    // charges them. Where nothing covers, all `n` go up.
    let at = covers
        .find(|covering| ptr::eq(*covering, level))
        .or_else(|| top(counter));
    at.and_then(Counter::cover)
        .map_or(n, |cover| CoverSide::Reserved.come(cover.spare(), n).1)
}

/// Returns what `n` reserved bytes add to a usage that a level of the path had when it refused them.
/// Credit may have been drained since, and with it spare: so it is the sums that count, and not what
/// spare is now.
pub(crate) fn added_to(counter: &Counter, n: u64, level: &Counter, usage: u64) -> u64 {
    let covers = covering(counter).find(|covering| ptr::eq(*covering, level));
    let Some(cover) = covers.and_then(Counter::cover) else {
        return rise_at(counter, n, level);
    };
    let reserved = cover.reserved();
    let allocated = reserved.saturating_add_signed(cover.spare().saturating_neg());
    reserved
        .saturating_add(n)
        .max(allocated)
        .saturating_sub(usage)
}

/// Returns the part of the `credit` below a counter that is in its usage. In a group that covers,
/// reserved bytes pay for credit as for any allocated bytes; only what is unpaid has raised usage.
pub(crate) fn counted_credit(counter: &Counter, credit: u64) -> u64 {
    counter
        .cover()
        .map_or(credit, |cover| credit.min(cover.unpaid()))
}

// === Bytes that come ===

/// Reserves or allocates `n` bytes at each covering level below `end`, or at none. `charge` charges
/// a level, and all above it up to the given one: by exactly so much, or not at all. Returns what
/// the highest of these levels has risen by.
pub(crate) fn come<'a, E>(
    counter: &'a Counter,
    n: u64,
    side: CoverSide,
    end: Option<&'a Counter>,
    mut charge: impl FnMut(&'a Counter, u64, Option<&'a Counter>) -> Result<(), E>,
) -> Result<u64, E> {
    let mut rise = 0;
    let mut is_charged = false;
    for level in covering_below(counter, end) {
        let Some(cover) = level.cover() else { continue };
        // Below the top the level is charged alone, for the level above has spare of its own to
        // ask. The top charges all that is above it.
        let above = level.cover_above().or(end);
        let mut charged = 0;
        let come = cover.come(n, side, |more| {
            charge(level, more, above)?;
            charged += more;
            Ok(())
        });
        // Spare may have moved between the charge and its exchange, so that the larger sum has
        // risen by less than was charged. Where a further charge was refused, all that this level
        // has been charged is in vain.
        let (over, refused) = match come {
            Ok(risen) => {
                rise = risen;
                (charged - risen, None)
            }
            Err(refused) => (charged, Some(refused)),
        };
        // Mutation: cover-keeps-what-it-charged-in-vain
        uncharge(level, over, above);
        if let Some(refused) = refused {
            // Mutation: cover-keeps-what-was-refused-above
            go_below(counter, n, side, Some(level));
            // For a moment these bytes have paid for objects that others allocated. These are
            // unpaid again, so a charge in line needs less room, and usage has not fallen by it.
            if side == CoverSide::Reserved {
                serve_waiters(counter);
            }
            return Err(refused);
        }
        is_charged |= charged > 0;
    }
    match side {
        CoverSide::Reserved => {
            // Counted only now that no level can refuse any more, so there is nothing to take back.
            let covers = covering_below(counter, end).filter_map(Counter::cover);
            covers.for_each(|cover| _ = cover.reserved.fetch_add(n, Ordering::Relaxed));
        }
        // E25: a thread that serves a line may have read usage with these bytes and spare without
        // them. Pairs with `Cover::spare`, which that thread reads.
        // Mutation: e25-allocated-bytes-become-unpaid-and-serve-none
        CoverSide::Allocated if is_charged => serve_waiters(counter),
        CoverSide::Allocated => {}
    }
    Ok(rise)
}

/// Charges `n` at all levels of a counter. A level that covers rises by what its larger sum rises
/// by, and mostly that is less.
#[inline]
pub(crate) fn walk(
    counter: &Counter,
    n: u64,
    mode: ChargeMode,
    side: CoverSide,
) -> Result<Walked<'_>, LevelRefusal<'_>> {
    if counter.cover().is_none() {
        walk::walk(counter, n, mode, None)
    } else {
        walk_covering(counter, n, mode, side)
    }
}

/// Out of line: a charge of a group that does not cover, as most, passes by it.
#[inline(never)]
fn walk_covering(
    counter: &Counter,
    n: u64,
    mode: ChargeMode,
    side: CoverSide,
) -> Result<Walked<'_>, LevelRefusal<'_>> {
    let mut all = Walked::ENDLESS;
    come(counter, n, side, None, |level, more, above| {
        let walked = walk::walk(level, more, mode, above)?;
        // A waiter's bytes are not this thread's.
        if side == CoverSide::Allocated {
            note_charged(level, more, above);
        }
        all.join(walked);
        Ok(())
    })?;
    Ok(all)
}

/// Notes for a round of reclaim what the top has been charged: once for all levels, so that no byte
/// counts twice.
pub(crate) fn note_charged(level: &Counter, n: u64, above: Option<&Counter>) {
    if above.is_none() {
        bookkeeping::note_charged(level, n);
    }
}

// === Bytes that go ===

/// Returns by how much the highest covering level would fall if `n` reserved bytes went: a hint
/// where other threads charge. Where no level covers, each falls by `n`.
pub(super) fn would_fall(counter: &Counter, n: u64) -> u64 {
    match top(counter).and_then(Counter::cover) {
        Some(top) => above_zero(top.spare()).min(n),
        None => n,
    }
}

/// Serves the lines of all levels of a path where more is unpaid than before: a charge in line
/// needs less room then, though usage has not fallen, so no look has told it.
pub(super) fn serve_waiters(counter: &Counter) {
    fence_after_exchange();
    let waited_at = counter
        .path_to_root()
        .filter(|level| level.limits.watched.is_for(WAITING));
    waited_at.for_each(|level| look::fell(level, &LazySlowPath::inside()));
}

/// Takes up to `n` reserved bytes at each covering level below `end`. What is missing counts as an
/// underflow; from then on only the handle keeps the counter for the caller.
pub(super) fn take_reserved(
    counter: &Counter,
    n: u64,
    end: Option<&Counter>,
) -> (u64, Option<Handle>) {
    let n = n.min(USAGE_MAX);
    let mut covers = covering_below(counter, end).filter_map(Counter::cover);
    // A counter that does not cover counts no reserved bytes.
    let Some(own) = covers.next() else {
        return (n, None);
    };
    // The own level decides how many there are, and the levels above follow it.
    let taken = own.take_reserved(n);
    // What is reserved in a group is reserved in its parents, too, so these need no check.
    covers.for_each(|cover| _ = cover.reserved.fetch_sub(taken, Ordering::Relaxed));
    // Mutation: e15-a-reserve-is-missed-without-a-handle
    let kept = (taken < n).then(|| Handle::pin(counter.first()));
    if taken < n {
        counter.count_underflow(n - taken, &LazySlowPath::inside());
    }
    (taken, kept)
}

/// What levels have fallen by, of bytes that have gone.
#[derive(Default)]
pub(super) struct Fallen {
    /// The highest of them.
    pub(super) top: u64,
    /// The lowest one whose usage has not fallen by all reserved bytes: more is unpaid there.
    more_unpaid: Option<WeakCounter>,
}

impl Fallen {
    /// Levels that have fallen by all bytes.
    pub(super) fn by(n: u64) -> Fallen {
        Fallen {
            top: n,
            more_unpaid: None,
        }
    }

    /// Where usage has not fallen by all of the bytes, allocated ones have taken their place. A
    /// charge in line needs less room for that, and no look has told it. At the levels further down
    /// usage has fallen. If the level is gone, so are the allocated bytes, and usage fell with them.
    pub(super) fn serve_waiters(self) {
        // Mutation: e25-released-bytes-become-unpaid-and-serve-none
        if let Some(level) = self.more_unpaid.and_then(WeakCounter::try_pin) {
            serve_waiters(&level);
        }
    }
}

/// Lets go of `n` bytes at each covering level below `end`. They keep the counter until the last
/// step.
pub(super) fn go_below(
    counter: &Counter,
    n: u64,
    side: CoverSide,
    end: Option<&Counter>,
) -> Fallen {
    let mut next = Some(counter).filter(|_| n > 0);
    let mut fallen = Fallen::default();
    while let Some(level) = next.filter(|&level| !end.is_some_and(|end| ptr::eq(level, end))) {
        // Read before the bytes go: they keep the level, and at the level above they are still
        // there. Afterwards the level may be released, and even be another group.
        let above = level.cover_above();
        let reserved = (side == CoverSide::Reserved).then(|| WeakCounter::new(level));
        // Mutation: e49-uncharged-before-spare-moves
        fallen.top = level.cover().map_or(0, |cover| cover.go(n, side));
        // Any level may be the first: one has objects of its own, and a higher one more reserved.
        if fallen.top < n {
            fallen.more_unpaid = fallen.more_unpaid.or(reserved);
        }
        // Mutation: e49-uncharged-before-spare-moves
        uncharge(level, fallen.top, above.or(end));
        // Mutation: e15-cover-above-is-read-after-the-bytes-go
        next = above;
    }
    fallen
}

/// Uncharges a level and those above it, up to `above`.
fn uncharge(level: &Counter, n: u64, above: Option<&Counter>) {
    if above.is_none() {
        bookkeeping::note_uncharged(level, n);
    }
    level.uncharge(n, above);
}
