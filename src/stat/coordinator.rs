//! Who gathers what the threads have written: the lists of written cells, and their unlisting.
//!
//! One lock, held for at most [`SLICE`] cells and their ancestors at a time; no barrier is run and nobody waited for
//! under it. Writers take it for their first write to a group, readers of published figures never. How a flush goes is
//! in `flush`; the protocol stands in `README.md` beside this file.
//!
//! Edges: E17 (add/unlist), E18 (the stack of newly listed cells), E19 (who shares a flush).

use std::time::{Duration, Instant};

use super::item::{Items, Stat};
use super::list::NONE;
use super::part::{Bound, ENDLESS, OwnPart, Part, PartPlace, part_cache};
use super::state::{Entry, State};
use crate::numa::NodeId;
use crate::pool::{Cache, PoolAlign};
use crate::sync::barrier::Barrier;
use crate::sync::lock::{Lock, Rank};
use crate::sync::stat_atomic::AtomicU64 as StatU64;
use crate::sync::{AtomicU64, Ordering, SLICE, Shared, rest};
use crate::thread::cells::{Added, Cells};

/// So many visits to idle cells cost as much as a barrier, which ends them: four visits to eight cells, or 32 to one. So
/// the barriers of all flushes cost no more than the visits to idle cells do.
const WASTE_MOST: u64 = 32;

/// Time between two periodic flushes, unless configured: the kernel's FLUSH_TIME.
pub(crate) const PERIOD: Duration = Duration::from_secs(2);

/// Unless configured. The kernel's MEMCG_CHARGE_BATCH is 64; here an announcement walks the ancestors with locked
/// instructions and a flush is cheap, so that rare announcements and early flushes are the better bargain.
pub(crate) const STAT_BATCH: u64 = 1_024;

/// The largest: bounds must not wrap.
pub(crate) const STAT_BATCH_MAX: u64 = 1 << 40;

/// Gathers the statistics of one tree of groups.
pub(crate) struct Coordinator {
    pub(crate) items: Items,
    /// Memory nodes; with one, no group has parts on nodes.
    pub(crate) nodes: usize,
    /// Where parts come from: those of groups, and those on nodes, each in memory of its node.
    parts: Box<[Shared<Cache>]>,
    /// Who declared the last of them.
    builder: u64,
    /// Grains that a thread may have written to a group without announcing them: half a batch. What has been announced
    /// may come to another half for each writer before a read flushes it.
    pub(super) quantum: u64,
    /// Number of the cells listed last, 0 where none are: a stack that writers push to and the coordinator takes whole.
    stack: AtomicU64,
    /// Flushes asked for.
    asked: AtomicU64,
    pub(crate) counts: Counts,
    born: Instant,
    /// When a flush of the root began last, in nanoseconds since then.
    root_flushed: StatU64,
    /// Between two periodic flushes, in nanoseconds; of the flusher that runs, or has been asked for last.
    period: StatU64,
    pub(super) state: Lock<State>,
}

/// What a part is of: of a group, or of its memory on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    Group,
    Node(usize),
}

/// Event counts; nothing depends on them.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) flushes: StatU64,
    pub(crate) visits: StatU64,
    pub(crate) lists: StatU64,
    pub(crate) unlists: StatU64,
    pub(crate) foreign: StatU64,
    pub(crate) nested: StatU64,
}

// === impl Coordinator: the writers' side ===

impl Coordinator {
    pub(crate) fn new(items: Items, nodes: &[NodeId], align: PoolAlign, builder: u64, batch: u64) -> Coordinator {
        let state = State::new(items.len());
        let on_nodes = nodes.iter().filter(|_| nodes.len() > 1).copied().map(Some);
        let parts = std::iter::once(None).chain(on_nodes).map(|node| part_cache(items.len(), align, node)).collect();
        Coordinator {
            items,
            nodes: nodes.len(),
            parts,
            builder,
            quantum: batch / 2,
            stack: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            counts: Counts::default(),
            born: Instant::now(),
            root_flushed: StatU64::new(0),
            period: StatU64::new(PERIOD.as_nanos() as u64),
            state: Lock::new(Rank::Statistics, state),
        }
    }

    /// Where parts come from: those of groups, then those of their memory on each node.
    pub(crate) fn caches(&self) -> impl Iterator<Item = &Cache> {
        self.parts.iter().map(|cache| &**cache)
    }

    /// Make the part that belongs at `place`, below `parent`, unless somebody else has meanwhile. False where the system
    /// has no memory for it.
    pub(crate) fn attach(&self, place: &PartPlace, of: Of, parent: Option<&Part>) -> bool {
        let pool = match of {
            Of::Group => 0,
            Of::Node(node) => 1 + node,
        };
        let Some(cache) = self.parts.get(pool) else { return false };
        let Ok(part) = OwnPart::take(cache, pool, self.items.len()) else { return false };
        let mut state = self.state.lock();
        if place.get().is_none() {
            place.set(state.group(parent, part));
        } else {
            drop(state);
            part.give_back(cache);
        }
        true
    }

    /// New cells for a thread that writes a group for the first time.
    pub(crate) fn cells(&self, part: &Part) -> Cells {
        // Their memory is asked for without the lock.
        let made = (!self.state.lock().has_free_entry()).then(|| Entry::new(self.items.len()));
        let mut state = self.state.lock();
        let entry = self.entry(&mut state, part, made);
        state.entries[entry as usize].cells
    }

    fn entry(&self, state: &mut State, part: &Part, made: Option<Entry>) -> u32 {
        let new = || made.unwrap_or_else(|| Entry::new(self.items.len()));
        state.entry(part.number(), self.builder, self.quantum, new)
    }

    /// Add for a thread that has no cells of its own: all of those share some, which the lock makes one writer's. True
    /// as for [`attend`](Self::attend).
    pub(crate) fn add_shared(&self, part: &Part, stat: Stat, delta: i64) -> bool {
        let mut state = self.state.lock();
        let group = part.number() as usize;
        if state.groups[group].shared == NONE {
            state.groups[group].shared = self.entry(&mut state, part, None);
        }
        let entry = state.groups[group].shared;
        let cells = state.entries[entry as usize].cells;
        let due = cells.add_known(stat, delta, false) == Added::Due;
        if due && self.mark(part, cells) {
            state.enlist(entry);
        }
        due && self.announce(part, cells)
    }

    /// After an addition that was due: list the cells, announce what they hold. Takes no lock. True where so much is
    /// announced that it has to be flushed.
    pub(crate) fn attend(&self, part: &Part, cells: Cells) -> bool {
        if self.mark(part, cells) {
            self.push(cells);
        }
        self.announce(part, cells)
    }

    /// Mark the cells as listed; true where they were not.
    fn mark(&self, part: &Part, cells: Cells) -> bool {
        let listed = cells.is_listed() || !cells.mark_listed();
        if !listed {
            self.counts.lists.fetch_add(1, Ordering::Relaxed);
            part.levels().for_each(Part::add_writer);
        }
        !listed
    }

    fn announce(&self, part: &Part, cells: Cells) -> bool {
        let Some(grains) = cells.unannounced(self.quantum) else { return false };
        let grains = grains.min(ENDLESS);
        let mut endless = false;
        for level in part.levels() {
            endless |= level.announce(grains);
        }
        cells.set_announced(grains, self.quantum);
        endless
    }

    /// Onto the stack (E17: marked before).
    fn push(&self, cells: Cells) {
        // The stack is mostly empty: no look before the first try.
        let mut top = 0;
        loop {
            cells.set_next(top as u32);
            // Release (E18): pairs with `take_over`, which reads what stands below.
            match self.stack.compare_exchange_weak(top, cells.number().into(), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    // === The readers' side ===

    /// What may be missing from what is read of the published figures after this.
    pub(crate) fn bound(&self, part: &Part) -> Bound {
        part.bound(self.quantum)
    }

    /// To be shown to [`begin`](Self::begin): everything written before this is asked for.
    pub(super) fn ask(&self) -> u64 {
        // AcqRel (E19): a flush that has counted this one begins after it.
        self.asked.fetch_add(1, Ordering::AcqRel)
    }

    /// The flush to take part in: one that has begun since `asked`, or a new one.
    pub(super) fn begin(&self, state: &mut State, asked: u64) -> u64 {
        if state.begun > asked {
            return state.flush;
        }
        self.counts.flushes.fetch_add(1, Ordering::Relaxed);
        state.flush += 1;
        // AcqRel (E19): before anything is read. Whoever is counted here has asked, and what was written before that is
        // in sight.
        state.begun = self.asked.fetch_add(0, Ordering::AcqRel);
        self.take_over(state);
        state.flush
    }

    /// Take the stack, whole. What stands on it is put in its place by the slices to come.
    fn take_over(&self, state: &mut State) {
        // Acquire (E18): pairs with `push`.
        let top = self.stack.swap(0, Ordering::Acquire) as u32;
        if top != 0 {
            state.taken.push(top);
        }
    }

    // === What it takes ===

    /// Bytes of cells and of what is kept about them and about groups. Takes the lock.
    pub(crate) fn bytes(&self) -> u64 {
        self.state.lock().bytes()
    }

    /// Bytes of parts, of this tree's groups and of the process's free ones. Takes the lock.
    pub(crate) fn part_bytes(&self) -> u64 {
        let used = self.state.lock().parts();
        // They are all of one size.
        let free = self.parts.iter().skip(1).map(|cache| cache.bytes(0)).sum::<u64>();
        self.parts.first().map_or(0, |cache| cache.bytes(used)) + free
    }

    // === When flushes are due ===

    pub(crate) fn set_period(&self, period: Duration) {
        self.period.store(nanos(period), Ordering::Relaxed);
    }

    pub(crate) fn note_root_flush(&self) {
        self.root_flushed.store(nanos(self.born.elapsed()), Ordering::Relaxed);
    }

    /// The periodic flush is more than one full cycle late.
    pub(crate) fn is_late(&self) -> bool {
        let period = self.period.load(Ordering::Relaxed);
        let due = self.root_flushed.load(Ordering::Relaxed).saturating_add(period.saturating_mul(2));
        nanos(self.born.elapsed()) > due
    }

    // === Unlisting ===

    /// Whether cells are worth a barrier that were visited so often since they were written last.
    pub(super) fn pays(wasted: u64) -> bool {
        wasted >= WASTE_MOST
    }

    /// Take idle cells off the lists: unmark, one heavy barrier for all, read them a last time.
    pub(super) fn unlist(&self, idle: &[u32], barrier: &Barrier) {
        let mut unmarked = Vec::with_capacity(idle.len());
        let mut unlisting = 0;
        for slice in idle.chunks(SLICE) {
            let mut state = self.state.lock();
            if unlisting == 0 {
                state.unlisting += 1;
                unlisting = state.unlisting;
            }
            unmarked.extend(slice.iter().copied().filter(|&entry| state.unmark(entry, unlisting)));
            drop(state);
            rest();
        }
        if unmarked.is_empty() {
            return;
        }
        // heavy (E17): pairs with the light in `Cells::add`. Either the owner sees its cells unmarked and lists them
        // again, or we read what it has written.
        let seen = barrier.heavy();
        for slice in unmarked.chunks(SLICE) {
            let mut state = self.state.lock();
            if seen.is_ok() {
                let gone = state.unlist(slice, unlisting);
                self.counts.unlists.fetch_add(gone, Ordering::Relaxed);
            } else {
                state.keep(slice, unlisting);
            }
            drop(state);
            rest();
        }
    }

    // === The end of a group ===

    /// A group is done with: what its threads have written goes to its ancestors, their cells and its part are free.
    /// Nobody has a handle or a charge, and no thread finds the cells any more.
    pub(crate) fn bury(&self, part: &Part) {
        let mut state = self.state.lock();
        self.take_over(&mut state);
        let gone = loop {
            if let Some(gone) = state.bury(part.number()) {
                break gone;
            }
            drop(state);
            rest();
            state = self.state.lock();
        };
        drop(state);
        let cache = &self.parts[gone.pool];
        gone.give_back(cache);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
