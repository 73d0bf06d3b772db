//! Charges, timed: the `counter/*` and `charge/*` rows. `cargo bench --bench charge [-- FILTER]`,
//! the filter being part of an id.
//!
//! One iteration is one charge and one uncharge, unless the row says otherwise, and the time is
//! that of one iteration of one thread. Each thread has its own handles; sizes are hidden from the
//! compiler; the stock is touched before the clock starts. After the rows stand the goals that this
//! run's medians can answer.

#[cfg(not(loom))]
mod common;
#[cfg(not(loom))]
#[path = "charge/program.rs"]
mod program;

#[cfg(not(loom))]
fn main() {
    program::main();
}

// The types of loom panic outside a model.
#[cfg(loom)]
fn main() {}
