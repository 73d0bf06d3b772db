//! The limits that can be set, and which of them are percentages.

use crate::sync::Ordering;
use crate::sync::stat_atomic::{AtomicU8, AtomicU16};
use crate::units::Percent;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitKind {
    Max,
    Min,
    Low,
    Soft,
    High,
    ReclaimAbove,
}

impl LimitKind {
    pub(crate) const ALL: [LimitKind; 6] =
        [LimitKind::Max, LimitKind::Min, LimitKind::Low, LimitKind::Soft, LimitKind::High, LimitKind::ReclaimAbove];
}

/// The percentages that a counter's limits were set to, plus 1; 0 where a limit was set to a number.
#[derive(Default)]
pub(crate) struct Percents([AtomicU8; LimitKind::ALL.len()]);

impl Percents {
    pub(crate) fn is_clean(&self) -> bool {
        LimitKind::ALL.into_iter().all(|kind| self.get(kind).is_none())
    }

    pub(crate) fn reset(&self) {
        LimitKind::ALL.into_iter().for_each(|kind| self.set(kind, None));
    }

    pub(crate) fn get(&self, kind: LimitKind) -> Option<Percent> {
        self.0[kind as usize].load(Ordering::Relaxed).checked_sub(1).and_then(Percent::new)
    }

    pub(crate) fn set(&self, kind: LimitKind, percent: Option<Percent>) {
        self.0[kind as usize].store(percent.map_or(0, |percent| percent.get() + 1), Ordering::Relaxed);
    }
}

/// The number of the name that a service has for the limits, in the table of the process, plus 1; 0 where they have none.
#[derive(Default)]
pub(crate) struct Setting(AtomicU8);

impl Setting {
    pub(crate) fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, number: u8) {
        self.0.store(number, Ordering::Relaxed);
    }
}

/// Per cent of max that a wait which cannot end may take above it; 0: none. Relaxed: a setting.
#[derive(Default)]
pub(crate) struct Overdraft(AtomicU8);

impl Overdraft {
    pub(crate) fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, per_cent: u8) {
        self.0.store(per_cent, Ordering::Relaxed);
    }
}

/// The tasks that a group's memory is given back by; 0 where the group does not say. Relaxed: a setting.
#[derive(Default)]
pub(crate) struct Tasks(AtomicU16);

impl Tasks {
    pub(crate) fn get(&self) -> u16 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, tasks: u16) {
        self.0.store(tasks, Ordering::Relaxed);
    }
}
