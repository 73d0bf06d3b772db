//! A dedicated cache: stashes in front of a depot.

use std::ptr::NonNull;

use super::depot::{Depot, FreeObject, Stash};
use super::directory::directory;
use super::shape::{PoolAlign, Shape};
use crate::numa::mapping::NoMemory;
use crate::sync::lock::{Lock, Rank};
use crate::sync::{CachePadded, Shared, pool_stashes, process_wide, share};

pub(crate) struct Cache {
    pub(crate) shape: Shape,
    /// A power of two. Threads of one number share a stash. A new thread gets the number of one
    /// that has ended, so as many threads as there are processors have a stash each.
    stashes: Box<[CachePadded<Lock<Stash>>]>,
    depot: Lock<Depot>,
}

/// An object that has one user.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolObject {
    /// Unique in the process, for ever.
    pub(crate) number: u32,
    /// Aligned as the shape says; all zero until a user writes to it.
    pub(crate) start: NonNull<u8>,
    /// The object has had a user before.
    #[cfg_attr(not(feature = "tracing"), allow(dead_code))]
    pub(crate) recycled: bool,
}

impl PoolObject {
    /// The object as a value of a type that every [`PoolAlign`] aligns. Another type does not
    /// compile.
    pub(crate) fn first<T>(&self) -> NonNull<T> {
        const {
            assert!(
                align_of::<T>() <= PoolAlign::WORD,
                "the type is aligned for more than a packed object"
            )
        };
        self.start.cast()
    }
}

process_wide!(caches: Lock<Vec<Shared<Cache>>> = || Lock::new(Rank::Bookkeeping, Vec::new()));

/// Finds or makes the cache of a shape. The first user of an object makes its value, which no
/// thread ever drops.
pub(crate) fn cache(shape: Shape) -> Shared<Cache> {
    let caches = caches();
    let mut caches = caches.lock();
    if let Some(found) = caches.iter().find(|cache| cache.shape == shape) {
        return Shared::clone(found);
    }
    let made = share(Cache::new(shape));
    caches.push(Shared::clone(&made));
    made
}

impl Cache {
    fn new(shape: Shape) -> Cache {
        let stash = |_| CachePadded::new(Lock::new(Rank::Stash, Stash::default()));
        Cache {
            shape,
            stashes: (0..pool_stashes().next_power_of_two()).map(stash).collect(),
            depot: Lock::new(Rank::Depot, Depot::new(shape)),
        }
    }

    /// Takes an object that has no other user, as its last user has left it. Type-stable memory is
    /// clean only if the last user has cleaned it. `thread` is the number of the calling thread.
    pub(crate) fn take(&self, thread: u32) -> Result<PoolObject, NoMemory> {
        let FreeObject { number, recycled } = match self.take_own(thread) {
            Ok(free) => free,
            // The system gives no memory. An object that another thread has at hand is as good, so
            // a group can still be created in place of one that has ended.
            // Mutation: what-others-have-at-hand-is-not-looked-at
            Err(refused) => self
                .stashes
                .iter()
                .find_map(|stash| stash.lock().take())
                .ok_or(refused)?,
        };
        let start = directory().object(number).ok_or(NoMemory {
            bytes: self.shape.given(),
        })?;
        Ok(PoolObject {
            number,
            start,
            recycled,
        })
    }

    fn take_own(&self, thread: u32) -> Result<FreeObject, NoMemory> {
        // Acquire (E12): the lock's, here and in `put`. The thread sees what the last user did to
        // the object before it was put back.
        let mut stash = self.own(thread).lock();
        if let Some(free) = stash.take() {
            return Ok(free);
        }
        self.depot.lock().fill(&mut stash)?;
        stash.take().ok_or(NoMemory {
            bytes: self.shape.chunk(),
        })
    }

    /// Takes an object back from its last user.
    pub(crate) fn put(&self, thread: u32, number: u32) {
        let mut stash = self.own(thread).lock();
        let too_many = stash.put(number);
        if !too_many.is_empty() {
            self.depot.lock().put(&too_many);
        }
    }

    /// Objects in use. Exact while no thread takes or puts one.
    pub(crate) fn live(&self) -> u64 {
        self.stashes
            .iter()
            .map(|stash| stash.lock().live)
            .fold(0, u64::wrapping_add)
    }

    /// Objects that have had a user and have none now: memory for the next users. Exact as above.
    pub(crate) fn free(&self) -> u64 {
        let fresh: usize = self
            .stashes
            .iter()
            .map(|stash| stash.lock().fresh.len())
            .sum();
        let had = self.depot.lock().fresh.saturating_sub(fresh) as u64;
        had.saturating_sub(self.live())
    }

    /// Chunks that the system has given.
    pub(crate) fn chunk_count(&self) -> usize {
        self.depot.lock().chunk_count()
    }

    /// Bytes of so many objects in use and of the free ones.
    pub(crate) fn bytes(&self, used: u64) -> u64 {
        (used + self.free()) * self.shape.given() as u64
    }

    fn own(&self, thread: u32) -> &Lock<Stash> {
        &self.stashes[thread as usize & (self.stashes.len() - 1)]
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::pool::depot::BATCH;
    use crate::pool::shape::{PoolAlign, PoolKind};
    use crate::sync::{POOL_STASH, many};

    /// Few of such objects are in a chunk.
    const LARGE: usize = many(70_000) as usize;

    /// Never dropped, as all caches: the directory keeps the addresses of its objects.
    fn small(asked: usize, align: PoolAlign) -> Shared<Cache> {
        share(Cache::new(Shape {
            kind: PoolKind::Stats { items: 0 },
            asked,
            align,
            node: None,
        }))
    }

    /// Writes to all of an object, which must be all zeros or all ones. Returns whether it had a
    /// user before.
    #[allow(unsafe_code)]
    fn fill(object: &PoolObject, asked: usize) -> bool {
        // SAFETY: the object has so many bytes, and this test is its only user.
        let bytes = unsafe { std::slice::from_raw_parts_mut(object.start.as_ptr(), asked) };
        let before = bytes[0];
        assert!(
            before <= 1 && bytes.iter().all(|&byte| byte == before),
            "memory of {object:?} has another user"
        );
        bytes.fill(1);
        before == 1
    }

    #[test]
    fn objects_do_not_overlap_and_come_back_as_they_were() {
        // Miri takes its time for each byte.
        let middle = if cfg!(miri) { 72 } else { 2_312 };
        let sizes = [
            (1, PoolAlign::Packed),
            (middle, PoolAlign::CacheLine),
            (LARGE, PoolAlign::Packed),
        ];
        let most = if cfg!(miri) { 2 } else { sizes.len() };
        for (asked, align) in sizes.into_iter().take(most) {
            let cache = small(asked, align);
            let count = 3 * cache.shape.objects_per_chunk().min(500) + 1;
            for round in 0..2 {
                let taken: Vec<_> = (0..count).map(|_| cache.take(0).unwrap()).collect();
                for object in &taken {
                    assert_eq!(object.start.addr().get() % align.bytes(), 0);
                    assert_eq!(directory().object(object.number), Some(object.start));
                }
                let fresh = taken.iter().filter(|object| !fill(object, asked)).count();
                let expected = if round == 0 { count..=count } else { 0..=BATCH };
                assert!(
                    expected.contains(&fresh),
                    "new ones only where none is back"
                );
                let numbers: BTreeSet<_> = taken.iter().map(|object| object.number).collect();
                assert_eq!(numbers.len(), count);
                numbers.into_iter().for_each(|number| cache.put(0, number));
            }
        }
    }

    #[test]
    fn the_lowest_are_taken_first() {
        let cache = small(64, PoolAlign::Packed);
        let taken: Vec<_> = (0..32 * POOL_STASH)
            .map(|_| cache.take(0).unwrap())
            .collect();
        // The depot gives out the lowest of those that went back.
        taken
            .iter()
            .rev()
            .for_each(|object| cache.put(0, object.number));
        for _ in 0..POOL_STASH {
            cache.take(0).unwrap();
        }
        let mut next: Vec<_> = (0..16).map(|_| cache.take(0).unwrap().number).collect();
        next.sort_unstable();
        assert!(
            next.iter()
                .zip(&taken[POOL_STASH..])
                .all(|(&number, object)| number <= object.number),
            "{next:?}"
        );
    }

    #[test]
    fn what_others_keep_at_hand_is_taken_before_anything_is_refused() {
        let cache = small(64, PoolAlign::Packed);
        let object = cache.take(0).unwrap();
        // This is the stash of another thread.
        let number = cache.stashes[0].lock().put(object.number);
        assert!(number.is_empty());
        assert!(
            cache
                .stashes
                .iter()
                .any(|stash| stash.lock().take().is_some())
        );
    }

    #[test]
    fn a_shape_has_one_cache() {
        let shape = |asked| Shape {
            kind: PoolKind::Stats { items: 0 },
            asked,
            align: PoolAlign::Packed,
            node: None,
        };
        assert!(std::ptr::eq(cache(shape(24)), cache(shape(24))));
        assert!(!std::ptr::eq(cache(shape(24)), cache(shape(32))));
    }
}
