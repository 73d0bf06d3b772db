//! The bytes of an entry, and what an entry costs.
//!
//! An entry's bytes are random, seeded by its key and version: so every byte can be checked without
//! a copy of it.

use memcg::{Charge, StatKey};
use rand::{Rng, SeedableRng};
use smallvec::SmallVec;

use crate::load::Random;

use crate::shelf::Key;

/// The value that a cache keeps under a key.
pub(crate) struct Entry {
    /// Pays for all of it, see [`footprint`]; goes with it.
    pub(crate) charge: Charge,
    pub(crate) block: Block,
    /// Which write the block is of: 0 is what a fill brings.
    pub(crate) version: u32,
}

/// Key and value, one after the other, in pieces: no hole that a small block leaves in the heap is
/// too small for a part of a large one. With blocks in one piece a third and more of the heap is
/// holes after some seconds.
pub(crate) struct Block(SmallVec<[Box<[u8]>; 1]>);

/// Bytes in a piece; the last of a block is what remains.
const PIECE: usize = 1 << 12;

impl Entry {
    /// True if the block is what `fill` made of key and version, to the last byte.
    pub(crate) fn holds(&self, key: u64, salt: u64) -> bool {
        let mut bytes = bytes(key, self.version, salt);
        let mut expected = [0; PIECE];
        self.block.0.iter().all(|piece| {
            bytes.fill_bytes(&mut expected[..piece.len()]);
            expected[..piece.len()] == **piece
        })
    }

    /// Frees the block, then gives its charge back; returns that.
    pub(crate) fn free(self) -> u64 {
        let Self { charge, block, .. } = self;
        drop(block);
        let bytes = charge.bytes();
        charge.stat_add(StatKey::FILE, -bytes.cast_signed());
        drop(charge);
        bytes
    }
}

impl Block {
    /// The block of a key and version; `None` where there is no memory for it.
    pub(crate) fn fill(key: u64, version: u32, salt: u64, size: u64) -> Option<Self> {
        let mut rest = usize::try_from(size).ok()?;
        let mut bytes = bytes(key, version, salt);
        let mut pieces = SmallVec::new();
        pieces.try_reserve_exact(rest.div_ceil(PIECE)).ok()?;
        while rest > 0 {
            let mut piece = Vec::new();
            piece.try_reserve_exact(rest.min(PIECE)).ok()?;
            piece.resize(rest.min(PIECE), 0);
            bytes.fill_bytes(&mut piece);
            rest -= piece.len();
            pieces.push(piece.into_boxed_slice());
        }
        Some(Self(pieces))
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.iter().map(|piece| piece.len() as u64).sum()
    }
}

/// The salt keeps equal keys of two tenants apart: an entry in the wrong cache shows.
fn bytes(key: u64, version: u32, salt: u64) -> Random {
    Random::seed_from_u64(scramble(scramble(key, salt), u64::from(version)))
}

/// Mixes two words into one that looks random (the finaliser of SplitMix64).
pub(crate) fn scramble(a: u64, b: u64) -> u64 {
    let mut word = a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A node of the map with its key, its value and two links; and its place in a hash table that is
/// half full.
const PLACE: u64 =
    chunk((size_of::<Key>() + size_of::<Entry>() + 2 * size_of::<usize>()) as u64) + 30;

/// All that an entry takes from the machine: the pieces of its block, their list, and its place in
/// the map.
pub(crate) const fn footprint(block: u64) -> u64 {
    let whole = block / PIECE as u64;
    let rest = block % PIECE as u64;
    let rest_chunk = if rest > 0 { chunk(rest) } else { 0 };
    let pieces = whole + (rest > 0) as u64;
    let list = if pieces > 1 {
        chunk(pieces * size_of::<Box<[u8]>>() as u64)
    } else {
        0
    };
    whole
        .saturating_mul(chunk(PIECE as u64))
        .saturating_add(rest_chunk + list + PLACE)
}

/// Bytes that the allocator takes for `bytes`: a word of its own, rounded up (glibc's figures;
/// others come close).
const fn chunk(bytes: u64) -> u64 {
    let rounded = bytes.saturating_add(8 + 15) & !15;
    if rounded < 32 { 32 } else { rounded }
}
