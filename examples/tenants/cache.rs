//! An LRU cache whose entries are charged to a counter before their bytes are allocated.

use lru::LruCache;
use memcg::PageCounter;
use thiserror::Error;

use crate::trace::Request;

/// A cache of real bytes. One thread at a time has it; the counter below is shared with all.
pub(crate) struct Cache {
    /// Charged with the length of every value in `entries`, no more and no less.
    counter: PageCounter,
    /// Values by key, the one used longest ago first to go.
    entries: LruCache<u64, Vec<u8>>,
    /// The largest entry that an empty machine would take.
    entry_max: u64,
    /// Makes this cache's bytes differ from those of all others.
    salt: u64,
    pub(crate) figures: Figures,
}

/// What happened to a cache's requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) requests: u64,
    pub(crate) hits: u64,
    /// Charges that were refused, retries included.
    pub(crate) refused: u64,
    /// Entries that had to go for another one of the same tenant.
    pub(crate) evicted: u64,
    /// Requests served without keeping the entry: larger than any room there could be, or nothing
    /// of the tenant's own left to evict.
    pub(crate) passed_through: u64,
}

/// A hit returned other bytes than the miss put in.
#[derive(Debug, Error)]
#[error("the entry of key {key} does not hold its own bytes")]
pub(crate) struct Corrupt {
    key: u64,
}

impl Cache {
    /// An empty cache; `entry_max` is the lowest max that holds for `counter`.
    pub(crate) fn new(counter: PageCounter, entry_max: u64, salt: u64) -> Self {
        let entries = LruCache::unbounded();
        Self { counter, entries, entry_max, salt, figures: Figures::default() }
    }

    pub(crate) fn counter(&self) -> &PageCounter {
        &self.counter
    }

    /// The bytes of all entries, counted anew.
    pub(crate) fn bytes(&self) -> u64 {
        self.entries.iter().map(|(_, value)| value.len() as u64).sum()
    }

    /// Serves one request.
    pub(crate) fn request(&mut self, request: Request) -> Result<(), Corrupt> {
        self.figures.requests += 1;
        match self.entries.get(&request.key) {
            Some(value) if value.len() as u64 == request.size => {
                self.figures.hits += 1;
                return check(value, request.key, self.salt);
            }
            // The object has another size now: the old bytes are of no use.
            Some(_) => self.remove(request.key),
            None => {}
        }
        if !self.insert(request) {
            self.figures.passed_through += 1;
        }
        Ok(())
    }

    /// Charges, then allocates; `false` when the entry is not kept.
    fn insert(&mut self, Request { key, size }: Request) -> bool {
        // Evicting for what can never fit would empty the cache for nothing.
        if size > self.entry_max {
            return false;
        }
        while self.counter.try_charge(size).is_err() {
            self.figures.refused += 1;
            if !self.evict(size) {
                return false;
            }
        }
        match fill(key, size, self.salt) {
            Some(value) => {
                self.entries.put(key, value);
                true
            }
            None => {
                self.counter.uncharge(size);
                false
            }
        }
    }

    /// Evicts the oldest entries until `want` bytes are free; `false` when there was none.
    fn evict(&mut self, want: u64) -> bool {
        let mut freed = 0;
        while freed < want {
            let Some((_, value)) = self.entries.pop_lru() else { break };
            freed += self.release(value);
            self.figures.evicted += 1;
        }
        freed > 0
    }

    fn remove(&mut self, key: u64) {
        if let Some(value) = self.entries.pop(&key) {
            self.release(value);
        }
    }

    /// Drops every entry.
    pub(crate) fn clear(&mut self) {
        while let Some((_, value)) = self.entries.pop_lru() {
            self.release(value);
        }
    }

    /// Frees a value, then uncharges it: at no time are there more bytes than charge.
    fn release(&self, value: Vec<u8>) -> u64 {
        let size = value.len() as u64;
        drop(value);
        self.counter.uncharge(size);
        size
    }
}

/// Mixes two words into one that looks random (the finaliser of SplitMix64).
pub(crate) fn scramble(a: u64, b: u64) -> u64 {
    let mut word = a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The bytes of a key, over and over; `None` where there is no memory for them.
fn fill(key: u64, size: u64, salt: u64) -> Option<Vec<u8>> {
    let size = usize::try_from(size).ok()?;
    let mut value = Vec::new();
    value.try_reserve_exact(size).ok()?;
    value.resize(size, 0);

    let word = scramble(key, salt).to_le_bytes();
    for chunk in value.chunks_mut(word.len()) {
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    Some(value)
}

/// Whether a value is what `fill` made of its key, to the last byte.
fn check(value: &[u8], key: u64, salt: u64) -> Result<(), Corrupt> {
    let word = scramble(key, salt).to_le_bytes();
    let (words, rest) = value.as_chunks::<8>();
    let holds = words.iter().all(|chunk| *chunk == word) && word.starts_with(rest);
    if holds { Ok(()) } else { Err(Corrupt { key }) }
}
