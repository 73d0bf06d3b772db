//! The walk of a charge from a counter to its root, and back: numbers first, then looks.
//!
//! After `mm/page_counter.c`, with two differences. A level admits by compare-exchange (`level`), so a refusal leaves
//! no trace at its own level. A walk records peaks once it is through, so a doomed charge leaves none at all.
//!
//! A walk itself takes no lock. It allocates only if it has to look again at more than 256 levels. Before it calls a
//! policy, undoes itself, or goes above max over open stocks, it enters a slow path.

use std::ptr;

use smallvec::SmallVec;

use crate::counter::cover;
use crate::counter::level::{How, TakenLevel, Tried};
use crate::counter::object::Counter;
use crate::counter::object::tree::Policies;
use crate::counter::refusal::LevelRefusal;
use crate::counter::slow_path::Lazily;
use crate::counter::spare::Side;
use crate::counter::watch::{HIGH, NOT_OF_WALKS, NOTED, NOTED_FORCED, OBSERVED, REPORTED};
use crate::counter::{exceeded, marks, noted};
use crate::sync::Ordering;
use crate::thread::slow_path::is_quiet;

/// Levels to look at again that one frame of a walk keeps, and most frames on the thread's stack. The last frame
/// allocates for further levels.
const PASSED_MAX: usize = 8;
const FRAMES_MAX: usize = 32;

/// The levels of a charge: from a counter to its root.
pub(crate) struct Levels<'a>(Option<&'a Counter>);

impl<'a> Iterator for Levels<'a> {
    type Item = &'a Counter;

    #[inline]
    fn next(&mut self) -> Option<&'a Counter> {
        let level = self.0?;
        self.0 = level.incarnation().parent;
        Some(level)
    }
}

/// Result of a walk that got through.
#[derive(Clone, Copy)]
pub(crate) struct Walked<'a> {
    /// The smallest room that the walk's own exchanges left.
    pub(crate) margin: u64,
    /// Units of the walk where it left a level above its high; else 0.
    pub(crate) over_high: u64,
    /// The walk left a level above its max by force.
    pub(crate) above_max: bool,
    /// A level that the walk left above its max by force. The caller counts its event after the transit.
    forced: Option<&'a Counter>,
}

/// Result of a charge that missed.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct Charged {
    /// Units of the walk where it left a level above its high; else 0.
    pub(crate) over_high: u64,
}

impl Charged {
    pub(crate) const QUIETLY: Charged = Charged { over_high: 0 };
}

impl From<Walked<'_>> for Charged {
    fn from(Walked { over_high, .. }: Walked<'_>) -> Charged {
        Charged { over_high }
    }
}

impl Walked<'_> {
    fn quietly(margin: u64) -> Self {
        Walked { margin, over_high: 0, above_max: false, forced: None }
    }

    /// Counts the event of a level that was forced outside of any slow path. The caller keeps the counter and is not in
    /// transit: listeners may run.
    #[inline]
    pub(crate) fn tell_forced(&self) {
        if let Some((level, policies)) = self.forced.and_then(|level| Some((level, level.tree().policies()?))) {
            policies.forced(level);
        }
    }
}

/// A walk that did not take each level in one try.
struct Walk<'a, 'w> {
    bottom: &'a Counter,
    n: u64,
    how: How,
    path: &'w Lazily,
}

/// Levels that a walk looks at again once it is through, so that a doomed walk leaves no trace at them. They are in
/// frames of the thread's stack: an allocator of the program may charge inside each allocation, so an allocation here
/// would call the walk again.
struct PassedLevels<'a, 'below> {
    /// The frame of the levels further down; `frames_below` counts these frames.
    below: Option<&'below PassedLevels<'a, 'below>>,
    frames_below: usize,
    passed: SmallVec<[(&'a Counter, TakenLevel); PASSED_MAX]>,
}

impl Counter {
    #[inline]
    pub(crate) fn path_to_root(&self) -> Levels<'_> {
        Levels(Some(self))
    }

    pub(crate) fn path_below(&self, top: Option<&Counter>) -> impl Iterator<Item = &Counter> {
        self.path_to_root().take_while(move |&level| top.is_none_or(|top| !ptr::eq(level, top)))
    }

    /// Charge exactly `n` at every level below `top`, or at none; without a `top` at all. A doomed walk is visible below the
    /// refusing level until it is undone. The caller is in a slow path.
    #[inline(never)]
    pub(crate) fn walk(&self, n: u64, how: How, top: Option<&Counter>) -> Result<Walked<'_>, LevelRefusal<'_>> {
        self.walk_up_to(n, how, top, &Lazily::inside())
    }

    /// Does [`walk`](Self::walk) for all levels, on a thread that may be outside of any slow path.
    #[inline(always)]
    pub(crate) fn walk_from_outside(&self, n: u64, how: How, path: &Lazily) -> Result<Walked<'_>, LevelRefusal<'_>> {
        self.walk_up_to(n, how, None, path)
    }

    /// Walks up in one try for each level. That serves levels with room that nothing looks at, and one level that is
    /// above its max by force. At any other level the walk goes on in `climb`.
    #[inline(always)]
    fn walk_up_to(
        &self,
        n: u64,
        how: How,
        top: Option<&Counter>,
        path: &Lazily,
    ) -> Result<Walked<'_>, LevelRefusal<'_>> {
        let (mut level, mut walked) = (self, Walked::quietly(u64::MAX));
        while top.is_none_or(|top| !ptr::eq(level, top)) {
            // The parent is read before the exchange, which delays all loads that follow it.
            let above = level.incarnation().parent;
            let tried = match level.take_at_once(n) {
                Err(Tried::NotAdded) if how == How::AdmitOrForce && walked.forced.is_none() && path.is_outside() => {
                    level.force_at_once(n)
                }
                tried => tried,
            };
            match tried {
                Ok(room) => walked.margin = walked.margin.min(room),
                Err(Tried::ForcedAtOnce) => {
                    walked = Walked { margin: 0, over_high: 0, above_max: true, forced: Some(level) };
                }
                Err(tried) => return Walk { bottom: self, n, how, path }.climb((level, tried), top, None, walked),
            }
            match above {
                Some(above) => level = above,
                None => break,
            }
        }
        Ok(walked)
    }

    /// Does [`walk`](Self::walk) for all levels. A level that covers is charged its unpaid units alone.
    pub(crate) fn walk_side(&self, n: u64, how: How, side: Side) -> Result<Walked<'_>, LevelRefusal<'_>> {
        if self.cover().is_none() {
            return self.walk(n, how, None);
        }
        let mut all = Walked::quietly(u64::MAX);
        cover::come(self, n, side, None, |level, more, above| {
            let walked = level.walk(more, how, above)?;
            // A waiter's bytes are not this thread's.
            if side == Side::Allocated {
                cover::note_charged(level, more, above);
            }
            all.margin = all.margin.min(walked.margin);
            all.over_high = all.over_high.max(walked.over_high);
            Ok(())
        })?;
        Ok(all)
    }

    /// Uncharge `n` at every level below `top`; without a `top` at all. If a level underflows, only what it really held is
    /// uncharged from its ancestors. Returns what the lowest level had. Afterwards the counter may be gone. The caller is in
    /// a slow path.
    #[inline(never)]
    pub(crate) fn uncharge(&self, n: u64, top: Option<&Counter>) -> u64 {
        self.uncharge_up_to(n, top, &Lazily::inside())
    }

    /// Does [`uncharge`](Self::uncharge) for all levels, on a thread that may be outside of any slow path.
    #[inline(always)]
    pub(crate) fn uncharge_from_outside(&self, n: u64, path: &Lazily) {
        self.uncharge_up_to(n, None, path);
    }

    #[inline(always)]
    fn uncharge_up_to(&self, n: u64, top: Option<&Counter>, path: &Lazily) -> u64 {
        let (mut level, mut left, mut lowest) = (Some(self), n, None);
        while let Some(at) = level.filter(|&at| left > 0 && top.is_none_or(|top| !ptr::eq(at, top))) {
            // The parent is read before the subtraction: units that are still charged keep the parent alive.
            level = at.incarnation().parent;
            left = at.subtract(left, path);
            lowest = lowest.or(Some(left));
        }
        lowest.unwrap_or(n)
    }

    /// Uncharge `n` at all levels. False: a level had less. In a group that covers, the units are credit, or an
    /// allocator's. Afterwards the counter may be gone.
    pub(crate) fn uncharge_levels(&self, n: u64) -> bool {
        if self.cover().is_some() {
            cover::go(self, n, Side::Allocated);
            return true;
        }
        self.uncharge(n, None) == n
    }

    /// Uncharge credit that came out of slots, and return how much.
    pub(crate) fn uncharge_settled(&self) -> u64 {
        self.uncharge_drained(self.usage.settled.swap(0, Ordering::Relaxed))
    }

    /// Uncharge credit that a drain has taken out, and return how much. What a poisoned counter holds beyond its usage was
    /// never charged. The caller keeps the counter.
    pub(crate) fn uncharge_drained(&self, units: u64) -> u64 {
        if units == 0 {
            return 0;
        }
        let backed = if self.poisoned.load(Ordering::Relaxed) { units.min(self.usage()) } else { units };
        let counts = &self.tree().counts;
        self.uncharge_levels(backed);
        counts.discarded.fetch_add(units - backed, Ordering::Relaxed);
        counts.drained.fetch_add(backed, Ordering::Relaxed);
        backed
    }
}

impl<'a> Walk<'a, '_> {
    /// Takes the levels from `first` on, which was tried, up to the first level that refuses. Looks at them once all
    /// are taken.
    #[inline(never)]
    fn climb(
        &self,
        (first, tried): (&'a Counter, Tried),
        top: Option<&Counter>,
        below: Option<&PassedLevels<'a, '_>>,
        mut walked: Walked<'a>,
    ) -> Result<Walked<'a>, LevelRefusal<'a>> {
        let frames_below = below.map_or(0, |below| below.frames_below + 1);
        let mut frame = PassedLevels { below, frames_below, passed: SmallVec::new() };
        let (mut level, mut tried) = (first, Err(tried));
        loop {
            let above = level.incarnation().parent.filter(|&above| top.is_none_or(|top| !ptr::eq(above, top)));
            match tried {
                Ok(room) => walked.margin = walked.margin.min(room),
                Err(tried) => match level.take_after(tried, self.n, self.how, self.path) {
                    Ok(taken) => {
                        walked.margin = walked.margin.min(taken.room);
                        if taken.is_seen {
                            frame.passed.push((level, taken));
                        }
                    }
                    Err(refusal) => return Err(self.roll_back_slow(refusal)),
                },
            }
            let Some(next) = above else { break };
            (level, tried) = (next, next.take_at_once(self.n));
            if let Err(tried) = tried
                && frame.passed.len() == PASSED_MAX
                && frames_below + 1 < FRAMES_MAX
            {
                return self.climb((level, tried), top, Some(&frame), walked);
            }
        }
        Ok(if frames_below == 0 && frame.passed.is_empty() { walked } else { self.look_slow(&frame, walked) })
    }

    #[cold]
    #[inline(never)]
    fn roll_back_slow(&self, refusal: LevelRefusal<'a>) -> LevelRefusal<'a> {
        self.path.enter();
        for below in self.bottom.path_below(Some(refusal.level)) {
            // Mutation: walk-refused-without-roll-back
            below.take_off(self.n);
            if self.how != How::Batch {
                below.undo_barge(self.n);
            }
        }
        refusal.limited()
    }

    /// Looks at the levels that a walk has passed, once it is through: compares their marks and peaks with the usage
    /// that it left there.
    #[cold]
    #[inline(never)]
    fn look_slow(&self, last: &PassedLevels<'a, '_>, mut walked: Walked<'a>) -> Walked<'a> {
        let mut next = Some(last);
        while let Some(frame) = next {
            for (level, taken) in &frame.passed {
                level.peaks().record(taken.usage);
                if taken.is_above {
                    self.look_at_forced(level, &mut walked);
                }
                let watched = level.limits.watched.bits() & !NOT_OF_WALKS;
                if watched != 0 {
                    self.look_at(level, watched, taken.usage, &mut walked);
                }
            }
            next = frame.below;
        }
        walked
    }

    fn look_at(&self, level: &Counter, watched: u64, usage: u64, walked: &mut Walked<'a>) {
        if watched & REPORTED != 0 {
            marks::report_protected(level);
        }
        if watched & HIGH != 0 && usage > marks::high(level) {
            walked.over_high = self.n;
            exceeded::rose(level);
        }
        if watched & OBSERVED != 0 && usage > level.max() {
            self.tell(|policies| policies.observed(level));
        }
        if marks::is_excess_wrong(level) {
            self.tell(|policies| policies.fell(level));
        }
    }

    fn look_at_forced(&self, level: &'a Counter, walked: &mut Walked<'a>) {
        walked.above_max = true;
        exceeded::rose(level);
        // SeqCst (E4): as in `close_crossed`, which closes a stock that has opened meanwhile.
        if level.limits.open.load(Ordering::SeqCst) as u32 > 0 {
            self.path.enter();
        }
        if is_quiet() {
            noted::note(self.bottom, NOTED | NOTED_FORCED);
        } else if self.path.is_outside() && walked.forced.is_none() {
            walked.forced = Some(level);
        } else if let Some(policies) = level.tree().policies() {
            self.path.enter();
            policies.forced(level);
        }
    }

    /// Tells the policies of a mark that the walk has crossed.
    fn tell(&self, tell: impl FnOnce(&dyn Policies)) {
        if is_quiet() {
            noted::note(self.bottom, NOTED);
        } else if let Some(policies) = self.bottom.tree().policies() {
            self.path.enter();
            tell(policies);
        }
    }
}
