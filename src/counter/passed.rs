//! Levels that a walk has charged and visits again once it is through.

use smallvec::SmallVec;

use crate::counter::level::{Admitted, Forced};
use crate::counter::object::Counter;
use crate::counter::watch::NOT_OF_WALKS;

/// Levels to visit again that one frame of a walk keeps, and frames on the thread's stack: beyond the last one's levels
/// the walk allocates.
const PASSED_MAX: usize = 8;
const FRAMES_MAX: usize = 32;

impl From<Admitted> for Forced {
    fn from(Admitted { usage, room }: Admitted) -> Forced {
        Forced { usage, room, is_above: false }
    }
}

/// A level that a walk has passed, with the usage that the walk has left there.
#[derive(Clone, Copy)]
pub(super) struct PassedLevel<'a> {
    pub(super) level: &'a Counter,
    pub(super) usage: u64,
    /// The walk left the level above its max by force.
    pub(super) is_above: bool,
}

/// Levels that a walk visits again once it is through, so that a doomed walk leaves no trace at them: in frames of the
/// thread's stack. An allocator of the program may charge inside each allocation, which the walk would call again.
pub(super) struct Passed<'a, 'below> {
    /// The frame of the levels further down, and how many there are.
    below: Option<&'below Passed<'a, 'below>>,
    frames_below: usize,
    /// Levels that are watched, may have a new peak, or are above max by force.
    levels: SmallVec<[PassedLevel<'a>; PASSED_MAX]>,
    /// Here and in the frames below: a level is watched; a level is above its max by force.
    pub(super) watched: bool,
    pub(super) above_max: bool,
    /// The smallest room that the walk has left at any level.
    pub(super) margin: u64,
}

impl<'a, 'below> Passed<'a, 'below> {
    #[inline]
    pub(super) fn from_bottom(margin: u64) -> Self {
        let levels = SmallVec::new();
        Passed { below: None, frames_below: 0, levels, watched: false, above_max: false, margin }
    }

    fn on(below: &'below Passed<'a, 'below>) -> Self {
        let &Passed { frames_below, watched, above_max, margin, .. } = below;
        let levels = SmallVec::new();
        Passed { below: Some(below), frames_below: frames_below + 1, levels, watched, above_max, margin }
    }

    /// Takes each level by `charge`, up to the first that refuses. Returns what `end` finds once all have been charged.
    #[inline]
    pub(super) fn climb<R, E>(
        mut self,
        levels: &mut impl Iterator<Item = &'a Counter>,
        charge: &mut impl FnMut(&'a Counter) -> Result<Forced, E>,
        end: impl FnOnce(&Passed<'a, '_>) -> R,
    ) -> Result<R, E> {
        while self.levels.len() < PASSED_MAX || self.frames_below + 1 == FRAMES_MAX {
            let Some(level) = levels.next() else { return Ok(end(&self)) };
            let charged = charge(level)?;
            self.note(level, charged);
        }
        self.climb_on(levels, charge, end)
    }

    /// The frame is full.
    #[cold]
    #[inline(never)]
    fn climb_on<R, E>(
        &self,
        levels: &mut impl Iterator<Item = &'a Counter>,
        charge: &mut impl FnMut(&'a Counter) -> Result<Forced, E>,
        end: impl FnOnce(&Passed<'a, '_>) -> R,
    ) -> Result<R, E> {
        Passed::on(self).climb(levels, charge, end)
    }

    #[inline(always)]
    fn note(&mut self, level: &'a Counter, charged: Forced) {
        let Forced { usage, room, is_above } = charged;
        self.margin = self.margin.min(room);
        let watched = level.limits.watched.bits() & !NOT_OF_WALKS != 0;
        if watched || is_above || level.peaks().rises(usage) {
            self.levels.push(PassedLevel { level, usage, is_above });
            self.watched |= watched;
            self.above_max |= is_above;
        }
    }

    /// Visits the levels from the bottom up.
    #[inline]
    pub(super) fn each(&self, visit: &mut impl FnMut(&PassedLevel<'a>)) {
        if let Some(below) = self.below {
            below.each_below(visit);
        }
        self.levels.iter().for_each(visit);
    }

    #[cold]
    #[inline(never)]
    fn each_below(&self, visit: &mut impl FnMut(&PassedLevel<'a>)) {
        self.each(visit);
    }

    #[inline]
    pub(super) fn record_peaks(&self) {
        self.each(&mut |at| at.level.peaks().record(at.usage));
    }
}
