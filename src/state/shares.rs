//! Shares of the groups that have some, by parent, and what is to be divided anew.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use crate::counter::by_number::ByNumber;
use crate::counter::object::{Counter, CounterRef};

/// The parents of groups with shares, by their keys. Each is there while a child with a share is
/// online.
#[derive(Default)]
pub(crate) struct Shares {
    pub(crate) parents: ByNumber<ParentOfShares>,
    /// The keys of the parents at and below each level of their paths, by the key of the level.
    pub(crate) below: BTreeSet<(u64, u64)>,
    /// What has moved since the last wave began.
    pub(crate) noted: MovedShares,
    /// What the present wave has still to do.
    pub(crate) wave: MovedShares,
    /// The number of waves that have begun.
    pub(crate) begun: u64,
    /// All steps of all looks: each takes a few look-ups.
    pub(crate) steps: u64,
}

/// The children of one group that have shares, and are online.
pub(crate) struct ParentOfShares {
    pub(crate) parent: CounterRef,
    /// Levels of its path.
    pub(crate) depth: u64,
    pub(crate) children: BTreeMap<u64, GroupShare>,
    /// Of all shares.
    pub(crate) sum: u64,
    /// The bytes that were divided last; `None`: a share has changed since, and the parent is
    /// noted.
    pub(crate) divided: Option<u64>,
}

#[derive(Clone, Copy)]
pub(crate) struct GroupShare {
    pub(crate) group: CounterRef,
    pub(crate) share: u32,
}

/// What is to be divided anew. All names are keys, and some may be gone by now.
#[derive(Default)]
pub(crate) struct MovedShares {
    /// Levels at which a max has moved, or a part: the parents there and below may divide other
    /// bytes. Each with the key of the next of these parents.
    pub(crate) levels: BTreeMap<u64, u64>,
    /// Parents, those further up first: what one divides follows from what those above it divide.
    pub(crate) parents: BTreeSet<(u64, u64)>,
    /// Parents that divide other bytes, each with the key of the next child to be told.
    pub(crate) children: BTreeMap<u64, u64>,
}

impl MovedShares {
    pub(crate) fn is_empty(&self) -> bool {
        self.levels.is_empty() && self.parents.is_empty() && self.children.is_empty()
    }
}

impl Shares {
    /// A max has moved at that level.
    pub(crate) fn max_moved(&mut self, level: &Counter) {
        if level.is_memory() && !self.parents.is_empty() {
            self.noted.levels.insert(level.key(), 0);
        }
    }

    /// The number of the wave with which all has been divided that has moved so far.
    pub(crate) fn last_wave(&self) -> u64 {
        self.begun + u64::from(!self.noted.is_empty())
    }

    /// Begins the next wave where one is over. False: that of this number is over, too.
    pub(crate) fn goes_on(&mut self, until: u64) -> bool {
        if self.wave.is_empty() && self.begun < until {
            self.wave = mem::take(&mut self.noted);
            self.begun += 1;
        }
        self.begun < until || (self.begun == until && !self.wave.is_empty())
    }
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
