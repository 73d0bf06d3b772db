//! The pages of a store, and the table of its objects. A `&mut Arena` proves that the thread holds
//! the store's lock.
//!
//! ```text
//! | header, bytes | header, bytes | hole | header, bytes | room                 |
//!                                                         top                page's end
//! ```
//!
//! A new object goes behind the last. A removal leaves a hole. When a thread needs the room and the
//! page has no pin, the objects behind the holes slide down. Lists order the pages by room, so that
//! a few steps find the fullest page with enough of it.
//!
//! Nothing here allocates: a thread without the lock makes larger tables ([`Arena::adopt`]).

use std::ptr::NonNull;

use memcg::kmem::{NodeId, PackedKmem};

use crate::mapping::Mapping;

/// Ends a list; the number of no entry and of no page.
pub(super) const NONE: u32 = u32::MAX;

/// Lists by room.
const CLASSES: usize = 64;

/// Pages of a list that a search tries: a pinned one may have too little room behind its last
/// object.
const TRIES: usize = 4;

/// Head of an object in its page. It moves with the object and is never dropped in place.
pub(super) struct ObjectHeader {
    /// `None` while a thread makes or moves the account.
    owner: Option<PackedKmem>,
    /// [`NONE`] for a hole.
    pub(super) entry: u32,
    pub(super) len: u32,
}

/// Bytes that an object takes of its page, which are also those charged.
pub(super) const fn taken(len: usize) -> usize {
    size_of::<ObjectHeader>() + len.next_multiple_of(align_of::<ObjectHeader>())
}

/// An entry of the table that keys lead into.
#[derive(Clone, Copy)]
pub(super) struct StoreEntry {
    pub(super) generation: u32,
    pub(super) state: EntryState,
    pub(super) page: u32,
    /// The place of the header; in a free entry the next free one.
    pub(super) at: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryState {
    Free,
    /// Not published: no caller has its key.
    Filling,
    Live,
    /// A thread is moving its account.
    Moving,
    /// Removed meanwhile: the thread that moves the account ends it.
    Gone,
}

/// A page of the arena. Without a mapping its number is unused, and `after` is the next unused one.
pub(super) struct ArenaPage {
    mapping: Mapping,
    pub(super) node: Option<NodeId>,
    pub(super) asked: usize,
    /// The place of the next object.
    top: usize,
    /// Bytes that objects take.
    pub(super) taken: usize,
    objects: u32,
    /// Threads that read, fill or move here: the page stays, and nothing in it moves.
    pub(super) pins: u32,
    class: usize,
    before: u32,
    after: u32,
}

/// Pages made for one node, by room.
struct ByRoom {
    /// A bit for each class that has pages.
    some: u64,
    first: [u32; CLASSES],
    empty: u32,
}

pub(super) struct Arena {
    page_bytes: usize,
    pub(super) entries: Vec<StoreEntry>,
    free_entry: u32,
    pub(super) pages: Vec<ArenaPage>,
    free_page: u32,
    nodes: Box<[ByRoom]>,
    /// Mapped pages, and the bytes that objects take in them.
    pub(super) mapped: usize,
    pub(super) taken: usize,
    pub(super) objects: usize,
}

/// The part that a reservation lacks.
pub(super) enum Wanted {
    /// Larger tables: of entries, of pages.
    Tables(usize, usize),
    Page,
}

/// Room in a page, which is pinned for the thread that fills it.
pub(super) struct Reserved {
    pub(super) entry: u32,
    pub(super) generation: u32,
    pub(super) bytes: NonNull<u8>,
    pub(super) node: Option<NodeId>,
}

impl ArenaPage {
    pub(super) fn room(&self, page_bytes: usize) -> usize {
        page_bytes - self.taken
    }

    pub(super) fn is_there(&self) -> bool {
        self.mapping.len() > 0
    }

    pub(super) fn address(&self) -> usize {
        self.mapping.range().start
    }

    #[allow(unsafe_code)]
    fn place(&self, at: usize) -> NonNull<u8> {
        // SAFETY: the place is within the page.
        unsafe { self.mapping.start().add(at) }
    }

    #[allow(unsafe_code)]
    pub(super) fn header(&self, at: usize) -> &ObjectHeader {
        // SAFETY: an aligned header was written there. A borrow of the arena covers the headers of
        // its pages.
        unsafe { self.place(at).cast::<ObjectHeader>().as_ref() }
    }

    #[allow(unsafe_code)]
    fn header_mut(&mut self, at: usize) -> &mut ObjectHeader {
        // SAFETY: as above, and the borrow is mutable.
        unsafe { self.place(at).cast::<ObjectHeader>().as_mut() }
    }

    #[allow(unsafe_code)]
    fn set_header(&mut self, at: usize, header: ObjectHeader) {
        // SAFETY: the place is within the page and aligned, because objects take multiples of the
        // alignment.
        unsafe { self.place(at).cast::<ObjectHeader>().write(header) };
    }

    pub(super) fn bytes(&self, at: usize) -> NonNull<u8> {
        self.place(at + size_of::<ObjectHeader>())
    }

    /// The first object at a place or behind it.
    pub(super) fn next_object(&self, mut at: usize) -> Option<(usize, &ObjectHeader)> {
        while at < self.top {
            let header = self.header(at);
            if header.entry != NONE {
                return Some((at, header));
            }
            at += taken(header.len as usize);
        }
        None
    }
}

impl Arena {
    pub(super) fn new(page_bytes: usize, nodes: usize) -> Arena {
        let by_room = |_| ByRoom {
            some: 0,
            first: [NONE; CLASSES],
            empty: 0,
        };
        Arena {
            page_bytes,
            entries: Vec::new(),
            free_entry: NONE,
            pages: Vec::new(),
            free_page: NONE,
            nodes: (0..nodes.max(1)).map(by_room).collect(),
            mapped: 0,
            taken: 0,
            objects: 0,
        }
    }

    pub(super) fn lists(&self) -> usize {
        self.nodes.len()
    }

    // === Tables ===

    /// Takes over larger tables. The caller drops the old ones without the lock.
    pub(super) fn adopt(&mut self, entries: &mut Vec<StoreEntry>, pages: &mut Vec<ArenaPage>) {
        if entries.capacity() > self.entries.capacity() {
            entries.append(&mut self.entries);
            std::mem::swap(&mut self.entries, entries);
        }
        if pages.capacity() > self.pages.capacity() {
            pages.append(&mut self.pages);
            std::mem::swap(&mut self.pages, pages);
        }
    }

    /// The part that one more entry and page lack.
    fn wanted(&self) -> Option<Wanted> {
        let entries = self.free_entry != NONE || self.entries.len() < self.entries.capacity();
        let pages = self.free_page != NONE || self.pages.len() < self.pages.capacity();
        let larger = |fits: bool, capacity: usize| if fits { 0 } else { (capacity * 2).max(16) };
        (!entries || !pages).then(|| {
            Wanted::Tables(
                larger(entries, self.entries.capacity()),
                larger(pages, self.pages.capacity()),
            )
        })
    }

    fn take_entry(&mut self) -> u32 {
        let number = self.free_entry;
        match self.entries.get_mut(number as usize) {
            Some(entry) => {
                self.free_entry = entry.at;
                number
            }
            None => {
                self.entries.push(StoreEntry {
                    generation: 0,
                    state: EntryState::Free,
                    page: NONE,
                    at: NONE,
                });
                // The length is below the capacity, which is below `NONE`.
                (self.entries.len() - 1) as u32
            }
        }
    }

    fn free_entry(&mut self, number: u32) {
        let free = self.free_entry;
        let entry = &mut self.entries[number as usize];
        entry.state = EntryState::Free;
        // An entry that has used up its generations stays unused: an old key must not lead to a new
        // object.
        if let Some(next) = entry.generation.checked_add(1) {
            entry.generation = next;
            entry.at = free;
            // Mutation: an-entry-that-ends-is-not-used-again
            self.free_entry = number;
        }
    }

    // === Pages ===

    /// Adds a page. Returns the mapping if the table has no room.
    pub(super) fn add_page(
        &mut self,
        mapping: Mapping,
        node: Option<NodeId>,
        asked: usize,
    ) -> Result<(), Mapping> {
        if matches!(self.wanted(), Some(Wanted::Tables(_, pages)) if pages > 0) {
            return Err(mapping);
        }
        let page = ArenaPage {
            mapping,
            node,
            asked,
            top: 0,
            taken: 0,
            objects: 0,
            pins: 0,
            class: 0,
            before: NONE,
            after: NONE,
        };
        let number = self.free_page;
        let number = match self.pages.get_mut(number as usize) {
            Some(unused) => {
                self.free_page = unused.after;
                *unused = page;
                number
            }
            None => {
                self.pages.push(page);
                (self.pages.len() - 1) as u32
            }
        };
        self.mapped += 1;
        self.nodes[asked].empty += 1;
        self.link(number);
        Ok(())
    }

    fn link(&mut self, number: u32) {
        let page = &mut self.pages[number as usize];
        let class = (page.room(self.page_bytes) * CLASSES / self.page_bytes).min(CLASSES - 1);
        let list = &mut self.nodes[page.asked];
        page.class = class;
        page.before = NONE;
        page.after = list.first[class];
        let after = std::mem::replace(&mut list.first[class], number);
        list.some |= 1 << class;
        if let Some(after) = self.pages.get_mut(after as usize) {
            after.before = number;
        }
    }

    fn unlink(&mut self, number: u32) {
        let page = &self.pages[number as usize];
        let asked = page.asked;
        let class = page.class;
        let before = page.before;
        let after = page.after;
        match self.pages.get_mut(before as usize) {
            Some(before) => before.after = after,
            None => self.nodes[asked].first[class] = after,
        }
        if let Some(after) = self.pages.get_mut(after as usize) {
            after.before = before;
        }
        let list = &mut self.nodes[asked];
        // Mutation: one-page-that-fills-hides-its-class
        if list.first[class] == NONE {
            list.some &= !(1 << class);
        }
    }

    /// The fullest page with at least `need` and at most `most` bytes of room, except `not`.
    pub(super) fn find(&mut self, asked: usize, need: usize, most: usize, not: u32) -> Option<u32> {
        // From the first class of which every page has enough room; of the last class not every one
        // may, so each page is checked. Some pages of the class below `first` have it as well, and
        // are passed over.
        let first = (need * CLASSES).div_ceil(self.page_bytes).min(CLASSES - 1);
        let mut classes = self.nodes[asked].some & (u64::MAX << first);
        while classes > 0 {
            let class = classes.trailing_zeros() as usize;
            classes &= classes - 1;
            let mut at = self.nodes[asked].first[class];
            for _ in 0..TRIES {
                let Some(page) = self.pages.get(at as usize) else {
                    break;
                };
                let room = page.room(self.page_bytes);
                let behind = self.page_bytes - page.top;
                // Mutation: strings-move-up-while-one-is-read
                if at != not && (need..=most).contains(&room) && (behind >= need || page.pins == 0)
                {
                    if behind < need {
                        self.slide(at);
                    }
                    return Some(at);
                }
                at = page.after;
            }
        }
        None
    }

    /// Closes the holes of a page without a pin.
    #[allow(unsafe_code)]
    fn slide(&mut self, number: u32) {
        let page = &mut self.pages[number as usize];
        let mut from = 0;
        let mut to = 0;
        while let Some((at, header)) = page.next_object(from) {
            let bytes = taken(header.len as usize);
            let entry = header.entry;
            if at > to {
                // SAFETY: both places are within the page. It has no pin, so there is no reference
                // into it.
                unsafe { page.place(at).copy_to(page.place(to), bytes) };
                self.entries[entry as usize].at = to as u32;
            }
            from = at + bytes;
            to += bytes;
        }
        page.top = to;
    }

    // === Objects ===

    /// Reserves room for an object, in a page made for a node. The caller fills it.
    pub(super) fn reserve(&mut self, asked: usize, len: usize) -> Result<Reserved, Wanted> {
        // Before anything is taken: nothing is allocated under the lock, and no reservation stops
        // halfway.
        if let Some(wanted) = self.wanted() {
            return Err(wanted);
        }
        let page = self
            .find(asked, taken(len), usize::MAX, NONE)
            .ok_or(Wanted::Page)?;
        let entry = self.take_entry();
        let StoreEntry {
            generation, state, ..
        } = &mut self.entries[entry as usize];
        *state = EntryState::Filling;
        let generation = *generation;
        let header = ObjectHeader {
            owner: None,
            entry,
            len: len as u32,
        };
        let at = self.put(page, header);
        let page = &mut self.pages[page as usize];
        page.pins += 1;
        Ok(Reserved {
            entry,
            generation,
            bytes: page.bytes(at),
            node: page.node,
        })
    }

    /// Puts a header behind the last object, where there is room. Its entry leads there.
    pub(super) fn put(&mut self, number: u32, header: ObjectHeader) -> usize {
        self.unlink(number);
        let page = &mut self.pages[number as usize];
        let at = page.top;
        let bytes = taken(header.len as usize);
        let entry = header.entry;
        page.set_header(at, header);
        page.top += bytes;
        page.taken += bytes;
        self.nodes[page.asked].empty -= u32::from(page.objects == 0);
        page.objects += 1;
        self.taken += bytes;
        self.objects += 1;
        self.link(number);
        let entry = &mut self.entries[entry as usize];
        entry.page = number;
        entry.at = at as u32;
        at
    }

    /// Leaves a hole in the place of an object, whose owner was taken out.
    pub(super) fn vacate(&mut self, number: u32, at: usize) {
        self.unlink(number);
        let page = &mut self.pages[number as usize];
        let header = page.header_mut(at);
        header.entry = NONE;
        let bytes = taken(header.len as usize);
        page.taken -= bytes;
        page.objects -= 1;
        self.nodes[page.asked].empty += u32::from(page.objects == 0);
        self.taken -= bytes;
        self.objects -= 1;
        self.link(number);
    }

    pub(super) fn end(&mut self, entry: u32) {
        let StoreEntry { page, at, .. } = self.entries[entry as usize];
        self.vacate(page, at as usize);
        self.free_entry(entry);
    }

    /// Takes a page out if it has no objects and no pin, and more than `keep` empty pages are
    /// there.
    pub(super) fn spare(&mut self, number: u32, keep: u32) -> Option<Mapping> {
        let page = &mut self.pages[number as usize];
        if page.objects > 0 || page.pins > 0 || !page.is_there() {
            return None;
        }
        // What is left in it are holes.
        page.top = 0;
        let asked = page.asked;
        if self.nodes[asked].empty <= keep {
            return None;
        }
        self.unlink(number);
        self.nodes[asked].empty -= 1;
        self.mapped -= 1;
        let page = &mut self.pages[number as usize];
        page.after = self.free_page;
        self.free_page = number;
        Some(std::mem::replace(&mut page.mapping, Mapping::empty()))
    }

    pub(super) fn unpin(&mut self, number: u32, keep: u32) -> Option<Mapping> {
        self.pages[number as usize].pins -= 1;
        self.spare(number, keep)
    }

    /// Takes an object's account out. `None`: a thread has it.
    pub(super) fn take_owner(&mut self, entry: u32) -> Option<PackedKmem> {
        let StoreEntry { page, at, .. } = self.entries[entry as usize];
        self.pages[page as usize]
            .header_mut(at as usize)
            .owner
            .take()
    }

    /// Gives an object an account in the place of none.
    pub(super) fn put_owner(&mut self, entry: u32, owner: Option<PackedKmem>) {
        let StoreEntry { page, at, .. } = self.entries[entry as usize];
        self.pages[page as usize].header_mut(at as usize).owner = owner;
    }

    pub(super) fn len_of(&self, entry: u32) -> u32 {
        let StoreEntry { page, at, .. } = self.entries[entry as usize];
        self.pages[page as usize].header(at as usize).len
    }

    /// Copies an object behind the last of another page, and leaves a hole.
    #[allow(unsafe_code)]
    pub(super) fn shift(&mut self, from: u32, at: usize, into: u32) {
        let header = self.pages[from as usize].header_mut(at);
        let header = ObjectHeader {
            owner: header.owner.take(),
            entry: header.entry,
            len: header.len,
        };
        let len = header.len as usize;
        let to = self.put(into, header);
        let source = self.pages[from as usize].bytes(at);
        let target = self.pages[into as usize].bytes(to);
        // SAFETY: these are two pages, and the object ends within both. The source has no pin, so
        // no thread reads it, and no other thread knows the target yet.
        unsafe { source.copy_to_nonoverlapping(target, len) };
        self.vacate(from, at);
    }

    /// The page with the most room that has objects and no pin, with its room.
    pub(super) fn emptiest(&self) -> Option<(u32, usize)> {
        for class in (0..CLASSES).rev() {
            for list in &self.nodes {
                let mut at = list.first[class];
                while let Some(page) = self.pages.get(at as usize) {
                    // Mutation: a-page-that-is-read-is-emptied
                    if page.objects > 0 && page.pins == 0 {
                        return Some((at, page.room(self.page_bytes)));
                    }
                    at = page.after;
                }
            }
        }
        None
    }

    /// Takes out a page without objects and without a pin.
    pub(super) fn any_empty(&mut self) -> Option<Mapping> {
        for list in self.nodes.iter().filter(|list| list.empty > 0) {
            // Such a page has all of its room.
            let mut at = list.first[CLASSES - 1];
            while let Some(page) = self.pages.get(at as usize) {
                if page.objects == 0 && page.pins == 0 {
                    return self.spare(at, 0);
                }
                at = page.after;
            }
        }
        None
    }
}
