//! Statistics of memory on nodes: what threads account there, and how a reader reads it by node.
//!
//! Where a runtime has more nodes than one, a group has further statistics beside its own: some for each node on which
//! it, or a group below it, has memory. Those of one node are a tree of their own in the shape of the tree of groups
//! ([`StatScope`]). Threads write them and the coordinator flushes them as the group's own (`crate::stat`). A thread
//! has a row of cells for each group that it charges, one place for each node.
//!
//! A group that is offline gets no new statistics. Memory that comes to lie on a node where it has none is accounted to
//! the nearest group above that has some, or may make some. With one node all is in the group's own statistics.

use smallvec::{SmallVec, smallvec};

use super::stats::{self, Addition};
use crate::counter::object::Counter;
use crate::counter::slow_path::SlowPath;
use crate::stat::Stat;
use crate::stat::coordinator::Coordinator;
use crate::stat::published::{PublishedStats, StatScope};
use crate::stat::reading::Freshness;
use crate::thread::cells::Added;
use crate::thread::directory::Header;
use crate::thread::local::{Local, with_local};

/// Where an account is: at the group, so many levels above it, or at the root. What would be too far above for a byte is
/// at the root.
pub(crate) type Above = u8;

const ROOT: Above = Above::MAX;

/// Adds to an item of the group, or of its memory on a node. Where nothing is published there and nothing can be, it
/// accounts to the nearest group above that can. Returns how far above that is. `None`: nothing is counted.
#[inline(always)]
pub(crate) fn account(header: &Header, scope: StatScope, stat: Stat, delta: i64) -> Option<Above> {
    match add_to(header, scope, stat, delta) {
        Added::Done => Some(0),
        added => account_slow(header, scope, stat, delta, added),
    }
}

/// Takes off what [`account`] has added at the level `above`, on any thread.
#[inline(always)]
pub(crate) fn unaccount(header: &Header, scope: StatScope, above: Above, stat: Stat, delta: i64) {
    let delta = delta.wrapping_neg();
    if above > 0 {
        unaccount_above(header, scope, above, stat, delta);
    } else {
        let _ = account(header, scope, stat, delta);
    }
}

#[inline(always)]
fn add_to(header: &Header, scope: StatScope, stat: Stat, delta: i64) -> Added {
    let find = |local: &Local| {
        let block = local.fast_block()?;
        match scope {
            StatScope::Group => block.cells_behind(header),
            StatScope::On(node) => block.cells_on_behind(header, node.into()),
        }
    };
    with_local(find).map_or(Added::Nowhere, |cells| stat.add_to(cells, delta))
}

#[cold]
#[inline(never)]
fn account_slow(header: &Header, scope: StatScope, stat: Stat, delta: i64, added: Added) -> Option<Above> {
    let group = header.counter().first();
    let coordinator = stats::coordinator_of(group)?;
    let search = || (0..ROOT).zip(group.path_to_root()).find(|(_, level)| takes(level, coordinator, scope));
    let (above, level) = if added == Added::Due || !coordinator.items.knows(stat) {
        (0, group)
    } else {
        search().or_else(|| Some((ROOT, group.path_to_root().last()?)))?
    };
    stats::add_missed(group, level, coordinator, Addition { scope, stat, delta }, added).then_some(above)
}

#[cold]
fn unaccount_above(header: &Header, scope: StatScope, above: Above, stat: Stat, delta: i64) {
    let group = header.counter().first();
    let level = if above == ROOT { group.path_to_root().last() } else { group.path_to_root().nth(above.into()) };
    if let (Some(coordinator), Some(level)) = (stats::coordinator_of(group), level) {
        stats::add_without_cells(level, coordinator, Addition { scope, stat, delta });
    }
}

/// Whether the group takes accounts in this scope. A group keeps its published statistics as long as anything is
/// accounted there. The root may make some also when its runtime is gone: otherwise no group could take the account.
fn takes(group: &Counter, coordinator: &Coordinator, scope: StatScope) -> bool {
    let may_make = || scope == StatScope::Group || !group.state().is_offline() || group.incarnation().parent.is_none();
    // To make them takes a lock. Inside another slow path this thread may hold it already.
    let gets = || {
        let path = SlowPath::enter();
        path.outermost().is_none() || stats::published_or_make(group, coordinator, scope).is_some()
    };
    stats::published(group, scope).is_some() || may_make() && gets()
}

/// The figures of an item of a group by node: of its subtree, and of the group alone.
pub(crate) struct FiguresByNode {
    pub(crate) nodes: SmallVec<[[i64; 2]; 8]>,
    /// Memory on no node: no thread has touched it yet, or it was added without a node.
    pub(crate) unplaced: [i64; 2],
    /// Grains that may be missing.
    pub(crate) max_error: u64,
}

pub(crate) fn read(group: &Counter, stat: Stat, freshness: Freshness) -> FiguresByNode {
    let (figures, max_error) = stats::read_fresh(group, freshness, || published_by_node(group, stat));
    FiguresByNode { max_error, ..figures }
}

fn published_by_node(group: &Counter, stat: Stat) -> FiguresByNode {
    let coordinator = stats::coordinator(group);
    let known = coordinator.items.knows(stat);
    let figures = |published: &PublishedStats| if known { published.figures(stat.number()) } else { [0; 2] };
    let of = |scope: StatScope| stats::published(group, scope).map_or([0; 2], figures);
    if coordinator.nodes == 1 {
        return FiguresByNode { nodes: smallvec![of(StatScope::Group)], unplaced: [0; 2], max_error: 0 };
    }
    let nodes = (0..coordinator.nodes).map(|node| of(StatScope::On(node as u16))).collect();
    FiguresByNode { nodes, unplaced: of(StatScope::Group), max_error: 0 }
}
