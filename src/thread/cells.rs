//! Writes of one thread for one group: a line or more of words, one for each item, with a head.
//!
//! ```text
//! head   listed | written | due | touched | builder | number | next | announced | announcements
//! items  one cumulative count each
//! ```
//!
//! The thread that owns the cells is the only one that stores them, but for *listed*, which it sets
//! and the coordinator clears. A count is a load and a store; nothing is taken out when it is read,
//! the reader remembers what it has seen. Edges: E17 (add/unlist), E18 (the stack of newly listed
//! cells), E20 (announcements).

use std::ptr::{self, NonNull};

use smallvec::SmallVec;

use crate::sync::barrier::light_side;
use crate::sync::{Arc, AtomicPtr, AtomicU64, Ordering};

/// The words of a line, which is two cache lines: the prefetcher takes them as a pair.
const WORDS: usize = 16;

/// The words of the head, before the items.
const HEAD: usize = 8;

// Places in the head.
/// Set by the owner before it pushes the cells, cleared when the coordinator unlists them.
const LISTED: usize = 0;
/// Grains ever written.
const WRITTEN: usize = 1;
/// Beyond this many the owner announces what it has written.
const DUE: usize = 2;
/// A bit for each item that was ever written.
const TOUCHED: usize = 3;
/// The builder that declared the items.
const BUILDER: usize = 4;
/// Entry of the coordinator, plus 1.
const NUMBER: usize = 5;
/// The number of the next newly listed cells, 0 for none.
const NEXT: usize = 6;
/// Grains announced.
const ANNOUNCED: usize = 7;

#[repr(align(128))]
pub(crate) struct CellLine([AtomicU64; WORDS]);

/// The cells of one thread for one group. A pointer: the coordinator keeps the words, in one place
/// for as long as there is the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadStats(NonNull<CellLine>);

// SAFETY: the words behind it are atomic.
#[allow(unsafe_code)]
unsafe impl Send for ThreadStats {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for ThreadStats {}

/// Place of a thread's cells for a group. Stored by the thread, and by the thread that releases the
/// group.
#[derive(Default)]
pub(crate) struct CellsPlace(AtomicPtr<CellLine>);

impl CellsPlace {
    #[inline(always)]
    pub(crate) fn cells(&self) -> Option<ThreadStats> {
        // Relaxed: the thread's own store, or that of the thread that had the block before it (E8).
        NonNull::new(self.0.load(Ordering::Relaxed)).map(ThreadStats)
    }

    pub(crate) fn set(&self, cells: Option<ThreadStats>) {
        self.0.store(
            cells.map_or(ptr::null_mut(), |cells| cells.0.as_ptr()),
            Ordering::Relaxed,
        );
    }
}

/// Nodes of a row that need no second allocation.
const NODES_COMMON: usize = 8;

/// Place of a thread's cells for a group's memory on nodes: nothing, or a place for each node. Made
/// by the thread; the places are stored as [`CellsPlace`] says.
#[derive(Default)]
pub(crate) struct CellsRow(AtomicPtr<SmallVec<[CellsPlace; NODES_COMMON]>>);

impl CellsRow {
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn places(&self) -> Option<&[CellsPlace]> {
        // Relaxed: the thread's own store, or handed over with the block (E8); the thread that
        // releases the group comes after every use of it (E12).
        let places = self.0.load(Ordering::Relaxed);
        // SAFETY: from `Box::into_raw` in `places_or_make`; given back with the row only.
        unsafe { places.as_ref() }.map(SmallVec::as_slice)
    }

    /// Returns a place for each node, and makes the row where it has fewer. Also returns by how
    /// many bytes the row has grown. Owner only. Allocates.
    pub(crate) fn places_or_make(&self, nodes: usize) -> (&[CellsPlace], i64) {
        let mut more = 0;
        // No row yet, or one of a tree with fewer nodes that had the index before.
        if self.places().is_none_or(|places| places.len() < nodes) {
            let before = self.bytes();
            let made = Box::new((0..nodes).map(|_| CellsPlace::default()).collect());
            let small = self.0.swap(Box::into_raw(made), Ordering::Relaxed);
            // Made for a tree with fewer nodes, whose group has been released: empty, and no thread
            // has it.
            CellsRow::free_places(small);
            more = self.bytes() - before;
        }
        (self.places().unwrap_or_default(), more)
    }

    fn bytes(&self) -> i64 {
        let Some(places) = self.places() else {
            return 0;
        };
        let inline = size_of::<SmallVec<[CellsPlace; NODES_COMMON]>>();
        let spilled = if places.len() > NODES_COMMON {
            size_of_val(places)
        } else {
            0
        };
        (inline + spilled) as i64
    }

    #[allow(unsafe_code)]
    fn free_places(places: *mut SmallVec<[CellsPlace; NODES_COMMON]>) {
        if !places.is_null() {
            // SAFETY: from `Box::into_raw` in `places_or_make`, and taken out of the row by the
            // caller.
            drop(unsafe { Box::from_raw(places) });
        }
    }
}

impl Drop for CellsRow {
    fn drop(&mut self) {
        CellsRow::free_places(self.0.load(Ordering::Relaxed));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatAdded {
    /// Counted.
    Done,
    /// Counted; the cells must be listed, or what they hold be announced.
    Due,
    /// Not counted: this thread has no cells for the group, or one look does not show that the item
    /// is known.
    Nowhere,
}

pub(crate) fn lines(items: usize) -> Arc<[CellLine]> {
    let line = |_| CellLine(std::array::from_fn(|_| AtomicU64::new(0)));
    (0..lines_of(items)).map(line).collect()
}

const fn lines_of(items: usize) -> usize {
    (HEAD + items).div_ceil(WORDS)
}

/// The bytes that [`lines`] takes: a line more than the words need, for the count of those that
/// share them.
pub(crate) const fn lines_bytes(items: usize) -> usize {
    (lines_of(items) + 1) * size_of::<CellLine>()
}

impl ThreadStats {
    /// The first line of `lines`, which the caller keeps where they are for as long as a thread
    /// uses the cells.
    pub(crate) fn new(lines: &[CellLine]) -> ThreadStats {
        ThreadStats(NonNull::from(lines).cast())
    }

    #[inline(always)]
    #[allow(unsafe_code)]
    fn word<'a>(self, at: usize) -> &'a AtomicU64 {
        // SAFETY: the lines are there, see `new`; `at` is within the head, or the place of an item
        // that the cells were made for, as the caller of `add` or `count` guarantees:
        // `StatKey::add_to` and `StatItems::knows` find that the item is built in or was declared by
        // the builder that the cells were made for, and the coordinator knows how many items there
        // are.
        unsafe { &(&*self.0.as_ptr().add(at / WORDS)).0[at % WORDS] }
    }

    #[inline(always)]
    fn load(self, at: usize) -> u64 {
        self.word(at).load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn store(self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::Relaxed);
    }

    /// Makes the cells clean, for so many items of a builder. `number` is the coordinator's. No
    /// other thread has the cells.
    pub(crate) fn init(self, builder: u64, items: usize, number: u32, quantum: u64) {
        for at in 0..HEAD + items {
            self.store(at, 0);
        }
        self.store(DUE, quantum);
        self.store(BUILDER, builder);
        self.store(NUMBER, u64::from(number) + 1);
    }

    /// True if the cells were made for the items of this builder.
    #[inline(always)]
    pub(crate) fn are_of(self, builder: u64) -> bool {
        builder == self.load(BUILDER)
    }
}

// === The owner's side ===

impl ThreadStats {
    /// Adds `delta`, which is so many grains, to the item of a number that the cells were made for.
    /// Owner only.
    #[inline(always)]
    pub(crate) fn add(self, item: usize, delta: i64, grains: u64, fenced: bool) -> StatAdded {
        let at = HEAD + item;
        let before = self.load(at);
        // The first count of the item, or one that finds the item back at zero. A flush reads only
        // the items that have their bit.
        if before == 0 {
            self.store(TOUCHED, self.load(TOUCHED) | 1 << item);
        }
        self.store(at, before.wrapping_add_signed(delta));
        let written = self.load(WRITTEN).wrapping_add(grains);
        // Release (E17, E20): a flush that sees it sees the count and its bit; pairs with
        // `version`.
        self.word(WRITTEN).store(written, Ordering::Release);
        // light (E17): pairs with the heavy in `Coordinator::unlist`. Either the owner sees that
        // the cells are not listed any more, or the coordinator reads its count.
        // Mutation: e17-add-without-light
        light_side(fenced);
        let listed = self.word(LISTED).load(Ordering::Acquire);
        // One test finds both reasons to leave the fast path: the cells are not listed, or more is
        // written than is due. Each makes one of two numbers negative.
        let due = self.load(DUE).wrapping_sub(written).cast_signed();
        if (listed.cast_signed() - 1) | due < 0 {
            StatAdded::Due
        } else {
            StatAdded::Done
        }
    }

    pub(crate) fn is_listed(self) -> bool {
        // Acquire (E17): an owner that finds them unlisted comes after the flush that unlisted
        // them; pairs with `unmark`.
        self.word(LISTED).load(Ordering::Acquire) != 0
    }

    /// Marks the cells as listed; true where they were not. Then the owner pushes them. The mark
    /// comes before the push: the other way round the coordinator could unlist the cells in
    /// between, and they would be marked and on no list.
    pub(crate) fn mark_listed(self) -> bool {
        // AcqRel (E17): after the unlisting that this undoes, before the push; pairs with `unmark`.
        self.word(LISTED).swap(1, Ordering::AcqRel) == 0
    }

    /// Grains written since they were announced last, if those are more than `quantum`.
    pub(crate) fn unannounced(self, quantum: u64) -> Option<u64> {
        // What is due is always a quantum beyond what has been announced.
        let announced = self.load(DUE).wrapping_sub(quantum);
        let grains = self.load(WRITTEN).wrapping_sub(announced);
        (grains > quantum).then_some(grains)
    }

    /// Stores that the owner has announced so many grains, at every level, before this.
    pub(crate) fn set_announced(self, grains: u64, quantum: u64) {
        self.store(DUE, self.load(WRITTEN).wrapping_add(quantum));
        // Release (E20): the flush that counts them takes off the levels only what has come there;
        // pairs with `version`.
        self.word(ANNOUNCED).fetch_add(grains, Ordering::Release);
    }

    /// Links the cells on the stack of newly listed cells, before those that `next` names. The
    /// thread that has marked them calls this.
    pub(crate) fn set_next(self, next: u32) {
        self.store(NEXT, next.into());
    }

    /// The coordinator's entry, plus 1.
    pub(crate) fn number(self) -> u32 {
        self.load(NUMBER) as u32
    }
}

// === The coordinator's side ===

/// The words that show whether cells have been written since they were read. Grains written may
/// come to the same sum by 2^64. Grains announced do not: a writer flushes long before it has
/// announced so many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CellsVersion {
    pub(crate) written: u64,
    pub(crate) announced: u64,
}

impl ThreadStats {
    pub(crate) fn version(self) -> CellsVersion {
        // Acquire (E20): what was announced is in the counts that are read after this; pairs with
        // `set_announced`.
        let announced = self.word(ANNOUNCED).load(Ordering::Acquire);
        // Acquire (E17): the counts are at least as new. Pairs with `add`.
        let written = self.word(WRITTEN).load(Ordering::Acquire);
        CellsVersion { announced, written }
    }

    /// The items ever written.
    pub(crate) fn touched(self) -> SetBits {
        SetBits(self.load(TOUCHED))
    }

    /// An item below the number that the cells were made for.
    pub(crate) fn count(self, item: usize) -> i64 {
        self.load(HEAD + item).cast_signed()
    }

    /// The cells below these on the stack.
    pub(crate) fn next(self) -> u32 {
        self.load(NEXT) as u32
    }

    /// An owner that writes from here on lists the cells again. This holds only after a heavy
    /// barrier.
    pub(crate) fn unmark(self) {
        // Release (E17): pairs with the owner's Acquire.
        self.word(LISTED).store(0, Ordering::Release);
    }
}

/// The places of the bits of a word that are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SetBits(pub(crate) u64);

impl Iterator for SetBits {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let place = self.0.trailing_zeros() as usize;
        if self.0 == 0 {
            return None;
        }
        self.0 &= self.0 - 1;
        Some(place)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_row_counts_what_it_has_grown_by() {
        let row = CellsRow::default();
        let mut bytes = 0;
        for nodes in [1, NODES_COMMON, 4 * NODES_COMMON, 2, 8 * NODES_COMMON] {
            let (places, more) = row.places_or_make(nodes);
            assert!(places.len() >= nodes);
            bytes += more;
            assert_eq!(bytes, row.bytes());
        }
        assert_eq!(row.places_or_make(1).1, 0);
    }
}
