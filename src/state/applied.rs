//! Which settings of a group come from a [`GroupSpec`](crate::GroupSpec).
//!
//! The next spec takes back what an earlier one has set and it names no more. All others (the
//! program, a host that a max follows) take a setting over by setting it: their call clears its
//! bit, and no spec unsets it from then on.

use crate::state::limits::LimitKind;
use crate::sync::Ordering;
use crate::sync::stat_atomic::AtomicU16;

/// Settings of a group, as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings(u16);

impl Settings {
    pub(crate) const NONE: Settings = Settings(0);
    pub(crate) const ALL: Settings = Settings(u16::MAX);
    pub(crate) const SHARE: Settings = Settings::nth(6);
    pub(crate) const ELEVATED: Settings = Settings::nth(7);
    pub(crate) const CRITICAL: Settings = Settings::nth(8);
    pub(crate) const IMPORTANCE: Settings = Settings::nth(9);
    pub(crate) const SETTING_NAME: Settings = Settings::nth(10);
    pub(crate) const OOM_POLICY: Settings = Settings::nth(11);
    /// No setting, but the group itself: a spec has created it.
    pub(crate) const CREATED: Settings = Settings::nth(12);
    /// A share is a soft limit that follows the siblings: either takes the other's place.
    pub(crate) const SOFT_OR_SHARE: Settings =
        Settings::limit(LimitKind::Soft).and(Settings::SHARE);

    const fn nth(bit: u16) -> Settings {
        Settings(1 << bit)
    }

    pub(crate) const fn limit(kind: LimitKind) -> Settings {
        Settings::nth(kind as u16)
    }

    pub(crate) const fn and(self, others: Settings) -> Settings {
        Settings(self.0 | others.0)
    }

    pub(crate) const fn among(self, others: Settings) -> Settings {
        Settings(self.0 & others.0)
    }

    pub(crate) const fn without(self, others: Settings) -> Settings {
        Settings(self.0 & !others.0)
    }

    /// Those that are in one of both alone.
    pub(crate) const fn differing(self, others: Settings) -> Settings {
        Settings(self.0 ^ others.0)
    }

    pub(crate) fn each() -> impl Iterator<Item = Settings> {
        (0..u16::BITS as u16).map(Settings::nth)
    }

    /// These, if `is`: else none.
    pub(crate) const fn only_if(self, is: bool) -> Settings {
        if is { self } else { Settings::NONE }
    }

    /// Whether any of `others` is among these.
    pub(crate) const fn has(self, others: Settings) -> bool {
        self.0 & others.0 != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self == Settings::NONE
    }
}

/// The settings of a group that a spec has set. Relaxed: those of limits move under the tree's lock
/// with the limit itself, and of the others no order is relied on.
#[derive(Default)]
pub(crate) struct AppliedSettings(AtomicU16);

impl AppliedSettings {
    pub(crate) fn get(&self) -> Settings {
        Settings(self.0.load(Ordering::Relaxed))
    }

    pub(crate) fn add(&self, settings: Settings) {
        self.0.fetch_or(settings.0, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, settings: Settings) {
        // Most programs have no spec: then this writes nothing.
        if self.get().has(settings) {
            self.0.fetch_and(!settings.0, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.get().is_empty()
    }

    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
