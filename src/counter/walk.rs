//! The walk of a charge from a counter to its root: numbers first, then looks. Below it stands the
//! walk of an uncharge.
//!
//! After `mm/page_counter.c`, with two differences. A level admits by compare-exchange (`level`),
//! so a refusal leaves no trace at its own level. A walk records peaks once it is through, so a
//! doomed charge leaves none at all.
//!
//! A walk itself takes no lock. It allocates only if it has to look again at more than 256 levels.
//! Before it calls a policy, or goes above max over open stocks, it enters a slow path.

use std::ptr;

use smallvec::SmallVec;

use crate::counter::level::{ChargeMode, LevelTry, TakenLevel};
use crate::counter::object::Counter;
use crate::counter::refusal::LevelRefusal;
use crate::counter::slow_path::LazySlowPath;
use crate::counter::{look, look_ahead};

/// Levels to look at again that one frame of a walk keeps, and most frames on the thread's stack.
/// The last frame allocates for further levels.
const PASSED_MAX: usize = 8;
const FRAMES_MAX: usize = 32;

/// Result of a walk that got through.
#[derive(Clone, Copy)]
pub(crate) struct Walked<'a> {
    /// The smallest room that the walk's own exchanges left.
    pub(crate) margin: u64,
    /// The lowest level that the walk left above its max: by force, or because the level is only
    /// observed.
    pub(crate) above_max: Option<&'a Counter>,
}

impl<'a> Walked<'a> {
    pub(super) const ENDLESS: Walked<'static> = Walked {
        margin: u64::MAX,
        above_max: None,
    };

    /// Adds a level that has been charged, and has so much room.
    #[inline(always)]
    fn pass(&mut self, room: u64, above_max: Option<&'a Counter>) {
        self.margin = self.margin.min(room);
        self.above_max = self.above_max.or(above_max);
    }

    /// Adds a walk of the levels above.
    pub(super) fn join(&mut self, above: Walked<'a>) {
        self.pass(above.margin, above.above_max);
    }
}

/// A walk that did not take each level in one try.
struct Walk<'a, 'w> {
    bottom: &'a Counter,
    n: u64,
    mode: ChargeMode,
    top: Option<&'w Counter>,
    path: &'w LazySlowPath,
}

/// Levels that a walk looks at again once it is through, with the usage that it left there, so that
/// a doomed walk leaves no trace at them.
///
/// To go up once more and look at each level would need no list, and do for the marks, which a look
/// compares with the usage of now. It would not do for peaks: the peak is the usage that this walk
/// has left, and another thread may have uncharged since. So the usage is kept, with its level.
///
/// They are in frames of the thread's stack: an allocator of the program may charge inside each
/// allocation, so an allocation here would call the walk again.
struct PassedLevels<'a, 'below> {
    /// The frame of the levels further down; `frames_below` counts these frames.
    below: Option<&'below PassedLevels<'a, 'below>>,
    frames_below: usize,
    passed: SmallVec<[(&'a Counter, u64); PASSED_MAX]>,
}

/// Charges exactly `n` at each level from `counter` up to `top`, which is left out, or at none.
/// `None`: up to the root. A doomed walk is visible below the refusing level until it is undone.
/// The caller is in a slow path.
#[inline(never)]
pub(crate) fn walk<'a>(
    counter: &'a Counter,
    n: u64,
    mode: ChargeMode,
    top: Option<&Counter>,
) -> Result<Walked<'a>, LevelRefusal<'a>> {
    walk_from(counter, n, mode, top, &LazySlowPath::inside())
}

/// Does [`walk`] on a thread that may be outside of any slow path. In one try for each level it
/// serves levels that nothing has to look at, with room. At any other level it goes on in `force`
/// or in `climb`.
#[inline(always)]
pub(crate) fn walk_from<'a>(
    counter: &'a Counter,
    n: u64,
    mode: ChargeMode,
    top: Option<&Counter>,
    path: &LazySlowPath,
) -> Result<Walked<'a>, LevelRefusal<'a>> {
    // A hint: without it a walk that is refused further up shows below until it is undone.
    // Mutation: walk-does-not-look-ahead
    if look_ahead::is_due(counter)
        && let Some(refusal) = look_ahead::refusal_slow(counter, n, mode, top)
    {
        return Err(refusal);
    }
    let mut level = counter;
    let mut walked = Walked::ENDLESS;
    while top.is_none_or(|top| !ptr::eq(level, top)) {
        // The parent is read before the exchange, which delays all loads that follow it.
        let above = level.parent();
        match level.take_at_once(n) {
            LevelTry::Done { room } => walked.pass(room, None),
            // From here on levels may have to be looked at or undone, with more registers in use
            // than most walks have need of.
            tried => {
                let rest = Walk {
                    bottom: counter,
                    n,
                    mode,
                    top,
                    path,
                };
                walked = if mode == ChargeMode::AdmitOrForce {
                    rest.force((level, tried), walked)?
                } else {
                    rest.climb((level, tried), None, walked)?
                };
                break;
            }
        }
        match above {
            Some(above) => level = above,
            None => break,
        }
    }
    // In a slow path that is left to its end. A walk outside of one is in transit, where listeners
    // may not run: its caller tells the policies after that.
    if let Some(level) = walked.above_max
        && !path.is_outside()
    {
        look::tell_above_max(level, top);
    }
    Ok(walked)
}

impl<'a> Walk<'a, '_> {
    /// Takes the levels from `level` on, which was tried, above max by force: mostly it is the last
    /// one, has no room and is above its max already. Outside of the loop of the walk, which would
    /// have no register left for the level above then, and load it from the stack behind each
    /// exchange.
    #[inline(always)]
    fn force(
        &self,
        (level, tried): (&'a Counter, LevelTry),
        mut walked: Walked<'a>,
    ) -> Result<Walked<'a>, LevelRefusal<'a>> {
        let tried = match tried {
            LevelTry::NotAdded => level.force_at_once(self.n, self.path),
            tried => tried,
        };
        let LevelTry::Forced(taken) = tried else {
            return self.climb((level, tried), None, walked);
        };
        if taken.is_seen {
            return self.climb((level, tried), None, walked);
        }
        walked.pass(taken.room, taken.is_above.then_some(level));
        match level
            .parent()
            .filter(|&above| self.top.is_none_or(|top| !ptr::eq(above, top)))
        {
            Some(above) => self.climb((above, LevelTry::NotAdded), None, walked),
            None => Ok(walked),
        }
    }

    /// Takes the levels from `first` on, which was tried, up to the first level that refuses. Looks
    /// at them once all are taken.
    #[inline(never)]
    fn climb(
        &self,
        (first, mut tried): (&'a Counter, LevelTry),
        below: Option<&PassedLevels<'a, '_>>,
        mut walked: Walked<'a>,
    ) -> Result<Walked<'a>, LevelRefusal<'a>> {
        let frames_below = below.map_or(0, |below| below.frames_below + 1);
        let mut frame = PassedLevels {
            below,
            frames_below,
            passed: SmallVec::new(),
        };
        let mut level = first;
        loop {
            let above = level.parent();
            let taken = match tried {
                LevelTry::Done { room } => {
                    walked.pass(room, None);
                    None
                }
                LevelTry::Forced(taken) => Some(taken),
                LevelTry::AddedLookAgain { new, max } => {
                    match level.keep_or_take_off(new, max, self.n, self.mode, self.path) {
                        Ok(taken) => Some(taken),
                        // The units are off again. The level may have room for them by now, goes
                        // above max for a forced charge, or refuses.
                        Err(_) => Some(self.take_or_roll_back(level)?),
                    }
                }
                LevelTry::NotAdded => Some(self.take_or_roll_back(level)?),
            };
            if let Some(taken) = taken {
                walked.pass(taken.room, taken.is_above.then_some(level));
                if taken.is_seen {
                    frame.passed.push((level, taken.usage));
                }
            }
            let Some(next) = above.filter(|&above| self.top.is_none_or(|top| !ptr::eq(above, top)))
            else {
                break;
            };
            level = next;
            tried = next.take_at_once(self.n);
            // The frame is full: the next one lies on the stack of a walk for the levels that are
            // left.
            if !matches!(tried, LevelTry::Done { .. })
                && frame.passed.len() == PASSED_MAX
                && frames_below + 1 < FRAMES_MAX
            {
                return self.climb((level, tried), Some(&frame), walked);
            }
        }
        if frames_below > 0 || !frame.passed.is_empty() {
            self.look_slow(&frame);
        }
        Ok(walked)
    }

    /// Takes one more level. Where it refuses, the levels below it give back what the walk has
    /// taken there.
    fn take_or_roll_back(&self, level: &'a Counter) -> Result<TakenLevel, LevelRefusal<'a>> {
        level
            .take(self.n, self.mode, self.path)
            .map_err(|refusal| self.roll_back_slow(refusal))
    }

    /// Takes the units off again at the levels below the one that has refused, and returns the
    /// refusal.
    ///
    /// The level that has refused shows nothing of the charge, nor do those above, to which the
    /// walk has not come. Those below have shown the units until now, so another thread may have
    /// found less room there, and may have been refused or gone into line for that. A thread in
    /// line is served by the look that `take_off` ends with; that others are refused is kept rare
    /// by `look_ahead`. This walk has recorded no peak and set no mark, for it looks at levels once
    /// it is through. A charge of another thread that was admitted meanwhile may have left a peak
    /// with these units in it, which stays; a mark that came of them is corrected by the look in
    /// `take_off`.
    #[cold]
    #[inline(never)]
    fn roll_back_slow(&self, refusal: LevelRefusal<'a>) -> LevelRefusal<'a> {
        for below in self.bottom.path_below(Some(refusal.level)) {
            // Each on its own, and no level is gone meanwhile: the caller keeps the lowest, which
            // keeps those above.
            // Mutation: walk-refused-without-roll-back
            below.take_off(self.n, self.path);
            // A batch has passed nobody who waits.
            // Mutation: a-refused-walk-has-barged
            if self.mode != ChargeMode::Batch {
                below.undo_barge(self.n, self.path);
            }
        }
        // The next walks look at that level before they take those below it.
        look_ahead::note_refusal(refusal.level);
        refusal.limited()
    }

    #[cold]
    #[inline(never)]
    fn look_slow(&self, last: &PassedLevels<'a, '_>) {
        for frame in std::iter::successors(Some(last), |frame| frame.below) {
            for &(level, usage) in &frame.passed {
                if level.record_peak(usage) {
                    // At its end the thread counts the credit below, which takes the tree's lock.
                    self.path.enter();
                }
                look::look(level, false, self.path);
            }
        }
    }
}

// === The way back ===

impl Counter {
    /// Uncharges `n` at each level up to `top`, which is left out. `None`: up to the root. If a
    /// level underflows, only what it really held is uncharged from its ancestors. Returns what the
    /// lowest level had. Afterwards the counter may be gone. The caller is in a slow path.
    #[inline(never)]
    pub(crate) fn uncharge(&self, n: u64, top: Option<&Counter>) -> u64 {
        self.uncharge_up_to(n, top, &LazySlowPath::inside())
    }

    /// Does [`uncharge`](Self::uncharge) on a thread that may be outside of any slow path.
    #[inline(always)]
    pub(super) fn uncharge_up_to(&self, n: u64, top: Option<&Counter>, path: &LazySlowPath) -> u64 {
        if n == 0 || top.is_some_and(|top| ptr::eq(self, top)) {
            return n;
        }
        // The lowest level is subtracted from by code of its own. A processor fetches ahead by the
        // distance of the addresses that one instruction has loaded, and an instruction that loads a
        // word of the lowest level and of the root in turn has none: a thread that goes over many
        // counters would wait for memory at each.
        //
        // A parent is read before the subtraction: units that are still charged keep it alive.
        let mut above = self.parent();
        let lowest = self.subtract(n, path);
        let mut left = lowest;
        while let Some(level) =
            above.filter(|&level| left > 0 && top.is_none_or(|top| !ptr::eq(level, top)))
        {
            above = level.parent();
            left = level.subtract(left, path);
        }
        lowest
    }
}
