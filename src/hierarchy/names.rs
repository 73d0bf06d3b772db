//! Groups by name: a group's path, and a parent's child of a name.

use std::ptr;

use crate::counter::handle::Handle;
use crate::counter::links::Hash;
use crate::counter::object::Counter;
use crate::counter::object::tree::{Shard, Tree};
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::group_object;

pub(crate) fn of(counter: &Counter) -> &str {
    group_object::of(counter).name()
}

/// The names from the root to a group. They do not change, and a counter keeps its ancestors, so this takes no lock.
pub(crate) fn path(counter: &Counter) -> String {
    let mut names: Vec<&str> = counter.path_to_root().map(of).collect();
    names.reverse();
    if names.len() > 1 { names.join("/") } else { "/".to_string() }
}

/// The hash of a child to be created. Prefetches the bucket that the search for its name reads. Takes no lock.
pub(crate) fn expect(parent: &Counter, name: &str) -> Hash {
    let hierarchy = &parent.tree().hierarchy;
    let hash = hierarchy.hash_name(parent.first(), name);
    hierarchy.expect(hash);
    hash
}

/// The child of that name. The caller keeps the parent.
pub(crate) fn find(tree: &Tree, parent: &Counter, name: &str) -> Option<Handle> {
    let _path = SlowPath::enter();
    tree.hierarchy.find(tree.hierarchy.hash_name(parent, name), |child| is_child(child, parent, name))
}

/// Whether the parent of a new group has a child of its name. The caller has locked the group's shard.
pub(crate) fn is_taken(shard: &Shard, group: &Counter) -> bool {
    let parent = group.incarnation().parent;
    parent.is_some_and(|parent| shard.has(group, |child| is_child(child, parent, of(group))))
}

fn is_child(group: &Counter, parent: &Counter, name: &str) -> bool {
    of(group) == name && group.incarnation().parent.is_some_and(|above| ptr::eq(above, parent))
}
