//! Groups by name: a group's path, and a parent's child of a name.

use std::fmt::Write;
use std::ops::Range;
use std::ptr;

use crate::counter::handle::Handle;
use crate::counter::links::NameHash;
use crate::counter::object::Counter;
use crate::counter::object::tree::{Hierarchy, Shard, Tree};
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::group_object;
use crate::state::name::GroupName;

/// The most characters of a path that an error prints, and how many of them are the first of the
/// path.
const SHOWN_MAX: usize = 256;
const SHOWN_FIRST: usize = 96;

pub(crate) fn of(counter: &Counter) -> GroupName<'_> {
    group_object::of(counter).name().get()
}

/// The names from the root to a group. They do not change, and a counter keeps its ancestors, so
/// this takes no lock.
pub(crate) fn path(counter: &Counter) -> String {
    let mut levels: Vec<&Counter> = counter.path_to_root().collect();
    // The root has no name of its own: it is what the others' paths begin with.
    levels.pop();
    if levels.is_empty() {
        return "/".to_string();
    }
    levels
        .into_iter()
        .rev()
        .fold(String::new(), |mut path, level| {
            add_to(&mut path, level);
            path
        })
}

/// A path as an error prints it: of a long one the beginning and the end.
pub(crate) fn shown(counter: &Counter) -> String {
    shortened(path(counter))
}

/// Of a long path the beginning and the end.
pub(crate) fn shortened(mut path: String) -> String {
    if let Some(left_out) = middle(&path) {
        path.replace_range(left_out, "…");
    }
    path
}

/// Returns the part that a path of more than [`SHOWN_MAX`] characters leaves out.
fn middle(path: &str) -> Option<Range<usize>> {
    path.char_indices().nth(SHOWN_MAX)?;
    let begin = path.char_indices().nth(SHOWN_FIRST)?.0;
    let end = path.char_indices().nth_back(SHOWN_MAX - SHOWN_FIRST - 2)?.0;
    Some(begin..end)
}

/// Adds a group to the path of the group above, which is empty for the root.
pub(crate) fn add_to(path: &mut String, level: &Counter) {
    path.push('/');
    // A text takes whatever is written to it.
    let _ = match of(level) {
        GroupName::Text(text) => {
            path.push_str(text);
            Ok(())
        }
        GroupName::Number(number) => write!(path, "{number}"),
        // With its generation: the number alone is that of the object, which another group may have
        // by the time that somebody reads the path.
        GroupName::Unnamed => {
            let first = level.first();
            write!(path, "#{}.{}", first.number, first.state().generation().0)
        }
    };
}

/// The hash of a child's name; `None` for a child without a name.
pub(crate) fn hash(
    hierarchy: &Hierarchy,
    parent: &Counter,
    name: GroupName<'_>,
) -> Option<NameHash> {
    match name {
        GroupName::Text(text) => Some(hierarchy.hash_name(parent, text)),
        GroupName::Number(number) => Some(hierarchy.hash_name(parent, number)),
        GroupName::Unnamed => None,
    }
}

/// The child of that name.
pub(crate) fn find(tree: &Tree, parent: &Counter, name: GroupName<'_>) -> Option<Handle> {
    let _path = SlowPath::enter();
    let name = name.canonical();
    tree.hierarchy
        .find(hash(&tree.hierarchy, parent, name)?, |child| {
            is_child(child, parent, name)
        })
}

/// True if the parent of a new group has a child of its name. The caller has locked the group's
/// shard.
pub(crate) fn is_taken(shard: &Shard, group: &Counter) -> bool {
    let parent = group.parent().filter(|_| is_named(group));
    parent.is_some_and(|parent| shard.has(group, |child| is_child(child, parent, of(group))))
}

pub(crate) fn is_named(group: &Counter) -> bool {
    of(group) != GroupName::Unnamed
}

fn is_child(group: &Counter, parent: &Counter, name: GroupName<'_>) -> bool {
    of(group) == name && group.parent().is_some_and(|above| ptr::eq(above, parent))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_loses_its_middle() {
        assert_eq!(middle(&"é".repeat(SHOWN_MAX)), None);
        for more in [1, 2, 10_000] {
            let mut path = "é".repeat(SHOWN_FIRST)
                + &"m".repeat(more + 1)
                + &"é".repeat(SHOWN_MAX - SHOWN_FIRST - 1);
            let left_out = middle(&path).unwrap();
            assert_eq!(&path[left_out.clone()], "m".repeat(more + 1));
            path.replace_range(left_out, "…");
            assert_eq!(path.chars().count(), SHOWN_MAX);
        }
    }
}
