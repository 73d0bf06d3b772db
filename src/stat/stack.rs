//! The stack of newly listed cells: writers push without the coordinator's lock, the coordinator takes the stack whole.
//!
//! Edge: E18 (the stack of newly listed cells).

use crate::sync::{AtomicU64, Ordering};
use crate::thread::cells::ThreadStats;

/// The number of the cells listed last, 0 where there are none. Each cells' head has the number of the cells below.
#[derive(Default)]
pub(super) struct ListedStack(AtomicU64);

impl ListedStack {
    /// Pushes cells that the caller has marked as listed (E17: the mark comes first).
    pub(super) fn push(&self, cells: ThreadStats) {
        // The stack is mostly empty: the first try expects that and saves a load.
        let mut top = 0;
        loop {
            cells.set_next(top as u32);
            // Release (E18): pairs with `take`, whose caller reads what stands below.
            match self.0.compare_exchange_weak(top, cells.number().into(), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    /// Empties the stack. Returns the number of the cells that were on top, 0 where it was empty.
    pub(super) fn take(&self) -> u32 {
        // Acquire (E18): pairs with `push`.
        self.0.swap(0, Ordering::Acquire) as u32
    }
}
