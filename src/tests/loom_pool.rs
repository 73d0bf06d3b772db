//! Dedicated caches: an object has one user at a time, and the next user finds it as the last user
//! has left it.

#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::ptr::NonNull;

use super::{beside, model, model_without_pair, race};
use crate::pool::shape::{PoolKind, Shape};
use crate::pool::{Cache, NoMemory, PoolAlign, cache, directory};
use crate::sync::{AtomicU64, Ordering, POOL_OBJECTS, POOL_PAGE, POOL_PAGES, Shared};
use crate::thread::objects;
use crate::thread::slow_path::Entered;

/// A word that is 0 while it has no user.
#[repr(C)]
struct Word {
    /// 0 in memory without a word yet.
    made: u64,
    word: AtomicU64,
}

struct TakenWord {
    number: u32,
    word: NonNull<Word>,
}

/// Under the crate's own rules: a thread has a number once it has been in a slow path.
fn take(cache: &Cache) -> Result<TakenWord, NoMemory> {
    let _entered = Entered::enter();
    objects::take(cache).map(|object| {
        let word = object.start.cast::<Word>();
        // SAFETY: the object is the caller's, has so many bytes, and is zeroed or made.
        unsafe {
            if (*word.as_ptr()).made == 0 {
                word.write(Word {
                    made: 1,
                    word: AtomicU64::new(0),
                });
            }
        }
        TakenWord {
            number: object.number,
            word,
        }
    })
}

// SAFETY: the word is made, and lives as long as its cache.
unsafe impl Send for TakenWord {}

impl TakenWord {
    fn use_it(&self) {
        // SAFETY: as above.
        let word = unsafe { &self.word.as_ref().word };
        assert_eq!(
            word.load(Ordering::Relaxed),
            0,
            "an object is clean, and one user's"
        );
        word.store(1, Ordering::Relaxed);
        word.store(0, Ordering::Relaxed);
    }

    fn put(self, cache: &Cache) {
        let _entered = Entered::enter();
        objects::put(cache, self.number);
    }
}

fn words() -> Shared<Cache> {
    let shape = Shape {
        kind: PoolKind::Stats { items: 1 },
        asked: size_of::<Word>(),
        align: PoolAlign::Packed,
        node: None,
    };
    cache(shape)
}

/// E12. Two threads take, use and put. One of them does so twice, so that it takes what the other
/// has put.
#[test]
fn loom_take_vs_put() {
    model_without_pair(|| {
        let cache = words();
        let turn = |cache: &Cache| {
            let taken = take(cache).unwrap();
            taken.use_it();
            taken.put(cache);
        };
        race(
            Shared::clone(&cache),
            move |cache| turn(&cache),
            || (0..2).for_each(|_| turn(&cache)),
        );
        let left: Vec<_> = (0..3).map(|_| take(&cache).unwrap()).collect();
        left.iter().for_each(TakenWord::use_it);
        assert!(left.iter().all(|one| {
            left.iter()
                .filter(|other| other.number == one.number)
                .count()
                == 1
        }));
    });
}

/// E12. One thread takes what another has put. Neither stash has room for all objects, so they go
/// through the depot.
#[test]
fn loom_put_vs_take_elsewhere() {
    model_without_pair(|| {
        let cache = words();
        let all: Vec<_> = (0..3).map(|_| take(&cache).unwrap()).collect();
        let other = beside((Shared::clone(&cache), all), |(cache, all)| {
            for taken in all {
                taken.use_it();
                taken.put(&cache);
            }
            [(); 2].map(|()| take(&cache).unwrap())
        });
        let mine = [(); 2].map(|()| take(&cache).unwrap());
        mine.iter().for_each(TakenWord::use_it);
        let theirs = other.join().unwrap();
        let numbers: BTreeSet<_> = mine
            .iter()
            .chain(&theirs)
            .map(|taken| taken.number)
            .collect();
        assert_eq!(numbers.len(), 4, "an object has one user");
    });
}

/// No thread is refused an object while another has a free one at hand.
#[test]
#[cfg_attr(miri, ignore = "Miri: it takes every object that the process may have")]
fn loom_refused_chunk_vs_put() {
    model(|| {
        let cache = words();
        let mut all: Vec<_> = (0..POOL_PAGES * POOL_PAGE * POOL_OBJECTS)
            .map(|_| take(&cache).unwrap())
            .collect();
        assert!(
            take(&cache).is_err(),
            "there are no numbers for more chunks"
        );
        let last = all.pop().unwrap();
        let early = race(
            (Shared::clone(&cache), last),
            |(cache, last)| last.put(&cache),
            || take(&cache),
        )
        .1;
        let late = take(&cache);
        assert!(
            early.is_ok() ^ late.is_ok(),
            "one thread takes the object that is back"
        );
    });
}

/// E30. A thread that finds a chunk finds where its objects lie.
#[test]
#[cfg_attr(
    miri,
    ignore = "Miri: other tests of the process have taken the first numbers"
)]
fn loom_chunk_vs_look_up() {
    model_without_pair(|| {
        let cache = words();
        let look_up = |_| [0, 1].map(|number| directory().object(number).map(NonNull::addr));
        let (found, taken) = race((), look_up, || {
            [(); POOL_OBJECTS].map(|()| take(&cache).unwrap())
        });
        for (found, taken) in found.into_iter().zip(taken) {
            assert!(found.is_none_or(|start| start == taken.word.addr()));
        }
    });
}
