//! Bytes that one thread has counted and that no group owns, a part of its block: see `unowned`.

use crate::sync::Ordering;
use crate::sync::stat_atomic::AtomicU64;

/// From one visit of a count to the next.
const VISIT: u64 = 1 << 20;

/// Counts of one thread. Stored by the owner of the block.
#[derive(Default)]
pub(crate) struct UnownedCounts {
    /// By [`UnownedCount`].
    counts: [ByteCount; 2],
    /// Change of the sum by the thread when it last asked for a comparison.
    pub(super) last_asked: AtomicU64,
}

/// A count that only grows, and that asks for a visit from time to time.
#[derive(Default)]
pub(super) struct ByteCount {
    bytes: AtomicU64,
    /// The next visit. 0 in a new block: the first count is one.
    next: AtomicU64,
}

impl ByteCount {
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
        // A visit each so many bytes, whatever the size of the objects: so a thread is known to
        // within that, and a count is no call.
        self.next
            .store(now.saturating_add(VISIT), Ordering::Relaxed);
    }

    #[inline(always)]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl UnownedCounts {
    /// Below zero, as signed, where the thread has freed what others have allocated.
    pub(super) fn sum(&self) -> u64 {
        let [allocated, freed] = &self.counts;
        allocated.bytes().wrapping_sub(freed.bytes())
    }

    #[inline(always)]
    pub(super) fn of(&self, which: UnownedCount) -> &ByteCount {
        &self.counts[which as usize]
    }
}

#[derive(Clone, Copy)]
pub(crate) enum UnownedCount {
    Allocated = 0,
    Freed = 1,
}
