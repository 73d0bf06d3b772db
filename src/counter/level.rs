//! A charge at one level: take, subtract; and how a level stores a max.
//!
//! Edges: E1 (charge/set_max), E4 (forced charge/opening), E15 (the last uncharge). The walk over
//! all levels is in `walk`.

use crate::counter::incarnation::Generation;
use crate::counter::object::Counter;
use crate::counter::peak::Peaks;
use crate::counter::refusal::LevelRefusal;
use crate::counter::slow_path::Lazily;
use crate::counter::watch::{EXCEEDED, NOT_OF_WALKS, OBSERVED, WAITING};
use crate::counter::{claim, exceeded, marks, raw};
use crate::error::USAGE_MAX;
use crate::sync::{Ordering, fence_after_exchange};

/// Says how a walk treats a level that has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// The charge is refused.
    Admit,
    /// The charge is refused, also if charges wait or if it would leave an observed level above its max. Its caller
    /// needs less, and then walks for that.
    Batch,
    /// The charge goes above max if no drain makes room, and is refused if a drain may.
    AdmitOrForce,
    /// The charge goes above max, and is never refused.
    Force,
}

/// A level that a walk has taken.
#[derive(Clone, Copy)]
pub(crate) struct TakenLevel {
    /// Usage as the walk has left it.
    pub(crate) usage: u64,
    /// Units that fit above that usage.
    pub(crate) room: u64,
    /// Some of the walk's units are above max.
    pub(crate) is_above: bool,
    /// The walk looks at the level once it is through: usage is above max, a new peak, or watched.
    pub(crate) is_seen: bool,
}

/// Result of a first try at a level that leaves its caller something to do.
#[derive(Clone, Copy)]
pub(crate) enum Tried {
    /// The level has no room, or another thread came first.
    NotAdded,
    /// The units are added, and usage is `new`. `max` was read after that: something looks at the level, or max is
    /// lower now.
    Added { new: u64, max: u64 },
    /// The units are added by force, and usage is this, above max. Something looks at the level.
    Forced(u64),
    /// The units are added by force, above max, and nothing looks at the level: the caller only counts the event.
    ForcedAtOnce,
}

/// Where a level has no max, a charge below the second adds to a usage below the first without a comparison: some four
/// million threads would have to do so at once before usage could pass `USAGE_MAX`.
const ADDED_BELOW: u64 = 1 << 62;
const ADDED_MAX: u64 = 1 << 40;

impl Counter {
    /// Adds `n` in one try, at a level that has room and that nothing looks at, as in most walks. Returns the room
    /// left.
    #[inline(always)]
    pub(crate) fn take_at_once(&self, n: u64) -> Result<u64, Tried> {
        // Acquire (E1): max is read after usage, as in `take_slow`.
        let usage = self.usage.units.load(Ordering::Acquire);
        let max = self.limits.max.load(Ordering::Acquire).min(USAGE_MAX);
        // A usage below zero is far above any max here, or becomes what it is.
        let mut new = usage.cast_unsigned().wrapping_add(n);
        if max == USAGE_MAX && new < ADDED_BELOW && n < ADDED_MAX {
            // SeqCst (E1): as in `exchange`. A level without a max refuses nothing, so an addition leaves no trace of a
            // refusal, and no other thread makes it fail.
            new = self.usage.units.fetch_add(n.cast_signed(), Ordering::SeqCst).cast_unsigned().wrapping_add(n);
        } else if n > USAGE_MAX || new > max || self.exchange(usage, new.cast_signed()).is_err() {
            return Err(Tried::NotAdded);
        }
        let max = self.max_after();
        let is_seen = self.limits.watched.is_for(!NOT_OF_WALKS) || self.limits.tight.load(Ordering::Relaxed);
        if new > max || is_seen || self.peaks().rises(new) { Err(Tried::Added { new, max }) } else { Ok(max - new) }
    }

    /// Adds `n` above max, as a forced charge mostly goes where usage is above max already: no stock is open below, and
    /// nothing looks at the level but the mark of excess, which is right.
    #[inline(always)]
    pub(crate) fn force_at_once(&self, n: u64) -> Result<u64, Tried> {
        // Acquire (E10): as in `take_after`.
        let open = self.limits.open.load(Ordering::Acquire);
        let new = self.usage.units.load(Ordering::Acquire).cast_unsigned().wrapping_add(n);
        if open as u32 > 0 || new <= self.max() || new >= ADDED_BELOW || n >= ADDED_MAX {
            return Err(Tried::NotAdded);
        }
        // SeqCst (E4, E43): as in `add_forced`. It refuses nothing, so it needs no comparison.
        let new = self.usage.units.fetch_add(n.cast_signed(), Ordering::SeqCst).cast_unsigned().wrapping_add(n);
        fence_after_exchange();
        // E43: the mark after usage. A counter that is no group has none.
        let mark = if self.tree().policies().is_some() { EXCEEDED } else { 0 };
        // Mutation: e43-forced-at-once-without-a-mark
        let is_seen = self.limits.watched.bits() != mark || self.peaks().rises(new);
        // SeqCst (E4): as in `close_crossed`, which closes a stock that has opened meanwhile.
        let open = self.limits.open.load(Ordering::SeqCst);
        let above = new.saturating_sub(self.max());
        // Mutation: e4-forced-at-once-without-a-look
        if open as u32 > 0 || is_seen || above == 0 {
            return Err(Tried::Forced(new));
        }
        self.limits.forced_total.fetch_add(above.min(n), Ordering::Relaxed);
        Err(Tried::ForcedAtOnce)
    }

    /// Adds `n` after a first try.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_after(
        &self,
        tried: Tried,
        n: u64,
        how: How,
        path: &Lazily,
    ) -> Result<TakenLevel, LevelRefusal<'_>> {
        match tried {
            Tried::Forced(new) => return Ok(self.count_forced(new, n)),
            Tried::Added { new, max } => {
                if let Ok(taken) = self.settle(new, max, n, how, path) {
                    return Ok(taken);
                }
            }
            Tried::NotAdded | Tried::ForcedAtOnce => {}
        }
        // Acquire (E10): read before usage, compared after the refusal. Without an open stock below, a usage above max is as
        // good as a refusal: a stock that opens in between is closed by `at_limit::close_crossed`.
        let open = self.limits.open.load(Ordering::Acquire);
        // Acquire, here and where the exchange fails: max is read after usage, so that a refusal never pairs an old max
        // with a newer usage.
        let mut usage = self.usage.units.load(Ordering::Acquire);
        loop {
            let max = self.limits.max.load(Ordering::Acquire);
            let sum = checked_add(usage, n);
            let refusal = if let Some(new) = sum.filter(|&new| within(new, max)) {
                if let Err(now) = self.exchange(usage, new) {
                    usage = now;
                    continue;
                }
                match self.settle(new.max(0).cast_unsigned(), self.max_after(), n, how, path) {
                    Ok(taken) => return Ok(taken),
                    Err(max) => self.refusal(open, usage, max),
                }
            } else {
                // No drain makes room: the charge goes above max at once.
                if how == How::Force || (how == How::AdmitOrForce && open as u32 == 0 && sum.is_some()) {
                    return Ok(self.add_forced(n));
                }
                // An exchange that adds 0 reads the latest value, so no refusal rests on a stale read.
                // AcqRel would do (E10): the refusal and the read of the open stocks come after it. SeqCst, as every other
                // exchange of usage: it is the same instruction, and Miri lets no later SeqCst load read what is older.
                let now = self.usage.units.fetch_add(0, Ordering::SeqCst);
                if now != usage {
                    usage = now;
                    continue;
                }
                self.refusal(open, usage, max)
            };
            return match how {
                How::Force => Ok(self.add_forced(n)),
                How::AdmitOrForce if refusal.is_for_good(n) => Ok(self.add_forced(n)),
                _ => Err(refusal),
            };
        }
    }

    #[inline(always)]
    fn exchange(&self, usage: i64, new: i64) -> Result<i64, i64> {
        // SeqCst (E1): pairs with `set_max`. Either this thread reads the new max in `max_after`, or `set_max` reads this
        // usage.
        self.usage.units.compare_exchange_weak(usage, new, Ordering::SeqCst, Ordering::Acquire)
    }

    /// The units are added: read max again.
    #[inline(always)]
    fn max_after(&self) -> u64 {
        fence_after_exchange();
        // SeqCst (E1): after the exchange on usage; pairs with `store_max`.
        // Mutation: e1-charge-does-not-look-again
        let max = self.limits.max.load(Ordering::SeqCst);
        max.min(USAGE_MAX)
    }

    /// The units are added, and max is that now: the usage `new` is within it and may stay, or this subtracts `n` again and
    /// returns the max as an error.
    fn settle(&self, new: u64, max: u64, n: u64, how: How, path: &Lazily) -> Result<TakenLevel, u64> {
        let watched = self.limits.watched.bits();
        let waits = watched & WAITING != 0;
        let may_stay = match how {
            How::Force => true,
            How::Batch => !waits && (watched & OBSERVED == 0 || new <= self.max()),
            How::Admit | How::AdmitOrForce => !waits || self.may_barge(n, path),
        };
        if new > max || !may_stay {
            path.enter();
            self.take_off(n);
            return Err(max);
        }
        let max = if watched & OBSERVED != 0 { self.max().min(USAGE_MAX) } else { max };
        let room = max.saturating_sub(new);
        self.loosen(room);
        let is_seen = watched & !NOT_OF_WALKS != 0 || self.peaks().rises(new);
        Ok(TakenLevel { usage: new, room, is_above: false, is_seen })
    }

    /// True if a walk that has added `n` may pass the charges that wait here.
    fn may_barge(&self, n: u64, path: &Lazily) -> bool {
        path.enter();
        self.tree().policies().is_none_or(|policies| policies.may_barge(self, n))
    }

    /// Give back the barging budget of a walk that has passed this level and subtracts `n` from it.
    pub(crate) fn undo_barge(&self, n: u64) {
        if self.limits.watched.is_for(WAITING)
            && let Some(policies) = self.tree().policies()
        {
            policies.barge_undone(self, n);
        }
    }

    fn refusal(&self, open: u64, usage: i64, max: u64) -> LevelRefusal<'_> {
        // Mutation: refusal-tells-a-later-max
        LevelRefusal { level: self, open, usage: usage.max(0).cast_unsigned(), max }
    }

    /// A refusal for a charge that has not read usage before.
    pub(crate) fn refusal_now(&self) -> LevelRefusal<'_> {
        // Acquire (E10): as in `admit`.
        let open = self.limits.open.load(Ordering::Acquire);
        let usage = self.usage.units.load(Ordering::Acquire);
        self.refusal(open, usage, self.limits.max.load(Ordering::Acquire))
    }

    /// End the tightness where a charge sees plenty of room at a tight level, below max and below high.
    fn loosen(&self, room: u64) {
        if self.limits.tight.load(Ordering::Relaxed) {
            self.loosen_slow(room);
        }
    }

    #[cold]
    fn loosen_slow(&self, room: u64) {
        if room.min(self.room(marks::high(self))) >= self.tree().open_margin(self.batch()) {
            self.limits.tight.store(false, Ordering::Relaxed);
        }
    }

    /// Add `n` whatever max says.
    fn add_forced(&self, n: u64) -> TakenLevel {
        let mut usage = self.usage.units.load(Ordering::Relaxed);
        let new = loop {
            let new = checked_add(usage, n).unwrap_or_else(|| {
                self.tree().counts.overflows.fetch_add(1, Ordering::Relaxed);
                // What usage does not count keeps nothing. Before the exchange, which shows this to a thread that
                // claims the object.
                raw::keep_for_ever(self);
                i64::MAX
            });
            // SeqCst (E4): pairs with the read of usage in `Tree::open`, see `at_limit::close_crossed`.
            match self.usage.units.compare_exchange_weak(usage, new, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => break new.max(0).cast_unsigned(),
                Err(now) => usage = now,
            }
        };
        fence_after_exchange();
        self.count_forced(new, n)
    }

    /// Counts what of `n` is above max: usage with it is `new`.
    fn count_forced(&self, new: u64, n: u64) -> TakenLevel {
        let max = self.max().min(USAGE_MAX);
        let above = new.saturating_sub(max).min(n);
        if above > 0 {
            self.limits.forced_total.fetch_add(above, Ordering::Relaxed);
        }
        let is_seen = above > 0 || self.limits.watched.is_for(!NOT_OF_WALKS) || self.peaks().rises(new);
        TakenLevel { usage: new, room: max.saturating_sub(new), is_above: above > 0, is_seen }
    }

    /// Subtract `n` from this level. Returns what was there to subtract: less than `n` is an underflow, counted and
    /// clamped. Afterwards the counter may be gone.
    #[inline(always)]
    pub(crate) fn subtract(&self, n: u64, path: &Lazily) -> u64 {
        let first = self.first();
        let of = first.state().generation();
        let taken = self.subtract_usage(n);
        fence_after_exchange();
        let watched = self.limits.watched.bits();
        // The last units that keep the object, or something looks at the level and may be wrong now.
        let is_right = watched == 0 || (watched == EXCEEDED && exceeded::is_near_max(self));
        if !is_right || first.state().unreferenced(of).is_some() {
            self.fell_slow(first, of, path);
        }
        taken
    }

    /// The caller no longer keeps the counter.
    #[cold]
    #[inline(never)]
    fn fell_slow(&self, first: &'static Counter, of: Generation, path: &Lazily) {
        path.enter();
        marks::fell_if(self, first, of);
        // E15: these may have been the last units.
        // Mutation: transfer-ends-no-group
        claim::try_release_last(first, of);
    }

    /// One subtraction where usage is at least `n`, which only a caller's bug prevents; else what is there.
    #[inline(always)]
    fn subtract_usage(&self, n: u64) -> u64 {
        let n = n.min(USAGE_MAX);
        if self.usage.units.load(Ordering::Relaxed) >= n.cast_signed() {
            // SeqCst (E1, E11): a thread that sets a limit or a protection meanwhile sees it, or this thread sees the
            // protection afterwards.
            let usage = self.usage.units.fetch_sub(n.cast_signed(), Ordering::SeqCst);
            if usage >= n.cast_signed() { n } else { self.put_back(n, usage) }
        } else {
            self.subtract_clamped(n)
        }
    }

    /// Between the look at usage and the subtraction another thread has uncharged more than it had charged.
    #[cold]
    #[inline(never)]
    fn put_back(&self, n: u64, usage: i64) -> u64 {
        let taken = usage.max(0).cast_unsigned();
        // SeqCst (E1, E11): as in `subtract_usage`.
        self.usage.units.fetch_add((n - taken).cast_signed(), Ordering::SeqCst);
        self.underflow(n, taken)
    }

    #[cold]
    #[inline(never)]
    fn subtract_clamped(&self, n: u64) -> u64 {
        let mut usage = self.usage.units.load(Ordering::Relaxed);
        // A plain subtraction would take usage far below zero for an instant, in which every charge passes the limit.
        loop {
            let taken = n.min(usage.max(0).cast_unsigned());
            let left = usage - taken.cast_signed();
            // SeqCst (E1, E11): as above.
            match self.usage.units.compare_exchange_weak(usage, left, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) if taken == n => return n,
                Ok(_) => return self.underflow(n, taken),
                Err(now) => usage = now,
            }
        }
    }

    #[cold]
    fn underflow(&self, n: u64, taken: u64) -> u64 {
        self.poisoned.store(true, Ordering::Relaxed);
        self.count_underflow(n - taken);
        taken
    }

    /// Counts `missing` units that were uncharged and never charged. Units that a guard holds keep the object until they are
    /// counted here (`raw`). Afterwards the counter may be gone, unless the caller has a handle.
    pub(crate) fn count_underflow(&self, missing: u64) {
        let sum = |sum: u64| Some(sum.saturating_add(missing));
        self.usage.underflows.fetch_add(1, Ordering::Relaxed);
        // Mutation: e15-underflow-is-counted-before-the-last-use
        self.tree().counts.underflows.fetch_add(1, Ordering::Relaxed);
        // Release (E15): a thread that reads this and releases the object comes after all uses of it.
        // Mutation: e15-underflow-is-counted-relaxed
        let _ = self.usage.underflowed.fetch_update(Ordering::Release, Ordering::Relaxed, sum);
    }

    /// Subtract what this walk has just added.
    pub(crate) fn take_off(&self, n: u64) {
        self.subtract_usage(n);
        fence_after_exchange();
        marks::fell(self);
    }

    /// Store a max. Where usage is above it, this restores the old max and returns the usage. The caller holds the
    /// tree's lock.
    pub(crate) fn store_max(&self, max: u64) -> Result<(), u64> {
        let old = self.limits.max.load(Ordering::Relaxed);
        // SeqCst (E1): pairs with the exchange in `admit`. Either the charger reads this max, or this thread reads
        // its usage.
        self.limits.max.swap(max, Ordering::SeqCst);
        // Mutation: e1-set-max-without-fence
        fence_after_exchange();
        let usage = self.usage();
        if usage <= max || max >= old {
            return Ok(());
        }
        self.limits.max.store(old, Ordering::SeqCst);
        Err(usage)
    }

    /// Store a max, whatever usage is. An observed level admits every charge. The caller holds the tree's lock.
    pub(crate) fn impose_max(&self, max: u64) {
        self.usage.observed_max.store(max, Ordering::Relaxed);
        let max = if self.is_observed() { u64::MAX } else { max };
        // SeqCst (E1): as in `store_max`.
        self.limits.max.swap(max, Ordering::SeqCst);
        fence_after_exchange();
    }

    /// No thread charges the counter yet.
    pub(crate) fn begin_max(&self, max: u64) {
        self.limits.max.store(max, Ordering::Relaxed);
    }

    /// A charge was refused here lately, or a charge waits for room: no stock below opens.
    pub(crate) fn is_tight(&self) -> bool {
        // Mutation: a-line-does-not-keep-stocks-closed
        self.limits.tight.load(Ordering::Relaxed) || self.limits.watched.is_for(WAITING)
    }

    pub(crate) fn is_observed(&self) -> bool {
        self.limits.watched.is_for(OBSERVED)
    }

    /// The usage that charges are admitted to.
    pub(crate) fn admits(&self) -> u64 {
        // SeqCst (E25): a thread that waits for room reads it after its mark.
        self.limits.max.load(Ordering::SeqCst)
    }

    pub(crate) fn usage(&self) -> u64 {
        // SeqCst (E4, E23): a thread that compares it with a limit or a mark reads it after the fence of that edge.
        self.usage.units.load(Ordering::SeqCst).max(0).cast_unsigned()
    }

    /// Units that a charge can add before one of the levels cannot count them.
    pub(crate) fn countable(&self) -> u64 {
        self.path_to_root().map(|level| USAGE_MAX - level.usage()).min().unwrap_or(USAGE_MAX)
    }

    /// The least max of the levels above. A max that is only observed refuses no charge.
    pub(crate) fn effective_max(&self) -> u64 {
        self.path_to_root().filter(|level| !level.is_observed()).map(Counter::max).min().unwrap_or(u64::MAX)
    }

    /// Units that each level has room for, credit in stocks taken for used.
    pub(crate) fn headroom(&self) -> u64 {
        self.path_to_root().map(|level| level.room(level.admits())).min().unwrap_or(USAGE_MAX)
    }

    /// Units above max: no charge puts them there but a forced one, or a max that was set below usage.
    pub(crate) fn forced(&self) -> u64 {
        self.usage().saturating_sub(self.max())
    }

    pub(crate) fn forced_total(&self) -> u64 {
        self.limits.forced_total.load(Ordering::Relaxed)
    }

    pub(crate) fn peaks(&self) -> &Peaks {
        &self.usage.peaks
    }
}

fn checked_add(usage: i64, n: u64) -> Option<i64> {
    usage.checked_add(i64::try_from(n).ok()?)
}

fn within(usage: i64, max: u64) -> bool {
    usage.max(0).cast_unsigned() <= max
}
