//! A soak: threads that mix all that the crate does, with the process's own allocator, for as long
//! as one likes.
//!
//! A run is a row of trees, each with limits and foreign code of its own. Eight threads charge,
//! wait, allocate and free in groups that come and go, below limits that move. Reclaimers, hooks,
//! listeners and orders of choice free, sleep, lie and panic. One thread keeps promises and takes
//! idle credit back, one reads, one looks for a usage above its max where nothing is forced.
//!
//! Now and then all threads rest. Then each figure of each group is compared with what the test
//! holds: usage is what is reserved and allocated, with credit; and whatever is free can be
//! charged. In the end nothing is left.
//!
//! * `world`: a runtime, its groups, and limits that move; `known_group`, `holdings`: what groups
//!   hold;
//! * `worker`: what one thread does; `foreign`: reclaimers, hooks, listeners, orders;
//! * `check`: what must hold; `tally`: what has happened. Where one of these has not, the run
//!   fails.
//!
//! A run has a fixed number of operations. `MEMCG_SOAK_SECONDS` is how long it lasts instead,
//! `MEMCG_SOAK_SEED` is the seed of its first tree:
//!
//! `MEMCG_SOAK_SECONDS=3600 cargo test --release -p memcg-alloc --test soak`

mod check;
mod foreign;
mod holdings;
mod known_group;
#[path = "../../../../tests/support/poll.rs"]
mod poll;
#[path = "../support/mod.rs"]
mod support;
mod tally;
mod worker;
mod world;

use std::alloc::System;
use std::panic::PanicHookInfo;
use std::process::exit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use foreign::Contained;
use memcg::allocator::{charge_unowned_to, unowned_bytes};
use memcg::{Freshness, Limits, Runtime};
use memcg_alloc::MemcgAlloc;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tally::{Tally, What};
use worker::Worker;
use world::World;

#[global_allocator]
pub(crate) static ALLOCATOR: MemcgAlloc = MemcgAlloc::new(System);

const WORKERS: u64 = 8;
/// Of a run of a fixed number of operations.
const TREES: u64 = 4;
/// It goes on while anything that it is made of has not occurred yet, for so many trees at most.
const TREES_MAX: u64 = 16;
const RESTS: u64 = 3;
const STEPS: u64 = 800;
/// Of a tree in a run of some time.
const SECONDS_PER_TREE: u64 = 10;
/// Between two rests of it.
const STEPS_LONG: u64 = 4_000;
/// No thread has done anything for so long.
const STUCK_AFTER: Duration = Duration::from_secs(120);

pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The world of the tree at work, for the reader of a failure, and its number.
static NOW: Mutex<(u64, Weak<World>)> = Mutex::new((0, Weak::new()));
/// Goes up while threads get on.
static PROGRESS: AtomicU64 = AtomicU64::new(0);

fn describe() -> String {
    let (tree, world) = &*lock(&NOW);
    let described = world
        .upgrade()
        .map_or_else(String::new, |world| world.describe());
    format!("tree {tree} (MEMCG_SOAK_SEED={tree})\n{described}")
}

/// A panic that is not the test's own ends the process: others would wait for its thread, or the
/// crate contain it.
fn on_panic(info: &PanicHookInfo<'_>) {
    if info.payload().is::<Contained>() {
        return;
    }
    let payload = info.payload();
    let text = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or(payload.downcast_ref::<&str>().copied());
    let place = info
        .location()
        .map_or_else(String::new, ToString::to_string);
    eprintln!("soak FAILED at {place}: {}", text.unwrap_or("?"));
    eprintln!("{}", std::backtrace::Backtrace::force_capture());
    eprintln!("{}", describe());
    exit(101);
}

fn watch() {
    let mut last = 0;
    let mut since = Instant::now();
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let now = PROGRESS.load(Ordering::Relaxed);
        if now != last {
            last = now;
            since = Instant::now();
        } else if since.elapsed() > STUCK_AFTER {
            eprintln!("soak STUCK for {STUCK_AFTER:?}\n{}", describe());
            exit(102);
        }
    }
}

/// The barrier at which threads rest.
struct Rests {
    barrier: Barrier,
    /// Workers that are through.
    arrived: AtomicU64,
    /// The others follow.
    due: AtomicBool,
    over: AtomicBool,
}

impl Rests {
    /// Until the next period; false: it is over.
    fn rest(&self) -> bool {
        self.barrier.wait();
        self.barrier.wait();
        !self.over.load(Ordering::SeqCst)
    }
}

fn charge(world: &World, seed: u64, steps: u64, rests: &Rests) {
    let mut worker = Worker::new(world, seed);
    loop {
        for _ in 0..steps {
            worker.step();
            PROGRESS.fetch_add(1, Ordering::Relaxed);
        }
        worker.rest();
        rests.arrived.fetch_add(1, Ordering::SeqCst);
        if !rests.rest() {
            return;
        }
    }
}

/// Does its work until the workers are through, and rests.
fn beside(seed: u64, rests: &Rests, work: impl Fn(&mut SmallRng)) {
    let mut rng = SmallRng::seed_from_u64(seed);
    loop {
        while !rests.due.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_micros(rng.random_range(100..3_000)));
            work(&mut rng);
        }
        if !rests.rest() {
            return;
        }
    }
}

/// Keeps promises, frees what groups hold that are cancelled, and takes idle credit back.
fn keep_promises(world: &World, rng: &mut SmallRng) {
    let shared = &world.shared;
    let tally = &world.shared.tally;
    while let Some((later, known)) = { lock(&shared.due).pop() } {
        if rng.random_bool(0.8) {
            let freed = known.free(later.want());
            tally.add(What::Reclaimed, freed);
            tally.one(What::Promises);
            later.report(freed);
        } else {
            tally.one(What::Forgotten);
        }
    }
    while let Some(known) = { lock(&shared.stopped).pop() } {
        known.free(u64::MAX);
    }
    match rng.random_range(0..8) {
        0..4 => tally.add(What::Idle, world.runtime.release_idle_credit().0),
        4 => world.runtime.settle(),
        5 => drop(world.runtime.root().memory().drain()),
        _ => {}
    }
}

fn read(world: &World, rng: &mut SmallRng) {
    let known = world.any(rng);
    let Some(group) = known.group() else { return };
    match rng.random_range(0..12) {
        0 => drop(world.runtime.snapshot().to_string()),
        1 => drop(world.runtime.verify()),
        2 => drop(group.read(Freshness::Exact)),
        3 => drop(group.read(Freshness::Threshold)),
        4 => drop(group.numa_stat(memcg::StatKey::KERNEL, Freshness::Within(4_096))),
        5 => {
            let peak = group.peak_live();
            assert!(peak.min() <= peak.max(), "{peak}");
        }
        6 => drop((group.pressure(), group.pressure_level())),
        7 => drop((
            group.ledger(),
            group.inspect().ledger_local(),
            group.inspect().live_local(),
        )),
        8 => drop((group.inspect().incidents(), group.inspect().top(3))),
        9 => drop((world.runtime.own_bytes(), world.runtime.pools())),
        10 => drop((
            group.limits(),
            group.effective_max(),
            group.headroom(),
            group.inspect().soft(),
        )),
        _ => drop(group.inspect().flush_ratelimited()),
    }
}

/// Usage is within max, once it was, wherever nothing is forced and no max is set.
fn sample(world: &World, over: &AtomicBool) {
    let strict: Vec<_> = world
        .stay
        .iter()
        .filter(|known| known.strict)
        .filter_map(|known| Some((known, known.group()?)))
        .collect();
    while !over.load(Ordering::SeqCst) {
        for (known, group) in &strict {
            let Ok(mut ceiling) = known.ceiling.try_lock() else {
                continue;
            };
            let usage = group.usage();
            let max = group.max();
            assert!(
                usage <= *ceiling,
                "{}: usage {usage}, max {max}, once {ceiling}",
                group.path()
            );
            if usage <= max {
                *ceiling = max;
            }
            world.shared.tally.one(What::Samples);
        }
        // Leaves the processors to the threads that are being watched.
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// The group of what no group owns is charged as much.
fn check_unowned(process: &memcg::Group) {
    check::eventually("unowned bytes", || {
        memcg_alloc::catch_up();
        (process.live(), unowned_bytes())
    });
}

/// One tree, from its first group to its last.
fn tree(seed: u64, until: Option<Instant>, process: &memcg::Group) -> Tally {
    let mut rng = SmallRng::seed_from_u64(seed);
    let world = Arc::new(World::random(&mut rng));
    *lock(&NOW) = (seed, Arc::downgrade(&world));
    let steps = if until.is_some() { STEPS_LONG } else { STEPS };
    let barrier = Barrier::new(WORKERS as usize + 3);
    let [due, done] = [false; 2].map(AtomicBool::new);
    let rests = Rests {
        barrier,
        arrived: AtomicU64::new(0),
        due,
        over: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let world = &*world;
        let rests = &rests;
        let done = &done;
        scope.spawn(move || sample(world, done));
        scope.spawn(move || beside(!seed, rests, |rng| keep_promises(world, rng)));
        scope.spawn(move || beside(!seed ^ 1, rests, |rng| read(world, rng)));
        for worker in 0..WORKERS {
            scope.spawn(move || charge(world, seed * WORKERS + worker, steps, rests));
        }
        let began = Instant::now();
        for rest in 1.. {
            while rests.arrived.load(Ordering::SeqCst) < WORKERS {
                std::thread::sleep(Duration::from_micros(200));
            }
            rests.due.store(true, Ordering::SeqCst);
            rests.barrier.wait();
            check::at_rest(world, &mut rng);
            check_unowned(process);
            let is_over = match until {
                None => rest == RESTS,
                Some(until) => {
                    began.elapsed().as_secs() >= SECONDS_PER_TREE || Instant::now() > until
                }
            };
            rests.over.store(is_over, Ordering::SeqCst);
            rests.arrived.store(0, Ordering::SeqCst);
            rests.due.store(false, Ordering::SeqCst);
            rests.barrier.wait();
            if is_over {
                break;
            }
        }
        done.store(true, Ordering::SeqCst);
    });
    let shared = Arc::clone(&world.shared);
    let world = Arc::into_inner(world).expect("no other thread has it");
    check::end(world, &mut rng);
    let tally = Tally::default();
    tally.add_all(&shared.tally);
    tally
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|error| panic!("{name}={text}: {error}")),
    )
}

/// KiB of the process that are in memory, where the system says so.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

fn main() {
    std::panic::set_hook(Box::new(on_panic));
    std::thread::spawn(watch);
    let began = Instant::now();
    let until = number("MEMCG_SOAK_SECONDS").map(|seconds| began + Duration::from_secs(seconds));
    let seed = number("MEMCG_SOAK_SEED").unwrap_or(1);
    let own = Runtime::builder().build().expect("the default holds");
    let process = own.root().create("process", Limits::new()).expect("a name");
    charge_unowned_to(Some(&process));
    let all = Tally::default();
    for tree_seed in seed.. {
        let since = Instant::now();
        let tally = tree(tree_seed, until, &process);
        println!(
            "tree {tree_seed}, {:.1?}: {}, {} KiB resident",
            since.elapsed(),
            tally.line(),
            resident()
        );
        all.add_all(&tally);
        // A rare thing may need a few trees more.
        let trees = tree_seed - seed + 1;
        let is_long = until.map_or(trees >= TREES, |until| Instant::now() > until);
        if is_long && (all.missing().is_empty() || trees >= TREES_MAX) {
            break;
        }
    }
    charge_unowned_to(None);
    println!("{:.1?}\n{all}", began.elapsed());
    assert!(
        all.missing().is_empty(),
        "these have not occurred: {:?}",
        all.missing()
    );
    own.root().memory().drain();
    assert_eq!(
        (process.live(), own.root().usage()),
        (0, 0),
        "unowned bytes are charged to no group any more"
    );
}
