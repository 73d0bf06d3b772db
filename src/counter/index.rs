//! Names of groups, by hash: in lines of the cache, each reached with one load.
//!
//! A table of the library keeps a byte of each entry in one place and the entry in another, so a
//! name among a million costs two lines that are in no cache, and nobody can prefetch them. That
//! shows in each group that is created or ended.
//!
//! An entry is a hash and the number of an object. So a search reads a group only where the whole
//! hash is the same, and the table grows without reading any group. An entry that finds its line
//! full goes on to the next line, and counts itself in every line that it passes. A search ends at
//! a line that no entry has passed. Among a million groups, a group's line is in no cache and its
//! page in no table of translations; [`NamesHint::fetch`] prefetches the line in time.

use crate::pool::NoMemory;
use crate::sync::stat_atomic::{AtomicPtr as StatPtr, AtomicU64 as StatU64};
use crate::sync::{Ordering, prefetch};

/// Entries of a line.
const ENTRIES: usize = 7;

/// Entries take at most so many quarters of all places.
const FULL_QUARTERS: usize = 3;

/// No object has this number.
const NO_OBJECT: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Entry {
    hash: u32,
    number: u32,
}

const FREE: Entry = Entry {
    hash: 0,
    number: NO_OBJECT,
};

/// As large as a line of the cache, and as aligned.
#[repr(C, align(64))]
struct Bucket {
    entries: [Entry; ENTRIES],
    /// The number of entries in later lines that would be here or before this if there had been
    /// room.
    past: u32,
}

/// Names of one shard; under its lock.
#[derive(Default)]
pub(crate) struct Names {
    lines: Vec<Bucket>,
    len: usize,
}

/// The place of the lines, for a thread without the lock. They may have moved, so the thread only
/// prefetches.
pub(crate) struct NamesHint {
    start: StatPtr<Bucket>,
    lines: StatU64,
}

impl NamesHint {
    pub(crate) fn new() -> NamesHint {
        NamesHint {
            start: StatPtr::new(std::ptr::null_mut()),
            lines: StatU64::new(0),
        }
    }

    /// Prefetches the line where the search for a hash begins.
    #[inline]
    pub(crate) fn fetch(&self, hash: u64) {
        let line = home(hash as u32, self.lines.load(Ordering::Relaxed) as usize);
        prefetch(self.start.load(Ordering::Relaxed).wrapping_add(line));
    }
}

/// The line where the search for a hash begins. Any number of lines will do, because growth need
/// not double.
#[inline]
fn home(hash: u32, lines: usize) -> usize {
    ((u64::from(hash) * lines as u64) >> u32::BITS) as usize
}

impl Names {
    /// The object of that hash for which `same` is true.
    pub(crate) fn find(&self, hash: u64, mut same: impl FnMut(u32) -> bool) -> Option<u32> {
        let hash = hash as u32;
        for line in self.from(hash) {
            let mut of_hash = line
                .entries
                .iter()
                .filter(|entry| entry.hash == hash && entry.number != NO_OBJECT);
            if let Some(entry) = of_hash.find(|entry| same(entry.number)) {
                return Some(entry.number);
            }
            if line.past == 0 {
                break;
            }
        }
        None
    }

    /// All lines, from the one where the search for a hash begins.
    fn from(&self, hash: u32) -> impl Iterator<Item = &Bucket> {
        let (before, after) = self.lines.split_at(home(hash, self.lines.len()));
        after.iter().chain(before)
    }

    /// Reserve room for one more. The lines may move; then `hint` gets their new place.
    pub(crate) fn reserve(&mut self, hint: &NamesHint) -> Result<(), NoMemory> {
        // Fuller, and entries would pass more and more lines, of which each costs a miss.
        if (self.len + 1) * 4 <= self.lines.len() * ENTRIES * FULL_QUARTERS {
            return Ok(());
        }
        // Not by twice: the old lines are there until the new ones are full, and a shard of a
        // million groups would take three times its size for that while.
        // The table grows by half.
        let lines = (self.lines.len() * 3 / 2)
            .max(self.lines.len() + 1)
            .next_multiple_of(2);
        let mut larger = Vec::new();
        larger.try_reserve_exact(lines).map_err(|_| NoMemory {
            bytes: lines * size_of::<Bucket>(),
        })?;
        larger.extend((0..lines).map(|_| Bucket {
            entries: [FREE; ENTRIES],
            past: 0,
        }));
        let smaller = std::mem::replace(&mut self.lines, larger);
        for entry in smaller
            .iter()
            .flat_map(|line| &line.entries)
            .filter(|entry| entry.number != NO_OBJECT)
        {
            self.put(*entry);
        }
        hint.start.store(self.lines.as_mut_ptr(), Ordering::Relaxed);
        hint.lines.store(lines as u64, Ordering::Relaxed);
        Ok(())
    }

    /// The caller has [reserved](Self::reserve) room.
    pub(crate) fn insert(&mut self, hash: u64, number: u32) {
        debug_assert!(number != NO_OBJECT && self.len < self.lines.len() * ENTRIES);
        self.put(Entry {
            hash: hash as u32,
            number,
        });
        self.len += 1;
    }

    fn put(&mut self, entry: Entry) {
        let lines = self.lines.len();
        let mut at = home(entry.hash, lines);
        loop {
            let line = &mut self.lines[at];
            if let Some(free) = line
                .entries
                .iter_mut()
                .find(|entry| entry.number == NO_OBJECT)
            {
                *free = entry;
                return;
            }
            // The count is what ends a search for a name that is not there: without it each would
            // go through all lines that ever were full.
            line.past += 1;
            at = if at + 1 == lines { 0 } else { at + 1 };
        }
    }

    /// Returns whether the entry was there.
    pub(crate) fn remove(&mut self, hash: u64, number: u32) -> bool {
        let hash = hash as u32;
        let of = |line: &Bucket| line.entries.iter().position(|entry| entry.number == number);
        let mut passed = 0;
        let mut found = None;
        for line in self.from(hash) {
            found = of(line);
            if found.is_some() || line.past == 0 {
                break;
            }
            passed += 1;
        }
        let Some(found) = found else { return false };
        let (lines, home) = (self.lines.len(), home(hash, self.lines.len()));
        // The entry no longer passes these lines. The later ones stay where they are: a search
        // looks further as long as any entry does.
        for line in 0..passed {
            self.lines[(home + line) % lines].past -= 1;
        }
        self.lines[(home + passed) % lines].entries[found] = FREE;
        self.len -= 1;
        true
    }

    pub(crate) fn bytes(&self) -> usize {
        self.lines.capacity() * size_of::<Bucket>()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::sync::many;

    /// Random inserts and removals over so many different hashes.
    fn run(hashes: u64, steps: u64) {
        let (mut names, hint) = (Names::default(), NamesHint::new());
        let mut twin: BTreeMap<u32, u64> = BTreeMap::new();
        let mut seed = hashes;
        for step in 0..steps {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let number = (seed >> 33) as u32 % 600;
            // Spread over all 32 bits, as hashes are.
            let hash = ((seed >> 20) % hashes).wrapping_mul(u64::from(u32::MAX) / hashes);
            match twin.get(&number).copied() {
                Some(of) if step % 2 == 0 => {
                    assert!(names.remove(of, number));
                    assert!(!names.remove(of, number), "it is gone");
                    twin.remove(&number);
                }
                Some(of) => assert_eq!(names.find(of, |found| found == number), Some(number)),
                None => {
                    assert_eq!(names.find(hash, |found| found == number), None);
                    names.reserve(&hint).unwrap();
                    names.insert(hash, number);
                    twin.insert(number, hash);
                }
            }
            assert_eq!(names.len, twin.len());
            hint.fetch(hash);
        }
        let empty = twin
            .clone()
            .into_iter()
            .all(|(number, hash)| names.remove(hash, number));
        assert!(
            empty && names.lines.iter().all(|line| line.past == 0),
            "an entry goes past another one"
        );
    }

    #[test]
    fn it_finds_the_groups_that_are_there() {
        // Many entries of one hash, and few: for Miri, whose time is for accesses, that is all.
        let hashes = [2, u64::from(u32::MAX), 1, 7, 100];
        let most = if cfg!(miri) { 2 } else { hashes.len() };
        for hashes in hashes.into_iter().take(most) {
            run(hashes, many(20_000));
        }
    }

    #[test]
    fn the_caller_tells_groups_of_one_hash_apart() {
        let (mut names, hint) = (Names::default(), NamesHint::new());
        for number in 0..30 {
            names.reserve(&hint).unwrap();
            names.insert(5, number);
        }
        let mut asked = 0;
        let found = names.find(5, |number| {
            asked += 1;
            number == 29
        });
        assert_eq!((found, asked), (Some(29), 30));
        assert_eq!(
            names.find(6, |_| true),
            None,
            "the search visits a group of another hash"
        );
    }

    #[test]
    fn an_empty_table_finds_no_group() {
        let mut names = Names::default();
        assert_eq!(
            (names.find(1, |_| true), names.remove(1, 1), names.bytes()),
            (None, false, 0)
        );
        assert_eq!(size_of::<Bucket>(), 64);
    }
}
