//! The statistics of a tree of groups: the memory of cells and of published statistics, the lists
//! of written cells, and the steps that writers make here.
//!
//! One lock protects the lists. A thread holds it for at most [`SLICE`](crate::sync::SLICE) cells
//! and their ancestors at a time. Its holder runs no barrier and waits for no other thread. Writers
//! take it for their first write to a group, readers of published figures never. `flush` has the
//! steps of a flush, and `README.md` beside this file has the protocol.

use std::time::{Duration, Instant};

use super::item::StatItems;
use super::published::{
    ANNOUNCED_MAX, OwnedStats, PublishedPlace, PublishedStats, StatScope, published_cache,
};
use super::tables::{CellsEntry, StatTables};
use crate::numa::NodeId;
use crate::pool::{Cache, PoolAlign};
use crate::sync::clock;
use crate::sync::lock::{Lock, Rank};
use crate::sync::stat_atomic::AtomicU64 as StatU64;
use crate::sync::{Arc, AtomicU64, Ordering, Shared};
use crate::thread::cells::ThreadStats;

/// Time between two periodic flushes, unless configured: the kernel's FLUSH_TIME.
pub(crate) const PERIOD: Duration = Duration::from_secs(2);

/// The batch, unless configured. The kernel's MEMCG_CHARGE_BATCH is 64. Here an announcement walks
/// the ancestors with locked instructions and a flush is cheap, so rare announcements and early
/// flushes cost less.
pub(crate) const STAT_BATCH: u64 = 1_024;

/// The largest batch: bounds must not wrap.
pub(crate) const STAT_BATCH_MAX: u64 = 1 << 40;

/// Gathers the statistics of one tree of groups.
pub(crate) struct Coordinator {
    /// Shared with the builder: one that declares more takes another number first.
    pub(crate) items: Arc<StatItems>,
    /// Memory nodes; with one, no group has statistics on nodes.
    pub(crate) nodes: usize,
    /// Pools of published statistics: those of groups, and those on nodes, each in memory of its
    /// node.
    pub(super) caches: Box<[Shared<Cache>]>,
    /// Grains that a thread may have written to a group without announcing them: half a batch. What
    /// has been announced may come to another half for each writer before a read flushes it.
    pub(crate) quantum: u64,
    pub(super) stack: ListedStack,
    pub(super) asked: AtomicU64,
    pub(crate) counts: StatCounts,
    made: Instant,
    /// When a flush of the root began last, in nanoseconds since then.
    root_flushed: StatU64,
    /// Between two periodic flushes, in nanoseconds; of the flusher that runs, or has been asked
    /// for last.
    period: StatU64,
    pub(super) tables: Lock<StatTables>,
}

/// Event counts. No protocol depends on them.
#[derive(Default)]
pub(crate) struct StatCounts {
    pub(crate) flushes: StatU64,
    pub(crate) visits: StatU64,
    pub(crate) lists: StatU64,
    pub(crate) unlists: StatU64,
    pub(crate) foreign: StatU64,
    pub(crate) nested: StatU64,
}

impl StatCounts {
    /// The counts in their order. One load for each.
    pub(crate) fn all(&self) -> [u64; 6] {
        let StatCounts {
            flushes,
            visits,
            lists,
            unlists,
            foreign,
            nested,
        } = self;
        [flushes, visits, lists, unlists, foreign, nested]
            .map(|count| count.load(Ordering::Relaxed))
    }
}

impl Coordinator {
    pub(crate) fn new(
        items: Arc<StatItems>,
        nodes: &[NodeId],
        align: PoolAlign,
        batch: u64,
    ) -> Coordinator {
        let tables = StatTables::new(items.len());
        let on_nodes = nodes.iter().filter(|_| nodes.len() > 1).copied().map(Some);
        let cache_of = |node| published_cache(items.len(), align, node);
        let caches = std::iter::once(None)
            .chain(on_nodes)
            .map(cache_of)
            .collect();
        Coordinator {
            items,
            nodes: nodes.len(),
            caches,
            quantum: batch / 2,
            stack: ListedStack::default(),
            asked: AtomicU64::new(0),
            counts: StatCounts::default(),
            made: clock::now(),
            root_flushed: StatU64::new(0),
            period: StatU64::new(PERIOD.as_nanos() as u64),
            tables: Lock::new(Rank::Statistics, tables),
        }
    }

    // === The memory ===

    /// Returns the pools of published statistics: those of groups, then those of their memory on
    /// each node.
    pub(crate) fn caches(&self) -> impl Iterator<Item = &Cache> {
        self.caches.iter().map(|cache| &**cache)
    }

    /// Makes the published statistics of `place`, below `parent`, unless another thread has made
    /// them meanwhile. False where the system has no memory for them.
    pub(crate) fn publish_at(
        &self,
        place: &PublishedPlace,
        scope: StatScope,
        parent: Option<&PublishedStats>,
    ) -> bool {
        let pool = match scope {
            StatScope::Group => 0,
            StatScope::On(node) => 1 + usize::from(node),
        };
        let Some(cache) = self.caches.get(pool) else {
            return false;
        };
        let Ok(published) = OwnedStats::take(cache, pool, self.items.len()) else {
            return false;
        };
        // The object was taken without the lock, for a pool may have to ask the system for memory.
        // So another thread may have been first, and this one's object goes back.
        let mut tables = self.tables.lock();
        if place.get().is_none() {
            place.set(tables.add_group(parent, published));
        } else {
            drop(tables);
            published.recycle(cache);
        }
        true
    }

    /// Makes cells for a thread that writes a group for the first time.
    pub(crate) fn new_cells(&self, published: &PublishedStats) -> ThreadStats {
        // The thread allocates without the lock. Only where cells that were free a moment ago are
        // another thread's by the time that it has the lock again, it allocates under it.
        let has_none = self.tables.lock().free_entries.is_empty();
        let made = has_none.then(|| CellsEntry::new(self.items.len()));
        let new = || made.unwrap_or_else(|| CellsEntry::new(self.items.len()));
        self.tables
            .lock()
            .add_entry(published.number(), self.items.builder, self.quantum, new)
    }

    /// Bytes of cells and of what is kept about them and about groups. Takes the lock.
    pub(crate) fn bytes(&self) -> u64 {
        self.tables.lock().bytes()
    }

    /// Bytes of published statistics, of this tree's groups and of the process's free ones. Takes
    /// the lock.
    pub(crate) fn published_bytes(&self) -> u64 {
        let used = {
            let tables = self.tables.lock();
            (tables.groups.len() - tables.free_groups.len()) as u64
        };
        // All groups have published statistics of one size, and the first pool stands for those in
        // use; of the pools on nodes only what is free counts beside it.
        let free = self
            .caches
            .iter()
            .skip(1)
            .map(|cache| cache.bytes(0))
            .sum::<u64>();
        self.caches.first().map_or(0, |cache| cache.bytes(used)) + free
    }

    // === The writers' side ===

    /// Lists the cells and announces what they hold, after an addition that made this due. It takes
    /// no lock. True where so much is announced that the thread must flush.
    pub(crate) fn list_and_announce(&self, published: &PublishedStats, cells: ThreadStats) -> bool {
        if !cells.is_listed() && cells.mark_listed() {
            self.counts.lists.fetch_add(1, Ordering::Relaxed);
            // Before the push (E21): a flush that finds the cells takes their writer off the bound;
            // pairs with `remove_writers`.
            // Mutation: e21-listed-before-the-writer-is-counted
            published
                .path_to_root()
                .for_each(PublishedStats::add_writer);
            self.stack.push(cells);
        }
        self.announce(published, cells)
    }

    fn announce(&self, published: &PublishedStats, cells: ThreadStats) -> bool {
        // It may have been due only because the cells were in no list.
        let Some(grains) = cells.unannounced(self.quantum) else {
            return false;
        };
        let grains = grains.min(ANNOUNCED_MAX);
        // Mutation: e20-announced-before-the-levels
        let mut must_flush = false;
        for level in published.path_to_root() {
            must_flush |= level.announce(grains);
        }
        cells.set_announced(grains, self.quantum);
        must_flush
    }

    // === When flushes are due ===

    pub(crate) fn set_period(&self, period: Duration) {
        self.period.store(nanos(period), Ordering::Relaxed);
    }

    pub(crate) fn note_root_flush(&self) {
        self.root_flushed.store(
            nanos(clock::now().saturating_duration_since(self.made)),
            Ordering::Relaxed,
        );
    }

    /// True if the periodic flush is more than one full cycle late.
    pub(crate) fn is_late(&self) -> bool {
        let period = self.period.load(Ordering::Relaxed);
        // Two periods: a flusher that is a little late is no reason for a reader to do its work.
        let due = self
            .root_flushed
            .load(Ordering::Relaxed)
            .saturating_add(period.saturating_mul(2));
        nanos(clock::now().saturating_duration_since(self.made)) > due
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Newly listed cells: writers push without the lock, the coordinator takes the stack whole (E18).
/// The number of the cells listed last, 0 where there are none. Each cells' head has the number of
/// the cells below.
#[derive(Default)]
pub(super) struct ListedStack(AtomicU64);

impl ListedStack {
    /// Pushes cells that the caller has marked as listed (E17: the mark comes first).
    pub(super) fn push(&self, cells: ThreadStats) {
        // The stack is mostly empty: the first try expects that and saves a load.
        let mut top = 0;
        loop {
            cells.set_next(top as u32);
            // Release (E18): pairs with `take`, whose caller reads what stands below.
            match self.0.compare_exchange_weak(
                top,
                cells.number().into(),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                // Mutation: e17-pushed-before-marked
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    /// Empties the stack. Returns the number of the cells that were on top, 0 where it was empty.
    pub(super) fn take(&self) -> u32 {
        // Acquire (E18): pairs with `push`.
        // Mutation: e18-taken-over-in-two-steps
        self.0.swap(0, Ordering::Acquire) as u32
    }
}
