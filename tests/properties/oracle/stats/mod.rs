//! The naive twin of the statistics of a tree of groups: for each group what was added to it, and
//! sums over that.
//!
//! It knows nothing of cells, lists or flushes. What was added to a group stays, whether or not the
//! group does.
//!
//! * here: the twin;
//! * `ops`: one operation, and how bytes become operations;
//! * `run`: the interpreter that drives groups and twin side by side, and what must hold after each
//!   step.

pub(crate) mod ops;
pub(crate) mod run;

use std::collections::HashSet;

/// Items that the operations add to.
pub(crate) const ITEMS: usize = 6;

/// One group of the twin.
pub(crate) struct Group {
    pub(crate) parent: Option<usize>,
    pub(crate) name: u8,
    pub(crate) online: bool,
    /// Additions to the group itself.
    pub(crate) own: [i64; ITEMS],
}

/// The twin of a tree. Index 0 is the root; indices are never used again.
pub(crate) struct Twin {
    pub(crate) groups: Vec<Group>,
    /// Threads and groups that they have written, by numbers that are never used again.
    pub(crate) pairs: HashSet<(u64, usize)>,
    /// Additions to items that are no thread's here.
    pub(crate) foreign: u64,
}

impl Twin {
    pub(crate) fn new() -> Self {
        let root = Group {
            parent: None,
            name: 0,
            online: true,
            own: [0; ITEMS],
        };
        Self {
            groups: vec![root],
            pairs: HashSet::new(),
            foreign: 0,
        }
    }

    /// From `group` to the root, both included.
    pub(crate) fn levels(&self, group: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(group), |&group| self.groups[group].parent)
    }

    pub(crate) fn is_within(&self, group: usize, top: usize) -> bool {
        self.levels(group).any(|level| level == top)
    }

    /// The sum of additions to `top` and to all that ever was below it.
    pub(crate) fn subtree(&self, top: usize, item: usize) -> i64 {
        let below = (top..self.groups.len()).filter(|&group| self.is_within(group, top));
        below.map(|group| self.groups[group].own[item]).sum()
    }

    pub(crate) fn add(&mut self, thread: u64, group: usize, item: usize, delta: i64) {
        self.groups[group].own[item] += delta;
        self.pairs.insert((thread, group));
    }

    /// Most pairs of a thread and a group that may be listed below `top`.
    pub(crate) fn writers(&self, top: usize) -> u64 {
        self.pairs
            .iter()
            .filter(|&&(_, group)| self.is_within(group, top))
            .count() as u64
    }

    fn online_below(&self, top: usize) -> Vec<usize> {
        (top..self.groups.len())
            .filter(|&group| self.groups[group].online && self.is_within(group, top))
            .collect()
    }

    /// `None` where the parent is offline or has an online child of that name.
    pub(crate) fn create(&mut self, parent: usize, name: u8) -> Option<usize> {
        let taken =
            |group: &Group| group.online && group.parent == Some(parent) && group.name == name;
        if !self.groups[parent].online || self.groups.iter().any(taken) {
            return None;
        }
        self.groups.push(Group {
            parent: Some(parent),
            name,
            online: true,
            own: [0; ITEMS],
        });
        Some(self.groups.len() - 1)
    }

    /// Takes it offline; false if there were children in the way.
    pub(crate) fn offline(&mut self, group: usize) -> bool {
        let alone = self.online_below(group).iter().all(|&below| below == group);
        if alone {
            self.groups[group].online = false;
        }
        alone
    }

    pub(crate) fn offline_tree(&mut self, top: usize) {
        for group in self.online_below(top) {
            self.groups[group].online = false;
        }
    }
}
