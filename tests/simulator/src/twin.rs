//! The twin: a naive model of a tree of groups, without threads and stock.
//!
//! It has a vector of groups, a table of what is charged, and sums over both. It says which answers
//! an operation may have. What the library adds to that (credit, lines, objects) it does not know.

use std::collections::BTreeMap;

use memcg::{Limit, Limits, PageCounter, Percent, PressureLevel};

use crate::configuration::{ITEMS, limit};
use crate::script::Kind;

/// Memory, and one further counter.
pub(crate) const COUNTERS: usize = 2;

/// Limits that may be a part of the nearest max above.
const PARTS: [Kind; 5] = [Kind::Soft, Kind::High, Kind::Low, Kind::Min, Kind::Max];

/// What holds bytes, by a number that is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(pub(crate) u32);

/// Bytes that something holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) group: usize,
    pub(crate) counter: usize,
    pub(crate) bytes: u64,
}

/// One group.
pub(crate) struct Group {
    pub(crate) parent: Option<usize>,
    pub(crate) name: String,
    pub(crate) online: bool,
    pub(crate) max: [u64; COUNTERS],
    /// Of what lies on the first node.
    pub(crate) tier_max: u64,
    pub(crate) high: u64,
    pub(crate) soft: u64,
    /// The soft limit is a part of what the parent may hold; 0: it is not.
    pub(crate) share: u32,
    /// A tree that was applied has made it.
    pub(crate) is_applied: bool,
    /// One has set its limits.
    pub(crate) is_named: bool,
    pub(crate) low: u64,
    pub(crate) min: u64,
    /// So much of the nearest max above, of [`PARTS`].
    parts: [Option<Percent>; PARTS.len()],
    /// For whose sake others give; `None`: as the group above.
    pub(crate) importance: Option<u8>,
    /// What has set its limits, by name.
    pub(crate) setting: Option<&'static str>,
    pub(crate) thresholds: (u8, u8),
    /// By these it was so far up when it was looked at last, after so many changes.
    pub(crate) pressure: Option<(PressureLevel, u64)>,
    pub(crate) observes: bool,
    /// For what lacks memory here a group is cancelled, or none is; `None`: as the group above says.
    pub(crate) chooses: Option<bool>,
    /// The order that the run has given it, by number.
    pub(crate) order: Option<usize>,
    /// It and all below it are spared where groups are cancelled.
    pub(crate) exempt: bool,
    /// It is cancelled with all below it, or not at all.
    pub(crate) together: bool,
    /// The most that was live at the end of an operation.
    pub(crate) peak: u64,
    /// Refusals here.
    pub(crate) refused: [u64; COUNTERS],
    /// Charges that had no time left, refused here.
    pub(crate) timed_out: u64,
    /// Hooks that were called.
    pub(crate) killed: u64,
    /// Caches that have panicked.
    pub(crate) panics: u64,
    /// What a thread charges ahead.
    pub(crate) batch: u64,
    /// What was added to the group itself.
    pub(crate) items: [i64; ITEMS],
}

impl Group {
    fn limit_mut(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::High => &mut self.high,
            Kind::Low => &mut self.low,
            Kind::Min => &mut self.min,
            Kind::Max => &mut self.max[0],
            _ => &mut self.soft,
        }
    }

    /// One of its limits is a part of a max.
    pub(crate) fn has_part(&self) -> bool {
        self.parts.iter().any(Option::is_some)
    }

    /// That limit is a part of a max.
    pub(crate) fn is_part(&self, kind: Kind) -> bool {
        PARTS
            .into_iter()
            .zip(self.parts)
            .any(|(of, part)| of == kind && part.is_some())
    }

    fn set_part(&mut self, kind: Kind, part: Option<Percent>) {
        let at = PARTS.iter().position(|&of| of == kind);
        self.parts[at.expect("a limit that may be a part")] = part;
    }
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
    /// No level above has a max that a percentage could be of.
    NoMax,
}

/// The twin of a tree. Group 0 is the root; numbers are never used again.
pub(crate) struct Twin {
    pub(crate) groups: Vec<Group>,
    pub(crate) held: BTreeMap<Key, Held>,
    next: u32,
    batch: u64,
}

impl Twin {
    pub(crate) fn new(max: u64, batch: u64) -> Self {
        let mut twin = Twin {
            groups: Vec::new(),
            held: BTreeMap::new(),
            next: 0,
            batch,
        };
        twin.add(None, String::new(), max);
        twin
    }

    fn add(&mut self, parent: Option<usize>, name: String, max: u64) -> usize {
        let batch = parent.map_or(self.batch, |parent| self.groups[parent].batch);
        self.groups.push(Group {
            parent,
            name,
            online: true,
            max: [max, u64::MAX],
            tier_max: u64::MAX,
            high: u64::MAX,
            soft: u64::MAX,
            share: 0,
            is_applied: false,
            is_named: false,
            low: 0,
            min: 0,
            parts: [None; PARTS.len()],
            importance: None,
            setting: None,
            thresholds: (0, 0),
            pressure: None,
            observes: false,
            chooses: None,
            order: None,
            exempt: false,
            together: false,
            peak: 0,
            refused: [0; COUNTERS],
            timed_out: 0,
            killed: 0,
            panics: 0,
            batch,
            items: [0; ITEMS],
        });
        self.groups.len() - 1
    }

    pub(crate) fn key(&mut self) -> Key {
        self.next += 1;
        Key(self.next)
    }

    pub(crate) fn hold(&mut self, group: usize, counter: usize, bytes: u64) -> Key {
        let key = self.key();
        self.held.insert(
            key,
            Held {
                group,
                counter,
                bytes,
            },
        );
        key
    }

    /// What that one holds; it must hold something.
    pub(crate) fn of(&self, key: Key) -> Held {
        self.held[&key]
    }

    pub(crate) fn set(&mut self, key: Key, bytes: u64) {
        self.held.get_mut(&key).expect("it holds bytes").bytes = bytes;
    }

    pub(crate) fn release(&mut self, key: Key) -> Held {
        self.held.remove(&key).expect("it holds bytes")
    }

    /// From `group` to the root, both included.
    pub(crate) fn levels(&self, group: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(group), |&group| self.groups[group].parent)
    }

    pub(crate) fn is_within(&self, group: usize, top: usize) -> bool {
        self.levels(group).any(|level| level == top)
    }

    pub(crate) fn path(&self, group: usize) -> String {
        let names: Vec<&str> = self
            .levels(group)
            .map(|level| self.groups[level].name.as_str())
            .collect();
        if names.len() == 1 {
            return "/".into();
        }
        names.into_iter().rev().collect::<Vec<_>>().join("/")
    }

    /// The bytes that are charged to `top` and all below it.
    pub(crate) fn live(&self, top: usize, counter: usize) -> u64 {
        self.held
            .values()
            .filter(|held| held.counter == counter && self.is_within(held.group, top))
            .map(|held| held.bytes)
            .sum()
    }

    /// The bytes that are charged to that group itself.
    pub(crate) fn own(&self, group: usize) -> u64 {
        self.held
            .values()
            .filter(|held| held.counter == 0 && held.group == group)
            .map(|held| held.bytes)
            .sum()
    }

    pub(crate) fn children(&self, parent: usize) -> impl Iterator<Item = usize> {
        (0..self.groups.len()).filter(move |&child| self.groups[child].parent == Some(parent))
    }

    pub(crate) fn online_below(&self, top: usize) -> impl Iterator<Item = usize> {
        (top..self.groups.len())
            .filter(move |&group| self.groups[group].online && self.is_within(group, top))
    }

    pub(crate) fn create(
        &mut self,
        parent: usize,
        name: &str,
        limits: Limits,
    ) -> Result<usize, NotMade> {
        if !self.groups[parent].online {
            return Err(NotMade::Offline);
        }
        let is_taken =
            |&child: &usize| self.groups[child].online && self.groups[child].name == name;
        if self.children(parent).any(|child| is_taken(&child)) {
            return Err(NotMade::Taken);
        }
        let (percent, soft) = match limits.soft {
            Some(Limit::Percent(percent)) => {
                let max = self.max_above(parent).ok_or(NotMade::NoMax)?;
                (Some(percent), Some(Limit::Bytes(percent.of(max))))
            }
            soft => (None, soft),
        };
        let bytes = |limit: Option<Limit>, default: u64| match limit {
            None => default,
            Some(Limit::Bytes(bytes)) => bytes,
            Some(Limit::Unlimited) => u64::MAX,
            Some(other) => unreachable!("a script creates no group with {other}"),
        };
        let made = self.add(Some(parent), name.into(), bytes(limits.max, u64::MAX));
        let group = &mut self.groups[made];
        group.high = bytes(limits.high, u64::MAX);
        group.soft = bytes(soft, u64::MAX);
        group.parts[0] = percent;
        group.share = limits.share.unwrap_or(0);
        group.importance = limits.importance;
        group.setting = limits.setting_name();
        group.low = bytes(limits.low, 0);
        group.min = bytes(limits.min, 0);
        group.thresholds = [limits.elevated, limits.critical]
            .map(|share| share.map_or(0, Percent::get))
            .into();
        Ok(made)
    }

    /// The call that made it has failed for a reason that the twin does not know.
    pub(crate) fn unmake_last(&mut self) {
        self.groups.pop();
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
        self.end(group);
        Ok(())
    }

    pub(crate) fn offline_tree(&mut self, top: usize) {
        for group in self.online_below(top).collect::<Vec<_>>() {
            self.end(group);
        }
    }

    fn end(&mut self, group: usize) {
        let group = &mut self.groups[group];
        group.online = false;
        group.min = 0;
        group.low = 0;
        group.soft = u64::MAX;
        group.share = 0;
        group.parts = [None; PARTS.len()];
    }

    /// A group that is online gets a share, which takes the place of its soft limit.
    pub(crate) fn set_share(&mut self, group: usize, share: u32) {
        let group = &mut self.groups[group];
        if share > 0 || group.share > 0 {
            (group.soft, group.parts[0], group.share) = (u64::MAX, None, share);
        }
    }

    /// The soft limit, which may be a part.
    pub(crate) fn soft(&self, group: usize) -> u64 {
        match self.groups[group].parent {
            Some(parent) if self.groups[group].share > 0 => {
                self.part(group, self.to_divide(parent))
            }
            _ => self.groups[group].soft,
        }
    }

    /// What the children of a group divide.
    fn to_divide(&self, parent: usize) -> u64 {
        let above = match self.groups[parent].parent {
            Some(above) => self.to_divide(above),
            None => u64::MAX,
        };
        let part = match self.groups[parent].share {
            0 => above,
            _ => self.part(parent, above),
        };
        if self.is_observed(parent) {
            part
        } else {
            part.min(self.groups[parent].max[0])
        }
    }

    /// The part of so many bytes that a group has beside its siblings.
    fn part(&self, group: usize, bytes: u64) -> u64 {
        if bytes == u64::MAX {
            return bytes;
        }
        let siblings = self.groups[group]
            .parent
            .map(|parent| self.children(parent));
        let shares = siblings.into_iter().flatten();
        let sum: u128 = shares.map(|it| u128::from(self.groups[it].share)).sum();
        (u128::from(bytes) * u128::from(self.groups[group].share) / sum.max(1)) as u64
    }

    /// The nearest max from that level up.
    pub(crate) fn max_above(&self, level: usize) -> Option<u64> {
        self.levels(level)
            .map(|level| self.groups[level].max[0])
            .find(|&max| max < u64::MAX)
    }

    /// The max moves, and percentages of a max of memory follow. One of nothing stays as it is.
    pub(crate) fn set_max(&mut self, moved: usize, counter: usize, max: u64) {
        self.groups[moved].max[counter] = max;
        if counter > 0 {
            return;
        }
        self.groups[moved].set_part(Kind::Max, None);
        self.follow(moved);
    }

    /// What is a part of a max at that level or above it is that part of it as it is now.
    fn follow(&mut self, moved: usize) {
        for group in self.online_below(moved).collect::<Vec<_>>() {
            let above = self.groups[group].parent;
            let Some(max) = above.and_then(|above| self.max_above(above)) else {
                continue;
            };
            for (kind, part) in PARTS.into_iter().zip(self.groups[group].parts) {
                if let Some(part) = part {
                    *self.groups[group].limit_mut(kind) = part.of(max);
                }
            }
        }
    }

    /// One of the limits, from now on; as that part of the nearest max above, or as it is.
    pub(crate) fn set_limit(
        &mut self,
        group: usize,
        kind: Kind,
        bytes: u64,
        part: Option<Percent>,
    ) {
        *self.groups[group].limit_mut(kind) = bytes;
        self.groups[group].set_part(kind, part);
        match kind {
            Kind::Soft => self.groups[group].share = 0,
            Kind::Max => self.follow(group),
            _ => {}
        }
    }

    /// `soft`, `high`, `low`, `min` and `max` as they were set; a share is what it is now.
    pub(crate) fn as_set(&self, group: usize) -> [Limit; PARTS.len()] {
        let of = &self.groups[group];
        let bytes = [self.soft(group), of.high, of.low, of.min, of.max[0]].map(limit);
        std::array::from_fn(|at| of.parts[at].map_or(bytes[at], Limit::Percent))
    }

    /// Of whose sake charges of the group are.
    pub(crate) fn importance(&self, group: usize) -> u8 {
        let mut levels = self.levels(group);
        levels
            .find_map(|level| self.groups[level].importance)
            .unwrap_or(0)
    }

    /// A group may be cancelled for what lacks memory there.
    pub(crate) fn chooses(&self, level: usize) -> bool {
        let chooser = self.chooser(level);
        chooser.is_some_and(|chooser| self.groups[chooser].chooses == Some(true))
    }

    /// The nearest group that says whether one may be cancelled.
    pub(crate) fn chooser(&self, level: usize) -> Option<usize> {
        self.levels(level)
            .find(|&level| self.groups[level].chooses.is_some())
    }

    /// It may not be cancelled.
    pub(crate) fn is_spared(&self, group: usize) -> bool {
        self.levels(group).any(|level| self.groups[level].exempt)
    }

    /// Its limits only count: it observes, or one above it does.
    pub(crate) fn is_observed(&self, group: usize) -> bool {
        self.levels(group).any(|level| self.groups[level].observes)
    }

    /// The most that its own limit admits.
    pub(crate) fn limit(&self, level: usize, counter: usize) -> u64 {
        let max = if self.is_observed(level) {
            u64::MAX
        } else {
            self.groups[level].max[counter]
        };
        max.min(PageCounter::USAGE_MAX)
    }

    /// The bytes that still fit at every level of `group` below `top`.
    pub(crate) fn margin(&self, group: usize, counter: usize, top: Option<usize>) -> u64 {
        self.levels(group)
            .take_while(|&level| Some(level) != top)
            .map(|level| {
                self.limit(level, counter)
                    .saturating_sub(self.live(level, counter))
            })
            .min()
            .unwrap_or(u64::MAX)
    }

    /// It is larger than a max on its way.
    pub(crate) fn never_fits(&self, group: usize, bytes: u64) -> bool {
        self.levels(group).any(|level| bytes > self.limit(level, 0))
    }

    /// That level has no room for so many more. One without max cannot count further than the
    /// library counts.
    pub(crate) fn is_full(&self, level: usize, counter: usize, bytes: u64) -> bool {
        bytes > self.margin(level, counter, self.groups[level].parent)
    }

    /// Tells if `bytes` more fit at every level of `group` below `top`.
    pub(crate) fn admits(
        &self,
        group: usize,
        counter: usize,
        bytes: u64,
        top: Option<usize>,
    ) -> Result<(), No> {
        if !self.groups[group].online {
            return Err(No::Offline);
        }
        let full = self
            .levels(group)
            .take_while(|&level| Some(level) != top)
            .find(|&level| self.is_full(level, counter, bytes));
        match full.filter(|_| bytes > 0) {
            None => Ok(()),
            Some(level) => {
                // One without max cannot count so far: the nearest above that has a max speaks for
                // it.
                let is_limited =
                    |&level: &usize| self.groups[level].max[counter] < PageCounter::USAGE_MAX;
                Err(No::Full(
                    self.levels(level).find(is_limited).unwrap_or(level),
                ))
            }
        }
    }

    /// The lowest level that both have.
    pub(crate) fn common(&self, one: usize, other: usize) -> usize {
        self.levels(one)
            .find(|&level| self.is_within(other, level))
            .unwrap_or(0)
    }

    /// What was added to `top` and to all that ever was below it.
    pub(crate) fn items(&self, top: usize, item: usize) -> i64 {
        (top..self.groups.len())
            .filter(|&group| self.is_within(group, top))
            .map(|group| self.groups[group].items[item])
            .sum()
    }
}
