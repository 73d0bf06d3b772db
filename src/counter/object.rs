//! One counter: its object and its incarnations.
//!
//! | a thread that has | knows of the counter |
//! |---|---|
//! | `&Counter` | something keeps it as long as the reference lives |
//! | `Handle` | the value keeps it: it is counted |
//! | `CounterRef`, `HeaderRef` | something else keeps it; the `unsafe` block that made the value says what |
//! | `WeakCounter`, `&'static Object` | it may be gone, and the object another counter's: `WeakCounter::try_pin` finds out |
//!
//! `walk` has the walk of a charge to the root; `level` has what a walk does at one level.
//! `incarnation` has what keeps an object alive. `thread::slot` has what credit is, and `drain` how
//! it moves. After `mm/page_counter.c`.

pub(crate) mod tree;

use std::ops::Deref;
use std::ptr::{self, NonNull};

use crate::counter::central_word::CentralWord;
use crate::counter::child_count::ChildCount;
use crate::counter::incarnation::ObjectState;
use crate::counter::object::tree::{OfTree, Tree};
use crate::counter::open_count::OpenStocks;
use crate::counter::peak::{LivePeak, NO_MOVER, Peaks};
use crate::counter::protection::ProtectionWords;
use crate::counter::spare_word::Cover;
use crate::counter::watch::{OBSERVED, WAITING, Watched};
use crate::error::{CounterId, USAGE_MAX};
use crate::pool::PoolAlign;
use crate::sync::stat_atomic::{
    AtomicBool, AtomicPtr as StatPtr, AtomicU8 as StatU8, AtomicU16 as StatU16,
    AtomicU32 as StatU32, AtomicU64 as StatU64,
};
use crate::sync::{AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering, PlainCell, TIME_PASSES};
use crate::thread::directory::{Header, SlotIndex};

/// A counter: one incarnation of an [`Object`], which no other thread ends as long as the reference
/// lives.
///
/// Something keeps it meanwhile: a handle, live charge, a counter below, or a lock. After a step
/// that may be the last one of the incarnation a thread has a
/// [`WeakCounter`](crate::counter::handle::WeakCounter): see `incarnation`.
#[repr(transparent)]
pub(crate) struct Counter(Object);

/// An object of the pool, which is never freed. Each of its words may be read at any time: where
/// nothing keeps the incarnation, they may be those of a later one.
///
/// Usage has a line of its own, and limits begin on the next one. Lines are those of the object;
/// the pool decides whether they are lines of the processor.
#[repr(C)]
pub(crate) struct Object {
    pub(crate) usage: Padded<Usage, { line_rest(size_of::<Usage>()) }>,
    pub(crate) limits: LimitWords,

    // Every walk reads these.
    /// The state of the stock, and what the hit path reads. Not null from the object's first use
    /// on.
    pub(crate) header: &'static Header,
    /// The index of its slot in each thread's block.
    pub(crate) index: SlotIndex,
    object: *const CounterObject,
    /// The number of the object in the pool.
    pub(crate) number: u32,
    /// The counter's position in its group; 0 for the first one, and for a counter alone.
    pub(crate) position: u16,
    /// Offset of the next counter of the group in the object, in words; 0 in the last one.
    next: u16,
    incarnation: PlainCell<Option<Incarnation>>,

    // Slow paths.
    /// The counter's index in `Stocks::opened`, plus 1; 0 while its stock is not counted as open.
    pub(crate) opened: AtomicU32,
    /// The counter's index in `Stocks::central`, plus 1; 0 while its central stock is not counted
    /// as open.
    pub(crate) central_opened: AtomicU32,
    /// Its central stock, from the first use on.
    pub(crate) central: StatPtr<CentralWord>,
    /// The stock is in the queue of pending closes.
    pub(crate) queued: AtomicBool,
    /// The last close could not finish: credit may be in transit.
    pub(crate) stuck: AtomicBool,
    /// More was uncharged than charged here: the stock stays closed.
    pub(crate) poisoned: AtomicBool,
    /// While the stock is counted as open, its batch is the counter's doubled so many times: see
    /// `width`.
    pub(crate) width: StatU8,
    /// Not 0: the block of an ended thread may have a slot of this counter, active and empty, which
    /// no drain visits.
    pub(crate) swept: AtomicU32,
    /// A sum has reached its end, so the object is never released: see `raw`.
    pub(crate) kept: AtomicBool,
    /// A charge above the counter's batch has missed since the stock opened, or since the last
    /// visit: see `width`.
    pub(crate) asked_wide: AtomicBool,
    /// The step of live units at which a thread last had all slots below note their credit: see
    /// `live_peak`.
    pub(crate) peak_step: StatU16,
    /// Percentages of max from which the pressure is elevated and critical: see `pressure_mark`. 0:
    /// none.
    pub(crate) pressure_from: StatU32,
    /// The thread that has charged here, or [`SHARED`]: see [`Counter::begin_transit`].
    pub(crate) charger: AtomicU64,
    /// Units per refill while the stock is open; 0: the stock is off.
    pub(crate) batch: StatU64,
    /// Usage above this delays charges; `u64::MAX`: never.
    pub(crate) high: StatU64,
    /// Live units that the level is known to have had at one moment: see `live_peak`.
    pub(crate) live_peak: LivePeak,
}

// SAFETY: only `begin` and `end` write `incarnation`. Their caller took the object from the pool
// and has shown it to no other thread, or has won its release. `object` and `next` never change;
// all else is atomic.
#[allow(unsafe_code)]
unsafe impl Sync for Object {}
// SAFETY: nothing in it is tied to a thread.
#[allow(unsafe_code)]
unsafe impl Send for Object {}

/// Head of an object of the pool: a counter alone, or the first one of a group, and its place in
/// the tree.
#[repr(C)]
pub(crate) struct CounterObject {
    pub(crate) counter: Object,
    pub(crate) links: TreeLinks,
}

/// A group's place among its siblings, and its children: see `links`.
pub(crate) struct TreeLinks {
    /// The hash that decides the group's shard. The lock of that shard protects this and its
    /// neighbours.
    pub(super) hash: StatU64,
    pub(super) next: StatPtr<Object>,
    pub(super) prev: StatPtr<Object>,
}

impl TreeLinks {
    pub(crate) fn new() -> TreeLinks {
        let unlinked = || StatPtr::new(std::ptr::null_mut());
        TreeLinks {
            hash: StatU64::new(0),
            next: unlinked(),
            prev: unlinked(),
        }
    }
}

/// Words that do not change during one incarnation of a counter.
pub(crate) struct Incarnation {
    pub(crate) id: CounterId,
    pub(crate) tree: OfTree,
    pub(crate) parent: Option<CounterRef>,
    /// Audited, or with a real fence: the hit path does not serve it.
    pub(crate) slow_only: bool,
    pub(crate) fenced: bool,
    /// Reserved bytes pay for allocated ones.
    pub(crate) covers: bool,
    pub(crate) cover: Cover,
    /// Root only: the most that `bound` may become; [`SHARE_OF_MAX`]: a share of max.
    pub(crate) budget: u64,
}

/// The budget of a root is a share of its max.
pub(crate) const SHARE_OF_MAX: u64 = u64::MAX;

/// More than one thread has charged here.
pub(crate) const SHARED: u64 = u64::MAX;

/// A value padded to whole lines.
#[repr(C)]
pub(crate) struct Padded<T, const REST: usize> {
    value: T,
    rest: [u8; REST],
}

const fn line_rest(size: usize) -> usize {
    size.next_multiple_of(PoolAlign::LINE) - size
}

impl<T, const REST: usize> Padded<T, REST> {
    fn new(value: T) -> Self {
        Padded {
            value,
            rest: [0; REST],
        }
    }
}

impl<T, const REST: usize> Deref for Padded<T, REST> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.value
    }
}

/// Usage, and fields that threads rarely touch, on a line of their own. Before it is a line that
/// walks read and threads rarely write: a walk that has left usage to another thread's walk does
/// not fetch that line again.
///
/// Words that each child writes at its parent beside its handle lie together: usage, and the count
/// of children.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Usage {
    /// The first counter's keeps all of a group; that of a further counter has generation and
    /// offline only.
    pub(crate) state: ObjectState,
    pub(crate) peaks: Peaks,
    /// The max as it was set, while the level is only observed and `limits.max` admits every
    /// charge.
    pub(crate) observed_max: StatU64,
    /// The next counter that the same thread has to release, or whose look an allocator has
    /// deferred: that one has a handle, so no thread releases it.
    pub(crate) next_to_release: AtomicPtr<Object>,
    /// The number of (thread, counter) pairs that may hold credit.
    pub(crate) touched: StatU32,
    /// The counter's number in a walk over a `HierarchySnapshot`.
    pub(crate) snapshot_index: StatU32,
    /// Bound on the credit below this level: the sum of `touched` x capacity over open stocks.
    pub(crate) bound: AtomicU64,
    pub(crate) underflows: StatU64,

    /// Live charge and credit of the whole subtree. Signed: a walk sees an underflow instead of a
    /// wrapped number.
    pub(crate) units: AtomicI64,
    /// The children of the group; that of a further counter has none.
    children: ChildCount,
    /// Looks ahead that have to find room here before the level's mark goes: see `look_ahead`.
    /// Beside usage, which the walk after such a look exchanges.
    pub(crate) looks_left: StatU32,
    pub(crate) failcnt: StatU64,
    /// Units that were uncharged and never charged. `raw` decides by it whether guards hold
    /// something.
    pub(crate) underflowed: AtomicU64,
    /// The audit of threads that have no block, and of charges inside a slow path: charged and not
    /// uncharged, wraps.
    pub(crate) audit_shared: StatU64,
    /// Units that the same threads have charged without a guard and not uncharged: see `raw`.
    pub(crate) raw_shared: AtomicI64,
    /// Units drained and not yet uncharged, within one drain.
    pub(crate) settled: StatU64,
    /// Usage above this is reclaimed in the background; `u64::MAX`: never.
    pub(crate) reclaim_above: StatU64,
}

// A word more would take a line more for each counter of each group. A model's words are larger.
const _: () = assert!(!TIME_PASSES || size_of::<Usage>() <= PoolAlign::LINE);

/// Place of a counter: the fields of [`Object`] of these names.
#[derive(Clone, Copy)]
pub(crate) struct PlaceInGroup {
    pub(crate) object: *const CounterObject,
    pub(crate) number: u32,
    pub(crate) position: u16,
    pub(crate) next: u16,
}

#[derive(Default)]
pub(crate) struct LimitWords {
    /// The usage that charges are admitted to.
    pub(crate) max: AtomicU64,
    /// The stocks below this level that are open (E10). A thread counts one before its first batch,
    /// and uncounts it after the last drain.
    pub(crate) open: OpenStocks,
    /// A charge was refused here lately: no stock below opens. Cleared by a charge that sees room.
    pub(crate) tight: AtomicBool,
    /// A walk was refused here lately, so walks look at all of their levels first: see
    /// `look_ahead`.
    pub(crate) refuses: AtomicBool,
    /// A walk has left a new peak of usage, and no thread has counted the credit below since: see
    /// `live_peak`.
    pub(crate) count_is_due: AtomicBool,
    /// The one counter that moves units of the level: see `live_peak`.
    pub(crate) mover: StatU32,
    /// Units that forced charges have ever put above max.
    pub(crate) forced_total: StatU64,
    pub(crate) watched: Watched,
    /// Usage above this is in excess; `u64::MAX`: never.
    pub(crate) soft: AtomicU64,
    /// The excess that this level last reported to the levels above (E23).
    pub(crate) in_excess: AtomicU64,
    /// By [`Protection`](crate::counter::protection::Protection).
    pub(crate) protected: [ProtectionWords; 2],
}

// === An object, which nothing need keep ===

impl Object {
    pub(crate) fn new(place: PlaceInGroup, index: SlotIndex, header: &'static Header) -> Object {
        let PlaceInGroup {
            object,
            number,
            position,
            next,
        } = place;
        Object {
            usage: Padded::new(Usage {
                observed_max: StatU64::new(u64::MAX),
                reclaim_above: StatU64::new(u64::MAX),
                ..Usage::default()
            }),
            limits: LimitWords {
                max: AtomicU64::new(u64::MAX),
                soft: AtomicU64::new(u64::MAX),
                ..LimitWords::default()
            },
            header,
            index,
            object,
            number,
            position,
            next,
            incarnation: PlainCell::new(None),
            opened: AtomicU32::new(0),
            central_opened: AtomicU32::new(0),
            central: StatPtr::default(),
            queued: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
            width: StatU8::new(0),
            swept: AtomicU32::new(0),
            kept: AtomicBool::new(false),
            asked_wide: AtomicBool::new(false),
            peak_step: StatU16::new(0),
            pressure_from: StatU32::new(0),
            charger: AtomicU64::new(0),
            batch: StatU64::new(0),
            high: StatU64::new(u64::MAX),
            live_peak: LivePeak::default(),
        }
    }

    /// Starts an incarnation of an object that the caller has taken from the pool.
    #[allow(unsafe_code)]
    pub(crate) fn begin(&self, incarnation: Incarnation, batch: u64, max: u64) {
        debug_assert!(
            self.is_clean(),
            "a thread has written to an object in the pool"
        );
        let shown = if incarnation.slow_only {
            SlotIndex::NONE
        } else {
            self.index
        };
        let with_stock = if incarnation.covers {
            SlotIndex::NONE
        } else {
            shown
        };
        let with_cells = if incarnation.fenced {
            SlotIndex::NONE
        } else {
            self.index
        };
        self.header.slots.show(with_stock);
        self.header.objects.show(shown);
        self.header.cells.show(with_cells);
        self.header.set_tree(incarnation.tree.get().number);
        self.batch.store(batch, Ordering::Relaxed);
        self.begin_max(max);
        // SAFETY: see `Sync`.
        drop(unsafe { self.incarnation.replace(Some(incarnation)) });
        self.state().begin();
    }

    /// True if each word that `end` resets is as new. A new word has to have its place here and in
    /// `end`.
    #[rustfmt::skip]
    fn is_clean(&self) -> bool {
        let Object {
            usage, limits, opened, central_opened, queued, stuck, poisoned, kept, charger, high, live_peak,
            pressure_from, width, asked_wide,
            // A late sweep may set `swept`: then the next counter looks at more blocks than it has
            // to. The other one is a hint.
            swept: _, peak_step: _,
            // The object's for ever; `begin` sets the batch and the incarnation.
            header: _, index: _, object: _, number: _, position: _, next: _, central: _, batch: _, incarnation: _,
        } = self;
        let Usage {
            peaks: _, touched, bound, underflows, units, children: _, failcnt, underflowed, settled, raw_shared,
            reclaim_above,
            // A late step may still read the state. The others are set before they are read.
            state: _, observed_max: _, next_to_release: _, snapshot_index: _, looks_left: _, audit_shared: _,
        } = &**usage;
        let LimitWords {
            max: _, open, tight, refuses, mover, forced_total, watched, soft, in_excess, protected,
            // A hint.
            count_is_due: _,
        } = limits;
        let figures = [underflows, failcnt, settled, forced_total];
        open.is_clean() && [in_excess, charger, bound, underflowed].iter().all(|word| word.load(Ordering::Relaxed) == 0)
            && figures.iter().all(|figure| figure.load(Ordering::Relaxed) == 0)
            && [units, raw_shared].iter().all(|sum| sum.load(Ordering::Relaxed) == 0)
            && [opened, central_opened].iter().all(|place| place.load(Ordering::Relaxed) == 0)
            && width.load(Ordering::Relaxed) == 0
            && ![queued, stuck, poisoned, kept, tight, refuses, asked_wide].iter().any(|mark| mark.load(Ordering::Relaxed))
            && soft.load(Ordering::Relaxed) == u64::MAX
            && high.load(Ordering::Relaxed) == u64::MAX
            && reclaim_above.load(Ordering::Relaxed) == u64::MAX
            && touched.load(Ordering::Relaxed) == 0
            && live_peak.is_new()
            && mover.load(Ordering::Relaxed) == NO_MOVER
            && pressure_from.load(Ordering::Relaxed) == 0
            && protected.iter().all(ProtectionWords::is_clean)
            && watched.bits() == 0
    }

    /// Ends the incarnation: the object is as new, ready for the pool. No thread uses it any more.
    /// The caller may drop the result without a lock.
    #[rustfmt::skip]
    #[allow(unsafe_code)]
    pub(crate) fn end(&self) -> Option<Incarnation> {
        let Object {
            usage, limits, stuck, poisoned, kept, charger, high, live_peak, incarnation, pressure_from, asked_wide,
            peak_step,
            // The object's for ever, but for the batch, which `begin` sets.
            header: _, index: _, object: _, number: _, position: _, next: _, central: _, batch: _,
            // As new once the stock is closed and the slots are vacant, before this.
            opened: _, central_opened: _, queued: _, swept: _, width: _,
        } = self;
        let Usage {
            peaks, touched, bound, underflows, units, children, failcnt, underflowed, settled, raw_shared, audit_shared,
            reclaim_above,
            // The state moves on to the next generation. The others are set before they are read.
            state: _, observed_max: _, next_to_release: _, snapshot_index: _, looks_left: _,
        } = &**usage;
        let LimitWords {
            max: _, open, tight, refuses, count_is_due, mover, forced_total, watched, soft, in_excess, protected,
        } = limits;
        open.reset();
        for word in [in_excess, charger, bound, underflowed] {
            word.store(0, Ordering::Relaxed);
        }
        touched.store(0, Ordering::Relaxed);
        for word in [failcnt, underflows, settled, forced_total, audit_shared] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [units, raw_shared] {
            word.store(0, Ordering::Relaxed);
        }
        for mark in [tight, poisoned, kept, stuck, asked_wide] {
            mark.store(false, Ordering::Relaxed);
        }
        soft.store(u64::MAX, Ordering::Relaxed);
        high.store(u64::MAX, Ordering::Relaxed);
        reclaim_above.store(u64::MAX, Ordering::Relaxed);
        live_peak.forget();
        mover.store(NO_MOVER, Ordering::Relaxed);
        count_is_due.store(false, Ordering::Relaxed);
        peak_step.store(0, Ordering::Relaxed);
        pressure_from.store(0, Ordering::Relaxed);
        peaks.forget();
        protected.iter().for_each(ProtectionWords::reset);
        watched.reset();
        children.reset();
        self.central().into_iter().for_each(CentralWord::end_wait);
        // SAFETY: see `Sync`.
        let ended = unsafe { incarnation.replace(None) };
        if let Some(ended) = &ended {
            ended.tree.get().clear_refuses(refuses);
        }
        ended
    }

    #[inline]
    pub(crate) fn state(&self) -> &ObjectState {
        &self.usage.state
    }

    /// The first counter of this counter's group. It stays that, whichever group uses the object.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn first(&self) -> &'static Object {
        // SAFETY: the pool initialises all counters of an object before it shows the first one to a
        // thread; objects are never freed.
        unsafe { &(*self.object).counter }
    }

    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn links(&self) -> &TreeLinks {
        // SAFETY: as in `first`.
        unsafe { &(*self.object).links }
    }

    /// The children of this counter's group.
    #[inline]
    pub(crate) fn child_count(&self) -> &'static ChildCount {
        &self.first().usage.children
    }

    /// The next counter of the group.
    pub(crate) fn next(&self) -> Option<NonNull<Object>> {
        let next = self
            .object
            .wrapping_byte_add(usize::from(self.next) * PoolAlign::WORD);
        NonNull::new(next.cast_mut().cast()).filter(|_| self.next > 0)
    }

    /// For the layer that knows what else the object has.
    pub(crate) fn head(&self) -> *const CounterObject {
        self.object
    }

    /// The counters of this counter's group, the first one first.
    #[allow(unsafe_code)]
    pub(crate) fn objects(&self) -> impl Iterator<Item = &'static Object> + use<> {
        std::iter::successors(Some(self.first()), |counter| {
            // SAFETY: as in `first`.
            counter.next().map(|next| unsafe { next.as_ref() })
        })
    }

    pub(crate) fn number_in_group(&self) -> usize {
        self.position.into()
    }

    /// True if it is the first counter of its group.
    pub(crate) fn is_memory(&self) -> bool {
        self.position == 0
    }

    /// The counter's key among all counters in use.
    pub(crate) fn key(&self) -> u64 {
        u64::from(self.number) << u16::BITS | u64::from(self.position)
    }

    pub(crate) fn batch(&self) -> u64 {
        self.batch.load(Ordering::Relaxed)
    }

    /// The batch of the stock while it is counted as open: half its capacity.
    pub(crate) fn open_batch(&self) -> u64 {
        self.batch() << self.width.load(Ordering::Relaxed)
    }

    /// Some stock in the subtree is counted as open.
    #[inline]
    pub(crate) fn may_have_credit_below(&self) -> bool {
        // Relaxed: a stock that opens meanwhile may be missed, as one that opens later is.
        self.limits.open.load(Ordering::Relaxed).is_any()
    }

    /// The published bound on the credit below this level.
    pub(crate) fn bound(&self) -> u64 {
        self.usage.bound.load(Ordering::Relaxed)
    }

    /// The number of threads whose slots here may hold credit.
    pub(crate) fn touched(&self) -> u64 {
        self.usage.touched.load(Ordering::Relaxed).into()
    }

    pub(crate) fn refusals(&self) -> u64 {
        self.usage.failcnt.load(Ordering::Relaxed)
    }

    pub(crate) fn count_refusal(&self) {
        self.usage.failcnt.fetch_add(1, Ordering::Relaxed);
    }

    /// The stock is counted as open. Its capacity may already be 0: a close has begun.
    pub(crate) fn is_open(&self) -> bool {
        // SeqCst (E35): after `ChildCount::bar`, pairs with `add_open`. Acquire (E36): a thread
        // that finds it closed comes after every access to the stock.
        self.opened.load(Ordering::SeqCst) != 0
    }

    /// The central stock is counted as open.
    pub(crate) fn is_open_central(&self) -> bool {
        // SeqCst (E35): after `ChildCount::bar`, pairs with `central::open`. Acquire (E36): as in
        // `is_open`.
        self.central_opened.load(Ordering::SeqCst) != 0
    }

    /// For the thread that has the tree's lock, or the object.
    #[allow(unsafe_code)]
    pub(crate) fn central(&self) -> Option<&'static CentralWord> {
        // SAFETY: `central::get_or_make` stores it under the tree's lock, and it is never freed.
        unsafe { self.central.load(Ordering::Relaxed).cast_const().as_ref() }
    }

    pub(crate) fn is_queued(&self) -> bool {
        self.queued.load(Ordering::Relaxed)
    }
}

// === A counter, which something keeps ===

impl Deref for Counter {
    type Target = Object;

    #[inline(always)]
    fn deref(&self) -> &Object {
        &self.0
    }
}

impl Object {
    /// The object that has this header.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn of(header: &Header) -> &'static Object {
        // SAFETY: the pool ties each header to its object before it shows either to a thread, and
        // never frees one.
        unsafe { &*header.owner().cast::<Object>() }
    }

    /// The object as a counter.
    ///
    /// # Safety
    ///
    /// The object is in an incarnation, which does not end as long as the result lives.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) unsafe fn kept<'a>(&self) -> &'a Counter {
        // SAFETY: a `Counter` is an `Object` and nothing else; objects are never freed.
        unsafe { &*ptr::from_ref(self).cast::<Counter>() }
    }
}

impl Counter {
    /// The object, which outlives the incarnation.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn object(&self) -> &'static Object {
        // SAFETY: objects are never freed.
        unsafe { &*ptr::from_ref(&self.0) }
    }

    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn incarnation(&self) -> &Incarnation {
        // SAFETY: the incarnation goes on as long as the reference lives, as `Object::kept`
        // demands; no thread writes the cell during it, and it is `Some`. A walk comes here for
        // each level.
        unsafe {
            let incarnation = self.incarnation.get().as_ref();
            debug_assert!(
                incarnation.is_some(),
                "a counter in use is in an incarnation"
            );
            incarnation.unwrap_unchecked()
        }
    }

    #[inline]
    pub(crate) fn tree(&self) -> &Tree {
        self.incarnation().tree.get()
    }

    /// Words of a counter whose group covers.
    #[inline(always)]
    pub(crate) fn cover(&self) -> Option<&Cover> {
        let Incarnation { cover, covers, .. } = self.incarnation();
        covers.then_some(cover)
    }

    /// The counter above, where both cover.
    pub(crate) fn cover_above(&self) -> Option<&Counter> {
        self.parent()
            .filter(|above| self.incarnation().covers && above.incarnation().covers)
    }

    #[inline]
    pub(crate) fn id(&self) -> CounterId {
        self.incarnation().id
    }

    /// The counter above, which this one keeps.
    #[inline(always)]
    pub(crate) fn parent(&self) -> Option<&Counter> {
        self.incarnation().parent.as_deref()
    }

    /// The first counter of this counter's group.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn first(&self) -> &Counter {
        // SAFETY: the counters of a group are kept together.
        unsafe { self.0.first().kept() }
    }

    /// The counters of this counter's group, the first one first.
    #[allow(unsafe_code)]
    pub(crate) fn group(&self) -> impl Iterator<Item = &Counter> {
        // SAFETY: as in `first`.
        self.objects().map(|counter| unsafe { counter.kept() })
    }

    /// The levels of a charge. The next one is read before the caller gets a level.
    #[inline]
    pub(crate) fn path_to_root(&self) -> impl Iterator<Item = &Counter> {
        std::iter::successors(Some(self), |level| level.parent())
    }

    /// A level of this counter's path, for as long as this counter is kept.
    pub(crate) fn level(&self, level: &Counter) -> &Counter {
        self.path_to_root()
            .find(|&at| ptr::eq(at, level))
            .expect("a level of the path")
    }

    /// True if it is `top`, or below it.
    pub(crate) fn is_within(&self, top: &Counter) -> bool {
        self.path_to_root().any(|level| ptr::eq(level, top))
    }

    pub(crate) fn path_below(&self, top: Option<&Counter>) -> impl Iterator<Item = &Counter> {
        self.path_to_root()
            .take_while(move |&level| top.is_none_or(|top| !ptr::eq(level, top)))
    }

    /// Units that a charge can add before one of the levels cannot count them.
    pub(crate) fn countable(&self) -> u64 {
        self.path_to_root()
            .map(|level| USAGE_MAX - level.usage())
            .min()
            .unwrap_or(USAGE_MAX)
    }

    /// The least max of the levels above. A max that is only observed refuses no charge.
    pub(crate) fn effective_max(&self) -> u64 {
        self.path_to_root()
            .filter(|level| !level.is_observed())
            .map(|level| level.max())
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Units that each level has room for, credit in stocks taken for used.
    pub(crate) fn headroom(&self) -> u64 {
        self.path_to_root()
            .map(|level| level.room(level.admits()))
            .min()
            .unwrap_or(USAGE_MAX)
    }
}

// === A counter as a value that is stored, where this crate counts no handle for it ===

/// A counter that something else keeps as long as this value is used: a place in a list, a ticket,
/// a guard.
#[derive(Clone, Copy)]
pub(crate) struct CounterRef(&'static Object);

impl CounterRef {
    /// # Safety
    ///
    /// Something keeps the counter until the last use of the result and of its copies as a counter.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) unsafe fn new(counter: &Counter) -> CounterRef {
        CounterRef(counter.object())
    }

    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn header(self) -> HeaderRef {
        // SAFETY: the caller of `new` vouches for it.
        unsafe { HeaderRef::new(self.0.header) }
    }
}

impl Deref for CounterRef {
    type Target = Counter;

    #[inline]
    #[allow(unsafe_code)]
    fn deref(&self) -> &Counter {
        // SAFETY: the caller of `new` vouches for it.
        unsafe { self.0.kept() }
    }
}

/// A [`CounterRef`] by its header, which is all that a hit reads.
#[derive(Clone, Copy)]
pub(crate) struct HeaderRef(&'static Header);

impl HeaderRef {
    /// # Safety
    ///
    /// As for [`CounterRef::new`].
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) unsafe fn new(header: &'static Header) -> HeaderRef {
        HeaderRef(header)
    }

    /// The header, which outlives the incarnation.
    #[inline(always)]
    pub(crate) fn header(self) -> &'static Header {
        self.0
    }

    #[inline(always)]
    #[allow(unsafe_code)]
    pub(crate) fn counter(&self) -> &Counter {
        // SAFETY: the caller of `new` vouches for it.
        unsafe { Object::of(self.0).kept() }
    }
}

impl PartialEq for HeaderRef {
    #[inline(always)]
    fn eq(&self, other: &HeaderRef) -> bool {
        ptr::eq(self.0, other.0)
    }
}

impl Deref for HeaderRef {
    type Target = Header;

    #[inline(always)]
    fn deref(&self) -> &Header {
        self.0
    }
}

// === Usage and limits ===

impl Object {
    /// No thread charges the counter yet.
    pub(crate) fn begin_max(&self, max: u64) {
        self.limits.max.store(max, Ordering::Relaxed);
    }

    pub(crate) fn max(&self) -> u64 {
        if self.is_observed() {
            return self.usage.observed_max.load(Ordering::Relaxed);
        }
        // Acquire (E1): as in `take_at_once`.
        self.limits.max.load(Ordering::Acquire)
    }

    pub(crate) fn room(&self, max: u64) -> u64 {
        max.min(USAGE_MAX).saturating_sub(self.usage())
    }

    /// The usage that charges are admitted to.
    pub(crate) fn admits(&self) -> u64 {
        // SeqCst (E25): a thread that waits for room reads it after its mark; pairs with
        // `store_max` and `impose_max`.
        self.limits.max.load(Ordering::SeqCst)
    }

    pub(crate) fn is_observed(&self) -> bool {
        self.limits.watched.is_for(OBSERVED)
    }

    /// A charge was refused here lately, or a charge waits for room: no stock below opens.
    pub(crate) fn is_tight(&self) -> bool {
        // Mutation: a-line-does-not-keep-stocks-closed
        self.limits.tight.load(Ordering::Relaxed) || self.limits.watched.is_for(WAITING)
    }

    pub(crate) fn usage(&self) -> u64 {
        // SeqCst (E4, E23): a thread that compares it with a limit or a mark reads it after the
        // fence of that edge; pairs with the exchanges on usage in `level`.
        self.usage
            .units
            .load(Ordering::SeqCst)
            .max(0)
            .cast_unsigned()
    }

    /// Peaks of usage.
    #[inline]
    pub(crate) fn peaks(&self) -> &Peaks {
        &self.usage.peaks
    }

    /// Units above max: no charge puts them there but a forced one, or a max that was set below
    /// usage.
    pub(crate) fn forced(&self) -> u64 {
        self.usage().saturating_sub(self.max())
    }

    pub(crate) fn forced_total(&self) -> u64 {
        self.limits.forced_total.load(Ordering::Relaxed)
    }
}
