//! Effective protection: how much of a counter's min or low holds against pressure from above.
//!
//! After `effective_protection` in `mm/page_counter.c`, with products of 128 bits.

use std::ptr;

use smallvec::SmallVec;

use crate::counter::object::Counter;
use crate::counter::protection::Protection;
use crate::counter::thresholds;

/// Figures of a level that the protection of its children follows from.
#[derive(Clone, Copy)]
pub(crate) struct ParentFigures {
    pub(crate) usage: u64,
    /// Sum of min(usage, setting) over its children, by kind.
    pub(crate) children: [u64; 2],
}

/// A level at one moment.
struct LevelView<'a> {
    level: &'a Counter,
    settings: [u64; 2],
    figures: ParentFigures,
}

/// Levels and figures that the protection of a counter against pressure from above follows from.
/// The counter under pressure is protected by nothing and caps nothing: its children are protected
/// as they are set.
pub(crate) struct PathView<'a> {
    /// The counter first, then the levels above it, up to the one under pressure, which is not
    /// among them.
    levels: SmallVec<[LevelView<'a>; 8]>,
    recursive: bool,
}

impl PathView<'_> {
    /// Protected part of the counter.
    ///
    /// A setting beyond usage claims nothing: what a group does not use protects its siblings.
    /// Where the siblings together claim more than their parent has, each gets its share. With
    /// `recursive`, what they do not claim goes to the siblings that use more than they claim, in
    /// proportion.
    pub(crate) fn protected(&self, kind: Protection) -> u64 {
        let kind = kind as usize;
        let mut levels = self.levels.iter().rev();
        let Some(mut parent) = levels.next() else {
            return 0;
        };
        // From the top down, as what a level has is what its parent leaves it. The highest level
        // below the pressure has its setting whole: what is under pressure caps nothing.
        let mut effective = if parent.figures.usage == 0 {
            0
        } else {
            parent.settings[kind]
        };
        for level in levels {
            effective = level.protected_below(parent.figures, kind, effective, self.recursive);
            parent = level;
        }
        effective
    }

    /// Figures of the levels between the counter and the one under pressure.
    pub(crate) fn parents(
        &mut self,
    ) -> impl ExactSizeIterator<Item = (&Counter, &mut ParentFigures)> {
        let between = self.levels.get_mut(1..).unwrap_or_default();
        between
            .iter_mut()
            .map(|view| (view.level, &mut view.figures))
    }
}

impl LevelView<'_> {
    /// `above` is what is protected of the parent.
    fn protected_below(
        &self,
        parent: ParentFigures,
        kind: usize,
        above: u64,
        recursive: bool,
    ) -> u64 {
        let usage = self.figures.usage;
        let siblings = parent.children[kind];
        let protected = usage.min(self.settings[kind]);
        if siblings > above {
            // The figures are of one moment only while no thread charges: a share of more than all
            // is all.
            return proportion(protected, above, siblings).min(above);
        }
        // Nothing of the parent's is left over for those that use more than they claim, or this one
        // does not.
        if !recursive || usage <= protected || parent.usage <= siblings {
            return protected;
        }
        protected.saturating_add(proportion(
            above - siblings,
            usage - protected,
            parent.usage - siblings,
        ))
    }
}

/// `of` x `part` / `whole`, rounded down.
pub(crate) fn proportion(of: u64, part: u64, whole: u64) -> u64 {
    // In 128 bits: two byte counts of 2^62 would not fit into a product of 64.
    let proportion = u128::from(of) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(proportion).unwrap_or(u64::MAX)
}

/// The views of `counter` and of the levels between it and `root`. `None` where `root` is not
/// above.
pub(crate) fn views<'a>(counter: &'a Counter, root: &Counter) -> Option<PathView<'a>> {
    let mut levels = SmallVec::new();
    for level in counter.path_to_root() {
        if ptr::eq(level, root) {
            return Some(PathView {
                levels,
                recursive: counter.tree().config.recursive,
            });
        }
        let children = Protection::ALL.map(|kind| thresholds::children_protected(level, kind));
        let figures = ParentFigures {
            usage: level.usage(),
            children,
        };
        levels.push(LevelView {
            level,
            settings: Protection::ALL.map(|kind| thresholds::protection(level, kind)),
            figures,
        });
    }
    None
}

/// Part of a counter's usage that is protected against pressure on `root`. 0 for `root` itself, and
/// where it is not above.
pub(crate) fn protected(counter: &Counter, kind: Protection, root: &Counter) -> u64 {
    views(counter, root).map_or(0, |views| views.protected(kind))
}
