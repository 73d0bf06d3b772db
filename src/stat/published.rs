//! The published statistics of one group, and the bound on what may be missing from them.

use std::ops::Deref;
use std::ptr::{self, NonNull};

use super::item::StatKey;
use super::rows::ChangedGroup;
use super::visits::ReadCadence;
use crate::numa::NodeId;
use crate::pool::shape::{PoolKind, Shape};
use crate::pool::{Cache, NoMemory, PoolAlign, cache};
use crate::sync::stat_atomic::{AtomicPtr as StatPtr, AtomicU32};
use crate::sync::{AtomicPtr, AtomicU64, Ordering, Shared};
use crate::thread::cells::SetBits;
use crate::thread::objects;

/// From so many announced grains on the writer itself flushes: what is announced and not flushed
/// must not wrap.
pub(super) const ANNOUNCED_MAX: u64 = 1 << 56;

/// Which of a group's statistics. The published statistics of one scope are a tree in the shape of
/// the tree of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatScope {
    /// The group's own.
    Group,
    /// Those of its memory on a node.
    On(u16),
}

/// The published statistics of one group in one scope, made when it, or a group below it, is first
/// written. They are an object of a pool, as large as the items of the runtime make it. The
/// coordinator owns the object. A thread that keeps the group may read it.
#[derive(Default)]
#[repr(C)]
pub(crate) struct PublishedStats<Figures: ?Sized = [AtomicU64]> {
    /// The number of items; 0 in memory that has never held published statistics.
    items: u32,
    /// The coordinator's number of the group. Stored before another thread sees the object.
    number: AtomicU32,
    /// Grains announced here and below.
    announced: AtomicU64,
    /// The part of those that has been flushed.
    base: AtomicU64,
    /// Grains of all changes that are in the figures, rising and falling ones added up.
    counted: AtomicU64,
    /// Listed cells here and below.
    writers: AtomicU64,
    /// Items that have been published here, a bit each.
    touched: AtomicU64,
    pub(crate) cadence: ReadCadence,
    /// The children keep the parent. Stored before another thread sees the object.
    parent: StatPtr<PublishedHead>,
    /// A pair for each item: of the group and all below it, and of the group alone.
    figures: Figures,
}

/// Published statistics without their figures: the number of items is not known yet.
type PublishedHead = PublishedStats<[AtomicU64; 0]>;

/// The place where a group finds its published statistics, once there are any.
#[derive(Default)]
#[repr(transparent)]
pub(crate) struct PublishedPlace(AtomicPtr<PublishedHead>);

/// Published statistics that the coordinator has taken from a pool.
pub(super) struct OwnedStats {
    head: NonNull<PublishedHead>,
    /// Names the object in its pool.
    object: u32,
    /// Which of the coordinator's pools.
    pub(super) pool: usize,
}

// SAFETY: atomic words in memory that stays, and numbers.
#[allow(unsafe_code)]
unsafe impl Send for OwnedStats {}

/// The amount that may be missing from published figures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ErrorBound {
    pub(crate) grains: u64,
    /// Beyond this a read of the kernel's kind flushes: a batch for each writer.
    pub(crate) threshold: u64,
}

impl ErrorBound {
    pub(crate) const NOTHING: ErrorBound = ErrorBound {
        grains: 0,
        threshold: 0,
    };

    /// Returns the bound for two sets of figures together.
    pub(crate) fn plus(self, more: ErrorBound) -> ErrorBound {
        ErrorBound {
            grains: self.grains.saturating_add(more.grains),
            threshold: self.threshold.saturating_add(more.threshold),
        }
    }
}

// === The memory ===

pub(super) fn published_cache(
    items: usize,
    align: PoolAlign,
    node: Option<NodeId>,
) -> Shared<Cache> {
    let asked = size_of::<PublishedHead>() + 2 * items * size_of::<AtomicU64>();
    cache(Shape {
        kind: PoolKind::Stats { items },
        asked,
        align,
        node,
    })
}

/// The published statistics that start there, with their figures.
///
/// # Safety
///
/// The object has been made.
#[allow(unsafe_code)]
unsafe fn whole(head: NonNull<PublishedHead>) -> *mut PublishedStats {
    // SAFETY: made, as the caller says.
    let items = unsafe { (*head.as_ptr()).items } as usize;
    ptr::slice_from_raw_parts_mut(head.as_ptr().cast::<AtomicU64>(), 2 * items)
        as *mut PublishedStats
}

impl OwnedStats {
    /// Takes an object from a cache of published statistics of so many items.
    #[allow(unsafe_code)]
    pub(super) fn take(cache: &Cache, pool: usize, items: usize) -> Result<OwnedStats, NoMemory> {
        let object = objects::take(cache)?;
        let head = object.first::<PublishedHead>();
        // SAFETY: an object that no other thread has, of that size and alignment; zeroed, or made
        // for as many items.
        unsafe {
            // An object that was in use keeps its length and its words: `init` sets them to zero,
            // with stores that a late reader may see, and no write that it may tear.
            if (*head.as_ptr()).items == 0 {
                head.write(PublishedStats {
                    items: items as u32,
                    ..PublishedStats::default()
                });
                let figures = (&raw mut (*whole(head)).figures).cast::<AtomicU64>();
                (0..2 * items).for_each(|at| figures.add(at).write(AtomicU64::new(0)));
            }
        }
        Ok(OwnedStats {
            head,
            object: object.number,
            pool,
        })
    }

    /// Gives the object back to the cache that it came from. No thread reads it any more.
    pub(super) fn recycle(self, cache: &Cache) {
        objects::put(cache, self.object);
    }
}

impl Deref for OwnedStats {
    type Target = PublishedStats;

    #[allow(unsafe_code)]
    fn deref(&self) -> &PublishedStats {
        // SAFETY: made in `take`, and this one's until `recycle`.
        unsafe { &*whole(self.head) }
    }
}

impl PublishedPlace {
    /// The published statistics, if there are any.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn get(&self) -> Option<&PublishedStats> {
        // Acquire (E42): pairs with `set`.
        let head = NonNull::new(self.0.load(Ordering::Acquire))?;
        // SAFETY: set by the coordinator, which gives the object back when the group is released.
        Some(unsafe { &*whole(head) })
    }

    pub(super) fn set(&self, published: &OwnedStats) {
        // Release (E42): a thread that sees the pointer sees the object made; pairs with `get`.
        // Mutation: e42-figures-shown-before-they-are-made
        self.0.store(published.head.as_ptr(), Ordering::Release);
    }

    /// Removes the pointer. No thread has the group any more.
    pub(crate) fn clear(&self) {
        self.0.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

impl PublishedStats {
    pub(super) fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// Makes the object clean, below `parent`, for the group of that number. No other thread has
    /// the object.
    pub(super) fn init(&self, parent: Option<&PublishedStats>, number: u32) {
        let head = |published: &PublishedStats| {
            ptr::from_ref(published).cast::<PublishedHead>().cast_mut()
        };
        self.parent
            .store(parent.map_or(ptr::null_mut(), head), Ordering::Relaxed);
        self.number.store(number, Ordering::Relaxed);
        self.cadence.reset();
        let words = [
            &self.announced,
            &self.base,
            &self.counted,
            &self.writers,
            &self.touched,
        ];
        for word in words.into_iter().chain(&self.figures) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// An item's, of the subtree and of the group alone.
    fn pair(&self, item: usize) -> [&AtomicU64; 2] {
        [&self.figures[2 * item], &self.figures[2 * item + 1]]
    }

    #[allow(unsafe_code)]
    fn parent(&self) -> Option<&PublishedStats> {
        let head = NonNull::new(self.parent.load(Ordering::Relaxed))?;
        // SAFETY: a group keeps its ancestors, and so their published statistics, for as long as it
        // is there itself.
        Some(unsafe { &*whole(head) })
    }

    pub(super) fn path_to_root(&self) -> impl Iterator<Item = &PublishedStats> {
        std::iter::successors(Some(self), |published| published.parent())
    }

    // === What may be missing ===

    /// Announces what has been written below and may not be in a published figure. True where so
    /// much is announced that the writer must flush.
    pub(super) fn announce(&self, grains: u64) -> bool {
        // The words only grow and wrap, so what is open is a difference. The ceiling is far below
        // the range of a word: without it a program that never reads would let the bound wrap.
        // Release (E20): pairs with `error_bound`, by way of the flush that counts it as flushed.
        let announced = self.announced.fetch_add(grains, Ordering::Release);
        announced
            .wrapping_add(grains)
            .wrapping_sub(self.base.load(Ordering::Relaxed))
            >= ANNOUNCED_MAX
    }

    pub(super) fn add_writer(&self) {
        self.writers.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes writers. What they have written is published.
    pub(super) fn remove_writers(&self, gone: u64) {
        // Release (E21): pairs with `error_bound`.
        self.writers.fetch_sub(gone, Ordering::Release);
    }

    /// Returns what may be missing from what is read of the figures after this: all that was
    /// announced, and what each writer may have written without announcing it.
    #[inline]
    pub(crate) fn error_bound(&self, quantum: u64) -> ErrorBound {
        // Acquire (E21): pairs with `publish` and `remove_writers`. What they took off the bound is
        // in the figures that are read after this. `base` first: what it counts has been announced.
        // Mutation: e21-bound-relaxed
        let base = self.base.load(Ordering::Acquire);
        let announced = self.announced.load(Ordering::Acquire).wrapping_sub(base);
        let writers = self.writers.load(Ordering::Acquire);
        let unannounced = writers.saturating_mul(quantum);
        ErrorBound {
            grains: announced.saturating_add(unannounced),
            threshold: unannounced.saturating_mul(2),
        }
    }

    // === What is published ===

    /// Adds a row to the figures. The caller holds the coordinator's lock, and publishes parents
    /// before their children.
    pub(super) fn publish(&self, row: &ChangedGroup, local: &[i64], subtree: &[i64]) {
        // Release (E22): a reader that sees a figure of a child sees those of its parents, which
        // were stored before; pairs with `figures`.
        // Mutation: e21-off-the-bound-before-published
        self.touched.fetch_or(row.touched, Ordering::Release);
        for item in SetBits(row.touched) {
            for (figure, change) in self
                .pair(item)
                .into_iter()
                .zip([subtree[item], local[item]])
            {
                // The rows of most levels touch items that their own group did not change.
                if change != 0 {
                    // Mutation: e22-figures-relaxed
                    figure.fetch_add(change.cast_unsigned(), Ordering::Release);
                }
            }
        }
        // Release (E41): after the figures; pairs with `counted`.
        // Mutation: e41-counted-relaxed
        self.counted.fetch_add(row.written, Ordering::Release);
        // Release (E21): after the figures; pairs with `error_bound`.
        self.base.fetch_add(row.announced, Ordering::Release);
    }

    /// Adds to the figures of the group and of all above it, for a thread that has no cells and can
    /// make none. It goes from the root down, as a flush does. It allocates nothing, so it finds
    /// each level from below.
    pub(crate) fn publish_one(&self, stat: StatKey, delta: i64) {
        let depth = self.path_to_root().count();
        // Mutation: e22-nested-account-from-below
        for above in (0..depth).rev() {
            // Each level is searched anew from below, in steps of the depth squared: this is for the
            // few additions of threads without cells.
            let Some(level) = self.path_to_root().nth(above) else {
                continue;
            };
            // Release (E22): as in `publish`.
            level
                .touched
                .fetch_or(1 << stat.number(), Ordering::Release);
            // At the group itself the change is in both figures; at the levels above only in that
            // of their subtree.
            let counts = if above == 0 { 2 } else { 1 };
            for figure in level.pair(stat.number()).into_iter().take(counts) {
                // Release (E22): as in `publish`.
                // Mutation: e22-nested-account-without-release
                figure.fetch_add(delta.cast_unsigned(), Ordering::Release);
            }
            // Release (E41): as in `publish`.
            level
                .counted
                .fetch_add(stat.grains(delta), Ordering::Release);
        }
    }

    /// Returns the grains of the changes in the figures. Figures that are read after this contain
    /// them all.
    pub(crate) fn counted(&self) -> u64 {
        // Acquire (E41): pairs with `publish`.
        // Mutation: e41-count-read-relaxed
        self.counted.load(Ordering::Acquire)
    }

    /// Items that have figures.
    pub(super) fn touched(&self) -> SetBits {
        // Acquire (E22): pairs with `publish`.
        SetBits(self.touched.load(Ordering::Acquire))
    }

    /// Of the subtree, and of the group alone.
    #[inline]
    pub(crate) fn figures(&self, item: usize) -> [i64; 2] {
        // Acquire (E22): pairs with `publish`.
        self.pair(item)
            .map(|figure| figure.load(Ordering::Acquire).cast_signed())
    }
}
