//! Cgroup-style resource accounting for the inside of one process.
//!
//! A tree of counters, each with its own limits, charged before a resource is used. A charge is paid from the calling
//! thread's stock of credit and touches no shared memory; any other thread can take that credit back, so limits are
//! never exceeded and never refuse while credit is stranded.
//!
//! [`PageCounter`] is the counter, [`CounterSet`] several that are charged as one, [`CounterConfig`] how they behave.
//! [`Bytes`] and [`Limit`] are sizes as text. [`docs`] says how it works, what is exact and what it does not do.
//!
//! ```
//! use memcg::{CounterConfig, PageCounter};
//!
//! let service = PageCounter::root(CounterConfig::new().max(1_000));
//! let tenant = service.child();
//! tenant.try_charge(600)?;
//! assert!(service.child().try_charge(600).is_err(), "refused by the service: 600 + 600 > 1,000");
//! tenant.uncharge(600);
//! # Ok::<(), memcg::Refused>(())
//! ```

pub(crate) mod charge;
pub mod docs;
pub(crate) mod error;
pub(crate) mod group;
pub(crate) mod runtime;
pub(crate) mod sync;
pub(crate) mod units;

#[cfg(all(test, loom))]
mod tests;

pub use charge::{
    CounterConfig, CounterSet, Counts, Fault, FaultKind, PageCounter, PeakWindow, Pressure, SetStock, Verdict,
};
pub use error::{Busy, CounterId, Refused, SetRefused};
pub use group::{
    Charge, ChargeError, ChargeSet, Counter, CreateError, Group, GroupCounter, GroupId, LimitError, Limits, MergeError,
    NameFault, OfflineError, Refusal, SplitError,
};
pub use runtime::{BuildError, Runtime, RuntimeBuilder, TreeRow, TreeTable};
pub use sync::barrier::{BarrierMode, BarrierState};
pub use units::{Bytes, Limit, ParseLimitError, ParseLimitErrorKind, Percent};

/// The barrier pair for the litmus program.
#[doc(hidden)]
pub mod litmus {
    pub use crate::sync::barrier::litmus::{heavy, heavy_removed, light};
}

/// The code of README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
