//! A growth and a return of 8 KiB through `Arc<dyn MemoryPool>`, as operators make them: the pool
//! over a group beside DataFusion's own. Each thread has a reservation of its own, below a limit
//! that is never met.
//!
//! ```text
//! cargo bench -p memcg-datafusion-benches                     the table, about ten seconds
//! cargo bench -p memcg-datafusion-benches -- --rounds 5       in a shorter time
//! cargo test -p memcg-datafusion-benches                      one short round: whether it works
//! ```
//!
//! The rows run in turns, round by round. A round is so short that another process seldom
//! interrupts it. A figure is a median over the rounds of ratios in the same round: the time of a
//! pair by that of the unbounded pool's, and by that of Greedy's; and what it takes above the
//! unbounded pool, in raw pairs, a raw charge of a group with its return on one thread. The
//! brackets have the first and the third quartile.

use std::fmt::{self, Display, Formatter};
use std::num::NonZeroUsize;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use datafusion_execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryConsumer, MemoryPool, MemoryReservation,
    TrackConsumersPool, UnboundedMemoryPool,
};
use memcg::{GroupName, Limits, Runtime};
use memcg_datafusion::{GroupPool, PoolConfig};

const ROUNDS: usize = 151;
const PAIRS: u32 = 20_000;
const BYTES: usize = 8 << 10;
const MAX: usize = 1 << 30;
const TOP: NonZeroUsize = NonZeroUsize::new(5).unwrap();

type Pool = Arc<dyn MemoryPool>;

/// Cost of a reservation without a pool: the floor of all rows.
#[derive(Debug)]
struct NoPool;

impl Display for NoPool {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("none")
    }
}

impl MemoryPool for NoPool {
    fn name(&self) -> &str {
        "none"
    }

    fn grow(&self, _: &MemoryReservation, _: usize) {}

    fn shrink(&self, _: &MemoryReservation, _: usize) {}

    fn try_grow(&self, _: &MemoryReservation, _: usize) -> datafusion_common::Result<()> {
        Ok(())
    }

    fn reserved(&self) -> usize {
        0
    }
}

/// A pool of a group for each operator that has seen so many operators.
fn pool_of_many(pool: Pool, operators: usize) -> Pool {
    for operator in 0..operators {
        let reservation = MemoryConsumer::new(format!("Operator{operator}[0]")).register(&pool);
        reservation.try_grow(1).expect("it fits");
    }
    pool
}

/// The pools by name. The first is what the others are compared with, the second is Greedy.
fn pools(runtime: &Runtime, operators: usize) -> Vec<(&'static str, Pool)> {
    let of_group = |config: &PoolConfig| -> Pool {
        let tenant = runtime
            .root()
            .create(GroupName::Unnamed, Limits::new().max(MAX))
            .expect("a tenant");
        let query = tenant
            .create(GroupName::Unnamed, Limits::new())
            .expect("a query");
        Arc::new(GroupPool::with_config(&query, config).expect("a pool"))
    };
    let on_demand = PoolConfig::new().spill_on_demand();
    vec![
        (
            "UnboundedMemoryPool",
            Arc::new(UnboundedMemoryPool::default()),
        ),
        ("GreedyMemoryPool", Arc::new(GreedyMemoryPool::new(MAX))),
        ("FairSpillPool", Arc::new(FairSpillPool::new(MAX))),
        (
            "TrackConsumersPool<Greedy>",
            Arc::new(TrackConsumersPool::new(GreedyMemoryPool::new(MAX), TOP)),
        ),
        ("none", Arc::new(NoPool)),
        ("GroupPool", of_group(&PoolConfig::new())),
        ("GroupPool, spill_on_demand", of_group(&on_demand)),
        (
            "GroupPool, with a reserve",
            of_group(&on_demand.unspillable_reserve(64 << 20)),
        ),
        (
            "GroupPool, by_operator",
            of_group(&PoolConfig::new().by_operator()),
        ),
        (
            "the same, of 20,000 names",
            pool_of_many(of_group(&PoolConfig::new().by_operator()), operators),
        ),
    ]
}

/// Nanoseconds of a pair, where so many threads make pairs at the same time.
fn pair(pool: &Pool, threads: usize, pairs: u32) -> f64 {
    let start = Barrier::new(threads);
    let time = |thread: usize| {
        let reservation = MemoryConsumer::new(format!("ExternalSorter[{thread}]"))
            .with_can_spill(true)
            .register(pool);
        let pair = || {
            reservation.try_grow(BYTES).expect("it fits");
            reservation.shrink(BYTES);
        };
        // A sort has something to spill.
        reservation.try_grow(BYTES).expect("it fits");
        (0..1_000).for_each(|_| pair());
        start.wait();
        let begun = Instant::now();
        (0..pairs).for_each(|_| pair());
        begun.elapsed().as_nanos() as f64 / f64::from(pairs)
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .map(|thread| scope.spawn(move || time(thread)))
            .collect();
        let own = time(0);
        let others = others
            .into_iter()
            .map(|other| other.join().expect("no panic"));
        others.fold(own, f64::max)
    })
}

/// Nanoseconds of a raw charge of a group and its return.
fn raw_pair(runtime: &Runtime, pairs: u32) -> f64 {
    let tenant = runtime
        .root()
        .scope(GroupName::Unnamed, Limits::new().max(MAX))
        .expect("a tenant");
    let query = tenant
        .scope(GroupName::Unnamed, Limits::new())
        .expect("a query");
    let pair = || {
        query
            .raw()
            .charge(std::hint::black_box(BYTES))
            .expect("it fits");
        query.raw().uncharge(std::hint::black_box(BYTES));
    };
    (0..1_000).for_each(|_| pair());
    let begun = Instant::now();
    (0..pairs).for_each(|_| pair());
    begun.elapsed().as_nanos() as f64 / f64::from(pairs)
}

fn quartiles(mut ratios: Vec<f64>) -> String {
    ratios.sort_by(f64::total_cmp);
    let [low, median, high] =
        [1, 2, 3].map(|quarter| ratios[(ratios.len() * quarter / 4).min(ratios.len() - 1)]);
    format!("{median:.2} [{low:.2}, {high:.2}]")
}

fn main() {
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let (mut rounds, pairs) = if is_bench {
        (ROUNDS, PAIRS)
    } else {
        (1, PAIRS / 10)
    };
    // `cargo test` passes on the names of tests.
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| is_bench && argument != "--bench");
    while let Some(argument) = arguments.next() {
        let count = arguments.next().filter(|_| argument == "--rounds");
        let Some(count) = count
            .and_then(|count| count.parse().ok())
            .filter(|&count| count > 0)
        else {
            eprintln!("the only argument is --rounds, with a number from 1 on");
            std::process::exit(2);
        };
        rounds = count;
    }
    let runtime = Runtime::builder().build().expect("memory for a runtime");
    let pools = pools(&runtime, if is_bench { 20_000 } else { 200 });
    for threads in [1, 2] {
        let mut times = vec![Vec::new(); pools.len()];
        let mut raw = Vec::new();
        for _ in 0..rounds {
            raw.push(raw_pair(&runtime, pairs));
            for ((_, pool), times) in pools.iter().zip(&mut times) {
                times.push(pair(pool, threads, pairs));
            }
        }
        println!("{threads} threads, {rounds} rounds of {pairs} pairs");
        println!(
            "{:<28} {:>20} {:>20} {:>24}",
            "", "x Unbounded", "x Greedy", "raw pairs above"
        );
        for ((name, pool), own) in pools.iter().zip(&times) {
            assert_eq!(pool.reserved(), 0, "{name} gets all back");
            let by = |other: &[f64]| {
                quartiles(
                    own.iter()
                        .zip(other)
                        .map(|(own, other)| own / other)
                        .collect(),
                )
            };
            let above = own
                .iter()
                .zip(&times[0])
                .zip(&raw)
                .map(|((own, base), raw)| (own - base) / raw);
            println!(
                "{name:<28} {:>20} {:>20} {:>24}",
                by(&times[0]),
                by(&times[1]),
                quartiles(above.collect())
            );
        }
    }
}
