//! A thread prints a table of all groups each second, while workers run queries that charge and
//! free.
//!
//! ```text
//! cargo run --example table
//! ```

use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use memcg::{Charged, Group, Limit, Limits, Runtime, StatKey, Unit};

const PERIOD: Duration = Duration::from_secs(1);
const ROUNDS: u32 = 3;

/// One query: a group of its own, whose buffers come and go. Returns how many charges were refused.
fn query(tenant: &Group, number: u64, rows: StatKey) -> Result<u32, Box<dyn Error>> {
    let scope = tenant.scope(number, Limits::new().max(Limit::mib(8)))?; // goes offline when it is dropped
    let mut held = Vec::new();
    let mut refused = 0;
    for _ in 0..50 {
        let size = rand::random_range(1..1 << 20);
        match Charged::make(&scope, size, || vec![0_u8; size]) {
            Ok(buffer) => held.push(buffer),
            Err(_) => refused += 1,
        }
        scope.stat_add(rows, 100);
        if held.len() > 12 {
            drop(held.swap_remove(rand::random_range(0..held.len())));
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(refused)
}

// ANCHOR: print
fn print_tables(runtime: &Runtime) {
    let start = Instant::now();
    for round in 1..=ROUNDS {
        let next = start + PERIOD * round; // from the start, so that what a table takes does not add up
        thread::sleep(next.saturating_duration_since(Instant::now()));
        println!(
            "after {:.1?}, {} groups",
            start.elapsed(),
            runtime.group_count()
        );
        println!("{}", runtime.snapshot().with_stats(&["rows"]));
    }
}
// ANCHOR_END: print

fn main() -> Result<(), Box<dyn Error>> {
    let mut builder = Runtime::builder();
    let rows = builder.stat("rows", Unit::Events);
    let runtime = builder.max(Limit::mib(24)).build()?;
    let acme = runtime
        .root()
        .create("acme", Limits::new().max(Limit::mib(16)).low(Limit::mib(4)))?;
    let globex = runtime
        .root()
        .create("globex", Limits::new().max(Limit::percent(25)))?;
    let stop = &AtomicBool::new(false);
    let queries = &AtomicU64::new(0);

    thread::scope(|scope| {
        for tenant in [&acme, &acme, &globex, &globex] {
            scope.spawn(move || {
                let mut refused = 0;
                while !stop.load(Relaxed) {
                    let number = queries.fetch_add(1, Relaxed);
                    refused += query(tenant, number, rows).expect("no other query has this number");
                }
                println!("a worker of {}: {refused} charges refused", tenant.path());
            });
        }
        print_tables(&runtime);
        stop.store(true, Relaxed);
    });
    println!(
        "{} queries\n{}",
        queries.load(Relaxed),
        runtime.snapshot().with_stats(&["rows"])
    );
    assert_eq!(runtime.root().live(), 0);
    Ok(())
}
