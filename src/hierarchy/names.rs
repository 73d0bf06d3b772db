//! Groups by name: a group's path, and a parent's child of a name.

use std::fmt::Write;
use std::ptr;

use crate::counter::handle::Handle;
use crate::counter::links::Hash;
use crate::counter::object::Counter;
use crate::counter::object::tree::{Hierarchy, Shard, Tree};
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::group_object;
use crate::state::name::GroupName;

/// The digits of most numbers that name groups.
const DIGITS: usize = 10;

pub(crate) fn of(counter: &Counter) -> GroupName<'_> {
    group_object::of(counter).name().get()
}

/// The names from the root to a group. They do not change, and a counter keeps its ancestors, so this takes no lock.
pub(crate) fn path(counter: &Counter) -> String {
    let mut levels: Vec<&Counter> = counter.path_to_root().collect();
    levels.pop();
    if levels.is_empty() {
        return "/".to_string();
    }
    levels.into_iter().rev().fold(String::new(), |mut path, level| {
        add_to(&mut path, level);
        path
    })
}

/// The path of a child of the group that has the path `above`.
pub(crate) fn path_below(above: &str, child: &Counter) -> String {
    let above = if above == "/" { "" } else { above };
    let name = if let GroupName::Text(text) = of(child) { text.len() } else { DIGITS };
    let mut path = String::with_capacity(above.len() + 1 + name);
    path.push_str(above);
    add_to(&mut path, child);
    path
}

fn add_to(path: &mut String, level: &Counter) {
    path.push('/');
    // A text takes whatever is written to it.
    let _ = match of(level) {
        GroupName::Text(text) => {
            path.push_str(text);
            Ok(())
        }
        GroupName::Number(number) => write!(path, "{number}"),
        GroupName::Unnamed => {
            let first = level.first();
            write!(path, "#{}.{}", first.number, first.state().generation().0)
        }
    };
}

/// The hash of a child to be created. Prefetches the bucket that the search for its name reads. Takes no lock. `None`
/// for a child without a name.
pub(crate) fn expect(parent: &Counter, name: GroupName<'_>) -> Option<Hash> {
    let hierarchy = &parent.tree().hierarchy;
    let hash = hash(&parent.tree().hierarchy, parent.first(), name)?;
    hierarchy.expect(hash);
    Some(hash)
}

fn hash(hierarchy: &Hierarchy, parent: &Counter, name: GroupName<'_>) -> Option<Hash> {
    match name {
        GroupName::Text(text) => Some(hierarchy.hash_name(parent, text)),
        GroupName::Number(number) => Some(hierarchy.hash_name(parent, number)),
        GroupName::Unnamed => None,
    }
}

/// The child of that name. The caller keeps the parent.
pub(crate) fn find(tree: &Tree, parent: &Counter, name: &str) -> Option<Handle> {
    let _path = SlowPath::enter();
    let name = GroupName::Text(name).canonical();
    tree.hierarchy.find(hash(&tree.hierarchy, parent, name)?, |child| is_child(child, parent, name))
}

/// Whether the parent of a new group has a child of its name. The caller has locked the group's shard.
pub(crate) fn is_taken(shard: &Shard, group: &Counter) -> bool {
    let parent = group.incarnation().parent.filter(|_| is_named(group));
    parent.is_some_and(|parent| shard.has(group, |child| is_child(child, parent, of(group))))
}

pub(crate) fn is_named(group: &Counter) -> bool {
    of(group) != GroupName::Unnamed
}

fn is_child(group: &Counter, parent: &Counter, name: GroupName<'_>) -> bool {
    of(group) == name && group.incarnation().parent.is_some_and(|above| ptr::eq(above, parent))
}
