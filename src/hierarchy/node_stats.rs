//! Statistics of memory on nodes: a group's parts there, and a thread's row of cells for them.
//!
//! Where a runtime has more nodes than one, a group has beside its own statistics a part for each node on which it, or a
//! group below it, has memory. The parts of one node are a tree of their own in the shape of the tree of groups
//! ([`StatScope`]), written and flushed as the group's own statistics are (`crate::stat`). A thread keeps a row of cells for
//! each group that it charges, one place for each node.
//!
//! A group that is offline gets no new parts: what comes to lie on a node where it has none is accounted to the nearest
//! group above that has one, or may make one. With one node there are no parts: all is the group's own.

use smallvec::{SmallVec, smallvec};

use crate::counter::make::slow_path;
use crate::counter::object::Counter;
use crate::hierarchy::stats::{Addition, Fresh};
use crate::stat::Stat;
use crate::stat::coordinator::Coordinator;
use crate::stat::published::{PublishedPlace, PublishedStats, StatScope};
use crate::sync::Ordering;
use crate::thread::cells::{Added, Row};
use crate::thread::directory::Header;
use crate::thread::local::{Local, with_local};

/// Where an account is kept: at the group, so many levels above it, or at the root.
pub(crate) type Above = u16;

const ROOT: Above = Above::MAX;

// === The write path ===

impl Header {
    /// Add to an item of the group, or of its memory on a node. Where it has no part there and gets none, to that of the
    /// nearest group above; returns how far above. `None`: nowhere, nothing is counted.
    #[inline(always)]
    pub(crate) fn account(&self, scope: StatScope, stat: Stat, delta: i64) -> Option<Above> {
        match self.add_to(scope, stat, delta) {
            Added::Done => Some(0),
            added => self.account_slow(scope, stat, delta, added),
        }
    }

    /// Take off what [`account`](Self::account) has added so far above, on whatever thread.
    #[inline(always)]
    pub(crate) fn unaccount(&self, scope: StatScope, above: Above, stat: Stat, delta: i64) {
        let delta = delta.wrapping_neg();
        if above > 0 {
            self.unaccount_above(scope, above, stat, delta);
        } else {
            match self.add_to(scope, stat, delta) {
                Added::Done => {}
                added => drop(self.account_slow(scope, stat, delta, added)),
            }
        }
    }

    /// [`account`](Self::account) where that takes no lock and makes nothing: this thread has cells for it. `None`:
    /// nothing is counted. True: [`announce`](Self::announce) is due.
    #[inline(always)]
    pub(crate) fn account_at_hand(&self, scope: StatScope, stat: Stat, delta: i64) -> Option<bool> {
        match self.add_to(scope, stat, delta) {
            Added::Nowhere => None,
            added => Some(added == Added::Due),
        }
    }

    /// The rest of what was added with [`account_at_hand`](Self::account_at_hand), where that was due.
    #[cold]
    pub(crate) fn announce(&self, scope: StatScope) {
        let group = self.node().first();
        if let Some(stats) = &group.tree().stats {
            group.attend(stats, scope);
        }
    }

    #[inline(always)]
    fn add_to(&self, scope: StatScope, stat: Stat, delta: i64) -> Added {
        let find = |local: &Local| {
            let block = local.fast_block()?;
            match scope {
                StatScope::Group => block.cells_behind(self),
                StatScope::On(node) => block.cells_on_behind(self, node.into()),
            }
        };
        with_local(find).map_or(Added::Nowhere, |cells| cells.add(stat, delta))
    }

    #[cold]
    #[inline(never)]
    fn account_slow(&self, scope: StatScope, stat: Stat, delta: i64, added: Added) -> Option<Above> {
        let group = self.node().first();
        let stats = group.tree().stats.as_ref()?;
        if added == Added::Due {
            group.attend(stats, scope);
            return Some(0);
        }
        if !stats.items.knows(stat) {
            stats.counts.foreign.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        // Who has a part keeps it as long as anything is accounted there. The root may make one also when its runtime is
        // gone: somebody must.
        let takes = |level: &Counter| {
            let may_make =
                scope == StatScope::Group || !level.state().is_offline() || level.incarnation().parent.is_none();
            level.part_of(scope).is_some() || may_make && level.gets_part(stats, scope)
        };
        let near = (0..ROOT).zip(group.path_to_root()).find(|(_, level)| takes(level));
        let (above, level) = near.or_else(|| Some((ROOT, group.path_to_root().last()?)))?;
        if level.count_slow(stats, Addition { scope, stat, delta }).is_none() {
            stats.counts.nested.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(above)
    }

    #[cold]
    fn unaccount_above(&self, scope: StatScope, above: Above, stat: Stat, delta: i64) {
        let group = self.node().first();
        let level = if above == ROOT { group.path_to_root().last() } else { group.path_to_root().nth(above.into()) };
        if let (Some(stats), Some(level)) = (&group.tree().stats, level) {
            level.count_slow(stats, Addition { scope, stat, delta });
        }
    }
}

impl Counter {
    /// It has a part, or can be made one. Nobody makes one inside another slow path of this thread.
    fn gets_part(&self, stats: &Coordinator, scope: StatScope) -> bool {
        slow_path(|_, nested| nested || self.part_or_make(stats, scope).is_some())
    }

    /// The group's statistics of its memory on a node, if it or a group below has any there.
    pub(crate) fn part_on(&self, node: usize) -> Option<&PublishedStats> {
        self.parts().get(node)?.get()
    }

    /// False where the system has no memory for it.
    pub(crate) fn attach_on(&self, stats: &Coordinator, node: usize, above: Option<&PublishedStats>) -> bool {
        // The first part of all is the root's own.
        let first = above.is_some() || stats.publish_at(&self.stats, StatScope::Group, None);
        first && self.parts().get(node).is_some_and(|place| stats.publish_at(place, StatScope::On(node as u16), above))
    }

    #[inline]
    pub(crate) fn parts_on_nodes(&self) -> impl Iterator<Item = &PublishedStats> {
        (0..self.parts().len()).filter_map(|node| self.part_on(node))
    }
}

// === The readers ===

/// An item of a group by node: of its subtree, and of the group alone.
pub(crate) struct OnNodes {
    pub(crate) nodes: SmallVec<[[i64; 2]; 8]>,
    /// On no node: not touched yet, or added without saying where.
    pub(crate) unplaced: [i64; 2],
    /// Grains that may be missing.
    pub(crate) max_error: u64,
}

impl Counter {
    pub(crate) fn read_on_nodes(&self, stat: Stat, fresh: Fresh) -> OnNodes {
        let (figures, max_error) = self.read_fresh(fresh, || self.published_on_nodes(stat));
        OnNodes { max_error, ..figures }
    }

    fn published_on_nodes(&self, stat: Stat) -> OnNodes {
        let stats = self.coordinator();
        let known = stats.items.knows(stat);
        let figures = |part: &PublishedStats| if known { part.figures(stat.number()) } else { [0; 2] };
        let of = |scope: StatScope| self.part_of(scope).map_or([0; 2], figures);
        if stats.nodes == 1 {
            return OnNodes { nodes: smallvec![of(StatScope::Group)], unplaced: [0; 2], max_error: 0 };
        }
        let nodes = (0..stats.nodes).map(|node| of(StatScope::On(node as u16))).collect();
        OnNodes { nodes, unplaced: of(StatScope::Group), max_error: 0 }
    }

    /// The group has a part on that node, and so can be accounted there whether or not it is online.
    pub(crate) fn has_part_on(&self, node: usize) -> bool {
        self.part_on(node).is_some()
    }
}

// === The end ===

impl Counter {
    /// Nobody has the group any more: what is accounted on its nodes goes to its ancestors.
    pub(crate) fn bury_parts(&self) {
        if self.parts_on_nodes().next().is_none() {
            return;
        }
        for block in self.tree().registry.blocks() {
            // As with the cells of the group's own statistics.
            for place in block.row(self.index).and_then(Row::places).unwrap_or_default() {
                place.set(None);
            }
        }
        self.parts_on_nodes().for_each(|part| self.coordinator().release(part));
        self.parts().iter().for_each(PublishedPlace::clear);
    }
}
