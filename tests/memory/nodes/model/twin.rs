//! The naive twin: what each guard has in each place, and on which nodes each group has, or has
//! had, memory.
//!
//! It knows nothing of cells, rows, parts that are published or stocks. Groups keep their numbers
//! for ever.

use std::collections::{BTreeMap, BTreeSet};

use super::Setup;

/// A place of bytes: `None` for no node.
pub(super) type Spot = Option<u16>;

pub(super) struct TwinGroup {
    pub(super) parent: Option<usize>,
    pub(super) online: bool,
    pub(super) max: u64,
    /// Has memory there, or has had, or one below.
    pub(super) parts: BTreeSet<u16>,
}

#[derive(Clone, Default)]
pub(super) struct TwinKmem {
    pub(super) group: usize,
    /// By spot and by the group that is accounted for it.
    pub(super) places: BTreeMap<(Spot, usize), u64>,
    pub(super) promised: u64,
}

impl TwinKmem {
    pub(super) fn on(&self, spot: Spot) -> u64 {
        self.places
            .iter()
            .filter(|((of, _), _)| *of == spot)
            .map(|(_, bytes)| bytes)
            .sum()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.places.values().sum()
    }

    pub(super) fn take(&mut self, spot: Spot, bytes: u64) -> u64 {
        let mut left = bytes;
        for (_, here) in self.places.iter_mut().filter(|((of, _), _)| *of == spot) {
            let gone = left.min(*here);
            *here -= gone;
            left -= gone;
        }
        bytes - left
    }
}

pub(super) struct Twin {
    pub(super) numbers: Vec<u16>,
    pub(super) groups: Vec<TwinGroup>,
    pub(super) precharges: Vec<(usize, u64, bool)>,
    pub(super) held: Vec<TwinKmem>,
    pub(super) tier_max: u64,
}

impl Twin {
    pub(super) fn new(setup: &Setup) -> Self {
        let root = TwinGroup {
            parent: None,
            online: true,
            max: setup.max,
            parts: BTreeSet::new(),
        };
        let numbers: Vec<u16> = setup.nodes.iter().copied().collect();
        Twin {
            numbers,
            groups: vec![root],
            precharges: Vec::new(),
            held: Vec::new(),
            tier_max: setup.tier_max,
        }
    }

    pub(super) fn levels(&self, group: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(group), |&group| self.groups[group].parent)
    }

    pub(super) fn is_within(&self, group: usize, top: usize) -> bool {
        self.levels(group).any(|level| level == top)
    }

    /// As the machine sees it: with one node all is there.
    pub(super) fn spot(&self, at: u8) -> Spot {
        if self.numbers.len() == 1 {
            Some(self.numbers[0])
        } else {
            self.numbers.get(usize::from(at)).copied()
        }
    }

    /// The first half.
    pub(super) fn is_fast(&self, spot: Spot) -> bool {
        let fast = &self.numbers[..self.numbers.len().div_ceil(2)];
        spot.is_some_and(|of| fast.contains(&of))
    }

    pub(super) fn live(&self, top: usize) -> u64 {
        let held: u64 = self
            .held
            .iter()
            .filter(|kmem| self.is_within(kmem.group, top))
            .map(TwinKmem::bytes)
            .sum();
        let ahead: u64 = self
            .precharges
            .iter()
            .filter(|(group, ..)| self.is_within(*group, top))
            .map(|(_, bytes, _)| bytes)
            .sum();
        held + ahead
    }

    pub(super) fn on_tier(&self, kmem: &TwinKmem) -> u64 {
        kmem.places
            .iter()
            .filter(|((spot, _), _)| self.is_fast(*spot))
            .map(|(_, bytes)| bytes)
            .sum()
    }

    pub(super) fn tier(&self) -> u64 {
        let ahead: u64 = self
            .precharges
            .iter()
            .filter(|(.., asked)| *asked)
            .map(|(_, bytes, _)| bytes)
            .sum();
        ahead
            + self
                .held
                .iter()
                .map(|kmem| self.on_tier(kmem) + kmem.promised)
                .sum::<u64>()
    }

    pub(super) fn has_room(&self, group: usize, bytes: u64, below: Option<usize>) -> bool {
        let levels: Vec<usize> = self
            .levels(group)
            .take_while(|level| Some(*level) != below)
            .collect();
        levels
            .into_iter()
            .all(|level| bytes == 0 || self.live(level) + bytes <= self.groups[level].max)
    }

    pub(super) fn common(&self, a: usize, b: usize) -> usize {
        self.levels(a)
            .find(|&level| self.is_within(b, level))
            .unwrap_or(0)
    }

    /// The group that is accounted: the nearest that has statistics there, or may make them.
    pub(super) fn put(&mut self, kmem: &mut TwinKmem, spot: Spot, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let is_one_node = self.numbers.len() == 1;
        let at = match spot {
            Some(of) if !is_one_node => {
                let takes = |&level: &usize| {
                    let level = &self.groups[level];
                    level.online || level.parent.is_none() || level.parts.contains(&of)
                };
                let at = self.levels(kmem.group).find(takes).unwrap_or(0);
                let levels: Vec<usize> = self.levels(at).collect();
                for level in levels {
                    self.groups[level].parts.insert(of);
                }
                at
            }
            _ => kmem.group,
        };
        *kmem.places.entry((spot, at)).or_default() += bytes;
    }

    /// Sets the bytes that are promised of a tier after something has moved.
    pub(super) fn settle(&self, kmem: &mut TwinKmem, before: &TwinKmem) {
        let was = self.on_tier(before);
        let is = self.on_tier(kmem);
        let nowhere = before.on(None);
        let still = kmem.on(None);
        let taken_up = is.saturating_sub(was).min(nowhere.saturating_sub(still));
        let given_up = was.saturating_sub(is).min(still.saturating_sub(nowhere));
        kmem.promised = (kmem.promised.saturating_sub(taken_up) + given_up).min(still);
    }

    /// Bytes by node of a group alone, or of all below it.
    pub(super) fn figures(&self, top: usize, is_local: bool) -> BTreeMap<Spot, i64> {
        let mut figures = BTreeMap::new();
        for ((spot, at), bytes) in self.held.iter().flat_map(|kmem| &kmem.places) {
            if *at == top || !is_local && self.is_within(*at, top) {
                *figures.entry(*spot).or_default() += bytes.cast_signed();
            }
        }
        figures
    }
}
