//! A charge at one level: a first try, then what a walk does after it.
//!
//! Edges: E1 (charge/set_max), E4 (forced charge/opening), E43 (usage/mark). The walk over all
//! levels is in `walk`.

use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::counter::slow_path::Lazily;
use crate::counter::watch::{EXCEEDED, NOT_OF_WALKS, OBSERVED, WAITING};
use crate::counter::{marks, raw};
use crate::error::USAGE_MAX;
use crate::sync::{Ordering, fence_after_exchange};

/// Says how a walk treats a level that has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
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

/// Result of a first try at a level that leaves its caller something to do.
#[derive(Clone, Copy)]
pub(crate) enum Tried {
    /// The level has no room, or another thread came first.
    NotAdded,
    /// The units are added, and usage is `new`. `max` was read after that: something looks at the
    /// level, or max is lower now.
    Added { new: u64, max: u64 },
    /// The units are added by force.
    Forced(TakenLevel),
}

/// Why a level does not keep units that were added, and are taken off again.
struct NotKept {
    max: u64,
    /// Charges waited in line as the level looked.
    is_behind: bool,
}

/// At a level without a max, a charge below the second adds to a usage below the first without a
/// comparison: some four million threads would have to do so at once before usage could pass
/// `USAGE_MAX`.
const ADDED_BELOW: u64 = 1 << 62;
const ADDED_MAX: u64 = 1 << 40;

impl Counter {
    /// Adds `n` in one try, at a level that has room and that nothing looks at, as in most walks.
    /// Returns the room left.
    #[inline(always)]
    pub(crate) fn take_at_once(&self, n: u64) -> Result<u64, Tried> {
        // Acquire (E1): max is read after usage, as in `take_after`.
        let usage = self.usage.units.load(Ordering::Acquire);
        let max = self.limits.max.load(Ordering::Acquire).min(USAGE_MAX);
        // A usage below zero is a huge number here, which no max admits, unless `n` lifts the sum
        // to zero or more: then `new` is right.
        let mut new = usage.cast_unsigned().wrapping_add(n);
        if max == USAGE_MAX && new < ADDED_BELOW && n < ADDED_MAX {
            // SeqCst (E1): as in `exchange`. A level without a max refuses nothing, so an addition
            // leaves no trace of a refusal, and no other thread makes it fail.
            new = self
                .usage
                .units
                .fetch_add(n.cast_signed(), Ordering::SeqCst)
                .cast_unsigned()
                .wrapping_add(n);
        } else if n > USAGE_MAX || new > max || self.exchange(usage, new.cast_signed()).is_err() {
            return Err(Tried::NotAdded);
        }
        let max = self.max_after();
        let is_seen =
            self.limits.watched.is_for(!NOT_OF_WALKS) || self.limits.tight.load(Ordering::Relaxed);
        if new > max || is_seen || self.peaks().rises(new) {
            Err(Tried::Added { new, max })
        } else {
            Ok(max - new)
        }
    }

    /// Adds `n` above max in one try, as a forced charge mostly goes: usage is above max already,
    /// and no stock is open below.
    #[inline(always)]
    pub(crate) fn force_at_once(&self, n: u64, path: &Lazily) -> Tried {
        // Acquire (E10): as in `take_after`.
        let open = self.limits.open.load(Ordering::Acquire);
        let new = self
            .usage
            .units
            .load(Ordering::Acquire)
            .cast_unsigned()
            .wrapping_add(n);
        if open as u32 > 0 || new <= self.max() || new >= ADDED_BELOW || n >= ADDED_MAX {
            return Tried::NotAdded;
        }
        // SeqCst (E4, E43): as in `add_forced`. It refuses nothing, so it needs no comparison.
        let new = self
            .usage
            .units
            .fetch_add(n.cast_signed(), Ordering::SeqCst)
            .cast_unsigned()
            .wrapping_add(n);
        Tried::Forced(self.count_forced(new, n, path))
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
            Tried::Forced(taken) => return Ok(taken),
            Tried::Added { new, max } => {
                if let Ok(taken) = self.settle(new, max, n, how, path) {
                    return Ok(taken);
                }
            }
            Tried::NotAdded => {}
        }
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
                    usage = now;
                    continue;
                }
                match self.settle(new.max(0).cast_unsigned(), self.max_after(), n, how, path) {
                    Ok(taken) => return Ok(taken),
                    // The line that refused may be empty by now, so the refusal says what was there.
                    Err(NotKept { max, is_behind }) => LevelRefusal {
                        is_behind,
                        ..self.refusal(open, usage, max)
                    },
                }
            } else {
                // No drain makes room: the charge goes above max at once.
                if how == How::Force
                    || (how == How::AdmitOrForce && open as u32 == 0 && sum.is_some())
                {
                    return Ok(self.add_forced(n, path));
                }
                let now = self.newest_usage();
                if now != usage {
                    usage = now;
                    continue;
                }
                self.refusal(open, usage, max)
            };
            return match how {
                How::Force => Ok(self.add_forced(n, path)),
                How::AdmitOrForce if refusal.is_for_good(n) => Ok(self.add_forced(n, path)),
                _ => Err(refusal),
            };
        }
    }

    /// Returns the refusal of `n`, if there is no room for them now, and takes nothing: what
    /// `take_after` does where it refuses.
    pub(crate) fn refusal_if_full(&self, n: u64) -> Option<LevelRefusal<'_>> {
        // Acquire (E10), all three: as in `take_after`.
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
        // SeqCst load read what is older.
        self.usage.units.fetch_add(0, Ordering::SeqCst)
    }

    #[inline(always)]
    fn exchange(&self, usage: i64, new: i64) -> Result<i64, i64> {
        // SeqCst (E1): pairs with `set_max`. Either this thread reads the new max in `max_after`,
        // or `set_max` reads this usage.
        self.usage
            .units
            .compare_exchange_weak(usage, new, Ordering::SeqCst, Ordering::Acquire)
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

    /// The units are added, and max is that now: the usage `new` is within it and may stay, or this
    /// subtracts `n` again.
    fn settle(
        &self,
        new: u64,
        max: u64,
        n: u64,
        how: How,
        path: &Lazily,
    ) -> Result<TakenLevel, NotKept> {
        let watched = self.limits.watched.bits();
        let waits = watched & WAITING != 0;
        let is_observed = watched & OBSERVED != 0;
        let may_stay = match how {
            How::Force => true,
            How::Batch => !waits && (!is_observed || new <= self.max()),
            // The line of a level that is only observed waits for nothing: it is served soon, maybe
            // by another thread, and until then it is no reason to refuse.
            How::Admit | How::AdmitOrForce => !waits || is_observed || self.may_barge(n, path),
        };
        if new > max || !may_stay {
            // Mutation: a-line-that-refuses-keeps-the-bytes
            self.take_off(n, path);
            let is_behind = waits;
            return Err(NotKept { max, is_behind });
        }
        let max = if is_observed {
            self.max().min(USAGE_MAX)
        } else {
            max
        };
        let room = max.saturating_sub(new);
        // Plenty of room, below max and below high: stocks below may open again.
        if self.limits.tight.load(Ordering::Relaxed)
            && room.min(self.room(marks::high(self))) >= self.tree().open_margin(self.batch())
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
    fn may_barge(&self, n: u64, path: &Lazily) -> bool {
        path.enter();
        self.tree()
            .policies()
            .is_none_or(|policies| policies.may_barge(self, n))
    }

    /// Give back the barging budget of a walk that has passed this level and subtracts `n` from it.
    pub(crate) fn undo_barge(&self, n: u64, path: &Lazily) {
        if self.limits.watched.is_for(WAITING)
            && let Some(policies) = self.tree().policies()
        {
            path.enter();
            policies.barge_undone(self, n);
        }
    }

    fn refusal(&self, open: u64, usage: i64, max: u64) -> LevelRefusal<'_> {
        // Mutation: refusal-tells-a-later-max
        LevelRefusal {
            level: self,
            open,
            usage: usage.max(0).cast_unsigned(),
            max,
            is_behind: self.limits.watched.is_for(WAITING),
        }
    }

    /// A refusal for a charge that has not read usage before.
    pub(crate) fn refusal_now(&self) -> LevelRefusal<'_> {
        // Acquire (E10): as in `take_after`.
        let open = self.limits.open.load(Ordering::Acquire);
        let usage = self.usage.units.load(Ordering::Acquire);
        self.refusal(open, usage, self.limits.max.load(Ordering::Acquire))
    }

    /// Add `n` whatever max says.
    fn add_forced(&self, n: u64, path: &Lazily) -> TakenLevel {
        let mut usage = self.usage.units.load(Ordering::Relaxed);
        let new = loop {
            let new = checked_add(usage, n).unwrap_or_else(|| {
                self.tree().counts.overflows.fetch_add(1, Ordering::Relaxed);
                // Units that usage does not count keep nothing. Before the exchange, which shows
                // this to a thread that claims the object.
                raw::keep_for_ever(self);
                i64::MAX
            });
            // SeqCst (E4): pairs with the read of usage in `Tree::open`, see
            // `at_limit::close_crossed`.
            match self.usage.units.compare_exchange_weak(
                usage,
                new,
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(_) => break new.max(0).cast_unsigned(),
                Err(now) => usage = now,
            }
        };
        self.count_forced(new, n, path)
    }

    /// Counts how much of `n` is above max, where it is added by force and usage is `new`.
    #[inline(always)]
    fn count_forced(&self, new: u64, n: u64, path: &Lazily) -> TakenLevel {
        fence_after_exchange();
        let max = self.max().min(USAGE_MAX);
        let above = new.saturating_sub(max).min(n);
        let watched = self.limits.watched.bits();
        // E43: the mark after usage. A counter that is no group has no mark.
        // Mutation: e43-forced-at-once-without-a-mark
        let is_unmarked = above > 0 && watched & EXCEEDED == 0 && self.tree().policies().is_some();
        let is_seen = is_unmarked || watched & !NOT_OF_WALKS != 0 || self.peaks().rises(new);
        if above > 0 {
            self.limits.forced_total.fetch_add(above, Ordering::Relaxed);
            // SeqCst (E4): as in `close_crossed`, which closes a stock that has opened meanwhile,
            // in a slow path.
            // Mutation: e4-forced-at-once-without-a-look
            if self.limits.open.load(Ordering::SeqCst) as u32 > 0 {
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

/// A usage that max admits.
#[inline(always)]
fn fits(usage: i64, max: u64) -> bool {
    usage.max(0).cast_unsigned() <= max
}

fn checked_add(usage: i64, n: u64) -> Option<i64> {
    usage.checked_add(i64::try_from(n).ok()?)
}
