//! Ten lines for a service that runs on tokio: a limit for each tenant, and each request stopped at its own.
//!
//! ```text
//! cargo run --example service --manifest-path examples/pipeline/Cargo.toml
//! ```

use std::alloc::System;
use std::error::Error;

use memcg::{ChargeError, Group, InGroup, Limit, Limits, Runtime};
use memcg_alloc::MemcgAlloc;

// 1 and 2: over the allocator that the service has.
#[global_allocator]
static ALLOCATOR: MemcgAlloc<System> = MemcgAlloc::new(System);

/// The service's own handler, with one line more.
async fn handle(rows: usize) -> Result<usize, ChargeError> {
    let mut table = Vec::new();
    for row in 0..rows {
        table.push(vec![row as u8; 4_096]);
        Group::checkpoint()?; // 3: refused where the request has taken the tenant above its max
    }
    Ok(table.iter().map(Vec::len).sum())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    assert!(memcg_alloc::is_installed()); // 4
    let runtime = Runtime::builder().max(Limit::gib(1)).build()?; // 5
    let acme = runtime.root().create("acme", Limits::new().max(Limit::mib(16)))?; // 6
    for (number, rows) in [1_000, 100_000].into_iter().enumerate() {
        let request = acme.scope(number as u64, Limits::new())?; // 7
        match tokio::spawn(handle(rows).in_group(&request)).await? {
            // 8 and 9: what the service answers
            Ok(bytes) => println!("{rows} rows: {bytes} bytes"),
            Err(refused) => println!("{rows} rows: 503 {refused}"),
        }
    }
    println!("{}", runtime.snapshot()); // 10
    Ok(())
}
