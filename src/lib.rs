//! Cgroup-style resource accounting for the inside of one process.

pub(crate) mod units;

pub use units::{Bytes, Limit, ParseLimitError, ParseLimitErrorKind, Percent};
