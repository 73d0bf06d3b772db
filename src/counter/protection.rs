//! min and low as a level stores them, and what it reports to its parent.
//!
//! A parent keeps the sum over its children of min(usage, setting), from which effective protection is computed. Each
//! level remembers what it last reported and adds the difference.
//!
//! Edge: E11. After `propagate_protected_usage` in `mm/page_counter.c`.

use crate::counter::object::Counter;
use crate::counter::watch::TOLD;
use crate::sync::{AtomicI64, AtomicU64, Ordering, fence_after_exchange};

/// One kind of protection: what this level has reported to its parent, and what its children have reported to it.
#[derive(Default)]
pub(crate) struct Propagated {
    /// min(usage, setting) as last reported.
    told: AtomicU64,
    /// The sum of what the children reported.
    children: AtomicI64,
}

impl Propagated {
    /// Clear both. No thread uses the counter.
    pub(crate) fn forget(&self) {
        self.told.store(0, Ordering::Relaxed);
        self.children.store(0, Ordering::Relaxed);
    }
}

/// Which protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    Min = 0,
    Low = 1,
}

impl Counter {
    fn protection(&self, kind: Protection) -> (&AtomicU64, &Propagated) {
        match kind {
            Protection::Min => (&self.limits.min, &self.limits.min_propagated),
            Protection::Low => (&self.limits.low, &self.limits.low_propagated),
        }
    }

    /// Set the protection of a counter that no thread charges yet.
    pub(crate) fn begin_protection(&self, kind: Protection, units: u64) {
        self.protection(kind).0.store(units, Ordering::Relaxed);
        if units > 0 {
            self.watch(TOLD);
        }
    }

    pub(crate) fn set_protection(&self, kind: Protection, units: u64) {
        // SeqCst (E11): pairs with the exchanges on usage. Either the charger reads this setting, or this thread its
        // usage.
        self.protection(kind).0.swap(units, Ordering::SeqCst);
        if units > 0 {
            self.watch(TOLD);
        }
        fence_after_exchange();
        self.tell(kind);
    }

    /// Report to the parent how much of a changed usage is protected, where a protection is set.
    pub(crate) fn tell_protected(&self) {
        // SeqCst (E11): after usage; pairs with `set_protection`. So is the other.
        if self.limits.min.load(Ordering::SeqCst) > 0 {
            self.tell(Protection::Min);
        }
        if self.limits.low.load(Ordering::SeqCst) > 0 {
            self.tell(Protection::Low);
        }
    }

    /// Whether the counter has a min or a low.
    pub(crate) fn is_protected(&self) -> bool {
        // SeqCst (E11): as in `tell_protected`.
        self.limits.min.load(Ordering::SeqCst) > 0 || self.limits.low.load(Ordering::SeqCst) > 0
    }

    /// Exchange the last report, add the difference to the parent, check again. The thread that exchanges last has seen
    /// every change before it, so the last report is right: the kernel's one-shot form can leave a stale one.
    #[cold]
    fn tell(&self, kind: Protection) {
        let Some(parent) = self.incarnation().parent else { return };
        let (setting, propagated) = self.protection(kind);
        loop {
            // SeqCst (E11): usage and the setting after the exchange of the turn before.
            let protected = self.usage().min(setting.load(Ordering::SeqCst));
            // AcqRel (E11): reading another thread's report orders that thread's usage before the next read here.
            let told = propagated.told.swap(protected, Ordering::AcqRel);
            let change = protected.wrapping_sub(told).cast_signed();
            if change != 0 {
                parent.protection(kind).1.children.fetch_add(change, Ordering::AcqRel);
            }
            if self.usage().min(setting.load(Ordering::SeqCst)) == protected {
                return;
            }
        }
    }

    pub(crate) fn setting(&self, kind: Protection) -> u64 {
        self.protection(kind).0.load(Ordering::Relaxed)
    }

    /// The sum of what the children reported.
    pub(crate) fn children_protected(&self, kind: Protection) -> u64 {
        // Acquire (E11): pairs with the addition in `tell`.
        self.protection(kind).1.children.load(Ordering::Acquire).max(0).cast_unsigned()
    }
}
