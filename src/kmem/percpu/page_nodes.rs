//! Where the pages of a chunk lie: for each page of a unit, how many processors' copies of it are on each node.
//!
//! So an account costs a few additions for each page of an object and each node with copies, for any number of
//! processors. The allocator fills the table before any object is in the chunk, and again for pages that have moved.

use std::ops::Range;

use smallvec::SmallVec;

use super::plan::Plan;
use super::small_account::{SHARES_MAX, Shares};
use crate::kmem::lines::node_of;
use crate::kmem::placement::Placement;
use crate::numa::node_of::look_up_each;
use crate::numa::{NodeOf, PageNode, Topology};
use crate::stat::published::StatScope;
use crate::units::Bytes;

#[derive(Clone, Default)]
pub(super) struct PageCopies {
    /// By place among the topology's nodes.
    nodes: SmallVec<[(u16, u32); 3]>,
    /// On no known node.
    unplaced: u32,
    /// The number of the look-up that found this.
    asked: u64,
}

/// The pages of a unit, and of the metadata.
pub(super) struct PageNodes {
    data: Box<[PageCopies]>,
    words: Box<[PageCopies]>,
}

/// The addresses of a chunk, for a thread that looks its pages up without the lock.
#[derive(Clone, Copy)]
pub(super) struct Addresses {
    pub(super) data: usize,
    pub(super) words: usize,
}

/// What a look-up has found: pages of a unit, and of the metadata.
pub(super) struct FoundCopies {
    data: Vec<(usize, PageCopies)>,
    words: Vec<(usize, PageCopies)>,
}

impl PageCopies {
    fn add(&mut self, found: PageNode, topology: &Topology) {
        let Some(node) = found.node().and_then(|node| topology.index_of(node)) else {
            self.unplaced += 1;
            return;
        };
        let node = node as u16;
        match self.nodes.iter_mut().find(|(of, _)| *of == node) {
            Some((_, copies)) => *copies += 1,
            None => self.nodes.push((node, 1)),
        }
    }

    #[inline(always)]
    fn share(&self, bytes: u64, shares: &mut Shares) {
        for (node, copies) in &self.nodes {
            shares.add(StatScope::On(*node), bytes * u64::from(*copies));
        }
        if self.unplaced > 0 {
            shares.add(StatScope::Group, bytes * u64::from(self.unplaced));
        }
    }

    /// The scope of each copy's bytes, with the sum.
    fn spread(&self, bytes: u64) -> impl Iterator<Item = (StatScope, u64)> {
        let on = move |(node, copies): &(u16, u32)| (StatScope::On(*node), bytes * u64::from(*copies));
        let unplaced = (self.unplaced > 0).then(|| (StatScope::Group, bytes * u64::from(self.unplaced)));
        self.nodes.iter().map(on).chain(unplaced)
    }
}

impl FoundCopies {
    /// Looks up the pages with an address in `moved`. Calls foreign code: the caller holds no lock.
    pub(super) fn look_up(
        plan: &Plan,
        at: Addresses,
        moved: &Range<usize>,
        node_of: &dyn NodeOf,
        asked: u64,
    ) -> FoundCopies {
        let unit = plan.shape.unit();
        let has_moved = |start: usize| start < moved.end && moved.start < start.saturating_add(plan.page);
        let look_up = |pages: usize, first: usize, copies: usize| {
            let mut found = Vec::new();
            for page in 0..pages {
                let addresses = (0..copies).map(|copy| first + page * plan.page + copy * unit);
                if addresses.clone().any(has_moved) {
                    let mut copies = PageCopies { asked, ..PageCopies::default() };
                    look_up_each(node_of, addresses, |found| copies.add(found, &plan.topology));
                    found.push((page, copies));
                }
            }
            found
        };
        FoundCopies {
            data: look_up(unit / plan.page, at.data, plan.units.len()),
            words: look_up(plan.words_len.div_ceil(plan.page), at.words, 1),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.data.is_empty() && self.words.is_empty()
    }
}

impl PageNodes {
    pub(super) fn new(plan: &Plan, found: FoundCopies) -> PageNodes {
        let empty = |pages: usize| vec![PageCopies::default(); pages].into_boxed_slice();
        let (data, words) = (plan.shape.unit() / plan.page, plan.words_len.div_ceil(plan.page));
        let mut nodes = PageNodes { data: empty(data), words: empty(words) };
        drop(nodes.replace(found));
        nodes
    }

    /// Takes over what a look-up has found, except for pages that a later look-up has told of already. Returns what it
    /// replaces.
    pub(super) fn replace(&mut self, mut found: FoundCopies) -> FoundCopies {
        for (pages, found) in [(&mut self.data, &mut found.data), (&mut self.words, &mut found.words)] {
            for (page, copies) in found {
                if pages[*page].asked <= copies.asked {
                    std::mem::swap(&mut pages[*page], copies);
                }
            }
        }
        found
    }

    /// Whether the pages are in so few scopes that [`Shares`] has room for them.
    pub(super) fn are_few(&self) -> bool {
        let mut seen = SmallVec::<[StatScope; SHARES_MAX]>::new();
        for (scope, _) in self.data.iter().chain(&self.words).flat_map(|copies| copies.spread(1)) {
            if !seen.contains(&scope) {
                if seen.len() == SHARES_MAX {
                    return false;
                }
                seen.push(scope);
            }
        }
        true
    }

    /// Where an object lies, to the byte. All pages are in [few](Self::are_few) scopes.
    #[inline(always)]
    pub(super) fn share(&self, plan: &Plan, at: usize, granules: usize, shares: &mut Shares) {
        for (page, bytes) in plan.pages(plan.in_unit(at, granules)) {
            self.data[page].share(bytes, shares);
        }
        for (page, bytes) in plan.pages(plan.in_words(at, granules)) {
            self.words[page].share(bytes, shares);
        }
    }

    fn spread(&self, plan: &Plan, at: usize, granules: usize) -> impl Iterator<Item = (StatScope, u64)> {
        let data = plan.pages(plan.in_unit(at, granules)).flat_map(|(page, bytes)| self.data[page].spread(bytes));
        let words = plan.pages(plan.in_words(at, granules)).flat_map(|(page, bytes)| self.words[page].spread(bytes));
        data.chain(words)
    }

    pub(super) fn placement(&self, plan: &Plan, at: usize, granules: usize) -> Placement {
        let mut placement = Placement::new();
        self.spread(plan, at, granules).for_each(|(scope, bytes)| {
            placement.add(node_of(scope, &plan.topology), Bytes(bytes));
        });
        placement
    }
}
