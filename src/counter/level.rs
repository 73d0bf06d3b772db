//! One level: where its usage rises, and where it falls. The walks over all levels are in `walk`.
//!
//! Usage rises in `exchange` and in `add`, and falls in `subtract_usage`. Where a caller uncharges
//! more than was charged, that goes on in `subtract_clamped`, or in `put_back`, which adds what was
//! not there. No other file writes usage of a counter in use.
//!
//! A charge tries once, as most need no more. What that try has left to do, `walk` has done by
//! `keep_or_take_off` and `take`.
//!
//! Edges: E1 (charge/set_max), E4 (forced charge/opening), E10 (open count), E11 (protection), E15
//! (the last uncharge), E43 (usage/mark).

use crate::counter::handle::WeakCounter;
use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::counter::slow_path::LazySlowPath;
use crate::counter::watch::{EXCEEDED, NOT_OF_WALKS, OBSERVED, RECLAIMS, WAITING};
use crate::counter::{claim, exceeded_mark, look, raw, thresholds};
use crate::error::USAGE_MAX;
use crate::sync::{Ordering, fence_after_exchange};

/// What a walk does at a level without room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChargeMode {
    /// The charge is refused.
    Admit,
    /// The charge is refused, also if charges wait or if it would leave an observed level above its
    /// max. Its caller needs less, and then walks for that.
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
    /// The walk looks at the level once it is through: usage is a new peak, or watched.
    pub(crate) is_seen: bool,
}

/// What one try at a level has done. In each case but the last the units *are* added: whoever gives
/// the charge up has to take them off.
#[derive(Clone, Copy)]
pub(crate) enum LevelTry {
    /// The units are added, and nothing looks at the level: so much room is left.
    Done { room: u64 },
    /// The units are added, and usage is `new`. `max` was read after that: it is lower than usage
    /// now, or something looks at the level. [`Counter::keep_or_take_off`] decides what becomes of
    /// the units.
    AddedLookAgain { new: u64, max: u64 },
    /// The units are added by force.
    Forced(TakenLevel),
    /// Nothing is added: the level has no room, or another thread came first.
    NotAdded,
}

/// Why a level does not keep units that were added, and are taken off again.
pub(crate) struct NotKept {
    max: u64,
    /// Charges waited in line as the level looked.
    is_behind: bool,
}

/// At a level without a max, a charge below the second adds to a usage below the first without a
/// comparison: some four million threads would have to do so at once before usage could pass
/// `USAGE_MAX`.
const ADDED_BELOW: u64 = 1 << 62;
const ADDED_MAX: u64 = 1 << 40;

// === The two ways in which usage rises ===
//
// It falls below, in `subtract_usage`: where units go back, and where a walk takes off what it has
// added. There `put_back` raises it once more, by what was never there to subtract.

impl Counter {
    /// Adds up to `new`, if no other thread has changed usage since this one read `usage`. This is
    /// how a level with a max admits: a charge that it refuses for lack of room never shows in its
    /// usage. One that has to give way to a line, or to a max that has fallen meanwhile, shows
    /// until `keep_or_take_off` has taken it off again.
    #[inline(always)]
    fn exchange(&self, usage: i64, new: i64) -> Result<i64, i64> {
        // SeqCst (E1): pairs with `set_max`. Either this thread reads the new max in `max_after`,
        // or `set_max` reads this usage. E4, E43: for a forced charge, see `count_forced`.
        self.usage
            .units
            .compare_exchange_weak(usage, new, Ordering::SeqCst, Ordering::Acquire)
    }

    /// Adds `n` whatever usage is, and returns what it is now. An addition of its own, since no
    /// other thread can make it fail, however many charge at once. Only where the level refuses
    /// nothing: without a max, or by force. `n` and usage are within the bounds above.
    #[inline(always)]
    fn add(&self, n: u64) -> u64 {
        // SeqCst (E1, E4, E43): as in `exchange`.
        let before = self
            .usage
            .units
            .fetch_add(n.cast_signed(), Ordering::SeqCst);
        before.cast_unsigned().wrapping_add(n)
    }
}

// === A charge at the level ===

impl Counter {
    /// Adds `n` in one try, at a level that has room and that nothing looks at, as in most walks.
    #[inline(always)]
    pub(crate) fn take_at_once(&self, n: u64) -> LevelTry {
        // Acquire (E1): max is read after usage, as in `take`.
        let usage = self.usage.units.load(Ordering::Acquire);
        let max = self.limits.max.load(Ordering::Acquire).min(USAGE_MAX);
        // A usage below zero is a huge number here, which no max admits, unless `n` lifts the sum
        // to zero or more: then `new` is right.
        let mut new = usage.cast_unsigned().wrapping_add(n);
        if max == USAGE_MAX && new < ADDED_BELOW && n < ADDED_MAX {
            // There is no max to refuse by.
            new = self.add(n);
        } else if n > USAGE_MAX || new > max || self.exchange(usage, new.cast_signed()).is_err() {
            return LevelTry::NotAdded;
        }
        let max = self.max_after();
        let is_seen =
            self.limits.watched.is_for(!NOT_OF_WALKS) || self.limits.tight.load(Ordering::Relaxed);
        // Max may have fallen below usage between the two reads: then the units may not stay.
        if new > max || is_seen || self.peaks().rises(new) {
            LevelTry::AddedLookAgain { new, max }
        } else {
            LevelTry::Done { room: max - new }
        }
    }

    /// Adds `n` above max in one try, as a forced charge mostly goes: usage is above max already,
    /// and no stock is open below.
    #[inline(always)]
    pub(crate) fn force_at_once(&self, n: u64, path: &LazySlowPath) -> LevelTry {
        // Acquire (E10): as in `take`.
        let open = self.limits.open.load(Ordering::Acquire);
        let new = self
            .usage
            .units
            .load(Ordering::Acquire)
            .cast_unsigned()
            .wrapping_add(n);
        if open.is_any() || new <= self.max() || new >= ADDED_BELOW || n >= ADDED_MAX {
            // A drain may make room, or there is room: `take` finds out.
            return LevelTry::NotAdded;
        }
        // It refuses nothing, so it needs no comparison.
        let new = self.add(n);
        LevelTry::Forced(self.count_forced(new, n, path))
    }

    /// Adds `n` where one try has not: again and again while other threads change usage, until the
    /// level has the units or refuses them for what it has then.
    #[cold]
    #[inline(never)]
    pub(crate) fn take(
        &self,
        n: u64,
        mode: ChargeMode,
        path: &LazySlowPath,
    ) -> Result<TakenLevel, LevelRefusal<'_>> {
        // Acquire (E10): read before usage, compared after the refusal. Without an open stock
        // below, a usage above max is as good as a refusal: a stock that opens in between is closed
        // by `at_limit::close_crossed`.
        let open = self.limits.open.load(Ordering::Acquire);
        // Acquire, here and where the exchange fails: max is read after usage, so that a refusal
        // never pairs an old max with a newer usage.
        let mut usage = self.usage.units.load(Ordering::Acquire);
        loop {
            let max = self.limits.max.load(Ordering::Acquire);
            let sum = checked_add(usage, n);
            let refusal = if let Some(new) = sum.filter(|&new| fits(new, max)) {
                if let Err(now) = self.exchange(usage, new) {
                    // Another thread came first: its usage may leave room as well.
                    usage = now;
                    continue;
                }
                let new = new.max(0).cast_unsigned();
                match self.keep_or_take_off(new, self.max_after(), n, mode, path) {
                    Ok(taken) => return Ok(taken),
                    // By the max that was read after the exchange, and the usage before it: what
                    // this thread has taken off again is no reason for a refusal. The line that
                    // refused may be empty by now, so the refusal says what was there.
                    Err(NotKept { max, is_behind }) => LevelRefusal {
                        is_behind,
                        ..self.refusal(open, usage, max)
                    },
                }
            } else {
                // No drain makes room: the charge goes above max at once.
                if mode == ChargeMode::Force
                    || (mode == ChargeMode::AdmitOrForce && !open.is_any() && sum.is_some())
                {
                    return Ok(self.add_forced(n, path));
                }
                // The usage that was read may be an old one: a refusal has to rest on the newest.
                let now = self.newest_usage();
                if now != usage {
                    usage = now;
                    continue;
                }
                self.refusal(open, usage, max)
            };
            return match mode {
                ChargeMode::Force => Ok(self.add_forced(n, path)),
                // No credit was to be had since before the refusal. Where some may be, the caller
                // drains it first.
                ChargeMode::AdmitOrForce if refusal.is_for_good(n) => Ok(self.add_forced(n, path)),
                _ => Err(refusal),
            };
        }
    }

    /// Returns the refusal of `n`, if there is no room for them now, and takes nothing: what
    /// `take` does where it refuses.
    pub(crate) fn refusal_if_full(&self, n: u64) -> Option<LevelRefusal<'_>> {
        // Acquire (E10), all three: as in `take`.
        let open = self.limits.open.load(Ordering::Acquire);
        let mut usage = self.usage.units.load(Ordering::Acquire);
        loop {
            let max = self.limits.max.load(Ordering::Acquire);
            if checked_add(usage, n).is_some_and(|new| fits(new, max)) {
                return None;
            }
            let now = self.newest_usage();
            if now == usage {
                // Mutation: e10-look-ahead-counts-stocks-late
                return Some(self.refusal(open, usage, max));
            }
            usage = now;
        }
    }

    /// Usage, for a refusal.
    #[inline(always)]
    fn newest_usage(&self) -> i64 {
        // An exchange that adds 0 reads the latest value, so no refusal rests on a stale read.
        // AcqRel would do (E10): the refusal and the read of the open stocks come after it. SeqCst,
        // as every other exchange of usage: it is the same instruction, and Miri lets no later
        // SeqCst load read what is older. Pairs with `Tree::uncount`.
        self.usage.units.fetch_add(0, Ordering::SeqCst)
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

    /// The units are added, usage is `new` with them, and `max` was read after that. Keeps them, or
    /// takes them off again and says why.
    pub(crate) fn keep_or_take_off(
        &self,
        new: u64,
        max: u64,
        n: u64,
        mode: ChargeMode,
        path: &LazySlowPath,
    ) -> Result<TakenLevel, NotKept> {
        let watched = self.limits.watched.bits();
        let waits = watched & WAITING != 0;
        let is_observed = watched & OBSERVED != 0;
        let may_stay = match mode {
            ChargeMode::Force => true,
            // A batch is more than the charge needs. It may not pass those who wait, and an
            // observed level, which admits everything, counts only what a caller has asked for as
            // above its max.
            ChargeMode::Batch => !waits && (!is_observed || new <= self.max()),
            // Only so many may pass those who wait that the first of them is not kept waiting for
            // ever. The line of a level that is only observed waits for nothing: it is served soon,
            // maybe by another thread, and until then it is no reason to refuse.
            ChargeMode::Admit | ChargeMode::AdmitOrForce => {
                !waits || is_observed || self.may_barge(n, path)
            }
        };
        // Max fell after this thread had read it and before it added: `set_max` may have read usage
        // without these units, and then counts on this.
        if new > max || !may_stay {
            // Mutation: a-line-that-refuses-keeps-the-bytes
            self.take_off(n, path);
            let is_behind = waits;
            return Err(NotKept { max, is_behind });
        }
        // The max of an observed level admits everything; room is that below the max which it would
        // have.
        let max = if is_observed {
            self.max().min(USAGE_MAX)
        } else {
            max
        };
        // SeqCst (E4): as in `count_forced`. A charge of a closed stock looks at no other stock, and
        // what hits in one is not counted as above an observed max.
        // Mutation: e4-observed-at-once-without-a-look
        if is_observed && new > max && self.limits.open.load(Ordering::SeqCst).is_any() {
            path.enter();
        }
        let room = max.saturating_sub(new);
        // Plenty of room, below max and below high: stocks below may open again.
        if self.limits.tight.load(Ordering::Relaxed)
            && room.min(self.room(thresholds::high(self))) >= self.tree().open_margin(self.batch())
        {
            self.limits.tight.store(false, Ordering::Relaxed);
        }
        let is_seen = watched & !NOT_OF_WALKS != 0 || self.peaks().rises(new);
        Ok(TakenLevel {
            usage: new,
            room,
            is_above: new > max,
            is_seen,
        })
    }

    /// True if a walk that has added `n` may pass the charges that wait here.
    fn may_barge(&self, n: u64, path: &LazySlowPath) -> bool {
        path.enter();
        self.tree()
            .policies()
            .is_none_or(|policies| policies.may_barge(self, n))
    }

    /// Gives back the barging budget of a walk that has passed this level and subtracts `n` from
    /// it.
    pub(crate) fn undo_barge(&self, n: u64, path: &LazySlowPath) {
        if self.limits.watched.is_for(WAITING)
            && let Some(policies) = self.tree().policies()
        {
            path.enter();
            policies.barge_undone(self, n);
        }
    }

    /// Adds `n` whatever max says, and as far as usage can count. By comparison, where a plain
    /// addition could overflow.
    fn add_forced(&self, n: u64, path: &LazySlowPath) -> TakenLevel {
        let mut usage = self.usage.units.load(Ordering::Relaxed);
        let new = loop {
            let new = checked_add(usage, n).unwrap_or_else(|| {
                self.tree().counts.overflows.fetch_add(1, Ordering::Relaxed);
                // Units that usage does not count keep nothing. Before the exchange, which shows
                // this to a thread that claims the object.
                raw::keep_for_ever(self);
                i64::MAX
            });
            // E4: pairs with the read of usage in `Tree::open`, see `at_limit::close_crossed`.
            match self.exchange(usage, new) {
                Ok(_) => break new.max(0).cast_unsigned(),
                Err(now) => usage = now,
            }
        };
        self.count_forced(new, n, path)
    }

    /// Counts how much of `n` is above max, where it is added by force and usage is `new`.
    #[inline(always)]
    fn count_forced(&self, new: u64, n: u64, path: &LazySlowPath) -> TakenLevel {
        fence_after_exchange();
        let max = self.max().min(USAGE_MAX);
        let above = new.saturating_sub(max).min(n);
        let watched = self.limits.watched.bits();
        // E43: the mark after usage. A counter that is no group has no mark. Pairs with
        // `exceeded_mark::correct`.
        // Mutation: e43-forced-at-once-without-a-mark
        let is_unmarked = above > 0 && watched & EXCEEDED == 0 && self.tree().policies().is_some();
        let is_seen = is_unmarked || watched & !NOT_OF_WALKS != 0 || self.peaks().rises(new);
        if above > 0 {
            self.limits.forced_total.fetch_add(above, Ordering::Relaxed);
            // SeqCst (E4): as in `close_crossed`, which closes a stock that has opened meanwhile,
            // in a slow path.
            // Mutation: e4-forced-at-once-without-a-look
            if self.limits.open.load(Ordering::SeqCst).is_any() {
                path.enter();
            }
        }
        TakenLevel {
            usage: new,
            room: max.saturating_sub(new),
            is_above: above > 0,
            is_seen,
        }
    }
}

// === A max that moves ===
//
// Here, beside the charge that it may meet (E1): a charge exchanges usage and reads max again, and
// these exchange max and read usage. So of the two one sees the other: the charge takes its units
// off, or the max is not set. `at_limit` has what comes before and after.

impl Counter {
    /// Stores a max. Where usage is above it, this restores the old max and returns the usage. The
    /// caller holds the tree's lock.
    pub(crate) fn store_max(&self, max: u64) -> Result<(), u64> {
        let old = self.limits.max.load(Ordering::Relaxed);
        // SeqCst (E1): pairs with `max_after`. Either the charger reads this max,
        // or this thread reads its usage.
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

    /// Stores a max, whatever usage is. An observed level admits every charge. The caller holds the
    /// tree's lock.
    pub(crate) fn impose_max(&self, max: u64) {
        // Mutation: a-max-that-moves-is-lost-where-limits-only-count
        self.usage.observed_max.store(max, Ordering::Relaxed);
        // Mutation: a-max-that-moves-acts-where-limits-only-count
        let max = if self.is_observed() { u64::MAX } else { max };
        // SeqCst (E1): as in `store_max`.
        self.limits.max.swap(max, Ordering::SeqCst);
        fence_after_exchange();
    }

    /// Stores the max that acts once the level is no longer only observed. The caller holds the
    /// tree's lock.
    pub(crate) fn store_acting_max(&self, max: u64) {
        // SeqCst (E43): before the exchange of the mark. Pairs with `Watched::exchange` in
        // `pressure_mark`.
        self.limits.max.swap(max, Ordering::SeqCst);
    }
}

// === An uncharge at the level ===

impl Counter {
    /// Subtracts `n` from this level. Returns what was there to subtract: less than `n` is an
    /// underflow, counted and clamped. Afterwards the counter may be gone.
    #[inline(always)]
    pub(crate) fn subtract(&self, n: u64, path: &LazySlowPath) -> u64 {
        let level = WeakCounter::new(self);
        let taken = self.subtract_usage(n, path);
        fence_after_exchange();
        let WeakCounter { object, of } = level;
        // Usage that falls passes no threshold of reclaim.
        let watched = object.limits.watched.bits() & !RECLAIMS;
        // The last units that keep the object, or something looks at the level and may be wrong
        // now.
        let is_right = watched == 0 || (watched == EXCEEDED && exceeded_mark::is_near_max(object));
        if !is_right || object.first().state().unreferenced(of).is_some() {
            fell_slow(level, path);
        }
        taken
    }

    /// One subtraction where usage is at least `n`, which only a caller's bug prevents; else what
    /// is there.
    #[inline(always)]
    fn subtract_usage(&self, n: u64, path: &LazySlowPath) -> u64 {
        let n = n.min(USAGE_MAX);
        if self.usage.units.load(Ordering::Relaxed) >= n.cast_signed() {
            // SeqCst (E1, E11): a thread that sets a limit or a protection meanwhile sees it, or
            // this thread sees the protection afterwards; pairs with `store_max` and
            // `thresholds::set_protection`.
            let usage = self
                .usage
                .units
                .fetch_sub(n.cast_signed(), Ordering::SeqCst);
            if usage >= n.cast_signed() {
                n
            } else {
                self.put_back(n, usage, path)
            }
        } else {
            self.subtract_clamped(n, path)
        }
    }

    /// Between the look at usage and the subtraction another thread has uncharged more than it had
    /// charged, so this thread has left usage below zero. What was not there goes back on.
    #[cold]
    #[inline(never)]
    fn put_back(&self, n: u64, usage: i64, path: &LazySlowPath) -> u64 {
        let taken = usage.max(0).cast_unsigned();
        // SeqCst (E1, E11): as in `subtract_usage`.
        self.usage
            .units
            .fetch_add((n - taken).cast_signed(), Ordering::SeqCst);
        self.underflow(n, taken, path)
    }

    #[cold]
    #[inline(never)]
    fn subtract_clamped(&self, n: u64, path: &LazySlowPath) -> u64 {
        let mut usage = self.usage.units.load(Ordering::Relaxed);
        // A plain subtraction would take usage far below zero for an instant, in which every charge
        // passes the limit.
        loop {
            let taken = n.min(usage.max(0).cast_unsigned());
            let left = usage - taken.cast_signed();
            // SeqCst (E1, E11): as above.
            match self.usage.units.compare_exchange_weak(
                usage,
                left,
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(_) if taken == n => return n,
                Ok(_) => return self.underflow(n, taken, path),
                Err(now) => usage = now,
            }
        }
    }

    #[cold]
    fn underflow(&self, n: u64, taken: u64, path: &LazySlowPath) -> u64 {
        self.poisoned.store(true, Ordering::Relaxed);
        self.count_underflow(n - taken, path);
        taken
    }

    /// Counts `missing` units that were uncharged and never charged. Units that a guard holds keep
    /// the object until they are counted here (`raw`). Afterwards the counter may be gone, unless
    /// the caller has a handle. Listeners of the event run at the end of the slow path.
    pub(crate) fn count_underflow(&self, missing: u64, path: &LazySlowPath) {
        let sum = |sum: u64| Some(sum.saturating_add(missing));
        path.enter();
        look::tell_underflow(self);
        self.usage.underflows.fetch_add(1, Ordering::Relaxed);
        // Mutation: e15-underflow-is-counted-before-the-last-use
        self.tree()
            .counts
            .underflows
            .fetch_add(1, Ordering::Relaxed);
        // Release (E15): a thread that reads this and releases the object comes after all uses of
        // it; pairs with the read in `raw`.
        // Mutation: e15-underflow-is-counted-relaxed
        let _ = self
            .usage
            .underflowed
            .fetch_update(Ordering::Release, Ordering::Relaxed, sum);
    }

    /// Units that were uncharged and never charged, as far as usage was too low for them.
    pub(crate) fn underflowed(&self) -> u64 {
        self.usage.underflowed.load(Ordering::Relaxed)
    }

    /// Subtracts units that this walk has just added.
    pub(crate) fn take_off(&self, n: u64, path: &LazySlowPath) {
        self.subtract_usage(n, path);
        fence_after_exchange();
        look::fell(self, path);
    }
}

/// The caller no longer keeps the level.
#[cold]
#[inline(never)]
fn fell_slow(level: WeakCounter, path: &LazySlowPath) {
    path.enter();
    look::fell_unkept(level);
    // E15: these may have been the last units.
    // Mutation: transfer-ends-no-group
    claim::try_release_last(level.object.first(), level.of);
}

/// A usage that max admits.
#[inline(always)]
fn fits(usage: i64, max: u64) -> bool {
    usage.max(0).cast_unsigned() <= max
}

fn checked_add(usage: i64, n: u64) -> Option<i64> {
    usage.checked_add(i64::try_from(n).ok()?)
}
