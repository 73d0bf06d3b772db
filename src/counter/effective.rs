//! Effective protection: how much of a counter's min or low holds against pressure from above.
//!
//! After `effective_protection` in `mm/page_counter.c`, with products of 128 bits.

use std::ptr;

use smallvec::SmallVec;

use crate::counter::marks;
use crate::counter::object::Counter;
use crate::counter::protection::Protection;

/// One level below the group under pressure. That group itself is protected by nothing and caps nothing: its children are
/// protected as they are set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProtectedLevel {
    pub(crate) usage: u64,
    pub(crate) setting: u64,
    /// Sum of min(usage, setting) over its children.
    pub(crate) children: u64,
}

/// Protected part of the last of `levels`, which lie below the group under pressure, topmost first.
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

/// `above` is what is protected of the parent.
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

/// Part of a counter's usage that is protected against pressure on `root`. 0 for `root` itself, and where it is not
/// above.
pub(crate) fn protected(counter: &Counter, kind: Protection, root: &Counter) -> u64 {
    let mut levels = SmallVec::<[ProtectedLevel; 8]>::new();
    for level in counter.path_to_root() {
        if ptr::eq(level, root) {
            return effective(levels.into_iter().rev(), counter.tree().config.recursive);
        }
        levels.push(ProtectedLevel {
            usage: level.usage(),
            setting: marks::protection(level, kind),
            children: marks::children_protected(level, kind),
        });
    }
    0
}
