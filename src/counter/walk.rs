//! The walk of a charge from a counter to its root, and back.
//!
//! After `mm/page_counter.c`, with two differences. A level admits by compare-exchange (`level`), so a refusal leaves
//! no trace at its own level. A walk records peaks once it is through, so a doomed charge leaves none at all.

use std::convert::Infallible;
use std::{mem, ptr};

use crate::counter::cover;
use crate::counter::fallen::Fallen;
use crate::counter::level::Open;
use crate::counter::object::Counter;
use crate::counter::object::tree::Crossing;
use crate::counter::passed::{Passed, PassedLevel};
use crate::counter::refusal::LevelRefusal;
use crate::counter::spare::Side;
use crate::counter::watch::{HIGH, OBSERVED};
use crate::counter::{exceeded, marks};
use crate::error::USAGE_MAX;
use crate::sync::Ordering;

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

/// What a walk that got through has found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walked {
    /// The smallest room that the walk's own exchanges left.
    pub(crate) margin: u64,
    /// Units of the walk where it left a level above its high; else 0.
    pub(crate) over_high: u64,
    /// The walk left a level that is only observed above its max.
    pub(crate) above_observed: bool,
    /// The walk left a level above its max by force.
    pub(crate) above_max: bool,
}

impl Walked {
    /// A walk that has passed no mark.
    pub(crate) const fn quietly(margin: u64) -> Walked {
        Walked { margin, over_high: 0, above_observed: false, above_max: false }
    }
}

/// What a charge that missed leaves to its caller.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct Charged {
    /// Units of the walk where it left a level above its high; else 0.
    pub(crate) over_high: u64,
}

impl Charged {
    pub(crate) const QUIETLY: Charged = Charged { over_high: 0 };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    /// The charge needs all of it: an observed max counts it.
    Needed,
    /// The charge needs less: where the walk leaves an observed level above its max, its caller undoes it and walks for
    /// what the charge needs.
    Batch,
}

/// A walk that has got through outside of any slow path.
pub(crate) struct WalkedAtOnce<'a> {
    /// The smallest room left.
    pub(crate) margin: u64,
    /// The level that a forced walk has left above max. The caller reports it.
    pub(crate) above: Option<&'a Counter>,
}

impl WalkedAtOnce<'_> {
    /// Report the level above max, outside of any slow path. The caller keeps the counter.
    #[inline]
    pub(crate) fn tell_forced(&self) {
        if let Some((level, policies)) = self.above.and_then(|level| Some((level, level.tree().policies()?))) {
            policies.forced(level);
        }
    }
}

/// A walk that has stopped on its way up: its thread goes on in a slow path.
pub(crate) struct Stopped<'a> {
    /// The levels below have been charged.
    level: &'a Counter,
    here: Open,
    below: WalkedAtOnce<'a>,
}

/// An uncharge that has stopped on its way up, likewise.
pub(crate) struct StoppedDown<'a> {
    lowest: bool,
    fallen: Fallen<'a>,
    above: Option<&'a Counter>,
}

impl Counter {
    #[inline]
    pub(crate) fn path_to_root(&self) -> Levels<'_> {
        Levels(Some(self))
    }

    pub(crate) fn path_below(&self, top: Option<&Counter>) -> impl Iterator<Item = &Counter> {
        self.path_to_root().take_while(move |&level| top.is_none_or(|top| !ptr::eq(level, top)))
    }

    /// Charge `n` at every level that nothing looks at and that has room; `forced`, at one level above its max as well. The
    /// margin is the smallest room left, or `margin` where that is less.
    #[inline(always)]
    pub(crate) fn walk_at_once(&self, n: u64, margin: u64, forced: bool) -> Result<WalkedAtOnce<'_>, Stopped<'_>> {
        let (mut level, mut below) = (self, WalkedAtOnce { margin, above: None });
        if n > USAGE_MAX {
            return Err(Stopped { level, here: Open::NotAdded, below });
        }
        loop {
            // Read before the exchange, which delays all loads that follow it.
            let parent = level.incarnation().parent;
            match level.admit_at_once(n) {
                Ok(room) => below.margin = below.margin.min(room),
                Err(Open::NotAdded) if forced && below.above.is_none() => match level.force_at_once(n) {
                    Ok(()) => below = WalkedAtOnce { margin: 0, above: Some(level) },
                    Err(here) => return Err(Stopped { level, here, below }),
                },
                Err(here) => return Err(Stopped { level, here, below }),
            }
            match parent {
                Some(parent) => level = parent,
                None => return Ok(below),
            }
        }
    }

    /// Go on with a [`walk`](Self::walk) that has stopped.
    pub(crate) fn walk_on<'a>(
        &'a self,
        n: u64,
        amount: Amount,
        stopped: Stopped<'a>,
    ) -> Result<Walked, LevelRefusal<'a>> {
        // Mutation: closed-walk-goes-on-from-its-start
        self.walk_levels(n, amount, stopped.level.path_to_root(), stopped.here, stopped.below.margin)
    }

    /// Charge exactly `n` at every level, or at none. A doomed walk is visible below the refusing level until it is
    /// undone.
    pub(crate) fn walk(&self, n: u64, amount: Amount) -> Result<Walked, LevelRefusal<'_>> {
        match self.walk_at_once(n, u64::MAX, false) {
            Ok(walked) => Ok(Walked::quietly(walked.margin)),
            Err(stopped) => self.walk_on(n, amount, stopped),
        }
    }

    /// [`walk`](Self::walk) the levels below `top` only.
    pub(crate) fn walk_below(&self, n: u64, amount: Amount, top: Option<&Counter>) -> Result<Walked, LevelRefusal<'_>> {
        self.walk_levels(n, amount, self.path_below(top), Open::NotAdded, u64::MAX)
    }

    fn walk_levels<'a>(
        &'a self,
        n: u64,
        amount: Amount,
        mut levels: impl Iterator<Item = &'a Counter>,
        mut first: Open,
        margin: u64,
    ) -> Result<Walked, LevelRefusal<'a>> {
        let mut charge = |level: &'a Counter| match level.admit_after(mem::replace(&mut first, Open::NotAdded), n) {
            Ok(admitted) => Ok(admitted.into()),
            Err(refusal) => {
                self.roll_back_slow(n, refusal.level);
                Err(refusal.limited())
            }
        };
        Passed::from_bottom(margin).climb(&mut levels, &mut charge, |passed| {
            passed.record_peaks();
            let walked = Walked::quietly(passed.margin);
            if passed.watched { self.look_at_marks_slow(n, amount, passed, walked) } else { walked }
        })
    }

    /// [`walk`](Self::walk) that goes above the max of a level where no drain makes room. It is refused only where one
    /// may.
    #[inline(never)]
    pub(crate) fn walk_forced(&self, n: u64) -> Result<Walked, LevelRefusal<'_>> {
        let below = WalkedAtOnce { margin: u64::MAX, above: None };
        self.walk_forced_levels(n, self.path_to_root(), Open::NotAdded, below)
    }

    /// Go on with a [`walk_forced`](Self::walk_forced) that has stopped.
    pub(crate) fn walk_forced_on<'a>(&'a self, n: u64, stopped: Stopped<'a>) -> Result<Walked, LevelRefusal<'a>> {
        self.walk_forced_levels(n, stopped.level.path_to_root(), stopped.here, stopped.below)
    }

    fn walk_forced_levels<'a>(
        &'a self,
        n: u64,
        mut levels: Levels<'a>,
        mut first: Open,
        below: WalkedAtOnce<'a>,
    ) -> Result<Walked, LevelRefusal<'a>> {
        let mut charge = |level: &'a Counter| {
            let forced = level.admit_or_force(mem::replace(&mut first, Open::NotAdded), n);
            forced.inspect_err(|refusal| self.roll_back_slow(n, refusal.level))
        };
        Passed::from_bottom(below.margin).climb(&mut levels, &mut charge, |passed| {
            passed.record_peaks();
            below.above.into_iter().for_each(|level| self.tell(&Crossing::Forced(level)));
            self.tell_forced(passed);
            let above_max = below.above.is_some() || passed.above_max;
            let walked = Walked { above_max, ..Walked::quietly(passed.margin) };
            if passed.watched { self.look_at_marks_slow(n, Amount::Needed, passed, walked) } else { walked }
        })
    }

    #[cold]
    fn roll_back_slow(&self, n: u64, refused: &Counter) {
        for below in self.path_to_root().take_while(|&below| !ptr::eq(below, refused)) {
            // Mutation: walk-refused-without-roll-back
            below.take_off(n);
            below.undo_barge(n);
        }
    }

    /// Compare the marks of the watched levels that a walk has passed with the usage that it left there.
    #[cold]
    #[inline(never)]
    fn look_at_marks_slow(&self, n: u64, amount: Amount, passed: &Passed<'_, '_>, mut walked: Walked) -> Walked {
        passed.each(&mut |&PassedLevel { level, usage, .. }| {
            marks::report_protected(level);
            if level.limits.watched.is_for(OBSERVED) && usage > level.max() {
                walked.above_observed = true;
                if amount == Amount::Needed {
                    self.tell(&Crossing::ObservedMax(level));
                }
            }
            if level.limits.watched.is_for(HIGH) && usage > marks::high(level) {
                walked.over_high = n;
                exceeded::rose(level);
            }
            if marks::is_excess_wrong(level) {
                self.tell(&Crossing::Soft(level));
            }
        });
        walked
    }

    /// A walk that has got through outside of any slow path, for a thread that is in one now.
    pub(crate) fn report(&self, walked: &WalkedAtOnce<'_>) -> Walked {
        walked.above.into_iter().for_each(|level| self.tell(&Crossing::Forced(level)));
        Walked { above_max: walked.above.is_some(), ..Walked::quietly(walked.margin) }
    }

    /// A walk that is through tells the policies of a mark that it has crossed.
    #[cold]
    fn tell(&self, crossing: &Crossing<'_>) {
        if let Some(policies) = self.tree().policies() {
            policies.crossed(crossing);
        }
    }

    fn tell_forced(&self, passed: &Passed<'_, '_>) {
        if passed.above_max {
            passed.each(&mut |at| {
                if at.is_above {
                    self.tell(&Crossing::Forced(at.level));
                }
            });
        }
    }

    /// Charge exactly `n` at every level, whatever the limits say. True if a level is above its max afterwards.
    pub(crate) fn force(&self, n: u64) -> bool {
        self.force_below(n, None)
    }

    /// The same at the levels below `top` only.
    pub(crate) fn force_below(&self, n: u64, top: Option<&Counter>) -> bool {
        let mut charge = |level: &Counter| Ok::<_, Infallible>(level.add_forced(n));
        let mut levels = self.path_below(top);
        let Ok(crossed) = Passed::from_bottom(u64::MAX).climb(&mut levels, &mut charge, |passed| {
            passed.record_peaks();
            passed.each(&mut |&PassedLevel { level, usage, .. }| {
                marks::report_protected(level);
                if level.limits.watched.is_for(HIGH) && usage > marks::high(level) {
                    exceeded::rose(level);
                }
            });
            self.tell_forced(passed);
            passed.each(&mut |at| {
                if marks::is_excess_wrong(at.level) {
                    self.tell(&Crossing::Soft(at.level));
                }
            });
            passed.above_max
        });
        crossed
    }

    /// Uncharge `n` at the levels below `top` only. Afterwards the counter may be gone.
    pub(crate) fn uncharge_below(&self, n: u64, top: &Counter) {
        let mut level = Some(self);
        while let Some(at) = level.filter(|&at| !ptr::eq(at, top)) {
            level = at.incarnation().parent;
            at.subtract(n);
        }
    }

    /// Uncharge `n` at every level. If a level underflows, only what it really held is uncharged from its ancestors.
    /// False where a level did. Of a group that covers it is credit, or an allocator's. Afterwards the counter may be gone.
    pub(crate) fn uncharge_levels(&self, n: u64) -> bool {
        if n == 0 {
            return true;
        }
        if self.cover().is_some() {
            cover::go(self, n, Side::Allocated);
            return true;
        }
        self.uncharge_chain(n) == n
    }

    /// Returns what the lowest level had to subtract.
    pub(crate) fn uncharge_chain(&self, n: u64) -> u64 {
        self.uncharge_at_once(n).map_or_else(|stopped| stopped.go_on(n), |()| n)
    }

    /// Uncharge `n` at every level that nothing looks at and that something else keeps. Afterwards the counter may be
    /// gone.
    #[inline(always)]
    pub(crate) fn uncharge_at_once(&self, n: u64) -> Result<(), StoppedDown<'_>> {
        let (mut level, mut lowest) = (self, true);
        loop {
            // The parent is read before the subtraction, here and below: what is left to subtract keeps the parent alive.
            let above = level.incarnation().parent;
            if let Err(fallen) = level.subtract_at_once(n) {
                return Err(StoppedDown { lowest, fallen, above });
            }
            match above {
                Some(parent) => (level, lowest) = (parent, false),
                None => return Ok(()),
            }
        }
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

impl StoppedDown<'_> {
    /// In a slow path. Returns what the lowest level had to subtract.
    pub(crate) fn go_on(self, n: u64) -> u64 {
        let StoppedDown { lowest, fallen, above } = self;
        let mut left = fallen.report();
        let taken = if lowest { left } else { n };
        let mut level = above;
        while let Some(at) = level.filter(|_| left > 0) {
            level = at.incarnation().parent;
            left = at.subtract(left);
        }
        taken
    }
}
