//! The walk of a charge from a counter to its root, and back.
//!
//! After `mm/page_counter.c`, with two differences: a level admits by compare-exchange (`level`), so a refusal leaves
//! no trace at its own level; a peak is recorded after the whole walk, so a doomed charge leaves none at all.

use std::ptr;

use smallvec::SmallVec;

use crate::counter::object::Counter;
use crate::counter::refusal::Refusal;
use crate::reclaim::Event;
use crate::sync::Ordering;

/// Levels at a new peak that a walk keeps on its own stack.
const RISEN_COMMON: usize = 8;

/// The levels of a charge: from a counter to its root. For the front of a set, all chains of its members, the last
/// first; uncharges go from the first, so that a later counter never reads lower for it.
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

/// Levels that a walk may bring to a new peak. Recorded once the walk is through, so that a doomed one leaves none.
struct Risen<'a>(SmallVec<[(&'a Counter, u64); RISEN_COMMON]>);

impl<'a> Risen<'a> {
    fn new() -> Self {
        Risen(SmallVec::new())
    }

    #[inline]
    fn note(&mut self, level: &'a Counter, usage: i64) {
        let usage = usage.max(0).cast_unsigned();
        if level.peaks().rises(usage) {
            self.0.push((level, usage));
        }
    }

    #[inline]
    fn record(self) {
        for (level, usage) in self.0 {
            level.peaks().record(usage);
        }
    }
}

impl Counter {
    #[inline]
    pub(crate) fn path_to_root(&self) -> Levels<'_> {
        let members = &self.incarnation().members;
        Levels { next: members.is_empty().then_some(self), rest: members.iter() }
    }

    pub(crate) fn path_below(&self, top: Option<&Counter>) -> impl Iterator<Item = &Counter> {
        self.path_to_root().take_while(move |&level| top.is_none_or(|top| !ptr::eq(level, top)))
    }

    /// Charge exactly `n` at every level, or at none. Returns the smallest room that its own exchanges left.
    ///
    /// A doomed walk is visible below the refusing level until it is undone.
    pub(crate) fn walk(&self, n: u64) -> Result<u64, Refusal<'_>> {
        self.walk_below(n, None)
    }

    /// [`walk`](Self::walk) the levels below `top` only.
    pub(crate) fn walk_below(&self, n: u64, top: Option<&Counter>) -> Result<u64, Refusal<'_>> {
        let mut risen = Risen::new();
        let mut margin = u64::MAX;
        for level in self.path_below(top) {
            match level.admit(n) {
                Ok((usage, room)) => {
                    margin = margin.min(room);
                    risen.note(level, usage);
                }
                Err(refusal) => {
                    self.roll_back(n, refusal.level);
                    return Err(refusal.limited());
                }
            }
        }
        risen.record();
        Ok(margin)
    }

    #[cold]
    fn roll_back(&self, n: u64, refused: &Counter) {
        for below in self.path_to_root().take_while(|&below| !ptr::eq(below, refused)) {
            below.take_off(n);
            below.has_not_passed(n);
        }
    }

    /// Charge exactly `n` at every level, whatever the limits say. True if a level is above its max afterwards.
    pub(crate) fn force(&self, n: u64) -> bool {
        let mut risen = Risen::new();
        let mut crossed = false;
        for level in self.path_to_root() {
            let (usage, above) = level.add_forced(n);
            risen.note(level, usage);
            crossed |= above;
            if above {
                level.count_event(Event::Overcharge);
            }
        }
        risen.record();
        crossed
    }

    /// Give `n` back at the levels below `top` only. Afterwards the counter may be gone.
    pub(crate) fn uncharge_below(&self, n: u64, top: &Counter) {
        let mut level = Some(self);
        while let Some(at) = level.filter(|&at| !ptr::eq(at, top)) {
            level = at.incarnation().parent;
            at.subtract(n);
        }
    }

    /// Give `n` back at every level. What a level clamps its ancestors keep: they hold it for somebody else. False
    /// where a level did. Afterwards the counter may be gone.
    pub(crate) fn uncharge_levels(&self, n: u64) -> bool {
        if n == 0 {
            return true;
        }
        let members = &self.incarnation().members;
        if members.is_empty() {
            return self.uncharge_chain(n) == n;
        }
        // First member first: see `Levels`. A front is kept by its set.
        let mut whole = true;
        for member in members {
            whole &= member.uncharge_chain(n) == n;
        }
        if !whole {
            self.poisoned.store(true, Ordering::Relaxed);
        }
        whole
    }

    /// Returns what was there to take at the lowest level.
    fn uncharge_chain(&self, n: u64) -> u64 {
        // The parent is read before the subtraction, here and above: what is left to subtract keeps it alive.
        let mut level = self.incarnation().parent;
        let lowest = self.subtract(n);
        let mut n = lowest;
        while let Some(above) = level.filter(|_| n > 0) {
            level = above.incarnation().parent;
            n = above.subtract(n);
        }
        lowest
    }

    /// Usage behind the credit of this stock: the least of a set's counters.
    pub(crate) fn backing(&self) -> u64 {
        self.incarnation().members.iter().map(|member| member.usage()).min().unwrap_or_else(|| self.usage())
    }
}
