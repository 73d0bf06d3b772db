//! Statistics of groups: where a group finds its part and a thread its cells, and what charges count themselves.
//!
//! A group's statistics belong to its first counter. How they are gathered is the coordinator's (`crate::stat`).

use crate::counter::make::slow_path;
use crate::counter::object::Counter;
use crate::stat::coordinator::Coordinator;
use crate::stat::published::{ErrorBound, PublishedStats, StatScope};
use crate::stat::visits::{Unlist, Visits};
use crate::stat::{Stat, Stats};
use crate::sync::Ordering;
use crate::sync::barrier::BarrierState;
use crate::thread::block::Block;
use crate::thread::cells::{Added, Cells};
use crate::thread::directory::Header;
use crate::thread::local;
use crate::thread::local::{Local, with_local};

// === The write path ===

impl Header {
    /// Add to an item of the group that has this header: a load and a store in this thread's own cells.
    #[inline(always)]
    pub(crate) fn stat_add(&self, stat: Stat, delta: i64) {
        let find = |local: &Local| local.fast_block().and_then(|block| block.cells_behind(self));
        let added = with_local(find).map_or(Added::Nowhere, |cells| cells.add(stat, delta));
        if added != Added::Done {
            self.stat_add_slow(stat, delta, added);
        }
    }

    #[cold]
    #[inline(never)]
    fn stat_add_slow(&self, stat: Stat, delta: i64, added: Added) {
        let node = self.node().first();
        let Some(stats) = &node.tree().stats else { return };
        if added == Added::Due {
            // Zero leaves nothing to be read, so it makes no writer. Whatever was due before it was attended to then.
            if delta != 0 {
                node.attend(stats, StatScope::Group);
            }
        } else if stats.items.knows(stat) {
            // Zero needs no cells either.
            if delta != 0 && node.count_slow(stats, Addition { scope: StatScope::Group, stat, delta }).is_none() {
                stats.counts.nested.fetch_add(1, Ordering::Relaxed);
            }
        } else {
            stats.counts.foreign.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What is added to which item.
#[derive(Clone, Copy)]
pub(crate) struct Addition {
    pub(crate) scope: StatScope,
    pub(crate) stat: Stat,
    pub(crate) delta: i64,
}

impl Counter {
    /// The group's statistics, once it or a group below has been written.
    pub(crate) fn stat_part(&self) -> Option<&PublishedStats> {
        self.stats.get()
    }

    pub(crate) fn part_of(&self, scope: StatScope) -> Option<&PublishedStats> {
        match scope {
            StatScope::Group => self.stat_part(),
            StatScope::On(node) => self.part_on(node.into()),
        }
    }

    /// The same, made with those of its ancestors where there is none. `None` where the system has no memory for one of
    /// them.
    pub(crate) fn part_or_make(&self, stats: &Coordinator, scope: StatScope) -> Option<&PublishedStats> {
        if self.part_of(scope).is_none() {
            let without: Vec<&Counter> =
                self.path_to_root().take_while(|level| level.part_of(scope).is_none()).collect();
            let attach = |level: &&Counter| {
                let above = level.incarnation().parent.and_then(|above| above.part_of(scope));
                match scope {
                    StatScope::Group => stats.publish_at(&level.stats, scope, above),
                    StatScope::On(node) => level.attach_on(stats, node.into(), above),
                }
            };
            let _ = without.iter().rev().all(attach);
        }
        self.part_of(scope)
    }

    /// The same, or the nearest above that there is memory for.
    fn part_or_above(&self, stats: &Coordinator, scope: StatScope) -> Option<&PublishedStats> {
        self.part_or_make(stats, scope).or_else(|| self.path_to_root().find_map(|level| level.part_of(scope)))
    }

    /// This thread's cells.
    pub(crate) fn cells(&self, block: &Block, scope: StatScope) -> Option<Cells> {
        match scope {
            StatScope::Group => block.cells(self.index)?.cells(),
            StatScope::On(node) => block.row(self.index)?.places()?.get(usize::from(node))?.cells(),
        }
    }

    /// An addition for which this thread has no cells at hand, to an item of this runtime; this is the first counter of
    /// its group. `None`: not counted, for it is inside another slow path and the group has no part.
    pub(crate) fn count_slow(&self, stats: &Coordinator, what: Addition) -> Option<()> {
        let endless = slow_path(|block, nested| self.count_in(stats, block, nested, what))?;
        if endless {
            self.flush_root(what.scope);
        }
        Some(())
    }

    /// The same, in a slow path. True where so much was written that it must not be left for somebody to flush.
    fn count_in(&self, stats: &Coordinator, block: Option<&Block>, nested: bool, what: Addition) -> Option<bool> {
        let Addition { scope, stat, delta } = what;
        let fenced = self.incarnation().fenced;
        let found = block.and_then(|block| self.cells(block, scope)).zip(self.part_of(scope));
        if found.is_none() && nested {
            // Making them takes a lock that this thread may hold.
            self.part_of(scope)?.publish_one(stat, delta);
            return Some(false);
        }
        if let Some((cells, part)) = found.or_else(|| self.first_touch(stats, block?, scope)) {
            Some(cells.add_known(stat, delta, fenced) == Added::Due && stats.list_and_announce(part, cells))
        } else {
            Some(stats.add_shared(self.part_or_above(stats, scope)?, stat, delta))
        }
    }

    /// After an addition that was due: list the cells, announce what they hold. Takes no lock and allocates nothing: no
    /// slow path of the kind that must not nest.
    pub(crate) fn attend(&self, stats: &Coordinator, scope: StatScope) {
        let cells = local::with_block(|block| block.and_then(|block| self.cells(block, scope)));
        if let (Some(part), Some(cells)) = (self.part_of(scope), cells)
            && stats.list_and_announce(part, cells)
        {
            self.flush_root(scope);
        }
    }

    #[cold]
    fn flush_root(&self, scope: StatScope) {
        if let Some(root) = self.path_to_root().filter_map(|level| level.part_of(scope)).last() {
            self.flush(root, Unlist::Never);
        }
    }

    /// Cells for a thread that writes this group for the first time. `None` where there is no place for them.
    fn first_touch(&self, stats: &Coordinator, block: &Block, scope: StatScope) -> Option<(Cells, &PublishedStats)> {
        let place = match scope {
            StatScope::Group => block.cells_or_page(self.index)?,
            StatScope::On(node) => block.row_or_make(self.index, stats.nodes)?.get(usize::from(node))?,
        };
        let part = self.part_or_make(stats, scope)?;
        let cells = stats.new_cells(part);
        place.set(Some(cells));
        Some((cells, part))
    }

    /// One more of what charges themselves count, on the group of this counter. Not in transit, with no lock held, and
    /// not inside another slow path: those leave the stock alone. It may allocate, so nothing is counted here of a
    /// charge that is refused: there may be no memory for it.
    pub(crate) fn count(&self, block: &Block, stat: Stat) {
        if let Some(stats) = &self.tree().stats {
            self.first().count_in(stats, Some(block), false, Addition { scope: StatScope::Group, stat, delta: 1 });
        }
    }
}

// === The readers ===

/// How fresh a read has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fresh {
    /// As published.
    Stale,
    /// Flushed where more may be missing than the kernel's threshold.
    Threshold,
    /// Flushed where more grains than this may be missing.
    Within(u64),
    /// Flushed.
    Exact,
}

impl Counter {
    #[inline]
    pub(crate) fn read_stats(&self, fresh: Fresh) -> Stats {
        let (figures, max_error) = self.read_fresh(fresh, || Stats::read(&self.coordinator().items, self.all_parts()));
        figures.with_error(max_error)
    }

    /// Read published figures, as fresh as that. Returns with them the grains by which each may be off.
    ///
    /// A flush reads the cells one after the other, and their threads write on meanwhile. So the figure of an item that rises
    /// and falls may be one that the item never had. An exact read therefore flushes a second time, after the figures, and
    /// what that flush finds is the error. Take the instant before the second flush: whatever had been written by then is
    /// in the figures or is found, and whatever is in the figures had been begun by then.
    #[inline]
    pub(crate) fn read_fresh<T>(&self, fresh: Fresh, read: impl FnOnce() -> T) -> (T, u64) {
        let missing = self.freshen(fresh);
        if fresh != Fresh::Exact {
            return (read(), missing);
        }
        // Acquire (E41): the figures hold what the first count counts, so that what they lack is counted by the second.
        let counted = || self.all_parts().fold(0, |sum: u64, part| sum.wrapping_add(part.counted()));
        let before = counted();
        let figures = read();
        let looked = self.flush_stats(Unlist::Never);
        (figures, if looked.is_some() { counted().wrapping_sub(before) } else { missing })
    }

    /// Flush where less may be missing. Returns the grains that may be missing from what is read after this.
    fn freshen(&self, fresh: Fresh) -> u64 {
        // The bound first, and once: what is flushed after this is taken off it too late, never too early.
        let bound = self.stat_bound();
        let most = match fresh {
            Fresh::Stale => u64::MAX,
            Fresh::Threshold => bound.threshold,
            Fresh::Within(most) => most,
            Fresh::Exact => 0,
        };
        let due = bound.grains > most || fresh == Fresh::Exact;
        let Some(part) = self.all_parts().next() else { return bound.grains };
        // One of a few thresholded reads flushes though its bound would allow it not to: writers that have stopped are in
        // the bound until flushes have found them idle. Without barriers nobody is unlisted, and such a flush would be in vain.
        let unlists = || self.tree().barrier.state() != BarrierState::Degraded;
        let now_and_then = || fresh == Fresh::Threshold && bound.grains > 0 && part.cadence.is_flush_due() && unlists();
        if !due && !now_and_then() {
            return bound.grains;
        }
        let Some(visits) = self.flush_stats(Unlist::Many) else { return bound.grains };
        if due {
            part.cadence.note_due_flush();
        } else {
            part.cadence.note_extra_flush(visits);
        }
        0
    }

    /// What may be missing from all parts together.
    fn stat_bound(&self) -> ErrorBound {
        let bounds = self.all_parts().map(|part| self.coordinator().error_bound(part));
        bounds.fold(ErrorBound::NOTHING, ErrorBound::plus)
    }

    /// The group's own part, and those of its memory on nodes.
    #[inline]
    pub(crate) fn all_parts(&self) -> impl Iterator<Item = &PublishedStats> {
        self.stat_part().into_iter().chain(self.parts_on_nodes())
    }

    /// Publish what is below `part`. `None` inside another slow path of this thread, which may hold the lock.
    fn flush(&self, part: &PublishedStats, unlist: Unlist) -> Option<Visits> {
        slow_path(|_, nested| (!nested).then(|| self.coordinator().flush(part, &self.tree().barrier, unlist)))
    }

    /// Publish what was written to the group and below it. `None` as for [`flush`](Self::flush).
    pub(crate) fn flush_stats(&self, unlist: Unlist) -> Option<Visits> {
        let mut visits = Visits::default();
        for part in self.all_parts() {
            visits.add(self.flush(part, unlist)?);
        }
        Some(visits)
    }

    /// Where the periodic flush is late and enough is missing. Whether it flushed.
    pub(crate) fn flush_stats_ratelimited(&self) -> bool {
        let above = |bound: ErrorBound| bound.grains > bound.threshold;
        self.coordinator().is_late() && above(self.stat_bound()) && self.flush_stats(Unlist::Many).is_some()
    }

    /// What the flusher does: everything, whatever the threshold says, and unlist what is idle.
    pub(crate) fn flush_stats_periodic(&self) {
        // The root may have no part yet, and is flushed all the same.
        self.coordinator().note_root_flush();
        self.flush_stats(Unlist::Always);
    }

    pub(crate) fn coordinator(&self) -> &Coordinator {
        self.tree().stats.as_ref().expect("a tree of groups has statistics")
    }
}

// === The end ===

impl Counter {
    /// Nobody has the group any more: what its threads have written goes to its ancestors.
    pub(crate) fn bury_stats(&self) {
        self.bury_parts();
        let Some(part) = self.stat_part() else { return };
        for block in self.tree().registry.blocks() {
            // As with the slots (E12): every use of the group came before this.
            if let Some(place) = block.cells(self.index) {
                place.set(None);
            }
        }
        self.coordinator().release(part);
        self.stats.clear();
    }
}
