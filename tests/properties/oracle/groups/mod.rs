//! The naive twin of a tree of groups: a vector of groups, a vector of what is charged, and sums
//! over both.
//!
//! It knows nothing of stock, threads or objects. A group is there as long as it is online, or
//! something is charged to it, or a thread has a handle, or a child of it is there.
//!
//! * here: the twin;
//! * `ops`: one operation, and how bytes become operations;
//! * `run`: the interpreter that drives groups and twin side by side; `charges`: its part for what
//!   is charged, `raw`: without a guard; `check`: what must hold after each step.

mod charges;
mod check;
pub(crate) mod ops;
mod raw;
pub(crate) mod run;

use memcg::PageCounter;

/// Memory, and one further counter.
pub(crate) const COUNTERS: usize = 2;

/// One group of the twin.
pub(crate) struct Group {
    pub(crate) parent: Option<usize>,
    pub(crate) name: String,
    pub(crate) online: bool,
    pub(crate) handles: usize,
    pub(crate) max: [u64; COUNTERS],
    pub(crate) min: u64,
    /// Charges refused here.
    pub(crate) refused: [u64; COUNTERS],
}

/// One charge of the twin.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    pub(crate) group: usize,
    pub(crate) counter: usize,
    pub(crate) bytes: u64,
}

/// Why the twin says no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum No {
    Offline,
    /// This group has no room for it.
    Full(usize),
}

/// Why the twin makes no group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotMade {
    Offline,
    Taken,
    Most,
}

/// The twin of a tree. Index 0 is the root; indices are never used again.
pub(crate) struct Twin {
    pub(crate) groups: Vec<Group>,
    pub(crate) held: Vec<Held>,
    /// The same without a guard.
    pub(crate) raw: Vec<Held>,
    pub(crate) groups_max: u32,
}

impl Twin {
    /// The root has two handles: the runtime's and the caller's.
    pub(crate) fn new(max: u64, groups_max: u32) -> Self {
        let root = Group {
            parent: None,
            name: String::new(),
            online: true,
            handles: 2,
            max: [max, u64::MAX],
            min: 0,
            refused: [0; COUNTERS],
        };
        Self {
            groups: vec![root],
            held: Vec::new(),
            raw: Vec::new(),
            groups_max,
        }
    }

    /// From `group` to the root, both included.
    pub(crate) fn levels(&self, group: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(group), |&group| self.groups[group].parent)
    }

    fn is_within(&self, group: usize, top: usize) -> bool {
        self.levels(group).any(|level| level == top)
    }

    pub(crate) fn path(&self, group: usize) -> String {
        let names: Vec<&str> = self
            .levels(group)
            .map(|level| self.groups[level].name.as_str())
            .collect();
        if names.len() == 1 {
            "/".into()
        } else {
            names.into_iter().rev().collect::<Vec<_>>().join("/")
        }
    }

    fn all_held(&self) -> impl Iterator<Item = &Held> {
        self.held.iter().chain(&self.raw)
    }

    /// The bytes that are charged to `top` and all below it.
    pub(crate) fn live(&self, top: usize, counter: usize) -> u64 {
        let below = |held: &&Held| held.counter == counter && self.is_within(held.group, top);
        self.all_held().filter(below).map(|held| held.bytes).sum()
    }

    pub(crate) fn children(&self, parent: usize) -> impl Iterator<Item = usize> {
        (0..self.groups.len()).filter(move |&child| self.groups[child].parent == Some(parent))
    }

    pub(crate) fn online_below(&self, top: usize) -> impl Iterator<Item = usize> {
        (0..self.groups.len())
            .filter(move |&group| self.groups[group].online && self.is_within(group, top))
    }

    /// Something keeps it.
    pub(crate) fn is_there(&self, group: usize) -> bool {
        let Group {
            online, handles, ..
        } = self.groups[group];
        online
            || handles > 0
            || self.all_held().any(|held| held.group == group)
            || self.children(group).any(|child| self.is_there(child))
    }

    pub(crate) fn there(&self) -> impl Iterator<Item = usize> {
        (0..self.groups.len()).filter(|&group| self.is_there(group))
    }

    pub(crate) fn create(&mut self, parent: usize, name: &str, max: u64) -> Result<usize, NotMade> {
        if !self.groups[parent].online {
            return Err(NotMade::Offline);
        }
        if self
            .children(parent)
            .any(|child| self.groups[child].online && self.groups[child].name == name)
        {
            return Err(NotMade::Taken);
        }
        if self.there().count() >= self.groups_max as usize {
            return Err(NotMade::Most);
        }
        self.groups.push(Group {
            parent: Some(parent),
            name: name.into(),
            online: true,
            handles: 1,
            max: [max, u64::MAX],
            min: 0,
            refused: [0; COUNTERS],
        });
        Ok(self.groups.len() - 1)
    }

    /// Takes it offline, or returns the number of children that stand in the way.
    pub(crate) fn offline(&mut self, group: usize) -> Result<(), usize> {
        let children = self
            .children(group)
            .filter(|&child| self.groups[child].online)
            .count();
        if children > 0 {
            return Err(children);
        }
        self.groups[group].online = false;
        self.groups[group].min = 0;
        Ok(())
    }

    pub(crate) fn offline_tree(&mut self, top: usize) {
        for group in self.online_below(top).collect::<Vec<_>>() {
            self.groups[group].online = false;
            self.groups[group].min = 0;
        }
    }

    /// The bytes that still fit at every level of `group` below `top`.
    pub(crate) fn margin(&self, group: usize, counter: usize, top: Option<usize>) -> u64 {
        let limit = |level: usize| self.groups[level].max[counter].min(PageCounter::USAGE_MAX);
        let levels = self.levels(group).take_while(|&level| Some(level) != top);
        levels
            .map(|level| limit(level).saturating_sub(self.live(level, counter)))
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Tells if `bytes` more would be admitted at every level of `group` below `top`.
    pub(crate) fn admit(
        &mut self,
        group: usize,
        counter: usize,
        bytes: u64,
        top: Option<usize>,
    ) -> Result<(), No> {
        if !self.groups[group].online {
            return Err(No::Offline);
        }
        let full = |&level: &usize| bytes > self.margin(level, counter, self.groups[level].parent);
        let level = self
            .levels(group)
            .take_while(|&level| Some(level) != top)
            .find(full);
        match level.filter(|_| bytes > 0) {
            None => Ok(()),
            Some(level) => {
                // One without max cannot count so far: the nearest above that has a max speaks for
                // it.
                let limited =
                    |&level: &usize| self.groups[level].max[counter] < PageCounter::USAGE_MAX;
                let speaker = self.levels(level).find(limited).unwrap_or(level);
                self.groups[speaker].refused[counter] += 1;
                Err(No::Full(speaker))
            }
        }
    }

    /// The lowest level that both have.
    pub(crate) fn common(&self, one: usize, other: usize) -> usize {
        self.levels(one)
            .find(|&level| self.is_within(other, level))
            .unwrap_or(0)
    }
}
