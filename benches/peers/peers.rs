//! Crates that others publish for the same purpose, beside memcg in one run.
//!
//! `cargo bench --manifest-path benches/peers/Cargo.toml [-- FILTER]`
//!
//! One iteration charges 64 bytes and gives them back; the time is that of one iteration of one
//! thread. Every thread has a limit that no thread reaches, at every level they have. Each thread
//! has its own handle: a registered reservation of one pool, a clone of one budget, a handle on one
//! group. Sizes are hidden from the compiler.

#[path = "../common/mod.rs"]
mod common;
mod table;

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::Arc;

use budget_context::{Budget, Resource};
use datafusion_execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryConsumer, MemoryPool, TrackConsumersPool,
};
use memcg::{Bytes, Limit, Limits, Runtime};
use memcg_bench_rows::Bench;

use crate::common::rows;
use crate::common::team::Team;

const SIZE: u64 = 64;
const MAX: u64 = 1 << 40;

/// The bytes that one group of memcg takes from its parent at a time.
const BATCH: u64 = 256 << 10;

/// Pairs before the clock starts.
const TOUCHES: u64 = 1_000;

/// The number of consumers that the error of a tracking pool would list: that of DataFusion's own
/// runtime builder.
const TOP: NonZeroUsize = NonZeroUsize::new(5).unwrap();

const BENCH: Bench = Bench {
    name: "peers",
    about: "What others publish for the same purpose, beside memcg.\nOne iteration charges 64 bytes and gives them back.",
};

fn main() {
    let measured = rows::run(&BENCH, define);
    table::print(&measured.medians);
}

fn define(rows: &mut rows::Rows) {
    for threads in [1, 2] {
        let mut row = |what: &str, team: &dyn Fn(usize) -> Team| {
            rows.wall(&format!("peers/{what}/threads{threads}"), || team(threads));
        };
        row("memcg_depth4", &|threads| memcg(BATCH, 4, threads));
        row("memcg_no_stock_depth4", &|threads| memcg(0, 4, threads));
        row("datafusion_greedy", &|threads| {
            datafusion(GreedyMemoryPool::new(MAX as usize), threads)
        });
        row("datafusion_fair_spill", &|threads| {
            datafusion(FairSpillPool::new(MAX as usize), threads)
        });
        row("datafusion_track_consumers", &|threads| {
            datafusion(
                TrackConsumersPool::new(GreedyMemoryPool::new(MAX as usize), TOP),
                threads,
            )
        });
        row("budget_context_depth1", &|threads| {
            budget_context(1, threads)
        });
        row("budget_context_depth3", &|threads| {
            budget_context(3, threads)
        });
    }
}

/// The root is the first level.
fn memcg(batch: u64, depth: usize, threads: usize) -> Team {
    let runtime = Runtime::builder()
        .max(Limit::Bytes(MAX))
        .batch(Bytes(batch))
        .build()
        .expect("a good size");
    let leaf = (1..depth).fold(runtime.root(), |above, _| {
        above
            .create("below", Limits::new().max(Limit::Bytes(MAX)))
            .expect("a free name in a group that is online")
    });
    Team::new(threads, move |station| {
        // Groups go offline with their runtime.
        let _kept = &runtime;
        let leaf = leaf.clone();
        let pairs = |times| {
            for _ in 0..times {
                drop(
                    leaf.charge(Bytes(black_box(SIZE)))
                        .expect("far below the limit"),
                );
            }
        };
        pairs(TOUCHES);
        station.serve(pairs);
    })
}

/// Flat by design; a consumer that can spill, which is what the fair pool is for.
fn datafusion(pool: impl MemoryPool, threads: usize) -> Team {
    let pool: Arc<dyn MemoryPool> = Arc::new(pool);
    Team::new(threads, move |station| {
        let reservation = MemoryConsumer::new(format!("peer{}", station.index))
            .with_can_spill(true)
            .register(&pool);
        let pairs = |times| {
            for _ in 0..times {
                let n = black_box(SIZE as usize);
                reservation.try_grow(n).expect("far below the limit");
                reservation.shrink(n);
            }
        };
        pairs(TOUCHES);
        station.serve(pairs);
    })
}

/// A chain of so many budgets; what is reserved goes back when the guard is dropped.
fn budget_context(depth: usize, threads: usize) -> Team {
    let resource = Resource::new("memory").expect("a good name");
    let root = Budget::builder()
        .limit(resource.clone(), MAX)
        .build()
        .expect("a good budget");
    let leaf = (1..depth).fold(root, |above, _| {
        above
            .child()
            .limit(resource.clone(), MAX)
            .build()
            .expect("a good budget")
    });
    Team::new(threads, move |station| {
        let leaf = leaf.clone();
        let resource = resource.clone();
        let pairs = |times| {
            for _ in 0..times {
                drop(
                    leaf.reserve(&resource, black_box(SIZE))
                        .expect("far below the limit"),
                );
            }
        };
        pairs(TOUCHES);
        station.serve(pairs);
    })
}
