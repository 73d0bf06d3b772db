//! Effective protection as arithmetic: how much of a group's min or low holds against pressure from above.
//!
//! After `effective_protection` in `mm/page_counter.c`, with products of 128 bits.

use crate::state::reclaim::{Moment, ParentFigures};

/// One level below the group under pressure. That group itself is protected by nothing and caps nothing: its children are
/// protected as they are set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProtectedLevel {
    pub(crate) usage: u64,
    pub(crate) setting: u64,
    /// Sum of min(usage, setting) over its children.
    pub(crate) children: u64,
}

/// What is protected of the last of `levels`, which lie below the group under pressure, topmost first.
///
/// A setting beyond usage claims nothing: what a group does not use protects its siblings. Where the siblings together
/// claim more than their parent has, each gets its share. With `recursive`, what they do not claim goes to the siblings
/// that use more than they claim, in proportion.
pub(crate) fn effective(levels: impl IntoIterator<Item = ProtectedLevel>, recursive: bool) -> u64 {
    let mut levels = levels.into_iter();
    let Some(mut parent) = levels.next() else { return 0 };
    let mut effective = if parent.usage == 0 { 0 } else { parent.setting };
    for level in levels {
        effective = protected_below(level, parent, effective, recursive);
        parent = level;
    }
    effective
}

/// What is protected of `level`, where `above` is protected of its parent.
fn protected_below(level: ProtectedLevel, parent: ProtectedLevel, above: u64, recursive: bool) -> u64 {
    let (usage, siblings) = (level.usage, parent.children);
    let protected = usage.min(level.setting);
    if siblings > above {
        // The figures are of one moment only while no thread charges: a share of more than all is all.
        return proportion(protected, above, siblings).min(above);
    }
    if !recursive || usage <= protected || parent.usage <= siblings {
        return protected;
    }
    protected.saturating_add(proportion(above - siblings, usage - protected, parent.usage - siblings))
}

/// `of` x `part` / `whole`, rounded down.
pub(crate) fn proportion(of: u64, part: u64, whole: u64) -> u64 {
    let proportion = u128::from(of) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(proportion).unwrap_or(u64::MAX)
}

/// What a group of `weight` bytes weighs where it is protected in part: the more of it is protected, the less.
///
/// After `apply_proportional_protection` in `mm/vmscan.c`.
pub(crate) fn unprotected(weight: u64, usage: u64, protection: u64) -> u64 {
    let usage = usage.max(protection);
    let whole = u128::from(usage) + 1;
    let spared = u128::from(weight) * u128::from(protection) / whole;
    weight - u64::try_from(spared).unwrap_or(weight)
}

impl Moment {
    /// Takes `figures` back to the beginning of `lap`, which is now unless the lap is known: what other groups have given
    /// since protects no group in this lap. What has been charged meanwhile is seen.
    pub(crate) fn recall(&mut self, lap: (u8, u64), figures: &mut ParentFigures) {
        if self.lap != lap {
            *self = Moment { lap, ..Moment::NONE };
        }
        let usage = self.figures.usage.max(figures.usage);
        let children = [0, 1].map(|kind| self.figures.children[kind].max(figures.children[kind]));
        self.figures = ParentFigures { usage, children };
        *figures = self.figures;
    }
}
