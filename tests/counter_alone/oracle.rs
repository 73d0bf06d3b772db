//! The naive twin of the properties.

#[path = "../properties/oracle/counters/mod.rs"]
pub(crate) mod counters;
