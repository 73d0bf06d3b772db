//! memcg

pub(crate) mod charge;
pub mod docs;
pub(crate) mod error;
pub(crate) mod sync;
pub(crate) mod units;

#[cfg(all(test, loom))]
mod tests;

pub use charge::{
    CounterConfig, CounterSet, Counts, Fault, FaultKind, PageCounter, PeakWindow, Pressure, SetStock, Verdict,
};
pub use error::{Busy, CounterId, Refused, SetRefused};
pub use sync::barrier::{BarrierMode, BarrierState};
pub use units::{Bytes, Limit, ParseLimitError, ParseLimitErrorKind, Percent};

/// The barrier pair for the litmus program.
#[doc(hidden)]
pub mod litmus {
    pub use crate::sync::barrier::litmus::{heavy, heavy_removed, light};
}
