//! One counter: its object and its lives.
//!
//! The walk of a charge from it to the root is in `walk`, what it does at one level in `level`, what keeps an object
//! alive in `life`, what credit is and how it moves in `stock` and `drain`. After `mm/page_counter.c`.

use std::cell::UnsafeCell;
use std::ptr;

use super::audit::Cell as AuditCell;
use super::knob::KNOBS;
use super::life::State;
use super::peak::Peaks;
use super::protection::Propagated;
use super::ring::NO_RING;
use super::tree::Tree;
use super::watch::LISTENS;
use crate::error::CounterId;
use crate::reclaim::Event;
use crate::reclaim::event::EventCounts;
use crate::stat::part::{Part, Parts};
use crate::sync::lock::{Lock, Rank};
use crate::sync::slots::{Gate, SlotIndex};
use crate::sync::stat_atomic::{AtomicBool, AtomicPtr as StatPtr, AtomicU8, AtomicU32, AtomicU64 as StatU64};
use crate::sync::{Arc, AtomicI64, AtomicU64, CachePadded, Ordering, fence_after_exchange};

/// The most units a counter may hold.
pub(crate) const USAGE_MAX: u64 = i64::MAX as u64;

/// One open stock more or less below a level, and one transition: see `Limits::open`.
pub(crate) const OPENED: u64 = (1 << 32) | 1;
pub(crate) const CLOSED: u64 = (1 << 32) - 1;

/// A counter: its stock, its level, its place in the tree. Objects are the pool's, for ever of this type; a counter is
/// one life of one. In this order: what never changes, with usage on a line of its own, limits on a third.
///
/// A `&Node` is in the hands of those only who keep the object alive: by a handle, by live charge, or under the tree's
/// lock by its place. After the step that may be the last, only words are read that stay what they are: see `life`.
#[repr(C, align(128))]
pub(crate) struct Node {
    // Read by every walk.
    /// State of the stock, and what the hit path reads.
    pub(crate) gate: &'static Gate,
    /// Slot index in every thread's block.
    pub(crate) index: SlotIndex,
    /// Place in the pool.
    pub(crate) number: u32,
    life: UnsafeCell<Option<Life>>,

    pub(super) usage: CachePadded<Usage>,
    pub(crate) limits: CachePadded<Limits>,

    // Rarely touched.
    /// Where the tree keeps it; written under the lock.
    pub(crate) place: AtomicU32,
    /// The thread that has charged here, or [`SHARED`]: see [`Node::enter`].
    pub(crate) charger: AtomicU64,
    /// Units per refill when open; 0 = stock off.
    pub(crate) batch: StatU64,
    /// (thread, counter) pairs that may hold credit.
    pub(crate) touched: StatU64,
    /// Bound on the credit below this level: the sum of `touched` x capacity over open stocks.
    pub(crate) bound: StatU64,
    pub(crate) children: AtomicU32,
    /// More was uncharged than charged here: the stock stays closed.
    pub(crate) poisoned: AtomicBool,
    /// Of the first counter of a group: where the rings of reclaim have it.
    pub(crate) ring: AtomicU32,
    /// What happened to this group's limits, and in its subtree.
    pub(crate) events_local: EventCounts,
    pub(crate) events: EventCounts,
    /// Percentages that limits were set to, plus 1; 0 where to a number.
    pub(crate) percents: [AtomicU8; KNOBS],
    pub(crate) failcnt: StatU64,
    pub(crate) underflows: StatU64,
    pub(crate) underflowed: StatU64,
    /// Audit cell of threads that have no block.
    pub(crate) audit_shared: AuditCell,
    /// Of the first counter of a group: the group's statistics, null until it or a group below is written.
    pub(super) stats: StatPtr<Part>,
    /// Of the same: its parts on nodes, null until it or a group below has memory on one; see `node_stat`.
    pub(super) parts: StatPtr<Parts>,
    /// The next one that the same thread has to bury.
    pub(super) next_grave: StatPtr<Node>,
    /// The next one that the same thread has to serve.
    pub(super) next_served: StatPtr<Node>,
    /// The max as it was set, while the level is only observed and `limits.max` admits everybody.
    pub(super) observed_max: StatU64,
    /// Usage above it delays charges; `u64::MAX`: never.
    pub(super) high: StatU64,
    /// Who is first in line here: his ticket, 0 for nobody, his bytes, and what others may charge yet before he has.
    pub(super) first_ticket: StatU64,
    pub(super) first: StatU64,
    pub(super) pass: AtomicU64,
    /// What is done about charges that do not fit: see `oom`.
    pub(super) oom: AtomicU8,
    /// When the last rate-limited dump was made; 0: never.
    pub(crate) dumped: StatU64,
    /// No generation is left: never again.
    pub(super) spent: AtomicBool,
}

// SAFETY: `life` is written by `begin` and `end` alone, for whoever took the object from the pool and has shown it to
// nobody, or has won its burial; all else is atomic.
#[allow(unsafe_code)]
unsafe impl Sync for Node {}
// SAFETY: nothing in it is tied to a thread.
#[allow(unsafe_code)]
unsafe impl Send for Node {}

/// What does not change from a counter's first day to its last.
pub(crate) struct Life {
    pub(crate) id: CounterId,
    pub(crate) tree: Arc<Tree>,
    pub(crate) parent: Option<&'static Node>,
    /// The front of a counter set with shared stock charges these and is no level itself. Empty otherwise.
    pub(crate) members: Box<[&'static Node]>,
    /// The counters beside this one, of which it is the first; or, of another, the first.
    pub(crate) beside: Beside,
    /// Among its siblings; empty where counters have no names.
    pub(crate) name: Box<str>,
    /// Whether it has a stock of its own.
    pub(crate) stock: bool,
    /// Audited, or with a real fence: not for the hit path.
    pub(crate) careful: bool,
    pub(crate) fenced: bool,
    /// Root only: the most that `bound` may become; `None`: a share of max.
    pub(crate) budget: Option<u64>,
}

/// Counters of one group.
pub(crate) enum Beside {
    /// This is the group's first; these are the others.
    Others(Box<[&'static Node]>),
    /// That is the group's first, which keeps this one.
    First(&'static Node),
}

/// More threads than one have charged here.
pub(crate) const SHARED: u64 = u64::MAX;

pub(super) struct Usage {
    /// What keeps the object. In a further counter of a group: generation and offline only, the first one's keeps them
    /// all.
    pub(crate) state: State,
    /// Live charge and credit of the whole subtree. Signed: an underflow is seen, not wrapped.
    pub(super) units: AtomicI64,
    pub(super) peaks: Peaks,
}

pub(crate) struct Limits {
    /// What charges are admitted to: the max, less the reserve.
    pub(crate) max: AtomicU64,
    pub(crate) min: AtomicU64,
    pub(crate) low: AtomicU64,
    /// Open stocks below this level in the low half, transitions in the high half (E10). Opening counts before the
    /// first batch, closing uncounts after the last drain: a level that reads zero twice with the same number had no
    /// credit below it in between.
    pub(crate) open: AtomicU64,
    /// Refused here lately: nothing below opens. Set under the lock, cleared by a charge that sees room.
    pub(crate) tight: AtomicBool,
    /// Units above max that forced charges put here. Changes only together with usage, under `forcing`.
    pub(super) forced: StatU64,
    pub(super) forced_total: StatU64,
    pub(super) forcing: Lock<()>,
    /// What changes of usage are watched for: see `watch`.
    pub(super) watched: AtomicU64,
    pub(super) min_propagated: Propagated,
    pub(super) low_propagated: Propagated,
    /// Usage above it is in excess; `u64::MAX`: never.
    pub(super) soft: AtomicU64,
    /// As last told to the levels above (E23).
    pub(super) in_excess: AtomicU64,
    /// Units above `max` that only charges made inside reclaim may use, and how many those are to be where max is large
    /// enough.
    pub(super) reserve: StatU64,
    pub(super) reserve_wanted: StatU64,
}

// === impl Node: its lives ===

impl Node {
    /// An object of the pool, without a life.
    pub(super) fn new(index: SlotIndex, gate: &'static Gate, number: u32) -> Node {
        Node {
            gate,
            index,
            number,
            life: UnsafeCell::new(None),
            usage: CachePadded::new(Usage { state: State::new(), units: AtomicI64::new(0), peaks: Peaks::new() }),
            limits: CachePadded::new(Limits {
                max: AtomicU64::new(u64::MAX),
                min: AtomicU64::new(0),
                low: AtomicU64::new(0),
                open: AtomicU64::new(0),
                tight: AtomicBool::new(false),
                forced: StatU64::new(0),
                forced_total: StatU64::new(0),
                forcing: Lock::new(Rank::Forcing, ()),
                watched: AtomicU64::new(0),
                min_propagated: Propagated::default(),
                low_propagated: Propagated::default(),
                soft: AtomicU64::new(u64::MAX),
                in_excess: AtomicU64::new(0),
                reserve: StatU64::new(0),
                reserve_wanted: StatU64::new(0),
            }),
            place: AtomicU32::new(u32::MAX),
            charger: AtomicU64::new(0),
            batch: StatU64::new(0),
            touched: StatU64::new(0),
            bound: StatU64::new(0),
            children: AtomicU32::new(0),
            poisoned: AtomicBool::new(false),
            ring: AtomicU32::new(NO_RING),
            events_local: EventCounts::new(),
            events: EventCounts::new(),
            percents: [const { AtomicU8::new(0) }; KNOBS],
            failcnt: StatU64::new(0),
            underflows: StatU64::new(0),
            underflowed: StatU64::new(0),
            audit_shared: AuditCell::new(),
            stats: StatPtr::new(ptr::null_mut()),
            parts: StatPtr::new(ptr::null_mut()),
            next_grave: StatPtr::new(ptr::null_mut()),
            next_served: StatPtr::new(ptr::null_mut()),
            observed_max: StatU64::new(u64::MAX),
            high: StatU64::new(u64::MAX),
            first_ticket: StatU64::new(0),
            first: StatU64::new(0),
            pass: AtomicU64::new(0),
            oom: AtomicU8::new(0),
            dumped: StatU64::new(0),
            spent: AtomicBool::new(false),
        }
    }

    /// Start a life. The caller has taken the object from the pool and nobody else has seen it.
    #[allow(unsafe_code)]
    pub(super) fn begin(&self, life: Life, batch: u64, max: u64) {
        self.gate.set_index(if life.careful || !life.stock { SlotIndex::NONE } else { self.index });
        self.gate.set_cells_index(if life.fenced { SlotIndex::NONE } else { self.index });
        self.batch.store(batch, Ordering::Relaxed);
        self.limits.max.store(max, Ordering::Relaxed);
        // SAFETY: see `Sync`.
        unsafe { *self.life.get() = Some(life) };
        self.state().begin();
    }

    /// End it: as new, ready for the pool. Nobody uses the object any more. What is returned may be dropped without a
    /// lock.
    #[allow(unsafe_code)]
    pub(super) fn end(&self) -> Option<Life> {
        // Whoever put this counter's last forced units back may still hold the lock.
        let forcing = self.limits.forcing.lock();
        self.limits.forced.store(0, Ordering::Relaxed);
        drop(forcing);
        self.usage.units.store(0, Ordering::Relaxed);
        self.usage.peaks.forget();
        let Limits { min, low, open, watched, in_excess, .. } = &*self.limits;
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
        for percent in &self.percents {
            percent.store(0, Ordering::Relaxed);
        }
        let figures = [&self.touched, &self.bound, &self.failcnt, &self.underflows, &self.underflowed];
        let Limits { forced_total, reserve, reserve_wanted, .. } = &*self.limits;
        for figure in figures.into_iter().chain([forced_total, reserve, reserve_wanted]) {
            figure.store(0, Ordering::Relaxed);
        }
        self.audit_shared.reset();
        self.ring.store(NO_RING, Ordering::Relaxed);
        self.events_local.forget();
        self.events.forget();
        // SAFETY: see `Sync`.
        unsafe { (*self.life.get()).take() }
    }

    /// What this life was started with.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn life(&self) -> &Life {
        // SAFETY: whoever has the reference keeps the object in its life, see `Node`; in it nobody writes the cell.
        unsafe { (*self.life.get()).as_ref().expect("a counter in use has a life") }
    }

    #[inline]
    pub(crate) fn tree(&self) -> &Tree {
        &self.life().tree
    }

    #[inline]
    pub(crate) fn state(&self) -> &State {
        &self.usage.state
    }

    #[inline]
    pub(crate) fn id(&self) -> CounterId {
        self.life().id
    }

    /// The names from the root to here. They do not change, and a counter keeps its ancestors: no lock.
    pub(crate) fn path(&self) -> String {
        let names: Vec<&str> = self.levels().map(|level| &*level.life().name).collect();
        match names.len() {
            0 | 1 => "/".to_string(),
            _ => names.into_iter().rev().collect::<Vec<_>>().join("/"),
        }
    }

    /// The first counter of the group that this is one of.
    pub(crate) fn first(&'static self) -> &'static Node {
        match self.life().beside {
            Beside::First(first) => first,
            Beside::Others(_) => self,
        }
    }

    /// Not a further counter of a group.
    pub(crate) fn is_memory(&self) -> bool {
        matches!(self.life().beside, Beside::Others(_))
    }

    /// An event of this group, counted here and at all above. Takes no lock, allocates nothing; who waits for it is
    /// told at the end of the slow path.
    pub(crate) fn count_event(&self, event: Event) {
        self.events_local.count(event);
        for level in self.levels() {
            // SeqCst (E26): counted, then a look for somebody who waits; pairs with `Hearing::poll`.
            level.events.count(event);
            fence_after_exchange();
            if level.is_watched_for(LISTENS) {
                level.list();
            }
        }
    }

    /// The counters of the group that this is the first of; this one is number 0.
    pub(crate) fn group(&'static self) -> impl Iterator<Item = &'static Node> {
        let others: &'static [&'static Node] = match &self.life().beside {
            Beside::Others(others) => others,
            Beside::First(_) => &[],
        };
        std::iter::once(self).chain(others.iter().copied())
    }
}
