//! The engine below, as memory on nodes uses it, and questions of its owners to a group's runtime.

use crate::counter::object::{Counter, CounterRef, HeaderRef};
use crate::group::{Charge, Group};
use crate::hierarchy::{group_tree, stats};
use crate::numa::config::{Numa, Tier};
use crate::numa::{NodeOf, Topology};
use crate::stat::published::StatScope;
use crate::sync::Arc;

impl Topology {
    /// Returns the nodes that a group's runtime accounts for:
    /// [`Runtime::topology`](crate::Runtime::topology), for code that has only a group. It costs a
    /// few loads.
    ///
    /// Groups of one runtime share one value, at one address. Groups of two runtimes that exist do
    /// not, so [`std::ptr::eq`] tells whether two groups are of one runtime.
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
        &numa(group.first()).topology
    }
}

/// Returns the finder of the nodes of pages for a group's runtime:
/// [`Runtime::node_of`](crate::Runtime::node_of), for code that has only a group, or keeps the
/// finder beyond the runtime. It costs a few loads.
///
/// ```
/// let runtime = memcg::Runtime::builder().build()?;
/// let node_of = memcg::kmem::node_of(&runtime.root()).clone();
/// assert_eq!(node_of.page_size(), runtime.node_of().page_size());
/// # Ok::<(), memcg::BuildError>(())
/// ```
#[inline]
pub fn node_of(group: &Group) -> &Arc<dyn NodeOf> {
    &numa(group.first()).node_of
}

/// The nodes of the runtime of a counter.
#[inline]
pub(super) fn numa(counter: &Counter) -> &Numa {
    &group_tree::of(counter).numa
}

/// The header of a tier's counter, in the group of this counter.
#[allow(unsafe_code)]
pub(super) fn header_of(tier: &Tier, counter: &Counter) -> HeaderRef {
    let of = counter.group().nth(tier.counter).unwrap_or(counter);
    // SAFETY: the caller charges it while it keeps the group.
    unsafe { CounterRef::new(of) }.header()
}

pub(super) fn has_statistics(charge: &Charge, scope: StatScope) -> bool {
    scope == StatScope::Group || stats::published(charge.counter(), scope).is_some()
}
