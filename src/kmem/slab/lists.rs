//! The pages of a slab, and what is done under its lock.
//!
//! A `&mut Lists` is the lock held: with it the state of any page in the lists may be touched.

use super::super::account::Kmem;
use super::super::owner::Owner;
use super::page::{Link, PageRef, Shape, Word};
use super::{BATCH, Shared};
use crate::numa::NodeId;
use crate::sync::Arc;

/// Empty pages that are kept for each node.
const EMPTY_MAX: u32 = 1;

/// All pages, and those with free slots by the node that they were asked for on.
pub(super) struct Lists<T> {
    nodes: Box<[OnNode<T>]>,
    all: Option<PageRef<T>>,
    pages: usize,
    /// The slab is gone: nothing is kept.
    closed: bool,
}

struct OnNode<T> {
    open: Option<PageRef<T>>,
    /// Of these without any object.
    empty: u32,
}

/// Which of a page's two links.
type Of<T> = fn(&mut super::page::State<T>) -> &mut Link<T>;

/// Of a list.
///
/// # Safety
///
/// The lock is held; `page` is in no list of this kind.
#[allow(unsafe_code)]
unsafe fn link<T>(first: &mut Option<PageRef<T>>, page: PageRef<T>, of: Of<T>) {
    // SAFETY: the caller's; one reference at a time.
    unsafe {
        *of(page.state()) = Link { before: None, after: *first };
        if let Some(after) = first {
            of(after.state()).before = Some(page);
        }
    }
    *first = Some(page);
}

/// # Safety
///
/// The lock is held; `page` is in the list.
#[allow(unsafe_code)]
unsafe fn unlink<T>(first: &mut Option<PageRef<T>>, page: PageRef<T>, of: Of<T>) {
    // SAFETY: the caller's; neighbours are in the list; one reference at a time.
    unsafe {
        let Link { before, after } = std::mem::replace(of(page.state()), Link::NONE);
        match before {
            Some(before) => of(before.state()).after = after,
            None => *first = after,
        }
        if let Some(after) = after {
            of(after.state()).before = before;
        }
    }
}

impl<T> Lists<T> {
    pub(super) fn new(nodes: usize) -> Self {
        let nodes = (0..nodes.max(1)).map(|_| OnNode { open: None, empty: 0 }).collect();
        Lists { nodes, all: None, pages: 0, closed: false }
    }

    pub(super) fn pages(&self) -> usize {
        self.pages
    }

    /// A free slot, where there is one.
    #[allow(unsafe_code)]
    pub(super) fn take(&mut self, shape: Shape, asked: usize, word: Word) -> Option<(PageRef<T>, u32, Option<NodeId>)> {
        let page = self.nodes[asked].open?;
        // SAFETY: the lock is held; pages in a list are there.
        unsafe {
            let slot = page.pop(shape, word)?;
            let state = page.state();
            let (was_empty, is_full, lies) = (state.used == 1, state.is_full(), state.node);
            self.nodes[asked].empty -= u32::from(was_empty);
            if is_full {
                unlink(&mut self.nodes[asked].open, page, |state| &mut state.open);
            }
            Some((page, slot, lies))
        }
    }

    /// A new page, and a slot of it.
    #[allow(unsafe_code)]
    pub(super) fn add(&mut self, shape: Shape, page: PageRef<T>, word: Word) -> (u32, Option<NodeId>) {
        // SAFETY: the lock is held; the page is the caller's and in no list.
        unsafe {
            let slot = page.pop(shape, word).unwrap_or(0);
            link(&mut self.all, page, |state| &mut state.all);
            self.pages += 1;
            let state = page.state();
            let (is_full, asked, lies) = (state.is_full(), state.asked, state.node);
            if !is_full {
                link(&mut self.nodes[asked].open, page, |state| &mut state.open);
            }
            (slot, lies)
        }
    }

    /// A slot is free again. A page that goes with it comes back, out of all lists.
    #[allow(unsafe_code)]
    fn give_back(&mut self, shape: Shape, page: PageRef<T>, slot: u32) -> Option<Spare<T>> {
        // SAFETY: the lock is held, and the caller had the slot.
        unsafe {
            let was_full = page.state().is_full();
            page.push(shape, slot);
            let (asked, is_empty) = (page.state().asked, page.state().used == 0);
            if was_full {
                link(&mut self.nodes[asked].open, page, |state| &mut state.open);
            }
            self.nodes[asked].empty += u32::from(is_empty);
        }
        self.spare(page)
    }

    /// Takes the page out of the lists if it is empty, not looked at, and one too many.
    #[allow(unsafe_code)]
    fn spare(&mut self, page: PageRef<T>) -> Option<Spare<T>> {
        // SAFETY: the lock is held; the page is in the lists, and open if it is empty.
        unsafe {
            let state = page.state();
            let (used, pins, asked) = (state.used, state.pins, state.asked);
            let node = &mut self.nodes[asked];
            if used > 0 || pins > 0 || (node.empty <= EMPTY_MAX && !self.closed) {
                return None;
            }
            node.empty -= 1;
            unlink(&mut node.open, page, |state| &mut state.open);
            unlink(&mut self.all, page, |state| &mut state.all);
        }
        self.pages -= 1;
        Some(Spare(page))
    }

    /// From here on nothing is kept. Returns a page that was, until there is none.
    pub(super) fn close(&mut self) -> Option<Spare<T>> {
        self.closed = true;
        for node in 0..self.nodes.len() {
            let mut at = self.nodes[node].open.filter(|_| self.nodes[node].empty > 0);
            while let Some(page) = at {
                at = self.after(page, |state| &mut state.open);
                let spare = self.spare(page);
                if spare.is_some() {
                    return spare;
                }
            }
        }
        None
    }

    #[allow(unsafe_code)]
    fn after(&mut self, page: PageRef<T>, of: Of<T>) -> Option<PageRef<T>> {
        // SAFETY: the lock is held; the page is in the list.
        unsafe { of(page.state()).after }
    }
}

// === Pages out of the lists ===

/// A page that nobody has any more.
pub(super) struct Spare<T>(PageRef<T>);

impl<T> Spare<T> {
    /// With no lock held.
    #[allow(unsafe_code)]
    pub(super) fn unmap(self) {
        // SAFETY: only empty pages that nobody looks at are taken out of the lists.
        unsafe { self.0.unmap() };
    }
}

/// A page that is not in the lists yet: it goes if it does not get there.
pub(super) struct Unlisted<T>(pub(super) PageRef<T>);

impl<T> Drop for Unlisted<T> {
    fn drop(&mut self) {
        Spare(self.0).unmap();
    }
}

/// Pages that stay where they are for a while: they are being looked at.
pub(super) struct Pinned<'a, T> {
    shared: &'a Shared<T>,
    pages: smallvec::SmallVec<[PageRef<T>; BATCH]>,
}

impl<'a, T> Pinned<'a, T> {
    /// The next ones in the list of all; those that come into it meanwhile stand before the first.
    #[allow(unsafe_code)]
    pub(super) fn after(shared: &'a Shared<T>, last: Option<PageRef<T>>) -> Self {
        let mut lists = shared.lists.lock();
        let mut at = match last {
            Some(last) => lists.after(last, |state| &mut state.all),
            None => lists.all,
        };
        let mut pages = smallvec::SmallVec::new();
        while let Some(page) = at.filter(|_| pages.len() < BATCH) {
            // SAFETY: the lock is held; pages in the list are there.
            unsafe { page.state() }.pins += 1;
            pages.push(page);
            at = lists.after(page, |state| &mut state.all);
        }
        drop(lists);
        Pinned { shared, pages }
    }

    pub(super) fn pages(&self) -> &[PageRef<T>] {
        &self.pages
    }
}

impl<T> Drop for Pinned<'_, T> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        for &page in &self.pages {
            let spare = {
                let mut lists = self.shared.lists.lock();
                // SAFETY: the lock is held; the page is pinned.
                unsafe { page.state() }.pins -= 1;
                lists.spare(page)
            };
            spare.into_iter().for_each(Spare::unmap);
        }
    }
}

// === Slots ===

impl<T> PageRef<T> {
    /// A page that is in no list: it lies there.
    #[allow(unsafe_code)]
    pub(super) fn found(self, node: Option<NodeId>) {
        // SAFETY: nobody else has it.
        unsafe { self.state() }.node = node;
    }

    /// Say who holds a slot, whose account was made for this node. Where the page lies elsewhere by now the account
    /// follows it first; where the slot was given back meanwhile all ends here.
    #[allow(unsafe_code)]
    pub(super) fn publish(self, slot: u32, kmem: Kmem, made_for: Option<NodeId>) {
        // The page may go with the slot.
        let shared = Arc::clone(self.shared());
        let (mut kmem, mut made_for) = (kmem, made_for);
        loop {
            let owner = Owner::of(kmem);
            let lies = {
                let mut lists = shared.lists.lock();
                // SAFETY: the lock is held; the slot is the caller's, or aside.
                let (state, word) = unsafe { (self.state(), self.word(shared.shape, slot)) };
                if matches!(word, Word::Gone) {
                    let spare = lists.give_back(shared.shape, self, slot);
                    drop(lists);
                    drop(shared.kmem(owner));
                    return spare.into_iter().for_each(Spare::unmap);
                }
                if state.node == made_for {
                    *word = Word::Held(owner);
                    return;
                }
                state.node
            };
            kmem = shared.kmem(owner);
            kmem.follow(made_for, lies);
            made_for = lies;
        }
    }

    /// A slot is nobody's any more: to be called once by who has it, when nothing is in it.
    #[allow(unsafe_code)]
    pub(super) fn release(self, slot: u32) {
        // The page may go with the slot.
        let shared = Arc::clone(self.shared());
        let mut lists = shared.lists.lock();
        // SAFETY: the lock is held; the slot is the caller's.
        let word = unsafe { self.word(shared.shape, slot) };
        let owner = match *word {
            Word::Held(owner) => Some(owner),
            Word::Moving => {
                *word = Word::Gone;
                return;
            }
            Word::Free(_) | Word::Taken | Word::Gone => None,
        };
        let spare = lists.give_back(shared.shape, self, slot);
        drop(lists);
        // What is no longer there is given back.
        spare.into_iter().for_each(Spare::unmap);
        drop(owner.map(|owner| shared.kmem(owner)));
    }

    /// The page, which is pinned, lies there: the accounts of its objects go there as well.
    #[allow(unsafe_code)]
    pub(super) fn moved(self, node: Option<NodeId>) {
        let shared = self.shared();
        let before = {
            let _lists = shared.lists.lock();
            // SAFETY: the lock is held.
            std::mem::replace(&mut unsafe { self.state() }.node, node)
        };
        if before == node {
            return;
        }
        for slot in 0..shared.shape.slots {
            let owner = {
                let _lists = shared.lists.lock();
                // SAFETY: the lock is held.
                let word = unsafe { self.word(shared.shape, slot) };
                let Word::Held(owner) = *word else { continue };
                *word = Word::Moving;
                owner
            };
            let mut kmem = shared.kmem(owner);
            kmem.follow(before, node);
            self.publish(slot, kmem, node);
        }
    }
}
