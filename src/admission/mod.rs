//! The attempt to charge: try, drain, reclaim, cancel a victim, wait in line.
//!
//! ```text
//! try once ── refused ──> rounds of reclaim, then a victim ── charge again ──> …
//!                          └─ nothing came ──> wait in line, where the caller waits ──> refused
//! ```

pub(crate) mod at_once;
pub(crate) mod attempt;
mod cancelling;
pub(crate) mod checkpoint;
pub(crate) mod lowered;
pub(crate) mod plain;
mod rounds;
pub(crate) mod steps;
pub(crate) mod transfer;
pub(crate) mod wait;
