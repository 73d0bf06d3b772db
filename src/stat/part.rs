//! The statistics of one group: what has been published, and how much may be missing from it.

use std::ops::Deref;
use std::ptr::{self, NonNull};

use super::flush::{Row, Visits};
use super::item::Stat;
use crate::numa::NodeId;
use crate::pool::shape::{Kind, Shape};
use crate::pool::{Cache, NoMemory, PoolAlign, cache};
use crate::sync::stat_atomic::{AtomicPtr as StatPtr, AtomicU32};
use crate::sync::{AtomicPtr, AtomicU64, Ordering, Shared};
use crate::thread::cells::Bits;
use crate::thread::objects;

/// So much at once is flushed at once: what is announced and not flushed must not wrap.
pub(super) const ENDLESS: u64 = 1 << 56;

/// Reads within the bound from one flush to the next: at first, and where the writers write on.
const READS_FIRST: u32 = 2;
const READS_MOST: u32 = 64;

/// A group's part of the statistics, made when it, or a group below it, is first written: an object of a pool, as large as
/// the items of the runtime make it. The coordinator keeps it, and whoever keeps the group may look at it.
#[repr(C)]
pub(crate) struct Part<Figures: ?Sized = [AtomicU64]> {
    /// How many there are; 0 in memory of which no part has been made yet.
    items: u32,
    /// Group of the coordinator. Stored before anybody else sees the part.
    number: AtomicU32,
    /// Grains announced here and below.
    announced: AtomicU64,
    /// How many of those have been flushed.
    base: AtomicU64,
    /// Grains of all changes that are in the figures, rising and falling ones added up.
    counted: AtomicU64,
    /// Listed cells here and below.
    writers: AtomicU64,
    /// Items that have been published here, a bit each.
    touched: AtomicU64,
    /// Reads within the bound until one flushes all the same.
    reads_left: AtomicU32,
    /// How many there are from one such flush to the next.
    reads_between: AtomicU32,
    /// Kept by its children. Stored before anybody else sees the part.
    parent: StatPtr<Head>,
    /// Published, a pair for each item: the group and all below it, and the group alone.
    figures: Figures,
}

/// A part of which it is not known how many items it has.
type Head = Part<[AtomicU64; 0]>;

/// Where a part is found, once there is one.
#[repr(transparent)]
pub(crate) struct PartPlace(AtomicPtr<Head>);

/// A part that the coordinator has taken from a pool.
pub(super) struct OwnPart {
    head: NonNull<Head>,
    /// Names the object in its pool.
    object: u32,
    /// Which of the coordinator's pools.
    pub(super) pool: usize,
}

// SAFETY: atomic words in memory that never goes, and numbers.
#[allow(unsafe_code)]
unsafe impl Send for OwnPart {}

/// What may be missing from published figures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) grains: u64,
    /// Beyond this a read of the kernel's kind flushes: a batch for each writer.
    pub(crate) threshold: u64,
}

// === Where they come from ===

/// The cache of parts of so many items, in memory of that node.
pub(crate) fn part_cache(items: usize, align: PoolAlign, node: Option<NodeId>) -> Shared<Cache> {
    let asked = size_of::<Head>() + 2 * items * size_of::<AtomicU64>();
    cache(Shape { kind: Kind::Part { items }, asked, align, node }, unmake)
}

/// Drops what has been made of an object.
#[allow(unsafe_code)]
unsafe fn unmake(object: NonNull<u8>) {
    let head = object.cast::<Head>();
    // SAFETY: the caller's object, which nobody uses; zeroed, or a part.
    unsafe {
        if (*head.as_ptr()).items > 0 {
            ptr::drop_in_place(whole(head));
        }
    }
}

/// The part that starts there, with its figures.
///
/// # Safety
///
/// An object of which a part has been made.
#[allow(unsafe_code)]
unsafe fn whole(head: NonNull<Head>) -> *mut Part {
    // SAFETY: made, says the caller.
    let items = unsafe { (*head.as_ptr()).items } as usize;
    ptr::slice_from_raw_parts_mut(head.as_ptr().cast::<AtomicU64>(), 2 * items) as *mut Part
}

impl OwnPart {
    /// Take one from a cache of parts of so many items.
    #[allow(unsafe_code)]
    pub(super) fn take(cache: &Cache, pool: usize, items: usize) -> Result<OwnPart, NoMemory> {
        let object = objects::take(cache)?;
        let head = object.first::<Head>();
        // SAFETY: nobody else's, of that size and alignment; zeroed, or a part of as many items.
        unsafe {
            if (*head.as_ptr()).items == 0 {
                head.write(Part {
                    items: items as u32,
                    number: AtomicU32::new(0),
                    announced: AtomicU64::new(0),
                    base: AtomicU64::new(0),
                    counted: AtomicU64::new(0),
                    writers: AtomicU64::new(0),
                    touched: AtomicU64::new(0),
                    reads_left: AtomicU32::new(0),
                    reads_between: AtomicU32::new(0),
                    parent: StatPtr::new(ptr::null_mut()),
                    figures: [],
                });
                let figures = (&raw mut (*whole(head)).figures).cast::<AtomicU64>();
                (0..2 * items).for_each(|at| figures.add(at).write(AtomicU64::new(0)));
            }
        }
        Ok(OwnPart { head, object: object.number, pool })
    }

    /// Give it back to the cache that it came from. Nobody looks at it any more.
    pub(super) fn give_back(self, cache: &Cache) {
        objects::put(cache, self.object);
    }
}

impl Deref for OwnPart {
    type Target = Part;

    #[allow(unsafe_code)]
    fn deref(&self) -> &Part {
        // SAFETY: made in `take`, and this one's until `give_back`.
        unsafe { &*whole(self.head) }
    }
}

impl PartPlace {
    pub(crate) fn empty() -> PartPlace {
        PartPlace(AtomicPtr::new(ptr::null_mut()))
    }

    /// The part, if there is one. Who asks keeps the group.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn get(&self) -> Option<&Part> {
        // Acquire (E42): pairs with `set`.
        let head = NonNull::new(self.0.load(Ordering::Acquire))?;
        // SAFETY: set by the coordinator, which gives a part back when the group is buried.
        Some(unsafe { &*whole(head) })
    }

    pub(super) fn set(&self, part: &OwnPart) {
        // Release (E42): whoever sees it sees it made; pairs with `get`.
        self.0.store(part.head.as_ptr(), Ordering::Release);
    }

    /// The group is nobody's any more.
    pub(crate) fn clear(&self) {
        self.0.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

impl Part {
    pub(super) fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// Clean, below `parent`, and the group's of that number. Nobody else has it.
    pub(super) fn begin(&self, parent: Option<&Part>, number: u32) {
        let head = |part: &Part| ptr::from_ref(part).cast::<Head>().cast_mut();
        self.parent.store(parent.map_or(ptr::null_mut(), head), Ordering::Relaxed);
        self.number.store(number, Ordering::Relaxed);
        self.set_reads(READS_FIRST);
        let words = [&self.announced, &self.base, &self.counted, &self.writers, &self.touched];
        for word in words.into_iter().chain(&self.figures) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// An item's, of the subtree and of the group alone.
    fn pair(&self, item: usize) -> [&AtomicU64; 2] {
        [&self.figures[2 * item], &self.figures[2 * item + 1]]
    }

    #[allow(unsafe_code)]
    fn parent(&self) -> Option<&Part> {
        let head = NonNull::new(self.parent.load(Ordering::Relaxed))?;
        // SAFETY: a group keeps its ancestors, and so their parts, for as long as it is there itself.
        Some(unsafe { &*whole(head) })
    }

    /// From here to the root.
    pub(super) fn levels(&self) -> impl Iterator<Item = &Part> {
        std::iter::successors(Some(self), |part| part.parent())
    }

    // === What may be missing ===

    /// So much has been written below, and is not known to be in a published figure. True where that comes to more than
    /// may be.
    pub(super) fn announce(&self, grains: u64) -> bool {
        // Release (E20): pairs with `bound`, by way of whoever counts it as flushed.
        let announced = self.announced.fetch_add(grains, Ordering::Release);
        announced.wrapping_add(grains).wrapping_sub(self.base.load(Ordering::Relaxed)) >= ENDLESS
    }

    pub(super) fn add_writer(&self) {
        self.writers.fetch_add(1, Ordering::Relaxed);
    }

    /// After what they wrote was published.
    pub(super) fn remove_writers(&self, gone: u64) {
        // Release (E21): pairs with `bound`.
        self.writers.fetch_sub(gone, Ordering::Release);
    }

    /// What may be missing from what is read of the figures after this: all that was announced, and what each writer
    /// may have written without.
    #[inline]
    pub(super) fn bound(&self, quantum: u64) -> Bound {
        // Acquire (E21): pairs with `publish` and `remove_writers`. What they took off the bound is in the figures that
        // are read after this. `base` first: what it counts has been announced.
        let base = self.base.load(Ordering::Acquire);
        let announced = self.announced.load(Ordering::Acquire).wrapping_sub(base);
        let writers = self.writers.load(Ordering::Acquire);
        let unannounced = writers.saturating_mul(quantum);
        Bound { grains: announced.saturating_add(unannounced), threshold: unannounced.saturating_mul(2) }
    }

    /// Whether a read flushes that its bound would allow not to. The cells of a writer that has stopped stay in the bound
    /// until flushes have found them idle, and without a flusher nobody else flushes.
    pub(crate) fn is_flush_due(&self) -> bool {
        let left = self.reads_left.load(Ordering::Relaxed);
        if left > 1 {
            // Two readers at once may count as one: nothing rests on the number.
            self.reads_left.store(left - 1, Ordering::Relaxed);
        }
        left <= 1
    }

    /// A read has flushed, and what it has visited if it did so all the same. Where most writers have stopped the next read
    /// flushes too, so that they are soon unlisted. Where most write on the number of reads doubles, so that such a flush
    /// costs each read little.
    pub(crate) fn note_flush(&self, all_the_same: Option<Visits>) {
        let between = self.reads_between.load(Ordering::Relaxed);
        self.set_reads(match all_the_same {
            // The bound asked for this one, or another reader's flush had done it all.
            None | Some(Visits { all: 0, .. }) => between,
            Some(Visits { all, unchanged, .. }) if unchanged > all / 2 => 1,
            Some(_) => (2 * between).min(READS_MOST),
        });
    }

    fn set_reads(&self, between: u32) {
        self.reads_between.store(between, Ordering::Relaxed);
        self.reads_left.store(between, Ordering::Relaxed);
    }

    // === What is published ===

    /// Add a row to what is published. Under the coordinator's lock, parents before their children.
    pub(super) fn publish(&self, row: &Row, local: &[i64], subtree: &[i64]) {
        // Release (E22): a reader that sees a figure of a child sees those of its parents, which were stored before.
        self.touched.fetch_or(row.touched, Ordering::Release);
        for item in Bits(row.touched) {
            for (figure, change) in self.pair(item).into_iter().zip([subtree[item], local[item]]) {
                if change != 0 {
                    figure.fetch_add(change.cast_unsigned(), Ordering::Release);
                }
            }
        }
        // Release (E41): after the figures; pairs with `counted`.
        self.counted.fetch_add(row.written, Ordering::Release);
        // Release (E21): after the figures; pairs with `bound`.
        self.base.fetch_add(row.announced, Ordering::Release);
    }

    /// Add to what is published of the group and of all above it: for a thread that can neither make cells nor wait for
    /// the lock. From the root down, as a flush does; no allocation, so each level is found from below.
    pub(crate) fn publish_one(&self, stat: Stat, delta: i64) {
        let depth = self.levels().count();
        for above in (0..depth).rev() {
            let Some(level) = self.levels().nth(above) else { continue };
            // Release (E22): as in `publish`.
            level.touched.fetch_or(1 << stat.number(), Ordering::Release);
            let figures = level.pair(stat.number()).into_iter().take(if above == 0 { 2 } else { 1 });
            for figure in figures {
                figure.fetch_add(delta.cast_unsigned(), Ordering::Release);
            }
            // Release (E41): as in `publish`.
            level.counted.fetch_add(stat.grains(delta), Ordering::Release);
        }
    }

    /// Grains of the changes in the figures. Figures that are read after this hold them all.
    pub(crate) fn counted(&self) -> u64 {
        // Acquire (E41): pairs with `publish`.
        self.counted.load(Ordering::Acquire)
    }

    /// Items that have figures.
    pub(super) fn published(&self) -> Bits {
        // Acquire (E22): pairs with `publish`.
        Bits(self.touched.load(Ordering::Acquire))
    }

    /// Of the subtree, and of the group alone.
    #[inline]
    pub(crate) fn figures(&self, item: usize) -> [i64; 2] {
        // Acquire (E22): pairs with `publish`.
        self.pair(item).map(|figure| figure.load(Ordering::Acquire).cast_signed())
    }
}
