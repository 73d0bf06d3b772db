//! Statistics of memory on nodes: what threads account there, and how a reader reads it by node.
//!
//! In a runtime with more nodes than one, a group has further statistics beside its own: some for
//! each node on which it, or a group below it, has memory. Those of one node are a tree of their
//! own in the shape of the tree of groups ([`StatScope`]). Threads write them and the coordinator
//! flushes them as the group's own (`crate::stat`). A thread has a row of cells for each group that
//! it charges, one place for each node.
//!
//! A group that is offline gets no new statistics. Memory that comes to lie on a node where it has
//! none is accounted to the nearest group above that has some, or may make some. With one node all
//! is in the group's own statistics.

use std::fmt;

use smallvec::{SmallVec, smallvec};

use super::group_tree;
use super::stats::{self, StatAddition};
use crate::counter::object::{Counter, HeaderRef};
use crate::counter::slow_path::SlowPath;
use crate::numa::NodeId;
use crate::stat::StatKey;
use crate::stat::coordinator::Coordinator;
use crate::stat::item::KnownItem;
use crate::stat::published::{PublishedStats, StatScope};
use crate::stat::reading::Freshness;
use crate::sync::Ordering;
use crate::thread::block::Block;
use crate::thread::cells::{StatAdded, ThreadStats};
use crate::thread::local::{Local, with_local};

/// The place of an account: at the group, so many levels above it, or at the root. What would be
/// too far above for a byte is at the root.
pub(crate) type AccountPlace = u8;

const ROOT: AccountPlace = AccountPlace::MAX;

/// No place, for those who keep it in the same byte: the bytes are counted nowhere.
pub(crate) const NOT_COUNTED: AccountPlace = AccountPlace::MAX - 1;

/// Adds to an item of the group that has this header, by a load and a store in this thread's own
/// cells.
#[inline(always)]
pub(crate) fn add(header: HeaderRef, stat: StatKey, delta: i64) {
    let _ = account(header, StatScope::Group, stat, delta);
}

/// Adds to an item of the group, or of its memory on a node. Where nothing is published there and
/// nothing can be, it accounts to the nearest group above that can. Returns how far above that is.
/// `None`: nothing is counted.
#[inline(always)]
pub(crate) fn account(
    header: HeaderRef,
    scope: StatScope,
    stat: StatKey,
    delta: i64,
) -> Option<AccountPlace> {
    match add_to(header, scope, stat, delta) {
        StatAdded::Done => Some(0),
        added => account_slow(header, scope, stat, delta, added),
    }
}

/// Adds to an item of the group in at most `MOST` scopes, where this thread has cells for all of
/// them. Then it takes no lock, allocates nothing and calls no policy, so that the caller may hold
/// a lock of its own. Returns whether it has added; if not, nothing has changed.
#[inline(always)]
pub(crate) fn account_at_hand<const MOST: usize>(
    header: HeaderRef,
    stat: StatKey,
    parts: &[(StatScope, i64)],
) -> bool {
    let scope = |part: usize| parts.get(part).map(|&(scope, _)| scope);
    let Some(cells) = cells_at_hand::<MOST>(header, scope) else {
        return false;
    };
    // All cells behind a header are of one runtime.
    let first = cells.first().copied().flatten();
    if !first.is_some_and(|cells| stat.is_in(cells)) {
        return false;
    }
    for (cells, &(scope, delta)) in cells.into_iter().zip(parts) {
        if let Some(cells) = cells
            && stat.add_known_to(cells, delta, false) == StatAdded::Due
        {
            announce_slow(header, scope);
        }
    }
    true
}

/// Takes off what an account has added at the group itself in at most `MOST` scopes, as an item that
/// was found to be of the group's runtime. Cells behind the header are of that runtime for as long
/// as the account keeps the group. So they have the item, and the thread looks up no more than them.
#[inline(always)]
pub(crate) fn unaccount_known<const MOST: usize>(
    header: HeaderRef,
    item: KnownItem,
    part: impl Fn(usize) -> Option<(StatScope, u64)>,
) {
    let Some(cells) = cells_at_hand::<MOST>(header, |number| Some(part(number)?.0)) else {
        for (scope, bytes) in (0..MOST).map_while(part) {
            unaccount_known_slow(header, scope, item, (bytes, StatAdded::Nowhere));
        }
        return;
    };
    for (number, cells) in cells.into_iter().enumerate() {
        let (Some(cells), Some((scope, bytes))) = (cells, part(number)) else {
            return;
        };
        if item.add_to(cells, bytes.cast_signed().wrapping_neg()) != StatAdded::Done {
            unaccount_known_slow(header, scope, item, (bytes, StatAdded::Due));
        }
    }
}

#[cold]
#[inline(never)]
fn unaccount_known_slow(
    header: HeaderRef,
    scope: StatScope,
    item: KnownItem,
    (bytes, added): (u64, StatAdded),
) {
    let stat = stats::coordinator(header.counter())
        .items
        .stat(item.number());
    let delta = bytes.cast_signed().wrapping_neg();
    let _ = account_slow(header, scope, stat, delta, added);
}

/// This thread's cells for the group in each of at most `MOST` scopes. `None`: it lacks some, or is
/// on its way to have them.
#[inline(always)]
fn cells_at_hand<const MOST: usize>(
    header: HeaderRef,
    scope: impl Fn(usize) -> Option<StatScope>,
) -> Option<[Option<ThreadStats>; MOST]> {
    with_local(|local| {
        let block = local.fast_block()?;
        let mut cells = [None; MOST];
        // The row is looked up once for all nodes.
        let mut row = None;
        for (number, cells) in cells.iter_mut().enumerate() {
            let Some(scope) = scope(number) else {
                break;
            };
            *cells = Some(match scope {
                StatScope::Group => block.cells_behind(&header)?,
                StatScope::On(node) => {
                    let places = match row {
                        Some(places) => places,
                        None => *row.insert(block.row_behind(&header)?),
                    };
                    places.get(usize::from(node))?.cells()?
                }
            });
        }
        Some(cells)
    })
}

/// Lists and announces what [`account_at_hand`] has added. If so much is announced that a writer
/// has to flush, which takes a lock, the next one does: an account ends by [`unaccount`].
#[cold]
#[inline(never)]
fn announce_slow(header: HeaderRef, scope: StatScope) {
    let group = header.counter().first();
    if let Some(coordinator) = stats::coordinator_of(group) {
        let _must_flush = stats::list_and_announce_only(group, coordinator, scope);
    }
}

#[inline(always)]
fn cells_of(block: &Block, header: HeaderRef, scope: StatScope) -> Option<ThreadStats> {
    match scope {
        StatScope::Group => block.cells_behind(&header),
        StatScope::On(node) => block.cells_on_behind(&header, node.into()),
    }
}

/// Takes off what [`account`] has added at the level `above`, on any thread.
#[inline(always)]
pub(crate) fn unaccount(
    header: HeaderRef,
    scope: StatScope,
    above: AccountPlace,
    stat: StatKey,
    delta: i64,
) {
    let delta = delta.wrapping_neg();
    if above > 0 {
        unaccount_above(header, scope, above, stat, delta);
    } else {
        let _ = account(header, scope, stat, delta);
    }
}

#[inline(always)]
fn add_to(header: HeaderRef, scope: StatScope, stat: StatKey, delta: i64) -> StatAdded {
    let find = |local: &Local| cells_of(local.fast_block()?, header, scope);
    with_local(find).map_or(StatAdded::Nowhere, |cells| stat.add_to(cells, delta))
}

#[cold]
#[inline(never)]
fn account_slow(
    header: HeaderRef,
    scope: StatScope,
    stat: StatKey,
    delta: i64,
    added: StatAdded,
) -> Option<AccountPlace> {
    let group = header.counter().first();
    let coordinator = stats::coordinator_of(group)?;
    // A key that another builder has declared: its number may be that of another item here. The
    // count tells a program that has mixed two runtimes up.
    if !coordinator.items.knows(stat) {
        coordinator.counts.foreign.fetch_add(1, Ordering::Relaxed);
        return None;
    }
    // An addition of zero changes no figure, so it makes no writer.
    if delta == 0 {
        return Some(0);
    }
    // The cells have it already, and only their announcement is due.
    if added == StatAdded::Due {
        stats::list_and_announce(group, coordinator, scope);
        return Some(0);
    }
    // So many levels above are named by a small number, which the account keeps. The root has a
    // number of its own, for a path of any length leads there.
    let found = (0..NOT_COUNTED)
        .zip(group.path_to_root())
        .find(|(_, level)| takes(level, coordinator, scope));
    let (above, level) = found.or_else(|| Some((ROOT, group.path_to_root().last()?)))?;
    let counted = stats::add_without_cells(level, coordinator, StatAddition { scope, stat, delta });
    if !counted {
        coordinator.counts.nested.fetch_add(1, Ordering::Relaxed);
    }
    counted.then_some(above)
}

#[cold]
fn unaccount_above(
    header: HeaderRef,
    scope: StatScope,
    above: AccountPlace,
    stat: StatKey,
    delta: i64,
) {
    let group = header.counter().first();
    let level = if above == ROOT {
        group.path_to_root().last()
    } else {
        group.path_to_root().nth(above.into())
    };
    if let (Some(coordinator), Some(level)) = (stats::coordinator_of(group), level) {
        stats::add_without_cells(level, coordinator, StatAddition { scope, stat, delta });
    }
}

/// True if the group takes accounts in this scope. A group keeps its published statistics as long
/// as anything is accounted there. The root may make some also when its runtime is gone: otherwise
/// no group could take the account.
fn takes(group: &Counter, coordinator: &Coordinator, scope: StatScope) -> bool {
    let may_make =
        || scope == StatScope::Group || !group.state().is_offline() || group.parent().is_none();
    // To make them takes a lock. Inside another slow path this thread may hold it already.
    let gets = || {
        let path = SlowPath::enter();
        path.outermost().is_none() || stats::published_or_make(group, coordinator, scope).is_some()
    };
    stats::published(group, scope).is_some() || may_make() && gets()
}

/// One item of a group by node at one reading: of its subtree, and of the group alone.
///
/// ```
/// use memcg::{Limits, StatKey};
/// use memcg::kmem::{NodeId, Placement};
///
/// let runtime = memcg::Runtime::builder().nodes(2).build()?;
/// let query = runtime.root().create("q17", Limits::new())?;
/// let _kmem = query.precharge(100)?.account(&Placement::on(NodeId::new(1), 100));
/// let now = runtime.root().numa_stat(StatKey::KERNEL, memcg::Freshness::Exact);
/// assert_eq!((now.get(NodeId::new(1)), now.local(NodeId::new(1)), now.max_error()), (100, 0, 0));
/// assert_eq!(now.iter().collect::<Vec<_>>(), [(NodeId::new(0), 0), (NodeId::new(1), 100)]);
/// assert_eq!(now.to_string(), "N0=0 N1=100");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStats {
    /// Node, bytes of the subtree, bytes of the group alone.
    nodes: SmallVec<[(NodeId, [i64; 2]); 8]>,
    unplaced: [i64; 2],
    max_error: u64,
}

impl NodeStats {
    /// The figures of a group, or of a bare counter, which has none.
    pub(crate) fn read(group: &Counter, stat: StatKey, freshness: Freshness) -> NodeStats {
        let Some(groups) = group_tree::if_groups(group.tree()) else {
            return NodeStats {
                nodes: SmallVec::new(),
                unplaced: [0; 2],
                max_error: 0,
            };
        };
        let known = groups.stats.items.knows(stat);
        let figures = |published: &PublishedStats| {
            if known {
                published.figures(stat.number())
            } else {
                [0; 2]
            }
        };
        let of = |scope: StatScope| stats::published(group, scope).map_or([0; 2], figures);
        let nodes = groups.stats.nodes;
        let read = || -> (SmallVec<[[i64; 2]; 8]>, [i64; 2]) {
            // With one node nothing is kept by node: all that the group has is on that one.
            if nodes == 1 {
                return (smallvec![of(StatScope::Group)], [0; 2]);
            }
            let on_nodes = (0..nodes).map(|node| of(StatScope::On(node as u16)));
            (on_nodes.collect(), of(StatScope::Group))
        };
        let ((figures, unplaced), max_error) = stats::read_fresh(group, freshness, read);
        NodeStats {
            nodes: groups.numa.topology.nodes().zip(figures).collect(),
            unplaced,
            max_error,
        }
    }

    /// Returns what is on a node, of the group and all groups below it; 0 for a node that the
    /// runtime does not have.
    pub fn get(&self, node: NodeId) -> i64 {
        self.figures(node)[0]
    }

    /// Returns what is on a node, of the group alone.
    pub fn local(&self, node: NodeId) -> i64 {
        self.figures(node)[1]
    }

    fn figures(&self, node: NodeId) -> [i64; 2] {
        self.nodes
            .iter()
            .find(|(of, _)| *of == node)
            .map_or([0; 2], |(_, figures)| *figures)
    }

    /// Returns what is on no node, in the group and all groups below it: memory that no thread has
    /// touched, and what was [added](crate::Group::stat_add) without a node. 0 in a runtime of one
    /// node, on which everything is.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().nodes(2).build()?;
    /// runtime.root().stat_add(memcg::StatKey::ANON, 4_096);
    /// let now = runtime.root().numa_stat(memcg::StatKey::ANON, memcg::Freshness::Exact);
    /// assert_eq!((now.unplaced(), now.sum()), (4_096, 4_096));
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn unplaced(&self) -> i64 {
        self.unplaced[0]
    }

    /// Returns the sum of what is on all nodes and on none.
    pub fn sum(&self) -> i64 {
        self.nodes
            .iter()
            .fold(self.unplaced[0], |sum, (_, [subtree, _])| {
                sum.wrapping_add(*subtree)
            })
    }

    /// Returns the nodes in order, with what is on each in the group and all groups below it.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, i64)> {
        self.nodes
            .iter()
            .map(|(node, [subtree, _])| (*node, *subtree))
    }

    /// Returns by how much the figures together may be off from what had been written, in grains of
    /// the item's unit. See [`Stats::max_error`](crate::figures::Stats::max_error).
    pub fn max_error(&self) -> u64 {
        self.max_error
    }
}

/// Prints as a line of `memory.numa_stat`.
impl fmt::Display for NodeStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (node, bytes)) in self.iter().enumerate() {
            write!(f, "{}N{node}={bytes}", if number > 0 { " " } else { "" })?;
        }
        Ok(())
    }
}
