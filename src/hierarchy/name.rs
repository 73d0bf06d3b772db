//! The name of a group among its siblings. A short name is in the group's own object.

use std::ops::Deref;
use std::ptr;

use crate::counter::links::Hash;
use crate::counter::object::Counter;
use crate::counter::object::tree::{Shard, Tree};
use crate::hierarchy::group_object;
use crate::pool::NoMemory;

/// The most bytes of a name that needs no memory of its own. With a length and a tag the whole has 24.
const INLINE: usize = 22;

/// A name, which never changes.
pub(crate) enum Name {
    Inline { len: u8, bytes: [u8; INLINE] },
    Boxed(Box<str>),
}

impl Name {
    /// No name: the root's.
    pub(crate) const NONE: Name = Name::Inline { len: 0, bytes: [0; INLINE] };

    /// Copies `name`. It allocates for a name of more than `INLINE` bytes.
    pub(crate) fn new(name: &str) -> Result<Name, NoMemory> {
        let mut bytes = [0; INLINE];
        if let Some(here) = bytes.get_mut(..name.len()) {
            here.copy_from_slice(name.as_bytes());
            return Ok(Name::Inline { len: name.len() as u8, bytes });
        }
        let mut copy = String::new();
        copy.try_reserve_exact(name.len()).map_err(|_| NoMemory { bytes: name.len() })?;
        copy.push_str(name);
        // `try_reserve_exact` leaves no room over that `into_boxed_str` would have to give back.
        Ok(Name::Boxed(copy.into_boxed_str()))
    }
}

impl Name {
    /// Bytes of the name that lie outside of this object.
    pub(crate) fn bytes_outside(&self) -> u64 {
        match self {
            Name::Inline { .. } => 0,
            Name::Boxed(name) => name.len() as u64,
        }
    }
}

impl Deref for Name {
    type Target = str;

    #[inline]
    #[allow(unsafe_code)]
    fn deref(&self) -> &str {
        match self {
            // SAFETY: `new` has copied so many bytes of a string, and all of them.
            Name::Inline { len, bytes } => unsafe { str::from_utf8_unchecked(&bytes[..usize::from(*len)]) },
            Name::Boxed(name) => name,
        }
    }
}

const _: () = assert!(size_of::<Name>() <= 24);

/// The name of a counter's group.
pub(crate) fn of(counter: &Counter) -> &str {
    group_object::of(counter).name()
}

/// The names from the root to a group. They do not change, and a counter keeps its ancestors, so this takes no lock.
pub(crate) fn path(counter: &Counter) -> String {
    let names: Vec<&str> = counter.path_to_root().map(of).collect();
    match names.len() {
        0 | 1 => "/".to_string(),
        _ => names.into_iter().rev().collect::<Vec<_>>().join("/"),
    }
}

/// The hash of a child to be created. Prefetches the bucket that the search for its name reads. Takes no lock.
pub(crate) fn expect(parent: &Counter, name: &str) -> Hash {
    let hierarchy = &parent.tree().hierarchy;
    let hash = hierarchy.hash_name(parent.first(), name);
    hierarchy.expect(hash);
    hash
}

/// The child of that name, with a handle for the caller. The caller keeps the parent.
pub(crate) fn find(tree: &Tree, parent: &Counter, name: &str) -> Option<&'static Counter> {
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_lengths_are_what_they_were_made_of() {
        for len in 0..=255 {
            // Two bytes each, and one of one byte where the length is odd.
            let text = "ä".repeat(len / 2) + &"x".repeat(len % 2);
            let name = Name::new(&text).unwrap();
            assert_eq!(*name, *text);
            assert_eq!(matches!(name, Name::Inline { .. }), len <= INLINE, "{len} bytes");
        }
        assert_eq!(*Name::NONE, *"");
    }
}
