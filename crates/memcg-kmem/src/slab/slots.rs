//! Slots of a slab: how they get a holder and an account, and lose them, with and without the lock
//! in turn.

use memcg::kmem::{Kmem, NodeId, Topology};

use super::layout::SlotWord;
use super::pages::{Batch, PageRef, SlabCore};
use crate::error::KmemError;
use crate::nodes::{look_up, node_at};
use crate::sync::{Arc, model_failed};

/// A slot that has a holder, without its value. Its drop gives it back.
pub(super) struct SlabSlot<T> {
    pub(super) page: PageRef<T>,
    pub(super) number: u32,
}

impl<T> SlabCore<T> {
    /// Takes a slot of a page that was made for a node. Returns the slot, and where the page lies.
    pub(super) fn find(
        self: &Arc<Self>,
        asked: usize,
        word: SlotWord,
    ) -> Result<(SlabSlot<T>, Option<NodeId>), KmemError> {
        let found = self.lists.lock().take(self.layout, asked, word);
        let word = match found {
            Ok((page, number, lies)) => return Ok((SlabSlot { page, number }, lies)),
            Err(word) => word,
        };
        let topology = Topology::of(&self.root);
        let node = node_at(topology, asked).filter(|_| !topology.is_one_node());
        let mapping = PageRef::<T>::map(self.layout, node)?;
        let lies = match node {
            None => node_at(topology, 0),
            // Mutation: a-page-lies-where-it-was-asked-for
            Some(_) => look_up(&self.root, std::iter::once(mapping.range().start))[0],
        };
        let page = PageRef::make(Arc::clone(self), mapping, lies, asked);
        // Another thread may have made a page at the same time. Both are kept: each has an object.
        let number = self.lists.lock().add(self.layout, page, word);
        Ok((SlabSlot { page, number }, lies))
    }
}

impl<T> Drop for SlabSlot<T> {
    fn drop(&mut self) {
        if !model_failed() {
            self.page.release(self.number);
        }
    }
}

/// Pages that a thread has pinned while it looks at them.
pub(super) struct PinnedSlabPages<'a, T> {
    shared: &'a SlabCore<T>,
    pub(super) pages: Batch<T>,
}

impl<'a, T> PinnedSlabPages<'a, T> {
    pub(super) fn after(shared: &'a SlabCore<T>, last: Option<PageRef<T>>) -> Self {
        let pages = shared.lists.lock().pin_after(last);
        PinnedSlabPages { shared, pages }
    }
}

impl<T> Drop for PinnedSlabPages<'_, T> {
    fn drop(&mut self) {
        for &page in &self.pages {
            let spare = self.shared.lists.lock().unpin(page);
            drop(spare);
        }
    }
}

// === Slots ===

impl<T> PageRef<T> {
    /// Publishes the account of a slot that was made for a node. If the page lies elsewhere by now,
    /// the account follows it first. If the holder has given the slot back meanwhile, this ends
    /// both.
    #[allow(unsafe_code)]
    pub(super) fn publish(self, slot: u32, mut kmem: Kmem, mut made_for: Option<NodeId>) {
        // The page may go with the slot.
        let shared = Arc::clone(self.shared());
        loop {
            let owner = SlotWord::of(kmem);
            let lies = {
                let mut lists = shared.lists.lock();
                // SAFETY: the thread holds the lock; the slot is the caller's, or set aside.
                let (state, word) = unsafe { (self.state(), self.word(shared.layout, slot)) };
                if matches!(word, SlotWord::Gone) {
                    let spare = lists.give_back(shared.layout, self, slot);
                    drop(lists);
                    drop(owner);
                    return drop(spare);
                }
                // Mutation: slab-published-for-where-the-page-was
                // Mutation: publish-ignores-where-the-page-lies
                if state.node == made_for {
                    *word = owner;
                    return;
                }
                state.node
            };
            // Every account of an object has two words.
            let SlotWord::Held(owner) = owner else { return };
            kmem = owner.unpack();
            kmem.follow(made_for, lies);
            made_for = lies;
        }
    }

    /// Gives a slot back. Its holder calls this once, when the slot has no value.
    #[allow(unsafe_code)]
    pub(super) fn release(self, slot: u32) {
        // The page may go with the slot.
        let shared = Arc::clone(self.shared());
        let mut lists = shared.lists.lock();
        // SAFETY: the thread holds the lock; the slot is the caller's.
        let word = unsafe { self.word(shared.layout, slot) };
        let owner = match std::mem::replace(word, SlotWord::Taken) {
            SlotWord::Held(owner) => Some(owner),
            // Mutation: slab-slot-given-back-while-its-account-moves
            SlotWord::Moving => {
                *word = SlotWord::Gone;
                return;
            }
            // Mutation: slab-slot-given-back-while-its-account-moves
            SlotWord::Free(_) | SlotWord::Taken | SlotWord::Gone => None,
        };
        let spare = lists.give_back(shared.layout, self, slot);
        drop(lists);
        // The memory is gone before the group gets its bytes back.
        drop(spare);
        drop(owner);
    }

    /// Notes where a pinned page lies, and moves the accounts of its objects there.
    #[allow(unsafe_code)]
    pub(super) fn moved(self, node: Option<NodeId>) {
        let shared = self.shared();
        let before = {
            let _lists = shared.lists.lock();
            // SAFETY: the thread holds the lock.
            std::mem::replace(&mut unsafe { self.state() }.node, node)
        };
        if before == node {
            return;
        }
        for slot in 0..shared.layout.slots {
            let owner = {
                let _lists = shared.lists.lock();
                // SAFETY: the thread holds the lock.
                let word = unsafe { self.word(shared.layout, slot) };
                match std::mem::replace(word, SlotWord::Moving) {
                    SlotWord::Held(owner) => owner,
                    other => {
                        *word = other;
                        continue;
                    }
                }
            };
            let mut kmem = owner.unpack();
            kmem.follow(before, node);
            self.publish(slot, kmem, node);
        }
    }
}
