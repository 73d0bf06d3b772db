//! The word of a group that has what must hold of the group and all its children together.
//!
//! Edges: E35 (a stock opens/its group goes offline), E37 (a child comes/its parent goes offline).

use crate::sync::{AtomicU32, Ordering};

/// The parent takes no more children; the rest of the word is their number.
const BARRED: u32 = 1 << 31;

/// The number of children that are online, and whether there may be more.
#[derive(Default)]
pub(crate) struct ChildCount(AtomicU32);

/// Why a group was not taken offline, with the number of its children.
#[derive(Debug)]
pub(crate) struct HasChildren(pub(crate) usize);

impl ChildCount {
    /// Children that are online.
    pub(crate) fn get(&self) -> u32 {
        // Acquire (E37): a thread that finds no child finds nothing of one linked; pairs with the
        // end of a child.
        self.0.load(Ordering::Acquire) & !BARRED
    }

    /// No thread uses the group any more.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Counts one more child, unless the parent is barred. Returns whether it is the first.
    pub(super) fn add(&self) -> Option<bool> {
        // AcqRel (E37): pairs with `bar`. Without a load before it: threads that create groups
        // below one parent send each other the word once, not twice.
        let before = self.0.fetch_add(1, Ordering::AcqRel);
        // Mutation: e37-a-child-of-a-barred-parent
        if before & BARRED != 0 {
            self.0.fetch_sub(1, Ordering::Release);
            return None;
        }
        Some(before == 0)
    }

    /// Refuse every further child and every opening of a stock: the group goes offline. Fails where
    /// it has children.
    pub(crate) fn bar(&self) -> Result<(), HasChildren> {
        // SeqCst (E35, E37): pairs with `add`, and with the check in `Tree::open`.
        match self
            .0
            .compare_exchange(0, BARRED, Ordering::SeqCst, Ordering::SeqCst)
        {
            Ok(_) => Ok(()),
            // Barred before. A thread may be about to take back a child that comes too late.
            Err(word) if word & BARRED != 0 => Ok(()),
            // Mutation: e37-a-parent-with-a-child-goes
            Err(children) => Err(HasChildren(children as usize)),
        }
    }

    pub(crate) fn is_barred(&self) -> bool {
        // SeqCst (E35): after `Stocks::add_open`, pairs with `bar`.
        self.0.load(Ordering::SeqCst) & BARRED != 0
    }

    /// One child less: nothing of it is linked any more, and it is offline.
    pub(super) fn remove(&self) {
        // Release (E37): pairs with `bar`.
        self.0.fetch_sub(1, Ordering::Release);
    }
}
