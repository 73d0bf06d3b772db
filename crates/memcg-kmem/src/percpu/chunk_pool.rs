//! The chunks of an allocator, and what becomes of them.

use std::ops::Range;
use std::ptr::NonNull;

use memcg::kmem::{NodeId, NodeOf, Placement, Precharge};
use memcg::{Group, StatKey};

use super::chunk::Chunk;
use super::page_nodes::{Addresses, FoundCopies, NodeSums};
use super::plan::{OwnerWord, Plan};
use super::records::{Account, ObjectAccount, Records};
use crate::error::KmemError;
use crate::sync::{Arc, Mutex};

/// The chunks of an allocator. A thread holds the lock for a look into bits and tables, and never
/// while it calls foreign code.
pub(super) struct ChunkPool {
    pub(super) plan: Plan,
    pub(super) one_node: Option<NodeId>,
    pub(super) node_of: Arc<dyn NodeOf>,
    chunks: Mutex<Chunks>,
}

#[derive(Default)]
struct Chunks {
    chunks: Vec<Option<Box<Chunk>>>,
    empty: usize,
    serial: u64,
    /// Reports of moved pages so far.
    moves: u64,
}

pub(super) struct TakenGranules {
    pub(super) chunk: u32,
    pub(super) at: u32,
    pub(super) first: NonNull<u8>,
}

impl ChunkPool {
    pub(super) fn new(plan: Plan, one_node: Option<NodeId>, node_of: Arc<dyn NodeOf>) -> ChunkPool {
        ChunkPool {
            plan,
            one_node,
            node_of,
            chunks: Mutex::new(Chunks::default()),
        }
    }

    /// Takes free granules, from a new chunk where there are none.
    #[inline(always)]
    pub(super) fn take(
        &self,
        granules: usize,
        align: usize,
        owner: OwnerWord,
    ) -> Result<TakenGranules, KmemError> {
        loop {
            if let Some((taken, _)) = self.chunks.lock().take(&self.plan, granules, align, owner) {
                return Ok(taken);
            }
            self.add_chunk()?;
        }
    }

    /// As [`take`](Self::take), and accounts a precharge to the nodes where the granules lie. The
    /// chunk keeps the account, where a mover finds it, under the number that this returns.
    #[inline(always)]
    pub(super) fn take_charged(
        &self,
        granules: usize,
        align: usize,
        (owner, precharge): (OwnerWord, Precharge),
    ) -> Result<(TakenGranules, u32), KmemError> {
        loop {
            let mut chunks = self.chunks.lock();
            if let Some((taken, chunk)) = chunks.take(&self.plan, granules, align, owner) {
                let accounted = chunk.account(&self.plan, (taken.at as usize, granules), precharge);
                drop(chunks);
                let number = accounted
                    .unwrap_or_else(|precharge| self.account_slow(&taken, granules, precharge));
                return Ok((taken, number));
            }
            drop(chunks);
            self.add_chunk()?;
        }
    }

    /// Makes an account without the lock: this may make cells, allocate, or announce.
    #[cold]
    fn account_slow(&self, taken: &TakenGranules, granules: usize, precharge: Precharge) -> u32 {
        let (chunk, at, granules) = (taken.chunk as usize, taken.at, granules as u32);
        // The chunk exists for as long as an object is in it.
        let (placement, generation) = self.found(chunk, at, granules).unwrap_or_default();
        let kmem = precharge.account_as(StatKey::PERCPU, &placement);
        let account = ObjectAccount {
            account: Account::of(kmem),
            at,
            granules,
            generation,
        };
        self.keep(chunk, account)
    }

    #[cold]
    fn add_chunk(&self) -> Result<(), KmemError> {
        let mut chunk = Box::new(Chunk::map(&self.plan, self.one_node.is_some())?);
        let mut looked_up = None;
        loop {
            let moves = self.chunks.lock().moves;
            // Until it is in the list no report of moved pages reaches the chunk: where one has
            // come since the look-up, it looks again.
            if self.one_node.is_none() && looked_up != Some(moves) {
                let asked = chunk.ask();
                let found = FoundCopies::look_up(
                    &self.plan,
                    chunk.addresses(),
                    &(0..usize::MAX),
                    &*self.node_of,
                    asked,
                );
                drop(chunk.found(&self.plan, found));
                looked_up = Some(moves);
            }
            self.make_room();
            let mut chunks = self.chunks.lock();
            if chunks.moves == moves && chunks.has_room() {
                chunks.add(chunk);
                return Ok(());
            }
        }
    }

    /// Makes the list longer where it is full. The thread allocates without the lock.
    fn make_room(&self) {
        let room = {
            let chunks = self.chunks.lock();
            if chunks.has_room() {
                return;
            }
            chunks.chunks.capacity()
        };
        let mut longer = Vec::with_capacity((room * 2).max(8));
        let mut chunks = self.chunks.lock();
        // Another thread may have made it longer meanwhile.
        if longer.capacity() > chunks.chunks.capacity() {
            longer.append(&mut chunks.chunks);
            std::mem::swap(&mut longer, &mut chunks.chunks);
        }
        drop(chunks);
    }

    /// Keeps an account, relocated to where its object lies by now. Returns its number.
    #[inline]
    fn keep(&self, chunk: usize, mut account: ObjectAccount) -> u32 {
        loop {
            let mut chunks = self.chunks.lock();
            // The chunk exists for as long as an object is in it.
            let Some(of) = chunks.get(chunk) else {
                return u32::MAX;
            };
            if of.generation != account.generation {
                drop(chunks);
                account = self.relocate(chunk, account);
                continue;
            }
            if of.records.has_room() {
                return of.records.keep(account);
            }
            let room = of.records.room();
            drop(chunks);
            let larger = Records::with_room((room * 2).max(32));
            let old = self
                .chunks
                .lock()
                .get(chunk)
                .map(|chunk| chunk.records.grow(larger));
            drop(old);
        }
    }

    /// The nodes of an object, and the generation of the chunk since which they are known.
    pub(super) fn found(&self, chunk: usize, at: u32, granules: u32) -> Option<(Placement, u64)> {
        let mut sums = NodeSums::new(&self.plan.topology);
        let generation = {
            let mut chunks = self.chunks.lock();
            let chunk = chunks.get(chunk)?;
            chunk.sum(&self.plan, at as usize, granules as usize, &mut sums);
            chunk.generation
        };
        Some((sums.placement(&self.plan.topology), generation))
    }

    fn relocate(&self, chunk: usize, account: ObjectAccount) -> ObjectAccount {
        let Some((placement, generation)) = self.found(chunk, account.at, account.granules) else {
            return account;
        };
        let mut kmem = account.account.into_kmem();
        kmem.relocate(&placement);
        ObjectAccount {
            account: Account::of(kmem),
            generation,
            ..account
        }
    }

    /// Gives granules of a chunk back.
    #[inline]
    pub(super) fn give_back(&self, granules: (u32, u32, u32)) {
        let spare = self.chunks.lock().give_back(&self.plan, granules);
        // The thread unmaps without the lock.
        drop(spare);
    }

    /// The same, and ends the account that the chunk keeps under `number`.
    #[inline]
    pub(super) fn give_back_charged(&self, granules: (u32, u32, u32), number: u32) {
        let (chunk, ..) = granules;
        let mut chunks = self.chunks.lock();
        let account = chunks
            .get(chunk as usize)
            .and_then(|chunk| chunk.records.take(number));
        let spare = chunks.give_back(&self.plan, granules);
        drop(chunks);
        // The thread unmaps and uncharges without the lock.
        drop(spare);
        drop(account);
    }

    pub(super) fn addresses(&self, chunk: u32) -> Option<Addresses> {
        Some(self.chunks.lock().get(chunk as usize)?.addresses())
    }

    pub(super) fn chunk_count(&self) -> usize {
        self.chunks.lock().chunks.iter().flatten().count()
    }

    pub(super) fn trim(&self) -> usize {
        let mut trimmed = 0;
        loop {
            let chunk = self.chunks.lock().take_empty();
            if chunk.is_none() {
                return trimmed;
            }
            trimmed += 1;
        }
    }

    #[allow(unsafe_code)]
    pub(super) fn owner_of(&self, address: usize) -> Option<Group> {
        let chunks = self.chunks.lock();
        let owner = chunks
            .chunks
            .iter()
            .flatten()
            .find_map(|chunk| chunk.owner_at(&self.plan, address))?;
        // SAFETY: this thread holds the lock. An object gets its word under it after the charge, and
        // loses it under it before the uncharge, which the object, its record or the thread that has
        // taken the account out makes afterwards.
        unsafe { owner.group() }
    }
}

// === Pages that move ===

impl ChunkPool {
    pub(super) fn moved(&self, moved: &Range<usize>) {
        if self.one_node.is_some() {
            return;
        }
        // First of all, for a chunk that is looked up now and is in no list yet.
        self.chunks.lock().moves += 1;
        for number in 0.. {
            let asked = {
                let mut chunks = self.chunks.lock();
                if number >= chunks.chunks.len() {
                    return;
                }
                chunks.chunks[number]
                    .as_mut()
                    .map(|chunk| (chunk.serial, chunk.addresses(), chunk.ask()))
            };
            let Some((serial, addresses, asked)) = asked else {
                continue;
            };
            let found = FoundCopies::look_up(&self.plan, addresses, moved, &*self.node_of, asked);
            if found.is_empty() {
                continue;
            }
            let old = self.with(number, serial, |chunk| chunk.found(&self.plan, found));
            drop(old);
            self.move_accounts(number, serial);
        }
    }

    fn with<R>(&self, number: usize, serial: u64, work: impl FnOnce(&mut Chunk) -> R) -> Option<R> {
        let mut chunks = self.chunks.lock();
        let chunk = chunks.get(number)?;
        // Another chunk may have the number by now.
        (chunk.serial == serial).then(|| work(chunk))
    }

    /// Moves the accounts to where the chunk lies by the last look-up. A thread that frees an
    /// object meanwhile leaves its account to this thread.
    fn move_accounts(&self, chunk: usize, serial: u64) {
        let mut from = 0;
        loop {
            let out = self.with(chunk, serial, |chunk| {
                chunk.records.take_out(from, chunk.generation)
            });
            let Some(Some((number, mut account))) = out else {
                return;
            };
            from = number + 1;
            loop {
                account = self.relocate(chunk, account);
                let mut left = Some(account);
                let again = self.with(chunk, serial, |chunk| {
                    let account = left.take()?;
                    if chunk.generation != account.generation {
                        // The chunk has moved again. The thread that found that has passed this
                        // account over.
                        return Some(account);
                    }
                    left = chunk.records.bring_back(number, account);
                    None
                });
                // This ends the account if the object has gone, or the chunk with it.
                drop(left);
                match again.flatten() {
                    Some(again) => account = again,
                    None => break,
                }
            }
        }
    }
}

impl Chunks {
    fn get(&mut self, number: usize) -> Option<&mut Chunk> {
        self.chunks.get_mut(number)?.as_deref_mut()
    }

    #[inline(always)]
    fn take(
        &mut self,
        plan: &Plan,
        granules: usize,
        align: usize,
        owner: OwnerWord,
    ) -> Option<(TakenGranules, &mut Chunk)> {
        for (number, chunk) in self.chunks.iter_mut().enumerate() {
            let Some(chunk) = chunk else { continue };
            let was_empty = chunk.is_empty();
            if let Some(at) = chunk.take(plan, granules, align, owner) {
                self.empty -= usize::from(was_empty);
                let first = chunk.first_copy(plan, at);
                return Some((
                    TakenGranules {
                        chunk: number as u32,
                        at: at as u32,
                        first,
                    },
                    chunk,
                ));
            }
        }
        None
    }

    /// True if a chunk can join without an allocation.
    fn has_room(&self) -> bool {
        self.chunks.len() < self.chunks.capacity() || self.chunks.iter().any(Option::is_none)
    }

    fn add(&mut self, mut chunk: Box<Chunk>) {
        self.serial += 1;
        chunk.serial = self.serial;
        self.empty += 1;
        match self.chunks.iter_mut().find(|chunk| chunk.is_none()) {
            Some(place) => *place = Some(chunk),
            None => self.chunks.push(Some(chunk)),
        }
    }

    /// Returns a chunk that is one empty chunk too many.
    #[inline(always)]
    fn give_back(
        &mut self,
        plan: &Plan,
        (number, at, granules): (u32, u32, u32),
    ) -> Option<Box<Chunk>> {
        let number = number as usize;
        let chunk = self.get(number)?;
        chunk.give_back(plan, at as usize, granules as usize);
        if !chunk.is_empty() {
            return None;
        }
        // One empty chunk stays for the next object.
        self.empty += 1;
        // Mutation: empty-chunks-are-all-kept
        if self.empty == 1 {
            return None;
        }
        self.empty -= 1;
        self.chunks[number].take()
    }

    fn take_empty(&mut self) -> Option<Box<Chunk>> {
        let place = self
            .chunks
            .iter_mut()
            .find(|place| place.as_ref().is_some_and(|chunk| chunk.is_empty()))?;
        // Mutation: a-chunk-that-is-trimmed-is-counted
        self.empty -= 1;
        place.take()
    }
}
