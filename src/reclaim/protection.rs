//! Protection as reclaim uses it: what protected bytes weigh, and what a lap remembers of them.

use crate::state::reclaim::{Moment, ParentFigures};

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
