//! README's first lines, running: a tree of groups, a charge before the memory, a refusal that says why.
//!
//! ```text
//! cargo run --example quickstart
//! ```

use std::error::Error;

use memcg::{Charge, ChargeError, Limit, Limits, Runtime};

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::builder().max(Limit::gib(2)).build()?;
    let acme = runtime.root().create("acme", Limits::new().max(Limit::mib(512)).low(Limit::mib(128)))?;
    let query = acme.create("q17", Limits::new())?;

    let charge: Charge = query.try_charge(64 * 1024)?; // before the memory is allocated
    let buffer = vec![0u8; 64 * 1024];
    println!("{}", runtime.snapshot());
    drop((buffer, charge)); // uncharged, wherever and on whatever thread

    match query.try_charge(1 << 30) {
        Err(ChargeError::Limit(refusal)) => println!("{refusal}"),
        other => drop(other?),
    }

    query.offline()?; // the query is done: its name is free, its object is used again
    println!("{}", runtime.verify());
    Ok(())
}
