//! Effective protection of a group as a round works with it: as the counters are now, or as the lap remembers them.

use std::ptr;

use smallvec::SmallVec;

use crate::counter::effective::{ProtectedLevel, effective};
use crate::counter::marks;
use crate::counter::object::Counter;
use crate::counter::protection::Protection;
use crate::reclaim::rings;
use crate::state::reclaim::ParentFigures;

/// A level at one moment.
struct View {
    /// Its ring, where it has one.
    ring: u32,
    settings: [u64; 2],
    figures: ParentFigures,
}

/// All that the protection of a group against pressure from above follows from.
pub(crate) struct Views {
    /// The group first, then the levels above it, up to the group under pressure, which is not among them.
    levels: SmallVec<[View; 8]>,
    recursive: bool,
}

impl Views {
    /// Protected part of the group.
    pub(crate) fn protected(&self, kind: Protection) -> u64 {
        let level = |view: &View| ProtectedLevel {
            usage: view.figures.usage,
            setting: view.settings[kind as usize],
            children: view.figures.children[kind as usize],
        };
        effective(self.levels.iter().rev().map(level), self.recursive)
    }

    /// The rings and the figures of the levels between the group and the group under pressure.
    pub(crate) fn parents(&mut self) -> impl ExactSizeIterator<Item = (u32, &mut ParentFigures)> {
        let between = self.levels.get_mut(1..).unwrap_or_default();
        between.iter_mut().map(|view| (view.ring, &mut view.figures))
    }
}

/// The views of `group` and of the levels between it and `root`. `None` where `root` is not above.
pub(crate) fn views(group: &Counter, root: &Counter) -> Option<Views> {
    let mut levels = SmallVec::new();
    for level in group.path_to_root() {
        if ptr::eq(level, root) {
            return Some(Views { levels, recursive: group.tree().config.recursive });
        }
        let kinds = [Protection::Min, Protection::Low];
        let figures =
            ParentFigures { usage: level.usage(), children: kinds.map(|kind| marks::children_protected(level, kind)) };
        levels.push(View {
            ring: rings::number(level),
            settings: kinds.map(|kind| marks::protection(level, kind)),
            figures,
        });
    }
    None
}

/// Weight of a group of `weight` bytes that is protected in part: the more of it is protected, the less.
///
/// After `apply_proportional_protection` in `mm/vmscan.c`.
pub(crate) fn unprotected(weight: u64, usage: u64, protection: u64) -> u64 {
    let usage = usage.max(protection);
    let whole = u128::from(usage) + 1;
    let spared = u128::from(weight) * u128::from(protection) / whole;
    weight - u64::try_from(spared).unwrap_or(weight)
}
