//! One counter: its object and its lives.
//!
//! The walk of a charge from it to the root is in `walk`, what it does at one level in `level`, what keeps an object
//! alive in `incarnation`, what credit is and how it moves in `thread::slot` and `drain`. After `mm/page_counter.c`.

use std::cell::UnsafeCell;
use std::ops::Deref;
use std::ptr;

use crate::counter::incarnation::State;
use crate::counter::links::Sibling;
use crate::counter::peak::Peaks;
use crate::counter::protection::Propagated;
use crate::counter::tree::{OfTree, Tree};
use crate::error::CounterId;
use crate::hierarchy::limits::LIMIT_KINDS;
use crate::hierarchy::name::Name;
use crate::pool::PoolAlign;
use crate::reclaim::turns::NO_RING;
use crate::stat::published::PublishedPlace;
use crate::state::events::EventCounts;
use crate::sync::lock::{Lock, Rank};
use crate::sync::stat_atomic::{
    AtomicBool, AtomicPtr as StatPtr, AtomicU8, AtomicU32 as StatU32, AtomicU64 as StatU64,
};
use crate::sync::{AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::thread::audit::Cell as AuditCell;
use crate::thread::directory::{Header, SlotIndex};

/// The most units a counter may hold.
pub(crate) const USAGE_MAX: u64 = i64::MAX as u64;

/// One open stock more or less below a level, and one transition: see `Limits::open`.
pub(crate) const OPENED: u64 = (1 << 32) | 1;
pub(crate) const CLOSED: u64 = (1 << 32) - 1;

/// A counter: its stock, its level, its place in the tree. Objects are the pool's, for ever of this type; a counter is
/// one life of one. In this order: usage on a line of its own, limits from the next line on, what never changes.
/// Lines are those of the object; whether they are lines of the processor's is up to the pool.
///
/// A `&Counter` is in the hands of those only who keep the object alive: by a handle, by live charge, or under the tree's
/// lock by its place. After the step that may be the last, only words are read that stay what they are: see `incarnation`.
#[repr(C)]
pub(crate) struct Counter {
    pub(crate) usage: Line<Usage, { line_rest(size_of::<Usage>()) }>,
    pub(crate) limits: Limits,

    // Read by every walk.
    /// State of the stock, and what the hit path reads. Not null from the object's first use on.
    pub(crate) header: &'static Header,
    /// Slot index in every thread's block.
    pub(crate) index: SlotIndex,
    /// The object in which it is, and so the first counter of its group: see `pool`.
    pub(crate) object: *const Counter,
    /// Of that object.
    pub(crate) number: u32,
    /// Its place among the counters of its group.
    pub(crate) position: u16,
    /// How many those are.
    pub(crate) counters: u16,
    incarnation: UnsafeCell<Option<Incarnation>>,

    // Slow paths.
    /// Children that are online, and where it stands among its siblings: see `shape`.
    pub(crate) children: AtomicU32,
    /// Where `Stocks::opened` has it, plus 1; 0 while its stock is not counted as open.
    pub(crate) opened: AtomicU32,
    /// Of the first counter of a group: where the rings of reclaim have it.
    pub(crate) ring: StatU32,
    /// Its stock is among the pending_close.
    pub(crate) queued: AtomicBool,
    /// The last closing could not finish: credit may be on its way.
    pub(crate) stuck: AtomicBool,
    /// More was uncharged than charged here: the stock stays closed.
    pub(crate) poisoned: AtomicBool,
    /// What is done about charges that do not fit: see `oom`.
    pub(crate) oom: AtomicU8,
    /// Percentages that limits were set to, plus 1; 0 where to a number.
    pub(crate) percents: [AtomicU8; LIMIT_KINDS],
    pub(crate) sibling: Sibling,
    /// The thread that has charged here, or [`SHARED`]: see [`Counter::enter`].
    pub(crate) charger: AtomicU64,
    /// Units per refill when open; 0 = stock off.
    pub(crate) batch: StatU64,
    /// (thread, counter) pairs that may hold credit.
    pub(crate) touched: StatU64,
    /// Bound on the credit below this level: the sum of `touched` x capacity over open stocks.
    pub(crate) bound: StatU64,
    /// Usage above it delays charges; `u64::MAX`: never.
    pub(crate) high: StatU64,
    /// Of the first counter of a group: the group's statistics, null until it or a group below is written.
    pub(crate) stats: PublishedPlace,
    /// Who is first in line here: his ticket, 0 for nobody, his bytes, and what others may charge yet before he has.
    pub(crate) first_ticket: StatU64,
    pub(crate) first: StatU64,
    pub(crate) pass: AtomicU64,
    /// When the last rate-limited dump was made; 0: never.
    pub(crate) dumped: StatU64,
}

// SAFETY: `incarnation` is written by `begin` and `end` alone, for whoever took the object from the pool and has shown it to
// nobody, or has won its burial; `object` never changes; all else is atomic.
#[allow(unsafe_code)]
unsafe impl Sync for Counter {}
// SAFETY: nothing in it is tied to a thread.
#[allow(unsafe_code)]
unsafe impl Send for Counter {}

/// What does not change from a counter's first day to its last.
pub(crate) struct Incarnation {
    pub(crate) id: CounterId,
    pub(crate) tree: OfTree,
    pub(crate) parent: Option<&'static Counter>,
    /// The front of a counter set with shared stock charges these and is no level itself. Empty otherwise.
    pub(crate) members: Box<[&'static Counter]>,
    /// Of a group among its siblings, with its first counter; empty where counters have no names.
    pub(crate) name: Name,
    /// Whether it has a stock of its own.
    pub(crate) stock: bool,
    /// Audited, or with a real fence: not for the hit path.
    pub(crate) careful: bool,
    pub(crate) fenced: bool,
    /// Root only: the most that `bound` may become; `None`: a share of max.
    pub(crate) budget: Option<u64>,
}

/// More threads than one have charged here.
pub(crate) const SHARED: u64 = u64::MAX;

/// From the start of one line of the object to that of another.
#[repr(C)]
pub(crate) struct Line<T, const REST: usize> {
    value: T,
    rest: [u8; REST],
}

const fn line_rest(size: usize) -> usize {
    size.next_multiple_of(PoolAlign::LINE) - size
}

impl<T, const REST: usize> Line<T, REST> {
    fn new(value: T) -> Self {
        Line { value, rest: [0; REST] }
    }
}

impl<T, const REST: usize> Deref for Line<T, REST> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.value
    }
}

/// Usage, and what hardly anybody touches: it takes no room of its own there.
pub(crate) struct Usage {
    /// What keeps the object. In a further counter of a group: generation and offline only, the first one's keeps them
    /// all.
    pub(crate) state: State,
    /// Live charge and credit of the whole subtree. Signed: an underflow is seen, not wrapped.
    pub(crate) units: AtomicI64,
    pub(crate) peaks: Peaks,
    pub(crate) failcnt: StatU64,
    pub(crate) underflows: StatU64,
    pub(crate) underflowed: StatU64,
    /// Audit cell of threads that have no block.
    pub(crate) audit_shared: AuditCell,
    /// What happened to this group's limits, and in its subtree, null until something has; see `events`.
    pub(crate) events: AtomicPtr<EventCounts>,
    /// The max as it was set, while the level is only observed and `limits.max` admits everybody.
    pub(crate) observed_max: StatU64,
    /// The front of the counter set whose member this is.
    pub(crate) front: StatPtr<Counter>,
    /// The next one that the same thread has to bury.
    pub(crate) next_to_release: StatPtr<Counter>,
    /// The next one that the same thread has to serve.
    pub(crate) next_served: StatPtr<Counter>,
    /// Drained and not yet uncharged, within one drain; its number in a walk over a frozen shape.
    pub(crate) settled: StatU64,
    pub(crate) mark: StatU32,
    /// No generation is left: never again.
    pub(crate) spent: AtomicBool,
}

/// Where a counter is made.
#[derive(Clone, Copy)]
pub(crate) struct InGroup {
    pub(crate) object: *const Counter,
    pub(crate) number: u32,
    pub(crate) position: u16,
    pub(crate) counters: u16,
}

pub(crate) struct Limits {
    /// What charges are admitted to: the ceiling, less the reserve.
    pub(crate) max: AtomicU64,
    /// The max as it was set, which charges inside reclaim are admitted to (E31). In one word: two words that are added
    /// up may be of two settings.
    pub(crate) ceiling: AtomicU64,
    pub(crate) min: AtomicU64,
    pub(crate) low: AtomicU64,
    /// Open stocks below this level in the low half, transitions in the high half (E10). Opening counts before the
    /// first batch, closing uncounts after the last drain: a level that reads zero twice with the same number had no
    /// credit below it in between.
    pub(crate) open: AtomicU64,
    /// Refused here lately: nothing below opens. Set under the lock, cleared by a charge that sees room.
    pub(crate) tight: AtomicBool,
    /// Units above max that forced charges put here. Changes only together with usage, under `forcing`.
    pub(crate) forced: AtomicU64,
    pub(crate) forced_total: StatU64,
    pub(crate) forcing: Lock<()>,
    /// What changes of usage are watched for: see `watch`.
    pub(crate) watched: AtomicU64,
    pub(crate) min_propagated: Propagated,
    pub(crate) low_propagated: Propagated,
    /// Usage above it is in excess; `u64::MAX`: never.
    pub(crate) soft: AtomicU64,
    /// As last told to the levels above (E23).
    pub(crate) in_excess: AtomicU64,
    /// How many units of the ceiling only charges inside reclaim are to use, where it is large enough.
    pub(crate) reserve_wanted: StatU64,
}

// === impl Counter: its lives ===

impl Counter {
    /// An object of the pool, without a life.
    pub(crate) fn new(place: InGroup, index: SlotIndex, header: &'static Header) -> Counter {
        let InGroup { object, number, position, counters } = place;
        Counter {
            usage: Line::new(Usage {
                state: State::new(),
                units: AtomicI64::new(0),
                peaks: Peaks::new(),
                failcnt: StatU64::new(0),
                underflows: StatU64::new(0),
                underflowed: StatU64::new(0),
                audit_shared: AuditCell::new(),
                events: AtomicPtr::new(ptr::null_mut()),
                observed_max: StatU64::new(u64::MAX),
                front: StatPtr::new(ptr::null_mut()),
                next_to_release: StatPtr::new(ptr::null_mut()),
                next_served: StatPtr::new(ptr::null_mut()),
                settled: StatU64::new(0),
                mark: StatU32::new(0),
                spent: AtomicBool::new(false),
            }),
            limits: Limits {
                max: AtomicU64::new(u64::MAX),
                ceiling: AtomicU64::new(u64::MAX),
                min: AtomicU64::new(0),
                low: AtomicU64::new(0),
                open: AtomicU64::new(0),
                tight: AtomicBool::new(false),
                forced: AtomicU64::new(0),
                forced_total: StatU64::new(0),
                forcing: Lock::new(Rank::Forcing, ()),
                watched: AtomicU64::new(0),
                min_propagated: Propagated::default(),
                low_propagated: Propagated::default(),
                soft: AtomicU64::new(u64::MAX),
                in_excess: AtomicU64::new(0),
                reserve_wanted: StatU64::new(0),
            },
            header,
            index,
            object,
            number,
            position,
            counters,
            incarnation: UnsafeCell::new(None),
            children: AtomicU32::new(0),
            opened: AtomicU32::new(0),
            ring: StatU32::new(NO_RING),
            queued: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
            oom: AtomicU8::new(0),
            percents: [const { AtomicU8::new(0) }; LIMIT_KINDS],
            sibling: Sibling::new(),
            charger: AtomicU64::new(0),
            batch: StatU64::new(0),
            touched: StatU64::new(0),
            bound: StatU64::new(0),
            high: StatU64::new(u64::MAX),
            stats: PublishedPlace::empty(),
            first_ticket: StatU64::new(0),
            first: StatU64::new(0),
            pass: AtomicU64::new(0),
            dumped: StatU64::new(0),
        }
    }

    /// Start a life. The caller has taken the object from the pool and nobody else has seen it.
    #[allow(unsafe_code)]
    pub(crate) fn begin(&self, life: Incarnation, batch: u64, max: u64) {
        debug_assert!(self.is_clean(), "somebody has written to an object in the pool");
        self.header.set_index(if life.careful || !life.stock { SlotIndex::NONE } else { self.index });
        self.header.set_cells_index(if life.fenced { SlotIndex::NONE } else { self.index });
        self.batch.store(batch, Ordering::Relaxed);
        self.begin_max(max);
        // SAFETY: see `Sync`.
        unsafe { *self.incarnation.get() = Some(life) };
        self.state().begin();
    }

    /// Nothing of an earlier life is left, and nobody has come late.
    fn is_clean(&self) -> bool {
        let Limits { min, low, open, watched, in_excess, .. } = &self.limits;
        [min, low, open, watched, in_excess, &self.charger].into_iter().all(|word| word.load(Ordering::Relaxed) == 0)
            && self.usage() == 0
            && [&self.touched, &self.bound].into_iter().all(|figure| figure.load(Ordering::Relaxed) == 0)
            && [&self.children, &self.opened].into_iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// End it: as new, ready for the pool. Nobody uses the object any more. What is returned may be dropped without a
    /// lock.
    #[allow(unsafe_code)]
    pub(crate) fn end(&self) -> Option<Incarnation> {
        // Whoever put this counter's last forced units back may still hold the lock.
        let forcing = self.limits.forcing.lock();
        self.limits.forced.store(0, Ordering::Relaxed);
        drop(forcing);
        self.usage.units.store(0, Ordering::Relaxed);
        self.usage.peaks.forget();
        let Limits { min, low, open, watched, in_excess, .. } = &self.limits;
        for word in [min, low, open, watched, in_excess, &self.charger] {
            word.store(0, Ordering::Relaxed);
        }
        self.limits.soft.store(u64::MAX, Ordering::Relaxed);
        self.high.store(u64::MAX, Ordering::Relaxed);
        self.oom.store(0, Ordering::Relaxed);
        self.dumped.store(0, Ordering::Relaxed);
        self.limits.min_propagated.forget();
        self.limits.low_propagated.forget();
        self.limits.tight.store(false, Ordering::Relaxed);
        self.poisoned.store(false, Ordering::Relaxed);
        self.children.store(0, Ordering::Relaxed);
        self.stuck.store(false, Ordering::Relaxed);
        self.set_front(None);
        for percent in &self.percents {
            percent.store(0, Ordering::Relaxed);
        }
        let figures =
            [&self.touched, &self.bound, &self.usage.failcnt, &self.usage.underflows, &self.usage.underflowed];
        let Limits { forced_total, reserve_wanted, .. } = &self.limits;
        for figure in figures.into_iter().chain([forced_total, reserve_wanted]) {
            figure.store(0, Ordering::Relaxed);
        }
        self.usage.audit_shared.reset();
        self.ring.store(NO_RING, Ordering::Relaxed);
        // SAFETY: see `Sync`.
        unsafe { (*self.incarnation.get()).take() }
    }

    /// What this life was started with.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn incarnation(&self) -> &Incarnation {
        // SAFETY: whoever has the reference keeps the object in its life, see `Counter`; in it nobody writes the cell.
        unsafe { (*self.incarnation.get()).as_ref().expect("a counter in use has a life") }
    }

    #[inline]
    pub(crate) fn tree(&self) -> &Tree {
        self.incarnation().tree.get()
    }

    #[inline]
    pub(crate) fn state(&self) -> &State {
        &self.usage.state
    }

    #[inline]
    pub(crate) fn id(&self) -> CounterId {
        self.incarnation().id
    }

    /// That of the group that this is a counter of.
    pub(crate) fn name(&self) -> &str {
        &self.first().incarnation().name
    }

    /// The names from the root to here. They do not change, and a counter keeps its ancestors: no lock.
    pub(crate) fn path(&self) -> String {
        let names: Vec<&str> = self.path_to_root().map(Counter::name).collect();
        match names.len() {
            0 | 1 => "/".to_string(),
            _ => names.into_iter().rev().collect::<Vec<_>>().join("/"),
        }
    }

    /// The first counter of the group that this is one of. It stays that, whoever's the object is.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn first(&self) -> &'static Counter {
        // SAFETY: made before this one, in the same object; objects are never freed.
        unsafe { &*self.object }
    }

    /// Not a further counter of a group.
    pub(crate) fn is_memory(&self) -> bool {
        self.position == 0
    }

    /// Names it among all counters there are, for as long as it is in use.
    pub(crate) fn key(&self) -> u64 {
        u64::from(self.number) << u16::BITS | u64::from(self.position)
    }
}
