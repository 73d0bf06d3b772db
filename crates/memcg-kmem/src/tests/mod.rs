//! Models of loom and scenarios of shuttle, on the containers themselves. `.ci/mutations` breaks
//! the code on purpose, and the model that it names must fail.
//!
//! ```text
//! .ci/loom WORD...          models whose names contain one of the words, with those of the core
//! .ci/shuttle WORD...       the same for scenarios
//! ```
//!
//! Miri runs the models, too (`.ci/miri`): one schedule of each, and it looks at each access to
//! memory.

mod common;
#[cfg(any(loom, miri))]
mod loom_owners;
#[cfg(any(loom, miri))]
mod schedules;
#[cfg(shuttle)]
#[path = "../../../../src/tests/schedules/shuttle.rs"]
mod shuttle;
#[cfg(shuttle)]
mod shuttle_owners;
