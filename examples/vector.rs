//! A vector whose memory is charged to a group before it grows.
//!
//! ```text
//! cargo run --example vector
//! ```

use std::error::Error;

use memcg::{Bytes, ChargedVec, Limit, Limits, Runtime};

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::builder().max(Limit::mib(64)).audit(true).build()?;
    let query = runtime
        .root()
        .create("q17", Limits::new().max(Limit::mib(1)))?;
    let mut rows = ChargedVec::new(&query);
    let refused = (0_u64..)
        .find_map(|number| rows.push([number; 3]).err())
        .ok_or("the rows never met the max")?;
    println!(
        "{} rows, {} of {}",
        rows.len(),
        Bytes(query.live()),
        Bytes(query.max())
    );
    let (row, reason) = refused.into_parts();
    println!("row {row:?} came back: {reason}");

    rows.truncate(1_000);
    rows.shrink_to_fit();
    println!("{} rows, {} bytes", rows.len(), query.live());
    drop(rows);
    assert_eq!((query.live(), query.forced()), (0, 0));
    println!("{}", runtime.verify());
    Ok(())
}
