//! `counter/` and what stands below it, compiled without the rest: counters charge, drain and
//! verify with no group, no reclaim and no pressure.
//!
//! The sources are those of the crate, by their paths. Under `--cfg loom` their models run here,
//! else their properties.
#![allow(
    dead_code,
    unused_imports,
    missing_docs,
    reason = "what the layers above use, nothing uses here"
)]
#![allow(unreachable_pub, reason = "public in the crate, not in a test")]
#![allow(
    unexpected_cfgs,
    reason = "the features of the crate, not of its tests"
)]

extern crate self as memcg;

// First, for its macro.
#[path = "../../src/error.rs"]
#[macro_use]
mod error;

#[path = "../../src/counter/mod.rs"]
mod counter;
#[path = "../../src/numa/mod.rs"]
mod numa;
mod page_counter;
#[path = "../../src/pool/mod.rs"]
mod pool;
#[path = "../../src/sync/mod.rs"]
mod sync;
#[path = "../../src/thread/mod.rs"]
mod thread;

pub use counter::config::CounterConfig;
pub use error::{CounterChargeError, CounterId, CounterLimitError};
pub use page_counter::{PageCounter, PeakWindow, TreeCounts};

pub mod inspect {
    pub use crate::counter::verify::{VerifyFault, VerifyFaultKind, VerifyReport};
}

pub mod barrier {
    pub use crate::sync::barrier::{BarrierMode, BarrierState};
}

#[cfg(loom)]
mod models;

#[cfg(not(any(loom, shuttle)))]
#[path = "../properties/counters.rs"]
mod counters;
#[cfg(not(any(loom, shuttle)))]
#[path = "../properties/protection.rs"]
mod protection;

#[cfg(not(any(loom, shuttle)))]
mod oracle;

/// Fewer cases than in `properties`, which runs the same on the whole library.
#[cfg(not(any(loom, shuttle)))]
fn config() -> proptest::prelude::ProptestConfig {
    proptest::prelude::ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..Default::default()
    }
}
