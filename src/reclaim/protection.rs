//! Effective protection: how much of a group's min or low holds against pressure from above.
//!
//! After `effective_protection` in `mm/page_counter.c`, with products of 128 bits.

/// One level of the way down from the group under pressure, which itself is protected by nothing, nor capped by it: its
/// children are protected as they are set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level {
    pub(crate) usage: u64,
    pub(crate) setting: u64,
    /// Sum of min(usage, setting) over its children.
    pub(crate) children: u64,
}

/// What is protected of the last of `levels`, which lie below the group under pressure, topmost first.
///
/// A setting beyond usage claims nothing: what a group does not use protects its siblings. Where the siblings claim
/// together more than their parent has, each gets its share. With `recursive`, what they do not claim goes to those
/// that use more than they claim, in proportion.
pub(crate) fn effective(levels: impl IntoIterator<Item = Level>, recursive: bool) -> u64 {
    let mut levels = levels.into_iter();
    let Some(mut parent) = levels.next() else { return 0 };
    let mut effective = if parent.usage == 0 { 0 } else { parent.setting };
    for level in levels {
        effective = below(level, parent, effective, recursive);
        parent = level;
    }
    effective
}

fn below(level: Level, parent: Level, above: u64, recursive: bool) -> u64 {
    let (usage, siblings) = (level.usage, parent.children);
    let protected = usage.min(level.setting);
    if siblings > above {
        // Figures of one moment only as long as nobody charges: a share of more than all is all.
        return share(protected, above, siblings).min(above);
    }
    if !recursive || usage <= protected || parent.usage <= siblings {
        return protected;
    }
    protected.saturating_add(share(above - siblings, usage - protected, parent.usage - siblings))
}

/// `of` x `part` / `whole`, rounded down.
pub(crate) fn share(of: u64, part: u64, whole: u64) -> u64 {
    let share = u128::from(of) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// What is left to ask for of `weight` bytes in a group that is protected in part: the more of it is protected, the
/// less.
///
/// After `apply_proportional_protection` in `mm/vmscan.c`.
pub(crate) fn unprotected(weight: u64, usage: u64, protection: u64) -> u64 {
    let usage = usage.max(protection);
    let whole = u128::from(usage) + 1;
    let spared = u128::from(weight) * u128::from(protection) / whole;
    weight - u64::try_from(spared).unwrap_or(weight)
}
