//! A chunk: a unit of memory for each processor, and the metadata of its granules.
//!
//! ```text
//! data    unit of processor 0 | unit of processor 1 | ...    each on its processor's node
//! words   the owner of what starts in granule 0, 1, ...      on any node
//! ```
//!
//! Source: `struct pcpu_chunk` and its `obj_exts` in `mm/percpu-internal.h`.

use std::ptr::NonNull;

use memcg::StatKey;
use memcg::kmem::Precharge;

use super::bits::GranuleBits;
use super::page_nodes::{Addresses, FoundCopies, NodeSums, PageNodes};
use super::plan::{OwnerWord, Plan};
use super::records::{Account, ObjectAccount, Records};
use crate::error::KmemError;
use crate::mapping::Mapping;

pub(super) struct Chunk {
    data: Mapping,
    words: Mapping,
    bits: GranuleBits,
    /// `None` with one node, and before the first look-up.
    nodes: Option<PageNodes>,
    /// Number of look-ups that have ended.
    pub(super) generation: u64,
    /// Number of look-ups that have begun.
    asked: u64,
    pub(super) records: Records,
    /// No two chunks of an allocator ever have the same serial number.
    pub(super) serial: u64,
}

impl Chunk {
    /// Maps and touches a chunk. This calls the system: the caller holds no lock.
    pub(super) fn map(plan: &Plan, is_one_node: bool) -> Result<Chunk, KmemError> {
        let mut data = Mapping::new(plan.data_len)?;
        let mut words = Mapping::new(plan.words_len)?;
        if !is_one_node {
            let start = data.range().start;
            let unit = plan.shape.unit();
            for (number, node) in plan.units.iter().enumerate() {
                data.bind(start + number * unit..start + (number + 1) * unit, *node);
            }
        }
        data.touch();
        words.touch();
        Ok(Chunk {
            data,
            words,
            bits: GranuleBits::new(plan.shape.unit() / plan.shape.granule()),
            nodes: None,
            generation: 0,
            asked: 0,
            records: Records::default(),
            serial: 0,
        })
    }

    pub(super) fn addresses(&self) -> Addresses {
        Addresses {
            data: self.data.range().start,
            words: self.words.range().start,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bits.is_empty()
    }

    /// Takes the first free granules that fit, for an owner. `None`: there are none.
    #[inline]
    #[allow(unsafe_code)]
    pub(super) fn take(
        &mut self,
        plan: &Plan,
        granules: usize,
        align: usize,
        owner: OwnerWord,
    ) -> Option<usize> {
        let at = self.bits.take(granules, align)?;
        // Free granules have no owner already.
        if !owner.is_none() {
            // SAFETY: `word` returns an aligned address within the mapping, and the borrow is the
            // only one.
            unsafe { self.word(plan, at).write(owner) };
        }
        Some(at)
    }

    /// Accounts a precharge for an object where it lies, and keeps the account. This changes the
    /// chunk and the thread's own figures, so the caller holds the lock meanwhile. Returns the
    /// account's number; or the precharge, if the account takes more than that.
    #[inline]
    pub(super) fn account(
        &mut self,
        plan: &Plan,
        (at, granules): (usize, usize),
        precharge: Precharge,
    ) -> Result<u32, Precharge> {
        // The caller holds the lock, under which nothing is allocated.
        if !self.records.has_room() {
            return Err(precharge);
        }
        let nodes = self.nodes.as_ref();
        let Some(parts) = nodes.and_then(|nodes| nodes.parts(plan, at, granules)) else {
            return Err(precharge);
        };
        let packed = precharge.try_account_as(StatKey::PERCPU, parts.get())?;
        let account = ObjectAccount {
            account: Account::Packed(packed),
            at: at as u32,
            granules: granules as u32,
            generation: self.generation,
        };
        Ok(self.records.keep(account))
    }

    #[inline]
    #[allow(unsafe_code)]
    pub(super) fn give_back(&mut self, plan: &Plan, at: usize, granules: usize) {
        // SAFETY: as in `take`.
        unsafe { self.word(plan, at).write(OwnerWord::NONE) };
        self.bits.give_back(at, granules);
    }

    /// The owner of what starts at an address. `None`: the address is not in this chunk's data.
    #[allow(unsafe_code)]
    pub(super) fn owner_at(&self, plan: &Plan, address: usize) -> Option<OwnerWord> {
        let offset = address
            .checked_sub(self.data.range().start)
            .filter(|&offset| offset < plan.data_len)?;
        let in_unit = offset % plan.shape.unit();
        if !in_unit.is_multiple_of(plan.shape.granule()) {
            return Some(OwnerWord::NONE);
        }
        // SAFETY: as in `take`.
        Some(unsafe { self.word(plan, in_unit / plan.shape.granule()).read() })
    }

    /// The word of a granule. It is within the mapping, which has a word for each granule of a
    /// unit, and at a multiple of a word's size.
    fn word(&self, plan: &Plan, granule: usize) -> *mut OwnerWord {
        self.words
            .start()
            .as_ptr()
            .wrapping_add(granule * plan.shape.word())
            .cast()
    }

    /// The copy in the first unit of what starts at a granule.
    #[inline]
    pub(super) fn first_copy(&self, plan: &Plan, at: usize) -> NonNull<u8> {
        // The mapping does not start at zero, so no address in it is zero.
        let first = self
            .data
            .start()
            .as_ptr()
            .wrapping_add(at * plan.shape.granule());
        NonNull::new(first).unwrap_or(self.data.start())
    }

    // === Where it lies ===

    /// Begins a look-up. Returns its number.
    pub(super) fn ask(&mut self) -> u64 {
        self.asked += 1;
        self.asked
    }

    /// Takes over what a look-up has found. Returns what the caller drops without the lock.
    pub(super) fn found(&mut self, plan: &Plan, found: FoundCopies) -> Option<FoundCopies> {
        self.generation += 1;
        let (nodes, old) = match self.nodes.take() {
            Some(mut nodes) => {
                let old = nodes.replace(found, plan);
                (nodes, Some(old))
            }
            None => (PageNodes::new(plan, found), None),
        };
        self.nodes = Some(nodes);
        old
    }

    /// Adds where an object lies, by the last look-up.
    #[inline]
    pub(super) fn sum(&self, plan: &Plan, at: usize, granules: usize, sums: &mut NodeSums) {
        match &self.nodes {
            Some(nodes) => nodes.sum(plan, at, granules, sums),
            // There was no look-up yet.
            None => sums.add_unplaced(plan.full_size(granules)),
        }
    }
}
