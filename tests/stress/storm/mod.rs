//! The reclaim storm: eight groups at their limit below one root, sixteen threads that charge in
//! every form there is, limits that move, reclaimers that sleep 1 to 50 ms, one in eight of them
//! for nothing; groups that go offline while others wait for room in them, futures that are
//! dropped, victims that are told to stop.
//!
//! All the time a sampler looks for a usage above its limit, and a watchdog for a storm in which no
//! thread is admitted any more. Each attempt must end in one way, and in time; in the end nothing
//! is held, no thread waits, and the figures of the tree agree with its audit.
//!
//! * here: the threads, and what they report; `lane`: what one thread does, `waits`: the forms of a
//!   charge;
//! * `world`: a runtime, its groups, and what must hold; `cache`: its reclaimers; `job`: groups
//!   that come and go;
//! * `pool`: the thread that frees what others have asked for; `tally`: how attempts ended;
//! * `baton`: room for one, handed from one to the next; `dog`: the watchdog does bark.
//!
//! `MEMCG_STRESS_SECONDS` is how long it lasts (default 4): ten seconds in the check, ten minutes
//! by hand: `MEMCG_STRESS_SECONDS=600 cargo test --release --test stress storm:: -- --nocapture`.

mod baton;
mod cache;
mod dog;
mod job;
mod lane;
mod pool;
mod tally;
mod waits;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lane::Lane;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tally::Tally;
use world::World;

use crate::support::turns::turn;
use crate::support::watchdog::{Describe, Watchdog};

pub(crate) use crate::support::reclaimers::lock;

const THREADS: u64 = 16;
const SECONDS: u64 = 4;
/// A longer storm has more trees.
const SECONDS_PER_TREE_MAX: Duration = Duration::from_secs(10);
const TREES_MIN: u32 = 2;
/// In one tree and the next, in microseconds: the short ones leave more to races.
const NAPS_MAX: [u64; 2] = [200, 49_000];
/// It goes on while anything that it is made of has not happened yet, for so much longer at most.
const LONGER_MAX: Duration = Duration::from_secs(120);
const SAMPLES_MIN: u64 = 1_000;

/// No thread is admitted for so long: the storm has stopped.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sets a flag when it goes, by a panic too: no thread waits for a thread that has failed.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Looks at every group that stays again and again until `over`; returns how often a look was
/// conclusive.
fn sample(world: &World, over: &AtomicBool) -> u64 {
    let mut samples = 0;
    while !over.load(Ordering::SeqCst) {
        samples += world.stays.iter().filter(|stay| stay.sample()).count() as u64;
        // Leaves the processors to the threads that are being watched.
        std::thread::sleep(Duration::from_micros(100));
    }
    samples
}

/// One tree, from its first group to its last.
fn epoch(seed: u64, length: Duration, admitted: &Arc<AtomicU64>) -> (Tally, u64) {
    let world = Arc::new(World::random(
        NAPS_MAX[seed as usize % NAPS_MAX.len()],
        &mut SmallRng::seed_from_u64(seed),
    ));
    let described = Arc::downgrade(&world);
    let describe: Describe = Arc::new(move || {
        described
            .upgrade()
            .map_or_else(String::new, |world| world.describe())
    });
    let progress = Arc::clone(admitted);
    let watchdog = Watchdog::start(
        "storm",
        PATIENCE,
        move || progress.load(Ordering::SeqCst),
        Arc::clone(&describe),
    );
    // Threads are to stop; those that did the charges have.
    let stop = AtomicBool::new(false);
    let over = AtomicBool::new(false);
    let (mut tally, samples) = std::thread::scope(|scope| {
        let world = &*world;
        let stop = &stop;
        let over = &over;
        let describe = &describe;
        let _over = Done(over);
        let sampler = scope.spawn(|| sample(world, over));
        scope.spawn(|| pool::work(world, seed, stop, over));
        let work = move |number| {
            let mut lane = Lane::new(seed * THREADS + number, admitted, describe);
            while !stop.load(Ordering::SeqCst) {
                lane.step(world);
            }
            lane.end()
        };
        let lanes: Vec<_> = (0..THREADS)
            .map(|number| scope.spawn(move || work(number)))
            .collect();
        let began = Instant::now();
        while began.elapsed() < length && !lanes.iter().any(|lane| lane.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::SeqCst);
        let mut tally = Tally::default();
        for lane in lanes {
            tally.add(&lane.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        over.store(true, Ordering::SeqCst);
        (
            tally,
            sampler.join().unwrap_or_else(|panic| resume_unwind(panic)),
        )
    });
    tally.check();
    let events = Arc::into_inner(world)
        .expect("no other thread has it")
        .end(&tally);
    tally.add_events(&events);
    drop(watchdog);
    (tally, samples)
}

fn seconds() -> u64 {
    std::env::var("MEMCG_STRESS_SECONDS").map_or(SECONDS, |text| {
        text.parse()
            .unwrap_or_else(|error| panic!("MEMCG_STRESS_SECONDS={text}: {error}"))
    })
}

#[test]
fn the_reclaim_storm() {
    let _turn = turn(module_path!());
    let seconds = Duration::from_secs(seconds());
    let length = SECONDS_PER_TREE_MAX.min(seconds / TREES_MIN);
    let admitted = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let mut tally = Tally::default();
    let mut trees = 0;
    let mut samples = 0;
    while began.elapsed() < seconds || !(tally.is_storm() && samples > SAMPLES_MIN) {
        assert!(
            began.elapsed() < seconds + LONGER_MAX,
            "{trees} trees, {samples} samples: no storm\n{tally}"
        );
        trees += 1;
        let tree = catch_unwind(AssertUnwindSafe(|| epoch(trees, length, &admitted)));
        let (of_this, seen) = tree.unwrap_or_else(|panic| {
            println!("tree {trees}");
            resume_unwind(panic)
        });
        tally.add(&of_this);
        samples += seen;
    }
    println!(
        "{trees} trees, {samples} samples, {:.1?}\n{tally}",
        began.elapsed()
    );
}
