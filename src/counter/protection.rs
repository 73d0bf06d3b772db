//! min and low as a level stores them, and what it reports to its parent.
//!
//! A parent keeps the sum over its children of min(usage, setting), from which effective protection
//! is computed. Each level remembers what it last reported and adds the difference.
//!
//! Edge: E11. After `propagate_protected_usage` in `mm/page_counter.c`.

use crate::sync::{AtomicI64, AtomicU64, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    Min = 0,
    Low = 1,
}

impl Protection {
    pub(crate) const ALL: [Protection; 2] = [Protection::Min, Protection::Low];
}

/// The words of one level for one kind of protection.
#[derive(Default)]
pub(crate) struct ProtectionWords {
    setting: AtomicU64,
    /// min(usage, setting) as last reported to the parent.
    reported: AtomicU64,
    /// The sum of what the children reported.
    children: AtomicI64,
}

impl ProtectionWords {
    pub(crate) fn is_clean(&self) -> bool {
        self.setting() == 0
    }

    /// No thread uses the counter.
    pub(crate) fn reset(&self) {
        self.setting.store(0, Ordering::Relaxed);
        self.reported.store(0, Ordering::Relaxed);
        self.children.store(0, Ordering::Relaxed);
    }

    /// A fence and a report follow.
    pub(crate) fn set(&self, units: u64) {
        // SeqCst (E11): pairs with the exchanges on usage. Either the charger reads this setting,
        // or this thread its usage.
        self.setting.swap(units, Ordering::SeqCst);
    }

    pub(crate) fn setting(&self) -> u64 {
        self.setting.load(Ordering::Relaxed)
    }

    /// True if a change of usage is to be reported.
    pub(crate) fn is_set(&self) -> bool {
        // SeqCst (E11): after usage; pairs with `set`.
        self.setting.load(Ordering::SeqCst) > 0
    }

    /// Exchanges the last report, adds the difference to the parent, and checks again. The thread
    /// that exchanges last has seen every change before it, so the last report is right: the
    /// kernel's one-shot form can leave a stale one.
    #[cold]
    pub(crate) fn report(&self, usage: impl Fn() -> u64, parent: &ProtectionWords) {
        loop {
            // SeqCst (E11): usage and the setting after the exchange of the turn before; pairs with
            // the exchange on usage before `is_set`.
            let protected = usage().min(self.setting.load(Ordering::SeqCst));
            // AcqRel (E11): reading another thread's report orders that thread's usage before the
            // next read here; pairs with itself on that thread.
            let reported = self.reported.swap(protected, Ordering::AcqRel);
            let change = protected.wrapping_sub(reported).cast_signed();
            if change != 0 {
                parent.children.fetch_add(change, Ordering::AcqRel);
            }
            // Mutation: e11-told-once
            if usage().min(self.setting.load(Ordering::SeqCst)) == protected {
                return;
            }
        }
    }

    pub(crate) fn of_children(&self) -> u64 {
        // Acquire (E11): pairs with the addition in `report`.
        self.children.load(Ordering::Acquire).max(0).cast_unsigned()
    }
}
