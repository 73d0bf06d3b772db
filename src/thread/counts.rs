//! Bytes that one thread has counted and that no group owns, a part of its block: see `unowned`.

use std::ptr;

use crate::sync::Ordering;
use crate::sync::stat_atomic::{AtomicPtr as StatPtr, AtomicU64};
use crate::thread::directory::Header;

/// From one visit of a count to the next.
const VISIT: u64 = 1 << 20;

/// Counts of one thread. Stored by the owner of the block.
#[derive(Default)]
pub(crate) struct UnownedCounts {
    pub(super) small: Count,
    pub(super) other: Count,
    pub(super) freed: Count,
    /// Bytes in small objects that have been handed over to groups, and the group that gets the others; null
    /// for none. A thread that releases the group clears it.
    pub(super) handed: AtomicU64,
    pub(super) group: StatPtr<Header>,
    /// Change of the sum by the thread when it last asked for a comparison.
    pub(super) last_asked: AtomicU64,
}

#[derive(Default)]
pub(super) struct Count {
    bytes: AtomicU64,
    /// The next visit. 0 in a new block: the first count is one.
    next: AtomicU64,
}

impl Count {
    /// False at a visit: then nothing is counted.
    #[inline(always)]
    pub(super) fn add(&self, bytes: u64) -> bool {
        // Relaxed: only this thread writes either word.
        let now = self.bytes.load(Ordering::Relaxed).wrapping_add(bytes);
        if now >= self.next.load(Ordering::Relaxed) {
            return false;
        }
        self.bytes.store(now, Ordering::Relaxed);
        true
    }

    pub(super) fn visit(&self, bytes: u64) {
        let now = self.bytes().wrapping_add(bytes);
        self.bytes.store(now, Ordering::Relaxed);
        self.next.store(now.saturating_add(VISIT), Ordering::Relaxed);
    }

    #[inline(always)]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl UnownedCounts {
    /// Below zero, as signed, where the thread has freed what others have allocated.
    pub(super) fn sum(&self) -> u64 {
        self.small.bytes().wrapping_add(self.other.bytes()).wrapping_sub(self.freed.bytes())
    }

    #[inline(always)]
    pub(super) fn counts_for(&self, group: *const Header) -> bool {
        ptr::eq(self.group.load(Ordering::Relaxed), group)
    }

    /// Bytes in small objects of a group that are not handed over.
    pub(crate) fn pending(&self, group: &Header) -> u64 {
        if !self.counts_for(group) {
            return 0;
        }
        self.small.bytes().saturating_sub(self.handed.load(Ordering::Relaxed))
    }

    /// The group is released: what is pending belongs to no group. A visit of the owner at the same moment hands it over in vain
    /// or to the next group in the object: a statistic, and less than a visit's.
    pub(crate) fn forget(&self, group: &Header) {
        let group = ptr::from_ref(group).cast_mut();
        let _ = self.group.compare_exchange(group, ptr::null_mut(), Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy)]
pub(super) enum Which {
    Small,
    Other,
    Freed,
}

impl Which {
    #[inline(always)]
    pub(super) fn of(self, counts: &UnownedCounts) -> &Count {
        match self {
            Which::Small => &counts.small,
            Which::Other => &counts.other,
            Which::Freed => &counts.freed,
        }
    }
}
