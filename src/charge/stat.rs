//! Statistics of groups: where a group finds its part and a thread its cells, and what charges count themselves.
//!
//! A group's statistics belong to its first counter. How they are gathered is the coordinator's (`crate::stat`).

use super::page_counter::Node;
use super::pool::slow_path;
use crate::stat::cells::{Added, Cells};
use crate::stat::coordinator::Coordinator;
use crate::stat::flush::Unlist;
use crate::stat::part::{Bound, Part};
use crate::stat::{Stat, Stats};
use crate::sync::Ordering;
use crate::sync::per_thread::{self, Block, Local};
use crate::sync::slots::Gate;

// === The write path ===

impl Gate {
    /// Add to an item of the group that has this gate: a load and a store in this thread's own cells.
    #[inline(always)]
    pub(crate) fn stat_add(&self, stat: Stat, delta: i64) {
        let find = |local: &Local| local.fast_block().and_then(|block| block.cells_behind(self));
        let added = crate::sync::with_local(find).map_or(Added::Nowhere, |cells| cells.add(stat, delta));
        if added != Added::Done {
            self.stat_add_slow(stat, delta, added);
        }
    }

    #[cold]
    #[inline(never)]
    fn stat_add_slow(&self, stat: Stat, delta: i64, added: Added) {
        let node = self.node().keeper();
        let Some(stats) = &node.tree().stats else { return };
        if added == Added::Due {
            // Takes no lock and allocates nothing: no slow path of the kind that must not nest.
            let cells = per_thread::with_block(|block| block.and_then(|block| node.cells(block)));
            if let (Some(part), Some(cells)) = (node.stat_part(), cells)
                && stats.attend(part, cells)
            {
                node.flush_root();
            }
        } else if stats.items.knows(stat) {
            if slow_path(|block, nested| node.count_in(stats, block, nested, stat, delta)) {
                node.flush_root();
            }
        } else {
            stats.counts.foreign.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Node {
    /// The group's statistics, once it or a group below has been written.
    #[allow(unsafe_code)]
    pub(crate) fn stat_part(&self) -> Option<&Part> {
        // SAFETY: the tree's coordinator keeps it until the group is buried; who has the node keeps the group.
        unsafe { self.stats.load(Ordering::Acquire).as_ref() }
    }

    /// The same, made with those of its ancestors where there is none.
    fn stat_part_or_make(&self, stats: &Coordinator) -> Option<&Part> {
        if self.stat_part().is_none() {
            let without: Vec<&Node> = self.levels().take_while(|level| level.stat_part().is_none()).collect();
            for level in without.into_iter().rev() {
                stats.attach(&level.stats, level.life().parent.and_then(Node::stat_part));
            }
        }
        self.stat_part()
    }

    fn cells(&self, block: &Block) -> Option<Cells> {
        block.cells(self.index)?.cells()
    }

    /// Add to an item of this runtime, for this group, of which this is the first counter; in a slow path. True where
    /// so much was written that it must not be left for somebody to flush.
    fn count_in(&self, stats: &Coordinator, block: Option<&Block>, nested: bool, stat: Stat, delta: i64) -> bool {
        let fenced = self.life().fenced;
        let found = block.and_then(|block| self.cells(block)).zip(self.stat_part());
        if found.is_none() && nested {
            // Making them takes a lock that this thread may hold.
            stats.counts.nested.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        if let Some((cells, part)) = found.or_else(|| self.first_touch(stats, block?)) {
            cells.add_known(stat, delta, fenced) == Added::Due && stats.attend(part, cells)
        } else {
            self.stat_part_or_make(stats).is_some_and(|part| stats.add_shared(part, stat, delta))
        }
    }

    #[cold]
    fn flush_root(&self) {
        if let Some(root) = self.levels().filter_map(Node::stat_part).last() {
            self.flush(root, Unlist::Never);
        }
    }

    /// Cells for a thread that writes this group for the first time. `None` where there is no place for them.
    fn first_touch(&self, stats: &Coordinator, block: &Block) -> Option<(Cells, &Part)> {
        let place = block.cells_or_page(self.index)?;
        let part = self.stat_part_or_make(stats)?;
        let cells = stats.cells(part);
        place.set(Some(cells));
        Some((cells, part))
    }

    /// One more of what charges themselves count, on the group of this counter. Not in transit, with no lock held, and
    /// not inside another slow path: those leave the stock alone. It may allocate, so nothing is counted here of a
    /// charge that is refused: there may be no memory for it.
    pub(super) fn count(&self, block: &Block, stat: Stat) {
        if let Some(stats) = &self.tree().stats {
            self.keeper().count_in(stats, Some(block), false, stat, 1);
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

impl Node {
    #[inline]
    pub(crate) fn read_stats(&self, fresh: Fresh) -> Stats {
        let items = &self.coordinator().items;
        let Some(part) = self.stat_part() else { return Stats::read(items, None, 0) };
        // The bound first, and once: what is flushed after this is taken off it too late, never too early.
        let bound = self.coordinator().bound(part);
        let most = match fresh {
            Fresh::Stale => u64::MAX,
            Fresh::Threshold => bound.threshold,
            Fresh::Within(most) => most,
            Fresh::Exact => 0,
        };
        let flushed = (bound.grains > most || fresh == Fresh::Exact) && self.flush(part, Unlist::Many);
        Stats::read(items, Some(part), if flushed { 0 } else { bound.grains })
    }

    /// Publish what is below `part`. False inside another slow path of this thread, which may hold the lock.
    fn flush(&self, part: &Part, unlist: Unlist) -> bool {
        slow_path(|_, nested| {
            if !nested {
                self.coordinator().flush(part, &self.tree().barrier, unlist);
            }
            !nested
        })
    }

    pub(crate) fn flush_stats(&self, unlist: Unlist) {
        if let Some(part) = self.stat_part() {
            self.flush(part, unlist);
        }
    }

    /// Where the periodic flush is late and enough is missing. Whether it flushed.
    pub(crate) fn flush_stats_ratelimited(&self) -> bool {
        let stats = self.coordinator();
        let above = |bound: Bound| bound.grains > bound.threshold;
        let due = |part: &&Part| stats.is_late() && above(stats.bound(part));
        self.stat_part().filter(due).is_some_and(|part| self.flush(part, Unlist::Many))
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

impl Node {
    /// Nobody has the group any more: what its threads have written goes to its ancestors.
    pub(super) fn bury_stats(&self) {
        let Some(part) = self.stat_part() else { return };
        for block in self.tree().registry.blocks() {
            // As with the slots (E12): every use of the group came before this.
            if let Some(place) = block.cells(self.index) {
                place.set(None);
            }
        }
        self.coordinator().bury(part);
        self.stats.store(std::ptr::null_mut(), Ordering::Relaxed);
    }
}
