//! The nodes of a chunk's pages: for each page of a unit, the number of processors' copies of it on
//! each node.
//!
//! So an account costs a few additions for each page of an object and each node with copies, for
//! any number of processors. The allocator fills the table before any object is in the chunk, and
//! again for pages that have moved.

use std::ops::Range;

use memcg::Bytes;
use memcg::kmem::{NodeId, NodeOf, PageNode, Placement, Topology, look_up_each};
use smallvec::{SmallVec, smallvec};

use super::plan::Plan;
use super::records::PLACES;

/// Bytes of an object by the place of the node, and behind them those on no known node. The list is
/// made before a thread takes the lock, so that nothing allocates under it.
pub(super) struct NodeSums(SmallVec<[u64; 9]>);

impl NodeSums {
    #[inline]
    pub(super) fn new(topology: &Topology) -> NodeSums {
        NodeSums(smallvec![0; topology.nodes().len() + 1])
    }

    #[inline(always)]
    fn add(&mut self, place: usize, bytes: u64) {
        if let Some(sum) = self.0.get_mut(place) {
            *sum += bytes;
        }
    }

    #[inline(always)]
    pub(super) fn add_unplaced(&mut self, bytes: u64) {
        self.add(self.0.len() - 1, bytes);
    }

    #[inline]
    pub(super) fn placement(&self, topology: &Topology) -> Placement {
        let mut placement = Placement::new();
        for (node, &bytes) in topology.nodes().map(Some).chain([None]).zip(&self.0) {
            placement.add(node, Bytes(bytes));
        }
        placement
    }
}

#[derive(Clone, Default)]
pub(super) struct PageCopies {
    /// By place among the topology's nodes.
    nodes: SmallVec<[(u16, u32); 3]>,
    /// On no known node.
    unplaced: u32,
    /// The same by the chunk's few places, if it has so few.
    few: [u32; PLACES],
    /// The number of the look-up that found this.
    asked: u64,
}

/// The pages of a unit, and of the metadata.
pub(super) struct PageNodes {
    data: Box<[PageCopies]>,
    words: Box<[PageCopies]>,
    /// The nodes where all of the pages lie, if they are so few; one of them may be no node. No
    /// bytes yet.
    few: Option<Parts>,
    /// Bytes of each granule at these, if that is the same for all granules. It is as long as every
    /// unit lies on its processor's node, and saves most objects the look at their pages.
    each: Option<[u64; PLACES]>,
}

/// Bytes of an object by place, as a packed account takes them.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    places: [(Option<NodeId>, Bytes); PLACES],
    many: usize,
}

impl Parts {
    fn new(nodes: &[Option<NodeId>]) -> Parts {
        let mut places = [(None, Bytes(0)); PLACES];
        places
            .iter_mut()
            .zip(nodes)
            .for_each(|(place, node)| place.0 = *node);
        Parts {
            places,
            many: nodes.len().min(PLACES),
        }
    }

    /// Adds bytes at each place, for so many copies there.
    #[inline(always)]
    fn add(&mut self, bytes: u64, copies: &[u32; PLACES]) {
        for ((_, Bytes(part)), copies) in self.places[..self.many].iter_mut().zip(copies) {
            *part += bytes * u64::from(*copies);
        }
    }

    #[inline(always)]
    pub(super) fn get(&self) -> &[(Option<NodeId>, Bytes)] {
        &self.places[..self.many]
    }
}

/// The addresses of a chunk, for a thread that looks its pages up without the lock.
#[derive(Clone, Copy)]
pub(super) struct Addresses {
    pub(super) data: usize,
    pub(super) words: usize,
}

/// The result of a look-up: pages of a unit, and of the metadata.
pub(super) struct FoundCopies {
    data: Vec<(usize, PageCopies)>,
    words: Vec<(usize, PageCopies)>,
}

impl PageCopies {
    fn add(&mut self, found: PageNode, topology: &Topology) {
        let place = |node| topology.nodes().position(|of| of == node);
        let Some(place) = found.node().and_then(place) else {
            self.unplaced += 1;
            return;
        };
        let node = place as u16;
        match self.nodes.iter_mut().find(|(of, _)| *of == node) {
            Some((_, copies)) => *copies += 1,
            None => self.nodes.push((node, 1)),
        }
    }

    #[inline(always)]
    fn sum(&self, bytes: u64, sums: &mut NodeSums) {
        for (place, copies) in &self.nodes {
            sums.add((*place).into(), bytes * u64::from(*copies));
        }
        sums.add_unplaced(bytes * u64::from(self.unplaced));
    }

    /// Sorts the copies by the places seen so far, and those seen here first. False: the places are
    /// too many.
    fn sort(&mut self, seen: &mut SmallVec<[Option<u16>; PLACES]>) -> bool {
        self.few = [0; PLACES];
        let unplaced = (self.unplaced > 0).then_some((None, self.unplaced));
        let placed = self
            .nodes
            .iter()
            .map(|&(place, copies)| (Some(place), copies));
        for (place, copies) in placed.chain(unplaced) {
            let at = match seen.iter().position(|of| *of == place) {
                Some(at) => at,
                None if seen.len() == PLACES => return false,
                None => {
                    seen.push(place);
                    seen.len() - 1
                }
            };
            self.few[at] = copies;
        }
        true
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
        let has_moved =
            |start: usize| start < moved.end && moved.start < start.saturating_add(plan.page);
        let look_up = |pages: usize, first: usize, copies: usize| {
            let mut found = Vec::new();
            for page in 0..pages {
                let addresses = (0..copies).map(|copy| first + page * plan.page + copy * unit);
                if addresses.clone().any(has_moved) {
                    let mut copies = PageCopies {
                        asked,
                        ..PageCopies::default()
                    };
                    look_up_each(node_of, addresses, |found| {
                        copies.add(found, &plan.topology)
                    });
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
        let data = plan.shape.unit() / plan.page;
        let words = plan.words_len.div_ceil(plan.page);
        let mut nodes = PageNodes {
            data: empty(data),
            words: empty(words),
            few: None,
            each: None,
        };
        drop(nodes.replace(found, plan));
        nodes
    }

    /// Takes over what a look-up has found, except for pages that a later look-up has told of
    /// already. Returns what it replaces. Allocates nothing, for the thread holds the lock.
    pub(super) fn replace(&mut self, mut found: FoundCopies, plan: &Plan) -> FoundCopies {
        for (pages, found) in [
            (&mut self.data, &mut found.data),
            (&mut self.words, &mut found.words),
        ] {
            for (page, copies) in found {
                if pages[*page].asked <= copies.asked {
                    std::mem::swap(&mut pages[*page], copies);
                }
            }
        }
        let mut seen = SmallVec::new();
        let mut pages = self.data.iter_mut().chain(&mut self.words);
        // Where the places are too many the rest stays unsorted: `few` of the pages is read only if
        // `few` here is there.
        let are_few = pages.all(|copies| copies.sort(&mut seen));
        let node = |place: u16| plan.topology.nodes().nth(place.into());
        let nodes: SmallVec<[_; PLACES]> = seen.iter().map(|of| of.and_then(node)).collect();
        self.few = are_few.then(|| Parts::new(&nodes));
        self.each = are_few.then(|| self.each_granule(plan)).flatten();
        found
    }

    /// Bytes of a granule by place, its words among them. `None`: granules differ.
    fn each_granule(&self, plan: &Plan) -> Option<[u64; PLACES]> {
        let same = |pages: &[PageCopies]| {
            let first = pages.first()?.few;
            pages.iter().all(|of| of.few == first).then_some(first)
        };
        let data = same(&self.data)?.map(|copies| u64::from(copies) * plan.shape.granule() as u64);
        let words = same(&self.words)?.map(|copies| u64::from(copies) * plan.shape.word() as u64);
        Some(std::array::from_fn(|place| data[place] + words[place]))
    }

    /// The places of an object, to the byte, if the chunk lies in few.
    #[inline(always)]
    pub(super) fn parts(&self, plan: &Plan, at: usize, granules: usize) -> Option<Parts> {
        let mut parts = self.few?;
        if let Some(each) = &self.each {
            for ((_, Bytes(part)), each) in parts.places.iter_mut().zip(each) {
                *part = granules as u64 * each;
            }
            return Some(parts);
        }
        // Mutation: what-lies-on-two-pages-is-on-the-first
        for (page, bytes) in plan.pages(plan.in_unit(at, granules)) {
            parts.add(bytes, &self.data[page].few);
        }
        for (page, bytes) in plan.pages(plan.in_words(at, granules)) {
            parts.add(bytes, &self.words[page].few);
        }
        Some(parts)
    }

    /// Adds where an object lies, to the byte.
    #[inline(always)]
    pub(super) fn sum(&self, plan: &Plan, at: usize, granules: usize, sums: &mut NodeSums) {
        for (page, bytes) in plan.pages(plan.in_unit(at, granules)) {
            self.data[page].sum(bytes, sums);
        }
        for (page, bytes) in plan.pages(plan.in_words(at, granules)) {
            self.words[page].sum(bytes, sums);
        }
    }
}
