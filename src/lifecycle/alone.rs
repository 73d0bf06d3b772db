//! Groups without a name, for counters alone that have nodes or statistics. They end with their last handle.
//!
//! No `Group` names such a group. So where its counter's last handle is gone, no thread charges it, and what is still
//! charged to it belongs to no guard.

use std::{iter, slice};

use super::{create, offline};
use crate::counter::config::CounterConfig;
use crate::counter::handle::Handle;
use crate::counter::join::{self, Init};
use crate::counter::links::Hash;
use crate::counter::object::Counter;
use crate::counter::retire;
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::group_tree::{self, GroupConfig};
use crate::pool::NoMemory;
use crate::state::name::Name;
use crate::sync::Ordering;

/// Create a tree of such groups. The caller has one handle on its root.
pub(crate) fn root(config: &CounterConfig, groups: GroupConfig) -> Result<&'static Counter, NoMemory> {
    let _path = SlowPath::enter();
    create::root_group(groups, slice::from_ref(config)).map(Handle::into_raw)
}

/// Create a group below `parent`, which the caller keeps. The caller has one handle on it.
pub(crate) fn child(parent: &'static Counter) -> Result<&'static Counter, NoMemory> {
    let _path = SlowPath::enter();
    let tree = parent.tree();
    let groups = group_tree::shared(tree);
    let group = create::start_group(tree, groups, Name::NONE, iter::once(Init::below(parent)))?;
    let mut shard = tree.hierarchy.lock_for(group, Hash::of_unnamed(group));
    // Under the lock: a thread that changes the batch of the subtree finds the group linked, or this thread finds the
    // parent's new batch.
    group.batch.store(parent.batch(), Ordering::Relaxed);
    let first = shard.link(group, false);
    drop(shard);
    join::finish_join(tree, group, first == Some(true));
    Ok(group)
}

/// End a group without children. No thread uses it any more, and the caller has the one handle.
pub(crate) fn end(group: &'static Counter) {
    let _path = SlowPath::enter();
    retire::uncharge_all(group);
    let gone = offline::offline(group.tree(), group);
    debug_assert!(gone.is_ok(), "a counter outlives its children");
    drop(Handle::adopt(group));
}
