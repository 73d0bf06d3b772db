//! The engine below, as memory on nodes uses it, and questions of its owners to a group's runtime.

use crate::group::{Charge, ChargeError, Group};
use crate::hierarchy::{group_tree, stats};
use crate::numa::config::Numa;
use crate::numa::{NodeOf, Topology};
use crate::stat::published::StatScope;
use crate::sync::Arc;
use crate::thread::directory::Header;

impl Topology {
    /// The nodes that a group's runtime accounts for: [`Runtime::topology`](crate::Runtime::topology), where only a
    /// group is at hand. Costs a few loads.
    ///
    /// Groups of one runtime share one value, at one address. Groups of two runtimes that exist do not, so
    /// [`std::ptr::eq`] tells whether two groups are of one runtime.
    ///
    /// ```
    /// use memcg::kmem::Topology;
    ///
    /// let [one, other] = [memcg::Runtime::builder().nodes(2).build()?, memcg::Runtime::builder().nodes(2).build()?];
    /// let query = one.root().create("q17", memcg::Limits::new())?;
    /// assert!(std::ptr::eq(Topology::of(&query), one.topology()));
    /// assert!(!std::ptr::eq(Topology::of(&query), Topology::of(&other.root())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn of(group: &Group) -> &Topology {
        &numa(group).topology
    }
}

/// Returns the finder of the nodes of pages for a group's runtime: [`Runtime::node_of`](crate::Runtime::node_of), where
/// only a group is at hand, and to be kept beyond the runtime. Costs a few loads.
///
/// ```
/// let runtime = memcg::Runtime::builder().build()?;
/// let node_of = memcg::kmem::node_of(&runtime.root()).clone();
/// assert_eq!(node_of.page_size(), runtime.node_of().page_size());
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[inline]
pub fn node_of(group: &Group) -> &Arc<dyn NodeOf> {
    &numa(group).node_of
}

#[inline]
pub(super) fn numa(group: &Group) -> &Numa {
    &group_tree::of(group.first()).numa
}

/// What the runtime of the counter behind a header knows of nodes. A charge keeps the counter, and so the runtime.
#[inline]
pub(super) fn numa_behind(header: &Header) -> &Numa {
    &group_tree::of(header.counter()).numa
}

/// Refuses a group of another runtime.
pub(super) fn check_runtime(from: &Group, to: &Group) -> Result<(), ChargeError> {
    if std::ptr::eq(from.first().tree(), to.first().tree()) {
        return Ok(());
    }
    Err(ChargeError::OtherRuntime { from: from.clone(), to: to.clone() })
}

pub(super) fn further_header(header: &'static Header, counter: usize) -> Option<&'static Header> {
    header.counter().group().nth(counter).map(|counter| counter.header)
}

pub(super) fn has_statistics(charge: &Charge, scope: StatScope) -> bool {
    match scope {
        StatScope::Group => true,
        StatScope::On(_) => stats::published(charge.header().counter(), scope).is_some(),
    }
}
