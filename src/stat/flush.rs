//! The coordinator flushes, unlists idle cells and releases a group in slices, and gives the lock
//! up between them.
//!
//! Readers that asked before a flush began help with it, each with the subtree that it needs. No
//! reader waits for more than one slice of another.
//!
//! Edges: E17 (add/unlist), E19 (readers share a flush).

use super::coordinator::Coordinator;
use super::published::PublishedStats;
use super::tables::StatTables;
use super::visits::{FlushVisits, UnlistPolicy, WASTED_MAX};
use crate::sync::barrier::Barrier;
use crate::sync::{Ordering, SLICE, rest};
use crate::thread::slow_path::Outermost;

impl Coordinator {
    /// Publishes what was written in the group and below it before the call. It costs one visit to
    /// each listed pair of thread and group, and a barrier only where it unlists cells.
    pub(crate) fn flush(
        &self,
        published: &PublishedStats,
        barrier: &Barrier,
        unlist: UnlistPolicy,
        _: &Outermost,
    ) -> FlushVisits {
        let asked = self.ask();
        let mut visits = FlushVisits::default();
        let mut idle = Vec::new();
        let mut flush = None;
        loop {
            let mut tables = self.tables.lock();
            // Chosen once, under the lock: the slices to come go on with the same flush, whichever
            // thread has run the ones between.
            let number = *flush.get_or_insert_with(|| self.begin(&mut tables, asked));
            let done = tables.flush_slice(published.number(), number, unlist);
            visits.add(tables.rows.visits);
            idle.append(&mut tables.rows.idle);
            drop(tables);
            if done {
                break;
            }
            // A thread that is preempted while it holds the lock delays all others. So it yields
            // between two slices, without the lock.
            rest();
        }
        self.counts
            .visits
            .fetch_add(visits.all as u64, Ordering::Relaxed);
        // After the last slice, for a barrier interrupts all processors: once for all that was found
        // idle, and without the lock.
        let unlists = match unlist {
            UnlistPolicy::Never => false,
            UnlistPolicy::Many => visits.wasted >= WASTED_MAX,
            UnlistPolicy::Always => !idle.is_empty(),
        };
        if unlists {
            self.unlist(&idle, barrier);
        }
        visits
    }

    /// Takes a ticket for [`begin`](Self::begin): the reader asks for what was written before this.
    fn ask(&self) -> u64 {
        // AcqRel (E19): a flush that has counted this ticket begins after it; pairs with `begin`.
        self.asked.fetch_add(1, Ordering::AcqRel)
    }

    /// Returns the flush to take part in: one that has begun since `asked`, or a new one.
    fn begin(&self, tables: &mut StatTables, asked: u64) -> u64 {
        // Mutation: e19-shares-a-flush-that-began-before
        if tables.begun > asked {
            return tables.flush;
        }
        self.counts.flushes.fetch_add(1, Ordering::Relaxed);
        tables.flush += 1;
        // AcqRel (E19): before anything is read; pairs with `ask`. What a reader wrote before a
        // ticket that is counted here is in sight.
        // Mutation: e19-taken-over-before-it-is-counted
        tables.begun = self.asked.fetch_add(0, Ordering::AcqRel);
        self.take_stack(tables);
        tables.flush
    }

    /// Takes the whole stack. The slices to come put its cells into their lists.
    fn take_stack(&self, tables: &mut StatTables) {
        let top = self.stack.take();
        if top != 0 {
            tables.taken.push(top);
        }
    }

    /// Takes idle cells off the lists: unmarks them, runs one heavy barrier for all, and reads them
    /// a last time.
    fn unlist(&self, idle: &[u32], barrier: &Barrier) {
        let mut unmarked = Vec::with_capacity(idle.len());
        let mut unlisting = 0;
        for slice in idle.chunks(SLICE) {
            let mut tables = self.tables.lock();
            if unlisting == 0 {
                tables.unlisting += 1;
                unlisting = tables.unlisting;
            }
            unmarked.extend(
                slice
                    .iter()
                    .copied()
                    .filter(|&entry| tables.unmark(entry, unlisting)),
            );
            drop(tables);
            rest();
        }
        // All of them have been written meanwhile, or another thread unlists them.
        if unmarked.is_empty() {
            return;
        }
        // heavy (E17): pairs with the light in `ThreadStats::add`. Either the owner sees its cells
        // unmarked and lists them again, or this thread reads what the owner has written.
        // Mutation: e17-unlist-without-heavy
        let seen = barrier.heavy();
        for slice in unmarked.chunks(SLICE) {
            let mut tables = self.tables.lock();
            // Without a barrier nobody knows whether an owner has seen the mark go, so what was
            // unmarked is marked again and stays listed.
            if seen.is_ok() {
                let gone = tables.unlist(slice, unlisting);
                self.counts.unlists.fetch_add(gone, Ordering::Relaxed);
            } else {
                tables.keep_listed(slice, unlisting);
            }
            drop(tables);
            rest();
        }
    }

    /// Ends the statistics of a group: publishes what its threads have written to its ancestors,
    /// then frees their cells and its published statistics. No thread has a handle or a charge of
    /// the group, and none finds the cells any more.
    pub(crate) fn end(&self, published: &PublishedStats) {
        let mut tables = self.tables.lock();
        // Mutation: e18-released-on-the-stack
        self.take_stack(&mut tables);
        let gone = loop {
            if let Some(gone) = tables.free_cells(published.number()) {
                break gone;
            }
            drop(tables);
            rest();
            tables = self.tables.lock();
        };
        drop(tables);
        let cache = &self.caches[gone.pool];
        gone.recycle(cache);
    }
}
