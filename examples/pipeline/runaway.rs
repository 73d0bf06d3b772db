//! A task that only allocates, and charges nothing, is stopped at its next checkpoint. Its
//! neighbours go on.
//!
//! ```text
//! cargo run --example runaway --manifest-path examples/pipeline/Cargo.toml
//! ```

use std::alloc::System;
use std::error::Error;

use memcg::{ChargeError, Group, InGroup, Limit, Limits, Runtime};
use memcg_alloc::MemcgAlloc;

#[global_allocator]
static ALLOCATOR: MemcgAlloc<System> = MemcgAlloc::new(System);

/// Builds an index of so many rows. It knows nothing of groups but the checkpoint.
async fn build_index(rows: usize) -> Result<usize, ChargeError> {
    let mut index = Vec::new();
    for row in 0..rows {
        index.push(vec![row as u8; 8_000]);
        if row % 32 == 31 {
            Group::checkpoint()?;
            tokio::task::yield_now().await;
        }
    }
    Ok(index.len())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    assert!(memcg_alloc::is_installed());
    let runtime = Runtime::builder().max(Limit::mib(256)).build()?;
    let names = ["report", "runaway", "search"];
    let groups = names.map(|name| {
        runtime
            .root()
            .create(name, Limits::new().max(Limit::mib(32)))
    });
    let mut tasks = Vec::new();
    for (group, rows) in groups.into_iter().zip([2_000, usize::MAX, 3_000]) {
        let group = group?;
        tasks.push((
            group.clone(),
            tokio::spawn(build_index(rows).in_group(&group)),
        ));
    }
    let mut failed = 0;
    for (group, task) in tasks {
        match task.await? {
            Ok(rows) => println!(
                "{group}: {rows} rows, at most {}",
                memcg::Bytes(group.peak())
            ),
            Err(error) => {
                failed += 1;
                println!("{group}: stopped. {error}");
            }
        }
        // A queue of tokio belongs to the group in which it grew.
        assert!(
            group.ledger().allocated() < 8_000,
            "all rows of {group} are free"
        );
    }
    assert_eq!(failed, 1, "its neighbours are unharmed");
    Ok(())
}
