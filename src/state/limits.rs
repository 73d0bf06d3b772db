//! The limits that can be set, and which of them are percentages.

use crate::sync::Ordering;
use crate::sync::stat_atomic::AtomicU8;
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
    pub(crate) const ALL: [LimitKind; 6] = [
        LimitKind::Max,
        LimitKind::Min,
        LimitKind::Low,
        LimitKind::Soft,
        LimitKind::High,
        LimitKind::ReclaimAbove,
    ];

    /// As the fields of [`Limits`](crate::Limits) are called.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            LimitKind::Max => "max",
            LimitKind::Min => "min",
            LimitKind::Low => "low",
            LimitKind::Soft => "soft",
            LimitKind::High => "high",
            LimitKind::ReclaimAbove => "reclaim_above",
        }
    }
}

/// The percentages that a counter's limits were set to, plus 1; 0 where a limit was set to a
/// number.
#[derive(Default)]
pub(crate) struct Percents([AtomicU8; LimitKind::ALL.len()]);

impl Percents {
    pub(crate) fn is_clean(&self) -> bool {
        LimitKind::ALL
            .into_iter()
            .all(|kind| self.get(kind).is_none())
    }

    pub(crate) fn reset(&self) {
        LimitKind::ALL
            .into_iter()
            .for_each(|kind| self.set(kind, None));
    }

    pub(crate) fn get(&self, kind: LimitKind) -> Option<Percent> {
        self.0[kind as usize]
            .load(Ordering::Relaxed)
            .checked_sub(1)
            .and_then(Percent::new)
    }

    pub(crate) fn set(&self, kind: LimitKind, percent: Option<Percent>) {
        self.0[kind as usize].store(
            percent.map_or(0, |percent| percent.get() + 1),
            Ordering::Relaxed,
        );
    }
}
