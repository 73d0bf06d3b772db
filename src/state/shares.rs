//! Shares of the groups that have some, by parent.

use crate::counter::object::Kept;
use std::collections::{BTreeMap, BTreeSet};

/// The parents of groups with shares, by their keys. Each is there while a child with a share is
/// online.
#[derive(Default)]
pub(crate) struct Shares {
    pub(crate) parents: BTreeMap<u64, ParentOfShares>,
    /// The keys of parents below which a share has changed since the last look.
    pub(crate) moved: BTreeSet<u64>,
    /// A group with groups below has come or gone.
    pub(crate) is_nearest_moved: bool,
    /// The tree's count of set maxes, as of the last look.
    pub(crate) max_moves: u64,
}

/// The children of one group that have shares, and are online.
pub(crate) struct ParentOfShares {
    pub(crate) parent: Kept,
    pub(crate) children: BTreeMap<u64, GroupShare>,
    /// Of all shares.
    pub(crate) sum: u64,
    /// The bytes that the last look has divided; `None`: a share has changed since, and the key is
    /// in `moved`.
    pub(crate) divided: Option<u64>,
}

#[derive(Clone, Copy)]
pub(crate) struct GroupShare {
    pub(crate) group: Kept,
    pub(crate) share: u32,
}

impl GroupShare {
    /// This share's part of so many bytes, rounded down. No limit has no parts.
    pub(crate) fn of(self, bytes: u64, sum: u64) -> u64 {
        if bytes == u64::MAX {
            return bytes;
        }
        (u128::from(bytes) * u128::from(self.share) / u128::from(sum.max(1))) as u64
    }
}
