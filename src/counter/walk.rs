//! The walk of a charge from a counter to its root, and back.
//!
//! After `mm/page_counter.c`, with two differences. A level admits by compare-exchange (`level`), so a refusal leaves
//! no trace at its own level. A walk records peaks once it is through, so a doomed charge leaves none at all.

use std::ptr;

use smallvec::SmallVec;

use crate::counter::object::Counter;
use crate::counter::object::tree::Crossing;
use crate::counter::refusal::LevelRefusal;
use crate::counter::watch::{EXCEEDED, HIGH, OBSERVED};
use crate::counter::{exceeded, marks};
use crate::sync::Ordering;

/// Levels to visit again that a walk keeps on its own stack.
const PASSED_COMMON: usize = 8;

/// The levels of a charge: from a counter to its root. For the front of a set, the paths of all its members, the last
/// first. An uncharge goes from the first, so that a later counter never reads lower than an earlier one because of it.
pub(crate) struct Levels<'a> {
    next: Option<&'a Counter>,
    rest: std::slice::Iter<'a, &'static Counter>,
}

impl<'a> Iterator for Levels<'a> {
    type Item = &'a Counter;

    #[inline]
    fn next(&mut self) -> Option<&'a Counter> {
        let level = match self.next {
            Some(level) => level,
            None => self.rest.next_back()?,
        };
        self.next = level.incarnation().parent;
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

/// Levels that a walk visits again once it is through, so that a doomed walk leaves no trace at them.
#[derive(Default)]
struct Passed<'a> {
    /// Levels that are watched or may have a new peak, with the usage that the walk has left there.
    levels: SmallVec<[(&'a Counter, u64); PASSED_COMMON]>,
    /// One of them is watched.
    watched: bool,
}

impl<'a> Passed<'a> {
    #[inline(always)]
    fn note(&mut self, level: &'a Counter, usage: u64) {
        let watched = level.limits.watched.bits() & !EXCEEDED != 0;
        if watched || level.peaks().rises(usage) {
            self.levels.push((level, usage));
            self.watched |= watched;
        }
    }

    #[inline]
    fn record_peaks(&self) {
        for &(level, usage) in &self.levels {
            level.peaks().record(usage);
        }
    }
}

/// Marks that a walk has crossed: the walk notifies the policies of them at once.
type Crossings<'a> = SmallVec<[Crossing<'a>; PASSED_COMMON]>;

impl Counter {
    #[inline]
    pub(crate) fn path_to_root(&self) -> Levels<'_> {
        let members = &self.incarnation().members;
        Levels { next: members.is_empty().then_some(self), rest: members.iter() }
    }

    pub(crate) fn path_below(&self, top: Option<&Counter>) -> impl Iterator<Item = &Counter> {
        self.path_to_root().take_while(move |&level| top.is_none_or(|top| !ptr::eq(level, top)))
    }

    /// Charge exactly `n` at every level, or at none. A doomed walk is visible below the refusing level until it is
    /// undone.
    pub(crate) fn walk(&self, n: u64, amount: Amount) -> Result<Walked, LevelRefusal<'_>> {
        self.walk_below(n, amount, None)
    }

    /// [`walk`](Self::walk) the levels below `top` only.
    pub(crate) fn walk_below(&self, n: u64, amount: Amount, top: Option<&Counter>) -> Result<Walked, LevelRefusal<'_>> {
        let mut passed = Passed::default();
        let mut margin = u64::MAX;
        for level in self.path_below(top) {
            match level.admit(n) {
                Ok(admitted) => {
                    margin = margin.min(admitted.room);
                    passed.note(level, admitted.usage);
                }
                Err(refusal) => {
                    self.roll_back_slow(n, refusal.level);
                    return Err(refusal.limited());
                }
            }
        }
        passed.record_peaks();
        let walked = Walked { margin, over_high: 0, above_observed: false, above_max: false };
        Ok(if passed.watched { self.look_at_marks_slow(n, amount, &passed, walked) } else { walked })
    }

    /// [`walk`](Self::walk) that goes above the max of a level where no drain makes room. It is refused only where one
    /// may.
    #[inline(never)]
    pub(crate) fn walk_forced(&self, n: u64) -> Result<Walked, LevelRefusal<'_>> {
        let mut passed = Passed::default();
        let mut crossings = Crossings::new();
        let mut margin = u64::MAX;
        for level in self.path_to_root() {
            match level.admit_or_force(n) {
                Ok(forced) => {
                    margin = margin.min(forced.room);
                    passed.note(level, forced.usage);
                    if forced.is_above {
                        crossings.push(Crossing::Forced(level));
                    }
                }
                Err(refusal) => {
                    self.roll_back_slow(n, refusal.level);
                    return Err(refusal);
                }
            }
        }
        passed.record_peaks();
        self.tell_crossings(&crossings);
        let walked = Walked { margin, over_high: 0, above_observed: false, above_max: !crossings.is_empty() };
        Ok(if passed.watched { self.look_at_marks_slow(n, Amount::Needed, &passed, walked) } else { walked })
    }

    #[cold]
    fn roll_back_slow(&self, n: u64, refused: &Counter) {
        for below in self.path_to_root().take_while(|&below| !ptr::eq(below, refused)) {
            below.take_off(n);
            below.undo_barge(n);
        }
    }

    /// Compare the marks of the watched levels that a walk has passed with the usage that it left there.
    #[cold]
    #[inline(never)]
    fn look_at_marks_slow(&self, n: u64, amount: Amount, passed: &Passed<'_>, mut walked: Walked) -> Walked {
        let mut crossings = Crossings::new();
        for &(level, usage) in &passed.levels {
            marks::report_protected(level);
            if level.limits.watched.is_for(OBSERVED) && usage > level.max() {
                walked.above_observed = true;
                if amount == Amount::Needed {
                    crossings.push(Crossing::ObservedMax(level));
                }
            }
            if level.limits.watched.is_for(HIGH) && usage > marks::high(level) {
                walked.over_high = n;
                exceeded::rose(level);
            }
            if marks::is_excess_wrong(level) {
                crossings.push(Crossing::Soft(level));
            }
        }
        self.tell_crossings(&crossings);
        walked
    }

    fn tell_crossings(&self, crossings: &[Crossing<'_>]) {
        if let Some(policies) = self.tree().policies().filter(|_| !crossings.is_empty()) {
            policies.crossed(crossings);
        }
    }

    /// Charge exactly `n` at every level, whatever the limits say. True if a level is above its max afterwards.
    pub(crate) fn force(&self, n: u64) -> bool {
        let mut passed = Passed::default();
        let mut crossings = Crossings::new();
        let mut crossed = false;
        for level in self.path_to_root() {
            let forced = level.add_forced(n);
            passed.note(level, forced.usage);
            crossed |= forced.is_above;
            if forced.is_above {
                crossings.push(Crossing::Forced(level));
            }
        }
        passed.record_peaks();
        for &(level, usage) in &passed.levels {
            marks::report_protected(level);
            if level.limits.watched.is_for(HIGH) && usage > marks::high(level) {
                exceeded::rose(level);
            }
            if marks::is_excess_wrong(level) {
                crossings.push(Crossing::Soft(level));
            }
        }
        self.tell_crossings(&crossings);
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
    /// False where a level did. Afterwards the counter may be gone.
    pub(crate) fn uncharge_levels(&self, n: u64) -> bool {
        if n == 0 {
            return true;
        }
        let members = &self.incarnation().members;
        if members.is_empty() {
            return self.uncharge_chain(n) == n;
        }
        // The first member goes first: see `Levels`. A set keeps its front.
        let mut whole = true;
        for member in members {
            whole &= member.uncharge_chain(n) == n;
        }
        if !whole {
            self.poisoned.store(true, Ordering::Relaxed);
        }
        whole
    }

    /// Returns what the lowest level had to subtract.
    fn uncharge_chain(&self, n: u64) -> u64 {
        // The parent is read before the subtraction, here and above: what is left to subtract keeps the parent alive.
        let mut level = self.incarnation().parent;
        let lowest = self.subtract(n);
        let mut n = lowest;
        while let Some(above) = level.filter(|_| n > 0) {
            level = above.incarnation().parent;
            n = above.subtract(n);
        }
        lowest
    }

    /// Usage behind the credit of this stock: the least among a set's counters.
    pub(crate) fn backing(&self) -> u64 {
        self.incarnation().members.iter().map(|member| member.usage()).min().unwrap_or_else(|| self.usage())
    }
}
