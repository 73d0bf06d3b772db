//! Where the pages of a chunk lie: for each page of a unit, how many processors' copies of it are on each node.
//!
//! With it an account costs a few additions for each page of an object and each node that has copies, however many
//! processors there are. It is filled before anybody has an object of the chunk, and again for what has moved.

use std::ops::Range;

use smallvec::SmallVec;

use super::shape::Plan;
use crate::kmem::placement::{NODES_COMMON, Placement};
use crate::numa::{NodeId, NodeOf, PageNode};

/// Pages that are looked up at a time.
const BATCH: usize = 64;

/// Copies of one page by node.
#[derive(Clone, Default)]
pub(super) struct Copies {
    nodes: SmallVec<[(NodeId, u32); 2]>,
    /// On no node that anybody knows.
    unplaced: u32,
    /// The look-up that found this.
    asked: u64,
}

/// The pages of a unit, and of the metadata.
pub(super) struct PageNodes {
    data: Box<[Copies]>,
    words: Box<[Copies]>,
}

/// Where a chunk lies, for those who look its pages up without having it.
#[derive(Clone, Copy)]
pub(super) struct Addresses {
    pub(super) data: usize,
    pub(super) words: usize,
}

/// What a look-up has found: pages of a unit, and of the metadata.
pub(super) struct Found {
    data: Vec<(usize, Copies)>,
    words: Vec<(usize, Copies)>,
}

impl Copies {
    fn add(&mut self, found: PageNode) {
        let PageNode::On(node) = found else {
            self.unplaced += 1;
            return;
        };
        match self.nodes.iter_mut().find(|(of, _)| *of == node) {
            Some((_, copies)) => *copies += 1,
            None => self.nodes.push((node, 1)),
        }
    }

    #[inline]
    fn add_to(&self, placement: &mut Placement, bytes: u64) {
        for (node, copies) in &self.nodes {
            placement.add(Some(*node), bytes * u64::from(*copies));
        }
        placement.add(None, bytes * u64::from(self.unplaced));
    }
}

impl Found {
    /// Looks up the pages that have an address in `moved`. Foreign code: the caller has no lock.
    pub(super) fn look_up(plan: &Plan, at: Addresses, moved: &Range<usize>, node_of: &dyn NodeOf, asked: u64) -> Found {
        let unit = plan.shape.unit();
        let has_moved = |start: usize| start < moved.end && moved.start < start.saturating_add(plan.page);
        let look_up = |pages: usize, first: usize, copies: usize| {
            let mut found = Vec::new();
            for page in 0..pages {
                let addresses = (0..copies).map(|copy| first + page * plan.page + copy * unit);
                if addresses.clone().any(has_moved) {
                    found.push((page, Found::copies(addresses, node_of, asked)));
                }
            }
            found
        };
        Found {
            data: look_up(unit / plan.page, at.data, plan.units.len()),
            words: look_up(plan.words_len.div_ceil(plan.page), at.words, 1),
        }
    }

    fn copies(mut addresses: impl Iterator<Item = usize>, node_of: &dyn NodeOf, asked: u64) -> Copies {
        let size = node_of.page_size().max(1);
        let mut copies = Copies { asked, ..Copies::default() };
        loop {
            let mut pages = [0; BATCH];
            let mut found = [PageNode::Untouched; BATCH];
            let mut many = 0;
            for (page, address) in pages.iter_mut().zip(&mut addresses) {
                *page = address - address % size;
                many += 1;
            }
            if many == 0 {
                return copies;
            }
            node_of.look_up(&pages[..many], &mut found[..many]);
            found[..many].iter().for_each(|found| copies.add(*found));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.data.is_empty() && self.words.is_empty()
    }
}

impl PageNodes {
    pub(super) fn new(plan: &Plan, found: Found) -> PageNodes {
        let empty = |pages: usize| vec![Copies::default(); pages].into_boxed_slice();
        let (data, words) = (plan.shape.unit() / plan.page, plan.words_len.div_ceil(plan.page));
        let mut nodes = PageNodes { data: empty(data), words: empty(words) };
        drop(nodes.replace(found));
        nodes
    }

    /// Takes over what was found, but for pages of which a look-up that began later has told already. Returns what stood
    /// there.
    pub(super) fn replace(&mut self, mut found: Found) -> Found {
        for (pages, found) in [(&mut self.data, &mut found.data), (&mut self.words, &mut found.words)] {
            for (page, copies) in found {
                if pages[*page].asked <= copies.asked {
                    std::mem::swap(&mut pages[*page], copies);
                }
            }
        }
        found
    }

    /// All of them are on so few nodes that no list of those allocates.
    pub(super) fn are_few(&self) -> bool {
        let mut seen = SmallVec::<[NodeId; NODES_COMMON]>::new();
        for (node, _) in self.data.iter().chain(&self.words).flat_map(|copies| &copies.nodes) {
            if !seen.contains(node) {
                if seen.len() == NODES_COMMON {
                    return false;
                }
                seen.push(*node);
            }
        }
        true
    }

    /// Where an object lies, to the byte.
    #[inline]
    pub(super) fn placement(&self, plan: &Plan, at: usize, granules: usize) -> Placement {
        let mut placement = Placement::new();
        for (page, bytes) in plan.pages(plan.in_unit(at, granules)) {
            self.data[page].add_to(&mut placement, bytes);
        }
        for (page, bytes) in plan.pages(plan.in_words(at, granules)) {
            self.words[page].add_to(&mut placement, bytes);
        }
        placement
    }
}
