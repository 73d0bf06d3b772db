//! Holds a reservation of the pool by its number of instructions, which a noisy machine does not
//! change. `cargo bench -p memcg-datafusion-benches --profile dev --bench reservations`
//!
//! A growth and a return of 8 KiB through `Arc<dyn MemoryPool>`, as operators make them. What the
//! same takes of the unbounded pool is taken off.
//!
//! The ceilings are those of debug code: the check compiles DataFusion once, and not optimised. A
//! call or a lock more on the path shows there as well.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;

use datafusion_execution::memory_pool::{MemoryConsumer, MemoryPool, UnboundedMemoryPool};
use memcg::{Limits, Runtime};
use memcg_bench_rows::Bench;
use memcg_bench_rows::instructions::{CountedPath, count_paths, counted};
use memcg_datafusion::{GroupPool, PoolConfig};

const BENCH: Bench = Bench {
    name: "reservations",
    about: "Counts the instructions of a reservation of the pool under valgrind, and fails above a ceiling.",
};

/// A growth and a return, more than of the unbounded pool: 1,882 in debug code on x86-64 with rustc
/// 1.95, and a tenth more for other compilers.
const RESERVATION_INSTRUCTIONS_MAX: f64 = 2_070.0;

/// The same of a pool whose operators spill on demand: 2,297.
const ON_DEMAND_INSTRUCTIONS_MAX: f64 = 2_527.0;

const ROUNDS: u64 = 10_000;
const BYTES: usize = 8 << 10;

fn pairs(pool: &Arc<dyn MemoryPool>, rounds: u64) {
    let reservation = MemoryConsumer::new("Operator[0]").register(pool);
    let pairs = |times: u64| {
        for _ in 0..times {
            reservation.try_grow(black_box(BYTES)).expect("it fits");
            reservation.shrink(black_box(BYTES));
        }
    };
    pairs(1_000);
    counted(|| pairs(rounds));
}

fn of_group(config: &PoolConfig, rounds: u64) {
    let runtime = Runtime::builder().build().expect("memory for a runtime");
    let query = runtime
        .root()
        .create("query", Limits::new().max(1_usize << 30))
        .expect("a query");
    let pool: Arc<dyn MemoryPool> =
        Arc::new(GroupPool::with_config(&query, config).expect("a pool"));
    pairs(&pool, rounds);
}

const fn reservations(
    name: &'static str,
    what: &'static str,
    most: f64,
    run: fn(&(), u64),
) -> CountedPath<()> {
    CountedPath {
        name,
        what,
        most,
        rounds: ROUNDS,
        run,
        beside: Some(|(), rounds| {
            let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
            pairs(&pool, rounds);
        }),
    }
}

const PATHS: &[CountedPath<()>] = &[
    reservations(
        "reservations",
        "a growth of a reservation and its return, more than of the unbounded pool",
        RESERVATION_INSTRUCTIONS_MAX,
        |(), rounds| of_group(&PoolConfig::new(), rounds),
    ),
    reservations(
        "reservations-on-demand",
        "the same of a pool that spills on demand",
        ON_DEMAND_INSTRUCTIONS_MAX,
        |(), rounds| of_group(&PoolConfig::new().spill_on_demand(), rounds),
    ),
];

fn main() -> ExitCode {
    count_paths(&BENCH, PATHS, || ((), "Pool".to_owned()))
}
