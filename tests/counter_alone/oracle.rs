//! The naive twin of the properties.

#[path = "../properties/oracle/counters/mod.rs"]
pub(crate) mod counters;
#[path = "../properties/oracle/record.rs"]
pub(crate) mod record;
#[path = "../support/workers.rs"]
pub(crate) mod workers;
