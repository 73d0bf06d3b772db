//! A page of a slab: how it is laid out, and its list of free slots.
//!
//! ```text
//! | head | words: who holds each slot | slots | what is left over |
//! ```
//!
//! Addresses of pages are what the lists link. The state behind the head and the words are read and written under the
//! slab's lock alone; a slot is its holder's alone; the rest does not change while the page is there.

use std::ptr::NonNull;

use super::super::error::KmemError;
use super::super::owner::Owner;
use super::Shared;
use crate::numa::NodeId;
use crate::numa::mapping::{Mapping, assert_page_aligns, page_size};
use crate::sync::Arc;

/// Slots that a page has at least, where a page of moderate size can.
const SLOTS_MIN: usize = 8;

/// No page is made larger than this to have more slots.
const PAGE_MODERATE: usize = 64 << 10;

/// Ends a list of slots.
const END: u32 = u32::MAX;

/// How pages of a slab are laid out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) page: usize,
    pub(super) slots: u32,
    words: usize,
    first: usize,
    /// What an object is charged.
    pub(super) object: u64,
}

/// The holder's word of a slot.
#[derive(Clone, Copy)]
pub(super) enum Word {
    /// With the next free one.
    Free(u32),
    /// Not accounted for yet.
    Taken,
    Held(Owner),
    /// Somebody is moving the account; the slot's holder is not asked.
    Moving,
    /// Given back meanwhile: whoever moves the account ends it.
    Gone,
}

/// The head.
#[repr(C)]
pub(super) struct Page<T> {
    pub(super) shared: Arc<Shared<T>>,
    pub(super) mapping: Mapping,
    pub(super) state: State<T>,
}

/// What changes of a page.
pub(super) struct State<T> {
    /// Where it lies.
    pub(super) node: Option<NodeId>,
    /// The list that it is in: of the node that it was asked for on.
    pub(super) asked: usize,
    free: u32,
    /// Slots that are not free.
    pub(super) used: u32,
    /// Somebody looks at it: it must not go.
    pub(super) pins: u32,
    /// In the list of pages with free slots.
    pub(super) open: Link<T>,
    /// In the list of all.
    pub(super) all: Link<T>,
}

/// Neighbours in a list.
pub(super) struct Link<T> {
    pub(super) before: Option<PageRef<T>>,
    pub(super) after: Option<PageRef<T>>,
}

/// A page's address.
pub(super) struct PageRef<T>(NonNull<Page<T>>);

impl<T> Clone for PageRef<T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for PageRef<T> {}

impl<T> PartialEq for PageRef<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T> Link<T> {
    pub(super) const NONE: Self = Link { before: None, after: None };
}

impl Shape {
    /// The least page with some slots. Where objects are large that is one; nothing overflows, for a page that is too
    /// large to be is not mapped.
    pub(super) fn of<T>() -> Shape {
        // `with` rounds the offset of the first slot, and the page itself is aligned for no more than a page.
        const { assert_page_aligns::<T>() };
        let mut page = page_size().max(4_096);
        loop {
            let shape = Shape::fit::<T>(page);
            if shape.slots as usize >= SLOTS_MIN || page >= PAGE_MODERATE && shape.slots > 0 {
                return shape;
            }
            page = match page.checked_mul(2) {
                Some(larger) if larger <= isize::MAX.unsigned_abs() => larger,
                _ => return Shape { page: usize::MAX, ..Shape::with::<T>(1) },
            };
        }
    }

    /// As many slots as fit.
    fn fit<T>(page: usize) -> Shape {
        let room = page.saturating_sub(size_of::<Page<T>>());
        let most = room / (size_of::<T>() + size_of::<Word>());
        let shapes = (0..=most.min(END as usize - 1)).rev().map(Shape::with::<T>);
        // What alignment and rounding take is less than a few slots.
        let fits = shapes.take(align_of::<T>() + 64).find(|shape| shape.end::<T>() <= page);
        Shape { page, ..fits.unwrap_or(Shape::with::<T>(0)) }
    }

    fn with<T>(slots: usize) -> Shape {
        // Every slot has the same part of the head.
        let part = size_of::<Page<T>>().div_ceil(slots.max(1));
        let words = (part * slots.max(1)).next_multiple_of(align_of::<Word>());
        let first = (words + slots * size_of::<Word>()).next_multiple_of(align_of::<T>());
        let object = (size_of::<T>() + size_of::<Word>() + part) as u64;
        Shape { page: 0, slots: u32::try_from(slots).unwrap_or(0), words, first, object }
    }

    fn end<T>(&self) -> usize {
        self.first.saturating_add((self.slots as usize).saturating_mul(size_of::<T>()))
    }
}

impl<T> PageRef<T> {
    /// A new one in this mapping, all slots free, in no list.
    #[allow(unsafe_code)]
    pub(super) fn make(shared: Arc<Shared<T>>, mapping: Mapping, node: Option<NodeId>, asked: usize) -> Self {
        let shape = shared.shape;
        let start = mapping.first::<Page<T>>();
        let state = State { node, asked, free: 0, used: 0, pins: 0, open: Link::NONE, all: Link::NONE };
        // SAFETY: the mapping is of a whole page of this shape, page-aligned, and nobody else has it.
        unsafe {
            start.write(Page { shared, mapping, state });
            let words = start.byte_add(shape.words).cast::<Word>();
            for slot in 0..shape.slots {
                words.add(slot as usize).write(Word::Free(if slot + 1 < shape.slots { slot + 1 } else { END }));
            }
        }
        PageRef(start)
    }

    /// Maps, binds and touches one; does not look where it lies.
    pub(super) fn map(shape: Shape, node: Option<NodeId>) -> Result<Mapping, KmemError> {
        let mut mapping = Mapping::new(shape.page)?;
        let range = mapping.range();
        if let Some(node) = node {
            mapping.bind(range.clone(), node);
        }
        mapping.touch(range);
        Ok(mapping)
    }

    /// Its address.
    pub(super) fn address(self) -> usize {
        self.0.addr().get()
    }

    #[inline]
    #[allow(unsafe_code)]
    pub(super) fn shared(&self) -> &Arc<Shared<T>> {
        // SAFETY: not written after the page was made; who has the address keeps the page, by a slot or a pin.
        unsafe { &(*self.0.as_ptr()).shared }
    }

    /// # Safety
    ///
    /// The slab's lock is held, and no other reference to this page's state or words is used meanwhile.
    #[inline]
    #[allow(unsafe_code)]
    pub(super) unsafe fn state<'a>(self) -> &'a mut State<T> {
        // SAFETY: under the lock nobody else has one.
        unsafe { &mut (*self.0.as_ptr()).state }
    }

    /// # Safety
    ///
    /// As [`state`](Self::state); `slot` is one of this page's.
    #[inline]
    #[allow(unsafe_code)]
    pub(super) unsafe fn word<'a>(self, shape: Shape, slot: u32) -> &'a mut Word {
        // SAFETY: within the page, written when it was made; under the lock nobody else has one.
        unsafe { self.0.byte_add(shape.words).cast::<Word>().add(slot as usize).as_mut() }
    }

    /// Where an object is; `slot` is one of this page's.
    #[inline]
    #[allow(unsafe_code)]
    pub(super) fn slot(self, shape: Shape, slot: u32) -> NonNull<T> {
        // SAFETY: within the page.
        unsafe { self.0.byte_add(shape.first).cast::<T>().add(slot as usize) }
    }

    /// Take the first free slot.
    ///
    /// # Safety
    ///
    /// As [`state`](Self::state).
    #[allow(unsafe_code)]
    pub(super) unsafe fn pop(self, shape: Shape, word: Word) -> Option<u32> {
        // SAFETY: the caller's; a number in the list is one of a slot.
        let state = unsafe { self.state() };
        let slot = (state.free != END).then_some(state.free)?;
        // SAFETY: as above.
        let place = unsafe { self.word(shape, slot) };
        let Word::Free(next) = *place else { return None };
        *place = word;
        state.free = next;
        state.used += 1;
        Some(slot)
    }

    /// Put a slot back.
    ///
    /// # Safety
    ///
    /// As [`word`](Self::word); nobody has the slot any more.
    #[allow(unsafe_code)]
    pub(super) unsafe fn push(self, shape: Shape, slot: u32) {
        // SAFETY: the caller's.
        let (state, place) = unsafe { (self.state(), self.word(shape, slot)) };
        *place = Word::Free(state.free);
        state.free = slot;
        state.used -= 1;
    }

    /// Give the page back, with its part of what the slab shares.
    ///
    /// # Safety
    ///
    /// It is in no list, and nobody has a slot of it or its address.
    #[allow(unsafe_code)]
    pub(super) unsafe fn unmap(self) {
        // SAFETY: the caller's; the head is read out of the page, and the page goes with its mapping.
        let Page { shared, mapping, .. } = unsafe { self.0.read() };
        drop(mapping);
        drop(shared);
    }
}

impl<T> State<T> {
    pub(super) fn is_full(&self) -> bool {
        self.free == END
    }
}
