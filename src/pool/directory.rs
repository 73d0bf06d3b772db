//! Finds the object of a number without a lock.
//!
//! All caches number their chunks in one sequence, for ever. The number of an object is that of its
//! chunk and its index in it. So a number names one object of the process, whichever cache it
//! belongs to.

use std::ptr::{self, NonNull};

use super::pages::PageVec;
use crate::numa::mapping::{Mapping, NoMemory};
use crate::sync::lock::{Lock, Rank};
use crate::sync::stat_atomic::AtomicU32 as StatU32;
use crate::sync::{AtomicPtr, AtomicU64, Ordering, POOL_PAGE, POOL_PAGES, process_wide};

/// Bits of a number that hold the index in the chunk: the low ones.
const INDEX: u32 = 12;

const _: () = assert!(
    crate::sync::POOL_OBJECTS <= 1 << INDEX && POOL_PAGES * POOL_PAGE <= 1 << (u32::BITS - INDEX)
);

/// All chunks of the process, by number, in pages that the directory adds as it needs them.
pub(crate) struct ChunkDirectory {
    pages: [AtomicPtr<ChunkEntry>; POOL_PAGES],
    made: Lock<Growth>,
}

struct Growth {
    chunks: usize,
    /// The memory that `ChunkDirectory::pages` points to.
    pages: PageVec<Mapping>,
}

/// One chunk. `add` writes `start` last, and each field once.
#[derive(Default)]
struct ChunkEntry {
    start: AtomicPtr<u8>,
    /// Bytes from one object to the next.
    given: AtomicU64,
    objects: StatU32,
}

process_wide!(directory: ChunkDirectory = ChunkDirectory::new);

pub(super) fn number(chunk: u32, index: usize) -> u32 {
    chunk << INDEX | index as u32
}

/// The chunk of an object, and the object's index in it.
pub(super) fn parts(number: u32) -> (u32, usize) {
    (number >> INDEX, (number & ((1 << INDEX) - 1)) as usize)
}

impl ChunkDirectory {
    fn new() -> Self {
        let pages = std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut()));
        ChunkDirectory {
            pages,
            made: Lock::new(
                Rank::Chunks,
                Growth {
                    chunks: 0,
                    pages: PageVec::new(),
                },
            ),
        }
    }

    /// Gives a chunk its number. The caller never gives the chunk back.
    #[allow(unsafe_code)]
    pub(super) fn add(
        &self,
        start: NonNull<u8>,
        given: usize,
        objects: usize,
    ) -> Result<u32, NoMemory> {
        let mut made = self.made.lock();
        let chunk = made.chunks;
        let refused = NoMemory {
            bytes: POOL_PAGE * size_of::<ChunkEntry>(),
        };
        let place = self.pages.get(chunk / POOL_PAGE).ok_or(refused)?;
        if made.pages.len() == chunk / POOL_PAGE {
            // First, because nothing may fail any more once other threads see the page.
            made.pages.reserve(1)?;
            let memory = Mapping::new(POOL_PAGE * size_of::<ChunkEntry>())?;
            let entries = memory.first::<ChunkEntry>().as_ptr();
            for at in 0..POOL_PAGE {
                // SAFETY: the entry is within the mapping, which starts at a page and has room for
                // so many. No other thread knows it yet.
                unsafe { entries.add(at).write(ChunkEntry::default()) };
            }
            // Release (E30): pairs with `entry`.
            place.store(entries, Ordering::Release);
            made.pages.push(memory);
        }
        let Some(entry) = self.entry(chunk) else {
            return Err(refused);
        };
        entry.given.store(given as u64, Ordering::Relaxed);
        entry.objects.store(objects as u32, Ordering::Relaxed);
        // Release (E30): after all other fields of the chunk; pairs with `object`.
        // Mutation: e30-chunk-is-published-relaxed
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
        // SAFETY: `add` publishes a page with all its entries made, and the page lives as long as
        // the directory.
        Some(unsafe { &*page.add(chunk % POOL_PAGE) })
    }

    /// The object of a number, whether or not it is in use; `None` where no chunk has it.
    #[allow(unsafe_code)]
    pub(crate) fn object(&self, number: u32) -> Option<NonNull<u8>> {
        let (chunk, index) = parts(number);
        let entry = self.entry(chunk as usize)?;
        // Acquire (E30): pairs with `add`.
        let start = NonNull::new(entry.start.load(Ordering::Acquire))?;
        let given = entry.given.load(Ordering::Relaxed) as usize;
        if index >= entry.objects.load(Ordering::Relaxed) as usize {
            return None;
        }
        // SAFETY: the chunk has more objects than `index`, of `given` bytes each, and its memory
        // never goes back.
        Some(unsafe { start.add(index * given) })
    }
}
