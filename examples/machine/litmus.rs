//! The barrier litmus: runs the real light/heavy pair of the stock on two pinned threads.
//!
//! The models check the protocol with full fences, because a model checker knows nothing of
//! `membarrier(2)`. This program closes that gap on the machine at hand. Each shape is a store-load
//! race of the protocol: the light side stores, passes the light barrier (no instruction at all)
//! and loads; the heavy side stores, passes the heavy barrier and loads. A *miss* is a round in
//! which neither side saw the other's store. With the real pair there is none; with the heavy side
//! replaced by a compiler fence, or by a full fence of its own thread only, the machine shows one
//! within seconds, so the shapes can fail.
//!
//! ```text
//! cargo run --release --example litmus                      # real pair: 2,000,000 rounds a shape, no miss
//! cargo run --release --example litmus -- --heavy removed   # every shape must miss within --seconds
//! cargo run --release --example litmus -- --heavy local     # so must it with a fence of one thread only
//! ```

use std::hint::{black_box, spin_loop};
use std::process::ExitCode;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use crossbeam::utils::CachePadded;
use memcg::barrier::litmus;
use memcg_report::terminal::State;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Heavy {
    /// The process-wide barrier that the drain side uses: no round may miss.
    Real,
    /// A full fence of the calling thread alone in its place: every shape must miss, for the light
    /// side has none.
    Local,
    /// A compiler fence in its place: every shape must miss.
    Removed,
}

#[derive(Parser)]
#[command(about = "Store-load litmus of the light/heavy barrier pair on two pinned threads")]
struct Options {
    /// The heavy side.
    #[arg(long, value_enum, default_value = "real")]
    heavy: Heavy,
    /// Rounds of each shape with the real pair.
    #[arg(long, default_value_t = 2_000_000)]
    rounds: u64,
    /// The time that each shape may look for its miss when the heavy side is removed.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Only the shape of this name.
    #[arg(long)]
    shape: Option<String>,
}

/// The words of one round, laid out as the stock has them: the two words of a slot side by side,
/// the word that the heavy side owns on a line of its own.
#[derive(Default)]
struct Words {
    filled: AtomicI64,
    drained: AtomicI64,
}

#[derive(Default)]
struct Cells {
    slot: CachePadded<Words>,
    word: CachePadded<AtomicI64>,
}

/// Credit in the slot before a round of `consume/drain`; the charge takes `CHARGE` of it.
const CREDIT: i64 = 64;
const CHARGE: i64 = 7;

struct Shape {
    name: &'static str,
    /// Start values of slot filled and word.
    start: (i64, i64),
    /// The owner's half: what it saw, or took, as the judge wants it.
    light: fn(&Cells) -> i64,
    /// The drainer's half.
    heavy: fn(&Cells, fn()) -> i64,
    /// Neither side saw the other.
    missed: fn(light: i64, heavy: i64) -> bool,
}

/// Every access is Relaxed except the store of `filled`, which is Release as in the stock: the
/// order between a store and the load after it comes from the pair under test and from nothing
/// else.
const SHAPES: [Shape; 4] = [
    Shape {
        name: "store-buffering",
        start: (0, 0),
        light: |cells| {
            cells.slot.filled.store(1, Ordering::Relaxed);
            litmus::light();
            cells.word.load(Ordering::Relaxed)
        },
        heavy: |cells, barrier| {
            cells.word.store(1, Ordering::Relaxed);
            barrier();
            cells.slot.filled.load(Ordering::Relaxed)
        },
        missed: |light, heavy| light == 0 && heavy == 0,
    },
    // The owner puts credit into its slot and looks whether the counter is open; the closer sets
    // the capacity to zero and looks for credit. A miss strands the credit.
    Shape {
        name: "put-close",
        start: (0, 128),
        light: |cells| {
            let filled = cells.slot.filled.load(Ordering::Relaxed);
            cells
                .slot
                .filled
                .store(filled.wrapping_add(CHARGE), Ordering::Release);
            litmus::light();
            cells.word.load(Ordering::Relaxed)
        },
        heavy: |cells, barrier| {
            cells.word.store(0, Ordering::Relaxed);
            barrier();
            cells.slot.filled.load(Ordering::Acquire)
        },
        missed: |capacity, filled| capacity != 0 && filled == 0,
    },
    // The owner takes from its slot what a drainer claims. A miss hands the same units out twice.
    Shape {
        name: "consume-drain",
        start: (CREDIT, 0),
        light: |cells| {
            let filled = cells.slot.filled.load(Ordering::Relaxed);
            if filled.wrapping_sub(cells.slot.drained.load(Ordering::Relaxed)) < CHARGE {
                return 0;
            }
            let filled = filled.wrapping_sub(CHARGE);
            cells.slot.filled.store(filled, Ordering::Release);
            litmus::light();
            if filled.wrapping_sub(cells.slot.drained.load(Ordering::Relaxed)) >= 0 {
                return CHARGE;
            }
            cells
                .slot
                .filled
                .store(filled.wrapping_add(CHARGE), Ordering::Release);
            0
        },
        heavy: |cells, barrier| {
            let drained = cells.slot.drained.load(Ordering::Relaxed);
            let claim = cells
                .slot
                .filled
                .load(Ordering::Acquire)
                .wrapping_sub(drained);
            cells
                .slot
                .drained
                .store(drained.wrapping_add(claim), Ordering::Relaxed);
            barrier();
            let over = drained
                .wrapping_add(claim)
                .wrapping_sub(cells.slot.filled.load(Ordering::Acquire));
            claim - over.max(0)
        },
        missed: |charged, drained| charged + drained > CREDIT,
    },
    // The owner adds to its cell and lists itself when no thread has; the flusher unlists it and
    // reads the cell. A miss leaves an addition that no thread will look for.
    Shape {
        name: "add-unlist",
        start: (0, 1),
        light: |cells| {
            let cell = cells.slot.filled.load(Ordering::Relaxed);
            cells.slot.filled.store(cell + 1, Ordering::Release);
            litmus::light();
            cells.word.load(Ordering::Relaxed)
        },
        heavy: |cells, barrier| {
            cells.word.store(0, Ordering::Relaxed);
            barrier();
            cells.slot.filled.load(Ordering::Acquire)
        },
        missed: |listed, cell| listed != 0 && cell == 0,
    },
];

/// A point where two threads meet: each raises its own word and spins on the other's. Spinning
/// keeps them within one cache transfer of each other, which is what makes a missing barrier
/// visible.
#[derive(Default)]
struct Meeting {
    light: CachePadded<AtomicU64>,
    heavy: CachePadded<AtomicU64>,
}

impl Meeting {
    // Release/Acquire: what either side wrote before the meeting is seen by the other after it.
    fn meet(mine: &AtomicU64, other: &AtomicU64, at: u64) {
        mine.store(at, Ordering::Release);
        while other.load(Ordering::Acquire) < at {
            spin_loop();
        }
    }
}

/// A word that ends both threads at the same meeting.
const STOP: i64 = i64::MIN;

struct Jitter(u64);

impl Jitter {
    /// Delays of all small sizes: no fixed offset brings the stores of both sides together on every
    /// machine.
    fn pause(&mut self) {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let bits = self.0 & 7;
        for _ in 0..(self.0 >> 32) & ((1 << bits) - 1) {
            black_box(self.0);
        }
    }
}

/// Rounds between two looks at the clock.
const STRETCH: u64 = 1024;

struct Outcome {
    rounds: u64,
    misses: u64,
    taken: Duration,
}

/// Runs one shape until `enough(rounds, misses)` says so.
fn run(
    shape: &Shape,
    barrier: fn(),
    cpus: [usize; 2],
    enough: impl Fn(u64, u64) -> bool,
) -> Outcome {
    let cells = Cells::default();
    let meeting = Meeting::default();
    let saw = CachePadded::new(AtomicI64::new(0));
    let start = Instant::now();
    let mut rounds = 0;
    let mut misses = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(cpus[0]);
            let mine = &meeting.light;
            let other = &meeting.heavy;
            let mut jitter = Jitter(0x9E37_79B9_7F4A_7C15);
            for round in 0.. {
                Meeting::meet(mine, other, 3 * round + 1);
                // Bring the other side's word close, so that the load is quick and the store is
                // not.
                if black_box(cells.word.load(Ordering::Relaxed)) == STOP {
                    break;
                }
                Meeting::meet(mine, other, 3 * round + 2);
                jitter.pause();
                saw.store((shape.light)(&cells), Ordering::Relaxed);
                Meeting::meet(mine, other, 3 * round + 3);
            }
        });
        pin(cpus[1]);
        let mine = &meeting.heavy;
        let other = &meeting.light;
        let mut jitter = Jitter(0xD1B5_4A32_D192_ED03);
        while !enough(rounds, misses) {
            cells.slot.filled.store(shape.start.0, Ordering::Relaxed);
            cells.slot.drained.store(0, Ordering::Relaxed);
            cells.word.store(shape.start.1, Ordering::Relaxed);
            Meeting::meet(mine, other, 3 * rounds + 1);
            Meeting::meet(mine, other, 3 * rounds + 2);
            jitter.pause();
            let heavy = (shape.heavy)(&cells, barrier);
            Meeting::meet(mine, other, 3 * rounds + 3);
            rounds += 1;
            misses += u64::from((shape.missed)(saw.load(Ordering::Relaxed), heavy));
        }
        cells.word.store(STOP, Ordering::Relaxed);
        Meeting::meet(mine, other, 3 * rounds + 1);
    });
    Outcome {
        rounds,
        misses,
        taken: start.elapsed(),
    }
}

/// Two processors that this process may run on, or none where there is only one.
#[cfg(target_os = "linux")]
fn two_cpus() -> Option<[usize; 2]> {
    let allowed = rustix::thread::sched_getaffinity(None).ok()?;
    let mut cpus = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    Some([cpus.next()?, cpus.next()?])
}

#[cfg(target_os = "linux")]
fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        eprintln!("litmus: cannot pin a thread to processor {cpu}: {error}");
    }
}

#[cfg(not(target_os = "linux"))]
fn two_cpus() -> Option<[usize; 2]> {
    thread::available_parallelism()
        .is_ok_and(|cpus| cpus.get() > 1)
        .then_some([0, 1])
}

#[cfg(not(target_os = "linux"))]
fn pin(_cpu: usize) {}

fn heavy_real() {
    assert!(
        litmus::heavy(),
        "the process-wide barrier failed in the middle of the run"
    );
}

fn main() -> ExitCode {
    let options = Options::parse();
    let chosen = |shape: &&Shape| options.shape.as_ref().is_none_or(|name| name == shape.name);
    let shapes: Vec<&Shape> = SHAPES.iter().filter(chosen).collect();
    if shapes.is_empty() {
        let names: Vec<_> = SHAPES.iter().map(|shape| shape.name).collect();
        eprintln!("litmus: no such shape; there are {}", names.join(", "));
        return ExitCode::from(2);
    }
    let Some(cpus) = two_cpus() else {
        println!("litmus: skipped, this process may run on one processor only");
        return ExitCode::SUCCESS;
    };
    if options.heavy == Heavy::Real && !litmus::heavy() {
        println!("litmus: skipped, no process-wide barrier here: the stock runs on fences");
        return ExitCode::SUCCESS;
    }
    let mut failed = false;
    for shape in shapes {
        match options.heavy {
            Heavy::Real => eprintln!("litmus: {:<16} {} rounds", shape.name, options.rounds),
            _ => eprintln!("litmus: {:<16} up to {} s", shape.name, options.seconds),
        }
        let real = || {
            run(shape, heavy_real, cpus, |rounds, _| {
                rounds >= options.rounds
            })
        };
        let removed = |barrier: fn()| {
            let deadline = Instant::now() + Duration::from_secs(options.seconds);
            // The clock is looked at between stretches of rounds, never in one.
            run(shape, barrier, cpus, |rounds, misses| {
                rounds % STRETCH == 0 && (misses > 0 || Instant::now() > deadline)
            })
        };
        let (what, outcome, expected) = match options.heavy {
            Heavy::Real => ("real pair", real(), false),
            Heavy::Local => (
                "heavy side local",
                removed(|| fence(Ordering::SeqCst)),
                true,
            ),
            Heavy::Removed => ("heavy side removed", removed(litmus::heavy_removed), true),
        };
        let Outcome {
            rounds,
            misses,
            taken,
        } = outcome;
        let good = (misses > 0) == expected;
        let verdict = if good {
            State::Good.paint("ok")
        } else {
            State::Bad.paint("FAILED")
        };
        println!(
            "litmus: {:<16} {what}: {misses} misses in {rounds} rounds, {:.1} s: {verdict}",
            shape.name,
            taken.as_secs_f64()
        );
        failed |= !good;
    }
    ExitCode::from(u8::from(failed))
}
