//! Whatever can be had of a group is kept longer than the group, its runtime and the thread that
//! made it.
//!
//! Charges, handles, ids, windows, futures, listeners, reclaimers, hooks, members, precharges,
//! pages, runtimes lie in one heap; threads that themselves come and go put more there, use what
//! they find, and drop it, in any order. Runtimes are made anew all the time, and dropped by a
//! thread that comes upon them. At the end of each life all that is left is dropped at once on all
//! threads: no usage, no group, no object of a pool, nothing of what was registered may be left of
//! any runtime there was.
//!
//! * here: the threads, and what must be left; `scene`: runtimes, and what is made of them;
//!   `things`: what is kept, and what is done with it.
//!
//! `MEMCG_STRESS_OPS` sets the number of operations, as for `counters`.

mod scene;
mod things;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use scene::Scene;
use things::{Tally, Thing};

use crate::support::turns::turn;
use crate::support::waiters::until;
use crate::support::watchdog::Watchdog;

pub(crate) use crate::support::reclaimers::lock;

const THREADS: u64 = 4;
const OPS: u64 = if cfg!(debug_assertions) {
    300_000
} else {
    2_000_000
};
/// Operations in one life of the heap.
const OPS_PER_LIFE: u64 = 10_000;
/// Operations of a thread before it ends and another takes its place.
const OPS_PER_THREAD: u64 = 250;
/// Things in the heap, about.
const HEAP: usize = 300;

/// An object of an earlier test may go about a second after that has ended. Counted before, it would be
/// one that never comes back.
const SETTLES: Duration = Duration::from_secs(3);

/// Nothing here waits for any thread.
const PATIENCE: Duration = Duration::from_secs(60);

/// The things that lie around.
#[derive(Default)]
pub(crate) struct Heap(Mutex<Vec<Thing>>);

impl Heap {
    pub(crate) fn put(&self, thing: Thing) {
        lock(&self.0).push(thing);
    }

    fn len(&self) -> usize {
        lock(&self.0).len()
    }

    /// Any of them.
    pub(crate) fn take(&self, rng: &mut SmallRng) -> Option<Thing> {
        let mut things = lock(&self.0);
        let at = (!things.is_empty()).then(|| rng.random_range(0..things.len()))?;
        Some(things.swap_remove(at))
    }

    fn take_all(&self) -> Vec<Thing> {
        std::mem::take(&mut lock(&self.0))
    }
}

/// One operation: more of it, something done with what is there, or less of it.
fn step(scene: &Scene, heap: &Heap, rng: &mut SmallRng) {
    let less = heap.len() > HEAP;
    match rng.random_range(0..100) {
        0 => scene.turn(heap, rng),
        1..45 if !less => {
            if let Some(thing) = scene.make(rng) {
                heap.put(thing);
            }
        }
        1..60 => drop(heap.take(rng)),
        _ => {
            if let Some(thing) = heap.take(rng)
                && let Some(thing) = thing.used(scene, heap, rng)
            {
                heap.put(thing);
            }
        }
    }
}

/// A scope ends when its threads have returned, before what they own thread by thread is dropped; a thread
/// that is joined has given its credit back, too.
fn end(thread: ScopedJoinHandle<'_, ()>) {
    thread.join().expect("no thread panics");
}

/// One life of the heap.
fn live(seed: u64, done: &AtomicU64, tally: &Arc<Tally>) {
    let scene = Scene::new(seed, tally);
    let heap = Heap::default();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for thread in 0..THREADS {
            let scene = &scene;
            let heap = &heap;
            let work = move |ops, seed| {
                let mut rng = SmallRng::seed_from_u64(seed);
                for _ in 0..ops {
                    step(scene, heap, &mut rng);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            };
            let seed = 1_000 * seed + 100 * thread;
            let ops = OPS_PER_LIFE / THREADS;
            // One of them stays, with its stock and its cells; in the place of the others one comes
            // after the other.
            threads.push(if thread == 0 {
                scope.spawn(move || work(ops, seed))
            } else {
                scope.spawn(move || {
                    for one in 0..ops / OPS_PER_THREAD {
                        std::thread::scope(|scope| {
                            end(scope.spawn(move || work(OPS_PER_THREAD, seed + one)));
                        });
                    }
                })
            });
        }
        threads.into_iter().for_each(end);
    });
    let mut things = heap.take_all();
    let kinds = things.len();
    things.shuffle(&mut SmallRng::seed_from_u64(seed));
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        while !things.is_empty() {
            let some =
                things.split_off(things.len() - things.len().min(kinds / THREADS as usize + 1));
            threads.push(scope.spawn(move || drop(some)));
        }
        threads.into_iter().for_each(end);
    });
    // Dropping may have put more there.
    drop(heap.take_all());
    scene.end();
}

#[test]
fn nothing_is_left_of_what_outlived_its_group_its_runtime_and_its_thread() {
    let _turn = turn(module_path!());
    let ops = crate::ops(OPS);
    let done = Arc::new(AtomicU64::new(0));
    let progress = Arc::clone(&done);
    let _watchdog = Watchdog::start(
        "things that outlive",
        PATIENCE,
        move || progress.load(Ordering::Relaxed),
        Arc::new(|| String::from("no state beside the heap")),
    );
    let tally = Arc::default();
    std::thread::sleep(SETTLES);
    let objects = scene::objects();
    for seed in 1..=ops.div_ceil(OPS_PER_LIFE) {
        live(seed, &done, &tally);
        until("all objects are back in their pools", || {
            scene::objects() == objects
        });
    }
    println!("{} operations; {tally:?}", done.load(Ordering::Relaxed));
    assert!(
        tally.all().iter().all(|&times| times > 0),
        "{tally:?}: not all of it was ever tried"
    );
}
