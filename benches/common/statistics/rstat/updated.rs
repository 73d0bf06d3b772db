//! One thread's counts, and its tree of the groups that it has counted for since they were flushed.
//!
//! The tree is the kernel's: it holds exactly the groups with changes, and all their ancestors.
//! Children hang together in a list that ends in their parent's number; a group that is not on the
//! tree has no next.

#![cfg(not(loom))]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering, compiler_fence};

use parking_lot::Mutex;

use super::super::shape::Shape;
use super::super::{Item, ROOT};

/// Groups whose cells come together.
const PAGE: usize = 16;

/// No group.
const OFF: u32 = u32::MAX;

/// One thread's counts for one group: one line.
#[repr(align(64))]
pub(super) struct Cells {
    /// Cumulative; written by the thread alone.
    items: [AtomicI64; Item::COUNT],
    /// The part that a flush has taken over; the flusher's, under the global lock.
    taken: [AtomicI64; Item::COUNT],
    /// Grains since they last went to the group's count, or a flush came by.
    pub(super) updates: AtomicU32,
    /// The links are changed under the thread's lock.
    next: AtomicU32,
    children: AtomicU32,
}

impl Cells {
    fn new() -> Self {
        Cells {
            items: Default::default(),
            taken: Default::default(),
            updates: AtomicU32::new(0),
            next: AtomicU32::new(OFF),
            children: AtomicU32::new(OFF),
        }
    }

    /// By the thread itself.
    #[inline(always)]
    pub(super) fn add(&self, item: Item, delta: i64) {
        let cell = &self.items[item as usize];
        cell.store(
            cell.load(Ordering::Relaxed).wrapping_add(delta),
            Ordering::Release,
        );
    }

    /// The change since the last time.
    pub(super) fn take(&self, item: usize) -> i64 {
        let now = self.items[item].load(Ordering::Acquire);
        let before = self.taken[item].load(Ordering::Relaxed);
        self.taken[item].store(now, Ordering::Relaxed);
        now.wrapping_sub(before)
    }

    /// The kernel tests without its lock and accepts that a flush may be about to take the group
    /// off: what was added then shows with the thread's next change to the group.
    #[inline(always)]
    fn is_listed(&self) -> bool {
        // The kernel's this_cpu operations order nothing either; the compiler must not.
        compiler_fence(Ordering::SeqCst);
        self.next.load(Ordering::Relaxed) != OFF
    }
}

/// One thread's.
pub(super) struct Updated {
    /// Serialises the owner, when it puts something on the tree, with flushes.
    lock: Mutex<()>,
    pages: Box<[OnceLock<Box<[Cells; PAGE]>>]>,
    /// Grains since they last went to the count of the whole tree.
    pub(super) updates: AtomicU32,
}

impl Updated {
    pub(super) fn new(groups: usize) -> Self {
        let pages = (0..groups.div_ceil(PAGE))
            .map(|_| OnceLock::new())
            .collect();
        Updated {
            lock: Mutex::new(()),
            pages,
            updates: AtomicU32::new(0),
        }
    }

    /// The cells of a group, made where there are none.
    #[inline(always)]
    pub(super) fn cells(&self, group: usize) -> &Cells {
        match self.pages[group / PAGE].get() {
            Some(page) => &page[group % PAGE],
            None => self.make(group),
        }
    }

    /// The cells of a group, if the thread has any near it.
    fn existing(&self, group: usize) -> Option<&Cells> {
        self.pages[group / PAGE]
            .get()
            .map(|page| &page[group % PAGE])
    }

    #[cold]
    #[inline(never)]
    fn make(&self, group: usize) -> &Cells {
        let page = self.pages[group / PAGE]
            .get_or_init(|| Box::new(std::array::from_fn(|_| Cells::new())));
        &page[group % PAGE]
    }

    /// `cgroup_rstat_updated`, by the thread itself.
    #[inline(always)]
    pub(super) fn updated(&self, shape: &Shape, group: usize) {
        if !self.cells(group).is_listed() {
            self.push(shape, group);
        }
    }

    #[cold]
    #[inline(never)]
    fn push(&self, shape: &Shape, group: usize) {
        let _lock = self.lock.lock();
        for group in shape.path(group) {
            let cells = self.cells(group);
            if cells.next.load(Ordering::Relaxed) != OFF {
                break;
            }
            let next = match shape.parent(group) {
                // The end of the list is the parent's own number, first as well as last.
                Some(parent) => {
                    let head = &self.cells(parent).children;
                    let first = head.load(Ordering::Relaxed);
                    head.store(group as u32, Ordering::Relaxed);
                    if first == OFF { parent as u32 } else { first }
                }
                None => ROOT as u32,
            };
            cells.next.store(next, Ordering::Relaxed);
        }
    }

    /// Takes the tree below `top` off and puts its groups into `list`, children before their
    /// parents. Nothing for a thread without changes there.
    pub(super) fn pop(&self, shape: &Shape, top: usize, list: &mut Vec<u32>) {
        list.clear();
        // The kernel takes the lock of every processor; a thread that has nothing is left alone
        // here.
        let Some(cells) = self.existing(top).filter(|cells| cells.is_listed()) else {
            return;
        };
        let _lock = self.lock.lock();
        if !cells.is_listed() {
            return;
        }
        self.detach(shape, top);
        list.push(top as u32);
        let mut done = 0;
        while done < list.len() {
            let group = list[done];
            let cells = self.cells(group as usize);
            let mut child = cells.children.load(Ordering::Relaxed);
            while child != OFF && child != group {
                list.push(child);
                child = self.cells(child as usize).next.load(Ordering::Relaxed);
            }
            cells.children.store(OFF, Ordering::Relaxed);
            done += 1;
        }
        for &group in &*list {
            self.cells(group as usize)
                .next
                .store(OFF, Ordering::Relaxed);
        }
        list.reverse();
    }

    /// Out of its parent's list, which has one link a child.
    fn detach(&self, shape: &Shape, group: usize) {
        let Some(parent) = shape.parent(group) else {
            return;
        };
        let next = self.cells(group).next.load(Ordering::Relaxed);
        let mut link = &self.cells(parent).children;
        loop {
            let child = link.load(Ordering::Relaxed);
            if child as usize == group {
                break link.store(next, Ordering::Relaxed);
            }
            link = &self.cells(child as usize).next;
        }
    }
}
