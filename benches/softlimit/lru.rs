//! The pages of one file: found by block number, in the order of their last use.

#![cfg(not(loom))]

use memcg::Charge;

pub(crate) const PAGE: u64 = 4_096;

const WORDS: usize = PAGE as usize / size_of::<u64>();

const NONE: u32 = u32::MAX;

/// A block in memory, and what pays for it. The memory goes first.
pub(crate) struct Page {
    words: Box<[u64; WORDS]>,
    _charge: Charge,
}

impl Page {
    /// Reads a block. What a read from a device costs is the work of making up the words, `rounds`
    /// for each, none of which can begin before the last has ended.
    pub(crate) fn read(block: u32, rounds: u32, charge: Charge) -> Self {
        let mut words = Box::new([0; WORDS]);
        let mut word = u64::from(block);
        for slot in words.iter_mut() {
            *slot = word;
            for _ in 0..rounds {
                word = (word ^ (word >> 31))
                    .wrapping_mul(0xff51_afd7_ed55_8ccd)
                    .rotate_left(17);
            }
            word = word.wrapping_add(1);
        }
        Page {
            words,
            _charge: charge,
        }
    }
}

struct Block {
    page: Option<Page>,
    newer: u32,
    older: u32,
    /// There was a page before.
    seen: bool,
}

/// An array by block number, where the kernel has a radix tree.
pub(crate) struct Lru {
    blocks: Vec<Block>,
    newest: u32,
    oldest: u32,
    len: usize,
}

impl Lru {
    pub(crate) fn new(blocks: usize) -> Self {
        let block = || Block {
            page: None,
            newer: NONE,
            older: NONE,
            seen: false,
        };
        Lru {
            blocks: (0..blocks).map(|_| block()).collect(),
            newest: NONE,
            oldest: NONE,
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// True if the block is in memory; if so, it is now the one that was used last.
    pub(crate) fn hit(&mut self, block: u32) -> bool {
        let Some(page) = &self.blocks[block as usize].page else {
            return false;
        };
        assert_eq!(page.words[0], u64::from(block), "the page of another block");
        self.unlink(block);
        self.link(block);
        true
    }

    /// True if the block has been in memory before.
    pub(crate) fn seen(&self, block: u32) -> bool {
        self.blocks[block as usize].seen
    }

    /// Gives the page back where another has come first.
    pub(crate) fn insert(&mut self, block: u32, page: Page) -> Option<Page> {
        let at = &mut self.blocks[block as usize];
        if at.page.is_some() {
            return Some(page);
        }
        at.page = Some(page);
        at.seen = true;
        self.link(block);
        self.len += 1;
        None
    }

    /// Takes the page that was used longest ago.
    fn pop(&mut self) -> Option<Page> {
        if self.oldest == NONE {
            return None;
        }
        let oldest = self.oldest;
        self.unlink(oldest);
        self.len -= 1;
        self.blocks[oldest as usize].page.take()
    }

    pub(crate) fn pop_many(&mut self, pages: usize) -> Vec<Page> {
        let mut popped = Vec::with_capacity(pages);
        popped.extend(std::iter::from_fn(|| self.pop()).take(pages));
        popped
    }

    fn link(&mut self, block: u32) {
        let newest = std::mem::replace(&mut self.newest, block);
        let at = &mut self.blocks[block as usize];
        at.newer = NONE;
        at.older = newest;
        match newest {
            NONE => self.oldest = block,
            newest => self.blocks[newest as usize].newer = block,
        }
    }

    fn unlink(&mut self, block: u32) {
        let Block { newer, older, .. } = self.blocks[block as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.blocks[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.blocks[older as usize].newer = newer,
        }
    }
}
