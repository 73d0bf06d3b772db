//! The bytes of an entry, and what an entry costs.
//!
//! An entry's bytes follow from its key and version, counted from the end: so a prepend leaves what
//! is there as it is, and every byte can be checked without a copy of it.

use memcg::{Charge, Stat};
use smallvec::SmallVec;

use super::lru::LruMap;

/// The value that a cache keeps under a key.
pub(crate) struct Entry {
    /// Pays for all of it, see [`footprint`]; goes with it.
    pub(crate) charge: Charge,
    pub(crate) block: Block,
    /// Which write the block is of: 0 is what a fill brings.
    pub(crate) version: u32,
}

/// Key and value, one after the other, in pieces: no hole that a small block leaves in the heap is too small for a part
/// of a large one. With blocks in one piece a third and more of the heap is holes after some seconds.
pub(crate) struct Block(SmallVec<[Box<[u8]>; 1]>);

/// Bytes in a piece; the first of a block is what remains.
const PIECE: usize = 1 << 12;

const WORD: usize = size_of::<u64>();

impl Entry {
    /// True if the block has the bytes that `fill` made of key and version, to the last one.
    pub(crate) fn holds(&self, key: u64, salt: u64) -> bool {
        let mut words = Words::new(key, self.version, salt);
        self.block.0.iter().all(|piece| words.match_end(piece))
    }

    /// Counts what the entry has come to take, after so much before.
    pub(crate) fn recount(&self, before: u64) {
        self.charge.stat_add(Stat::FILE, self.charge.bytes().cast_signed() - before.cast_signed());
    }

    /// Frees the block, then gives its charge back; returns that.
    pub(crate) fn free(self) -> u64 {
        let Self { charge, block, .. } = self;
        drop(block);
        let bytes = charge.bytes();
        charge.stat_add(Stat::FILE, -bytes.cast_signed());
        drop(charge);
        bytes
    }
}

impl Block {
    /// The block of a key and version; `None` where there is no memory for it.
    pub(crate) fn fill(key: u64, version: u32, salt: u64, size: u64) -> Option<Self> {
        let mut rest = usize::try_from(size).ok()?;
        let mut pieces = SmallVec::new();
        pieces.try_reserve_exact(rest.div_ceil(PIECE)).ok()?;
        let mut words = Words::new(key, version, salt);
        while rest > 0 {
            let mut piece = Vec::new();
            piece.try_reserve_exact(rest.min(PIECE)).ok()?;
            piece.resize(rest.min(PIECE), 0);
            words.write_end(&mut piece);
            rest -= piece.len();
            pieces.push(piece.into_boxed_slice());
        }
        Some(Self(pieces))
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.iter().map(|piece| piece.len() as u64).sum()
    }
}

/// The words of a block, from its end on.
struct Words {
    next: u64,
}

impl Words {
    fn new(key: u64, version: u32, salt: u64) -> Self {
        Self { next: seed(key, version, salt) }
    }

    fn write_end(&mut self, piece: &mut [u8]) {
        let (front, words) = piece.as_rchunks_mut::<WORD>();
        for (index, place) in words.iter_mut().rev().enumerate() {
            *place = word(self.next, index);
        }
        let front_word = word(self.next, words.len());
        front.copy_from_slice(&front_word[WORD - front.len()..]);
        self.next = self.next.wrapping_add((words.len() as u64 + 1).wrapping_mul(GOLDEN));
    }

    fn match_end(&mut self, piece: &[u8]) -> bool {
        let (front, words) = piece.as_rchunks::<WORD>();
        let holds = words.iter().rev().enumerate().all(|(index, found)| *found == word(self.next, index))
            && word(self.next, words.len()).ends_with(front);
        self.next = self.next.wrapping_add((words.len() as u64 + 1).wrapping_mul(GOLDEN));
        holds
    }
}

/// The salt keeps equal keys of two tenants apart: an entry in the wrong cache shows.
fn seed(key: u64, version: u32, salt: u64) -> u64 {
    scramble(scramble(key, salt), u64::from(version))
}

/// The word that stands `index` words before the last; no two words of a block are the same.
fn word(seed: u64, index: usize) -> [u8; WORD] {
    seed.wrapping_add((index as u64).wrapping_mul(GOLDEN)).to_le_bytes()
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes two words into one that looks random (the finaliser of SplitMix64).
pub(crate) fn scramble(a: u64, b: u64) -> u64 {
    let mut word = a ^ b.wrapping_mul(GOLDEN);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// All that an entry takes from the machine: the pieces of its block, their list, and its place in the map.
pub(crate) const fn footprint(block: u64) -> u64 {
    let (whole, rest) = (block / PIECE as u64, block % PIECE as u64);
    let rest_chunk = if rest > 0 { chunk(rest) } else { 0 };
    let pieces = whole + (rest > 0) as u64;
    let list = if pieces > 1 { chunk(pieces * size_of::<Box<[u8]>>() as u64) } else { 0 };
    let place = LruMap::<Entry>::COST as u64;
    whole.saturating_mul(chunk(PIECE as u64)).saturating_add(rest_chunk + list + place)
}

/// The bytes that the allocator takes for `bytes`: a word of its own, rounded up (glibc's figures; others come close).
const fn chunk(bytes: u64) -> u64 {
    let rounded = bytes.saturating_add(8 + 15) & !15;
    if rounded < 32 { 32 } else { rounded }
}
