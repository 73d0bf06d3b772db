//! What owners of memory take from the engine below, beside the public face of groups and charges.

use smallvec::SmallVec;

use crate::group::{Charge, ChargeError, Group};
use crate::hierarchy::{group_tree, stats};
use crate::numa::NodeId;
use crate::numa::config::Numa;
use crate::numa::node_of::{BATCH, look_up_each};
use crate::stat::published::StatScope;
use crate::thread::directory::Header;

#[inline]
pub(super) fn numa(group: &Group) -> &Numa {
    &group_tree::of(group.first()).numa
}

/// The nodes of pages, at most [`BATCH`] of them. Calls foreign code: the thread holds no lock, and the pages stay.
pub(super) fn look_up(group: &Group, addresses: impl Iterator<Item = usize>) -> SmallVec<[Option<NodeId>; BATCH]> {
    let mut nodes = SmallVec::new();
    look_up_each(&*numa(group).node_of, addresses, |found| nodes.push(found.node()));
    nodes
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
