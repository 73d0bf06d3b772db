//! Reserved and allocated bytes of a covering group: usage is the larger of the two. `cover.md` is the protocol.
//!
//! A charge takes a slow path and may drain. What an allocator calls takes no lock and runs no foreign code, as the rest of
//! `allocator`.
//!
//! Edge: E49 (usage rises, then spare moves/spare moves, then usage falls).

use std::convert::Infallible;
use std::ptr;

use crate::counter::below::in_transit;
use crate::counter::handle::Handle;
use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::counter::slow_path::SlowPath;
use crate::counter::walk::{Amount, Charged, Walked};
use crate::counter::watch::WAITING;
use crate::counter::{at_limit, counted, marks};
use crate::error::USAGE_MAX;
use crate::sync::stat_atomic::AtomicU64 as StatU64;
use crate::sync::{AtomicI64, Ordering, fence_after_exchange};
use crate::thread::slow_path::Entered;

/// What a covering counter has beside its usage.
pub(crate) struct Cover {
    /// Reserved less allocated, of the subtree. Below zero: so many bytes are unpaid.
    spare: AtomicI64,
    reserved: StatU64,
    /// The counter above covers, too.
    is_below: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Reserved,
    /// By an allocator, or credit for it.
    Allocated,
}

/// What a charge may do where it does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Drain what is stranded.
    Drain,
    /// Take what this thread has in its own slot: the charge may not wait.
    Own,
}

/// What the larger of the two sums has above what is allocated.
fn above_zero(spare: i64) -> u64 {
    spare.max(0).cast_unsigned()
}

impl Kind {
    /// Spare once `n` bytes have come, and what the larger sum rises by.
    fn come(self, spare: i64, n: u64) -> (i64, u64) {
        match self {
            Kind::Reserved => {
                let next = spare.wrapping_add(n.cast_signed());
                (next, above_zero(next) - above_zero(spare))
            }
            Kind::Allocated => {
                let next = spare.wrapping_sub(n.cast_signed());
                (next, n - (above_zero(spare) - above_zero(next)))
            }
        }
    }

    /// What the larger sum falls by where spare was that, and `n` bytes go.
    fn fall(self, spare: i64, n: u64) -> u64 {
        match self {
            Kind::Reserved => above_zero(spare) - above_zero(spare.wrapping_sub(n.cast_signed())),
            Kind::Allocated => n - (above_zero(spare.wrapping_add(n.cast_signed())) - above_zero(spare)),
        }
    }
}

impl Cover {
    pub(crate) fn new(is_below: bool) -> Cover {
        Cover { spare: AtomicI64::new(0), reserved: StatU64::new(0), is_below }
    }

    /// Bytes that are reserved in the subtree.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    pub(crate) fn spare(&self) -> i64 {
        // SeqCst (E25): a thread that waits for room reads it after its mark.
        self.spare.load(Ordering::SeqCst)
    }

    /// What is allocated beyond what is reserved, with credit.
    pub(crate) fn unpaid(&self) -> u64 {
        self.spare().min(0).unsigned_abs()
    }

    /// Moves spare for `n` bytes that come, after `charge` has raised usage by what the larger sum rises by. It may have
    /// raised usage further. Returns what the sum has risen by.
    fn come<E>(&self, n: u64, kind: Kind, mut charge: impl FnMut(u64) -> Result<(), E>) -> Result<u64, E> {
        let mut charged = 0;
        // Acquire (E49): what made spare is charged.
        let mut spare = self.spare.load(Ordering::Acquire);
        loop {
            let (next, rise) = kind.come(spare, n);
            // Mutation: e49-spare-moves-before-the-charge
            if rise > charged {
                charge(rise - charged)?;
                charged = rise;
            }
            // SeqCst (E49): after usage has risen; pairs with `go`. E25: before the mark of a waiter is read.
            // Mutation: e49-spare-moves-before-the-charge
            // Mutation: e49-spare-moves-whatever-it-was
            match self.spare.compare_exchange(spare, next, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => return Ok(rise),
                Err(now) => spare = now,
            }
        }
    }

    /// Moves spare for `n` bytes that go. Returns what the larger sum falls by: the caller uncharges it.
    fn go(&self, n: u64, kind: Kind) -> u64 {
        // SeqCst (E49): before usage falls, and after it has risen for what made spare; pairs with `come`. E25: as there.
        let spare = match kind {
            Kind::Reserved => self.spare.fetch_sub(n.cast_signed(), Ordering::SeqCst),
            Kind::Allocated => self.spare.fetch_add(n.cast_signed(), Ordering::SeqCst),
        };
        kind.fall(spare, n)
    }

    /// Takes up to `n` of what is reserved. Returns how many.
    fn take_reserved(&self, n: u64) -> u64 {
        let less = |reserved: u64| Some(reserved.saturating_sub(n));
        self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).map_or(0, |reserved| reserved.min(n))
    }
}

impl Counter {
    #[inline(always)]
    pub(crate) fn cover(&self) -> Option<&Cover> {
        self.incarnation().cover.as_ref()
    }

    /// The covering counter above.
    pub(crate) fn cover_above(&self) -> Option<&'static Counter> {
        self.incarnation().parent.filter(|_| self.cover().is_some_and(|cover| cover.is_below))
    }

    /// The highest covering level of the path.
    pub(crate) fn cover_top(&self) -> Option<&Counter> {
        covering(self).last()
    }
}

/// A covering counter and the covering levels above it.
fn covering(counter: &Counter) -> impl Iterator<Item = &Counter> {
    std::iter::successors(counter.cover().map(|_| counter), |level| level.cover_above())
}

/// Those below `end`.
fn covering_below<'a>(counter: &'a Counter, end: Option<&'a Counter>) -> impl Iterator<Item = &'a Counter> {
    covering(counter).take_while(move |&level| end.is_none_or(|end| !ptr::eq(level, end)))
}

/// What `n` reserved bytes of a counter add to usage of a level of its path.
pub(crate) fn rise_at(counter: &Counter, n: u64, level: &Counter) -> u64 {
    let mut covers = covering(counter);
    let at = covers.find(|covering| ptr::eq(*covering, level)).or_else(|| counter.cover_top());
    at.and_then(Counter::cover).map_or(n, |cover| Kind::Reserved.come(cover.spare(), n).1)
}

/// What of the `credit` below a counter is in its usage.
pub(crate) fn counted_credit(counter: &Counter, credit: u64) -> u64 {
    counter.cover().map_or(credit, |cover| credit.min(cover.unpaid()))
}

// === Bytes that come ===

/// Takes `n` bytes at each covering level below `end`. `charge` charges a level, and all above it up to the given one: by
/// exactly so much, or not at all. Returns what the highest of these levels has risen by.
pub(crate) fn come<'a, E>(
    counter: &'a Counter,
    n: u64,
    kind: Kind,
    end: Option<&'a Counter>,
    mut charge: impl FnMut(&'a Counter, u64, Option<&'a Counter>) -> Result<(), E>,
) -> Result<u64, E> {
    let mut rise = 0;
    for level in covering_below(counter, end) {
        let Some(cover) = level.cover() else { continue };
        let above = level.cover_above().or(end);
        let mut charged = 0;
        let come = cover.come(n, kind, |more| {
            charge(level, more, above)?;
            charged += more;
            Ok(())
        });
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
            go_below(counter, n, kind, Some(level));
            if kind == Kind::Reserved {
                serve_waiters(counter);
            }
            return Err(refused);
        }
    }
    if kind == Kind::Reserved {
        let covers = covering_below(counter, end).filter_map(Counter::cover);
        covers.for_each(|cover| _ = cover.reserved.fetch_add(n, Ordering::Relaxed));
    }
    Ok(rise)
}

/// Charges `n` bytes to a covering counter, which the caller keeps.
#[cold]
pub(crate) fn charge<'a>(counter: &'a Counter, n: u64, room: Room) -> Result<Charged, LevelRefusal<'a>> {
    let path = SlowPath::enter();
    let mut over_high = 0;
    come(counter, n, Kind::Reserved, None, |level, more, above| {
        let walked = admit(level, &path, more, above, room)?;
        over_high = walked.over_high.max(over_high);
        note_charged(level, more, above);
        Ok(())
    })?;
    counted::audit_charged(counter, path.own_block(), n);
    Ok(Charged { over_high })
}

/// Notes for a round of reclaim what the top has been charged.
pub(crate) fn note_charged(level: &Counter, n: u64, above: Option<&Counter>) {
    if above.is_none() {
        counted::charged_without_audit(level, n);
    }
}

/// [`charge`] without a drain, for a caller that is in transit and counts.
pub(crate) fn walk(counter: &Counter, n: u64) -> Result<Charged, LevelRefusal<'_>> {
    let mut over_high = 0;
    come(counter, n, Kind::Reserved, None, |level, more, above| {
        over_high = level.walk_below(more, Amount::Needed, above)?.over_high.max(over_high);
        Ok(())
    })?;
    Ok(Charged { over_high })
}

/// Charges `n` bytes to a covering counter, by force what does not fit after a drain.
#[cold]
pub(crate) fn force(counter: &Counter, n: u64) {
    let path = SlowPath::enter();
    let forced = come(counter, n, Kind::Reserved, None, |level, more, above| {
        if admit(level, &path, more, above, Room::Drain).is_err()
            && level.force_below(more, above)
            && let Some(outermost) = path.outermost()
        {
            at_limit::close_crossed(level, outermost);
        }
        note_charged(level, more, above);
        Ok::<_, Infallible>(())
    });
    let Ok(_) = forced;
    counted::audit_charged(counter, path.own_block(), n);
}

/// Charges a level and those above it, up to `above`.
pub(super) fn admit<'a>(
    level: &'a Counter,
    path: &Entered,
    n: u64,
    above: Option<&'a Counter>,
    room: Room,
) -> Result<Walked, LevelRefusal<'a>> {
    let refusal = match in_transit(level, path.own_block(), || level.walk_below(n, Amount::Needed, above)) {
        Ok(walked) => return Ok(walked),
        Err(refusal) => refusal,
    };
    match (path.outermost(), room, above) {
        (Some(outermost), Room::Drain, _) => at_limit::drain_and_retry(level, n, above, refusal, outermost),
        (Some(_), Room::Own, None) => at_limit::take_own_and_retry(level, path, n, refusal),
        (Some(_), Room::Own, Some(_)) => Err(refusal),
        (None, ..) => {
            level.tree().counts.refused_in_transit.fetch_add(1, Ordering::Relaxed);
            Err(refusal)
        }
    }
}

// === Bytes that go ===

/// What the level below a common one would fall by if so many bytes went: a hint where other threads charge.
pub(super) fn would_fall(counter: &Counter, n: u64) -> u64 {
    match counter.cover_top().and_then(Counter::cover) {
        Some(top) => above_zero(top.spare()).min(n),
        None => n,
    }
}

/// Gives back `n` bytes that were charged to a covering counter, and keep it. Afterwards the counter may be gone.
#[cold]
pub(crate) fn release(counter: &Counter, n: u64) {
    let path = SlowPath::enter();
    let alone = path.own_block();
    let taken = take_reserved(counter, n, None);
    // The audit counts first: see `Counter::give_back`.
    counted::audit_uncharged(counter, alone, taken);
    let (counter, of) = (counter.header.counter(), counter.first().state().generation());
    let fall = in_transit(counter, alone, || go_below(counter, taken, Kind::Reserved, None));
    // Mutation: e25-released-bytes-become-unpaid-and-serve-none
    if fall < taken
        && let Some(kept) = Handle::try_pin(counter, of)
    {
        serve_waiters(&kept);
    }
}

/// More is unpaid than before: a charge in line needs less room, though usage has not fallen. The caller keeps the counter.
fn serve_waiters(counter: &Counter) {
    fence_after_exchange();
    counter.path_to_root().filter(|level| level.limits.watched.is_for(WAITING)).for_each(marks::fell);
}

/// Whether a charge waits for room in line at a level. Called after allocated bytes have come.
pub(super) fn has_waiters(counter: &Counter) -> bool {
    // E25: spare, then the mark.
    fence_after_exchange();
    counter.path_to_root().any(|level| level.limits.watched.is_for(WAITING))
}

/// Takes up to `n` reserved bytes at each covering level below `end`. What is missing counts as an underflow.
pub(super) fn take_reserved(counter: &Counter, n: u64, end: Option<&Counter>) -> u64 {
    let n = n.min(USAGE_MAX);
    let mut covers = covering_below(counter, end).filter_map(Counter::cover);
    let Some(own) = covers.next() else { return n };
    let taken = own.take_reserved(n);
    if taken < n {
        counter.count_underflow(n - taken);
    }
    // What a group has reserved its parents have.
    covers.for_each(|cover| _ = cover.reserved.fetch_sub(taken, Ordering::Relaxed));
    taken
}

/// Lets go of `n` bytes at each covering level. They keep the counter until the last step.
pub(crate) fn go(counter: &Counter, n: u64, kind: Kind) {
    go_below(counter, n, kind, None);
}

/// The same at the covering levels below `end`. Returns what the highest of them has fallen by.
pub(super) fn go_below(counter: &Counter, n: u64, kind: Kind, end: Option<&Counter>) -> u64 {
    let (mut next, mut fall) = (Some(counter).filter(|_| n > 0), 0);
    while let Some(level) = next.filter(|&level| !end.is_some_and(|end| ptr::eq(level, end))) {
        // Read before the bytes go: they keep the level, and at the level above they are still there.
        let above = level.cover_above();
        // Mutation: e49-uncharged-before-spare-moves
        fall = level.cover().map_or(0, |cover| cover.go(n, kind));
        // Mutation: e49-uncharged-before-spare-moves
        uncharge(level, fall, above.or(end));
        next = above;
    }
    fall
}

/// Uncharges a level and those above it, up to `above`.
fn uncharge(level: &Counter, n: u64, above: Option<&Counter>) {
    match above {
        _ if n == 0 => {}
        Some(above) => level.uncharge_below(n, above),
        None => {
            counted::uncharged_without_audit(level, n);
            level.uncharge_chain(n);
        }
    }
}
