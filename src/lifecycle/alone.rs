//! Groups without a name, for counters alone that have nodes or statistics. They end with their last handle.
//!
//! No `Group` names such a group. So where its counter's last handle is gone, no thread charges it, and what is still
//! charged to it belongs to no guard.

use std::slice;

use super::create::{self, NewGroup, NotCreated};
use super::offline;
use crate::counter::config::CounterConfig;
use crate::counter::handle::Handle;
use crate::counter::object::Counter;
use crate::counter::retire;
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::group_tree::GroupConfig;
use crate::pool::NoMemory;
use crate::state::name::GroupName;

/// Create a tree of such groups. The caller has one handle on its root.
pub(crate) fn root(config: &CounterConfig, groups: GroupConfig) -> Result<Handle, NoMemory> {
    let _path = SlowPath::enter();
    create::root_group(groups, slice::from_ref(config))
}

/// Create a group below `parent`. The caller has one handle on it.
pub(crate) fn child(parent: &Counter) -> Result<Handle, NoMemory> {
    let settings = NewGroup { wanted: &[], covers: false, share: 0, has_pressure: false, mark: &|_| () };
    match create::create(parent, GroupName::Unnamed, &settings) {
        Ok(child) => Ok(child),
        Err(NotCreated::Memory(bytes)) => Err(NoMemory { bytes }),
        Err(refused) => unreachable!("no name, no limit, and a parent that is online: {refused:?}"),
    }
}

/// End a group without children. No thread uses it any more, and the caller has the one handle.
pub(crate) fn end(group: Handle) {
    let _path = SlowPath::enter();
    retire::uncharge_all(&group);
    let gone = offline::offline(group.tree(), &group);
    debug_assert!(gone.is_ok(), "a counter outlives its children");
}
