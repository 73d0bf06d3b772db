//! The object of a number, without a lock.
//!
//! Chunks of all caches are numbered in turn, for ever; an object's number is that of its chunk and its index in it. So
//! a number names one object of the process, whatever cache it is of.

use std::ptr::{self, NonNull};

use super::pages::{NoMemory, PageVec};
use crate::numa::mapping::Mapping;
use crate::sync::lock::{Lock, Rank};
use crate::sync::stat_atomic::AtomicU32 as StatU32;
use crate::sync::{AtomicPtr, AtomicU64, Ordering, POOL_PAGE, POOL_PAGES, process_wide};

/// Low bits of a number: the index in the chunk.
const INDEX: u32 = 12;

const _: () = assert!(crate::sync::POOL_OBJECTS <= 1 << INDEX && POOL_PAGES * POOL_PAGE <= 1 << (u32::BITS - INDEX));

/// All chunks of the process, by number: pages of them, made as they are needed.
pub(crate) struct ChunkDirectory {
    pages: [AtomicPtr<ChunkEntry>; POOL_PAGES],
    made: Lock<Growth>,
}

struct Growth {
    /// Chunks that have a number.
    chunks: usize,
    /// What `Directory::pages` points to.
    pages: PageVec<Mapping>,
}

/// One chunk. All but `start` is written before that, and once.
struct ChunkEntry {
    start: AtomicPtr<u8>,
    /// Bytes from one object to the next.
    given: AtomicU64,
    objects: StatU32,
    /// Place of its first object among those of its cache.
    first: StatU32,
}

/// A chunk as it is found.
struct ObjectPlace {
    start: NonNull<u8>,
    given: usize,
    first: usize,
    index: usize,
}

process_wide!(directory: ChunkDirectory = ChunkDirectory::new);

/// The number of an object in a chunk.
pub(super) fn number(chunk: u32, index: usize) -> u32 {
    chunk << INDEX | index as u32
}

impl ChunkDirectory {
    fn new() -> Self {
        let pages = std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut()));
        ChunkDirectory { pages, made: Lock::new(Rank::Chunks, Growth { chunks: 0, pages: PageVec::new() }) }
    }

    /// Number a chunk that is never given back.
    #[allow(unsafe_code)]
    pub(super) fn add(&self, start: NonNull<u8>, given: usize, objects: usize, first: usize) -> Result<u32, NoMemory> {
        let mut made = self.made.lock();
        let chunk = made.chunks;
        let refused = NoMemory { bytes: POOL_PAGE * size_of::<ChunkEntry>() };
        let place = self.pages.get(chunk / POOL_PAGE).ok_or(refused)?;
        if made.pages.len() == chunk / POOL_PAGE {
            made.pages.reserve(1)?;
            let memory = Mapping::new(POOL_PAGE * size_of::<ChunkEntry>())?;
            let entries = memory.first::<ChunkEntry>().as_ptr();
            for at in 0..POOL_PAGE {
                // SAFETY: within the mapping, which is aligned to pages, has room for so many and is nobody else's yet.
                unsafe { entries.add(at).write(ChunkEntry::new()) };
            }
            // Release (E30): pairs with `entry`.
            place.store(entries, Ordering::Release);
            made.pages.push(memory);
        }
        let Some(entry) = self.entry(chunk) else { return Err(refused) };
        entry.given.store(given as u64, Ordering::Relaxed);
        entry.objects.store(objects as u32, Ordering::Relaxed);
        entry.first.store(first as u32, Ordering::Relaxed);
        // Release (E30): after what else there is about the chunk; pairs with `find`.
        entry.start.store(start.as_ptr(), Ordering::Release);
        made.chunks += 1;
        Ok(chunk as u32)
    }

    #[allow(unsafe_code)]
    fn entry(&self, chunk: usize) -> Option<&ChunkEntry> {
        // Acquire (E30): pairs with `add`.
        let page = self.pages.get(chunk / POOL_PAGE)?.load(Ordering::Acquire);
        if page.is_null() {
            return None;
        }
        // SAFETY: a page has so many entries, is published with all of them made, and lives as long as the directory.
        Some(unsafe { &*page.add(chunk % POOL_PAGE) })
    }

    fn find(&self, number: u32) -> Option<ObjectPlace> {
        let entry = self.entry((number >> INDEX) as usize)?;
        // Acquire (E30): pairs with `add`.
        let start = NonNull::new(entry.start.load(Ordering::Acquire))?;
        let index = number & ((1 << INDEX) - 1);
        (index < entry.objects.load(Ordering::Relaxed)).then(|| ObjectPlace {
            start,
            given: entry.given.load(Ordering::Relaxed) as usize,
            first: entry.first.load(Ordering::Relaxed) as usize,
            index: index as usize,
        })
    }

    /// The object of that number, whether or not it is taken; `None` where there is none of it.
    #[allow(unsafe_code)]
    pub(crate) fn object(&self, number: u32) -> Option<NonNull<u8>> {
        let ObjectPlace { start, given, index, .. } = self.find(number)?;
        // SAFETY: the chunk has more objects than `index`, of `given` bytes each, and is never given back.
        Some(unsafe { start.add(index * given) })
    }

    /// Its place among all objects of its cache.
    pub(super) fn place(&self, number: u32) -> Option<usize> {
        self.find(number).map(|found| found.first + found.index)
    }
}

impl ChunkEntry {
    fn new() -> ChunkEntry {
        ChunkEntry {
            start: AtomicPtr::new(ptr::null_mut()),
            given: AtomicU64::new(0),
            objects: StatU32::new(0),
            first: StatU32::new(0),
        }
    }
}
