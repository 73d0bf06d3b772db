#![doc = include_str!("../README.md")]
#![warn(missing_debug_implementations)]
// Control groups and pressure stall information are Linux's: elsewhere the crate is empty.
#![cfg(target_os = "linux")]

/// Chapters of the book, so that their code is tested.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/host.md")]
#[doc = include_str!("../../../docs/src/operators.md")]
struct Chapters;

mod error;
mod files;
mod follow;
mod foreign;
mod held;
mod host;
mod layout;
mod limits;
mod memory;
mod pressure;
mod reclaim;
mod reconcile;
mod worker;

pub use error::HostError;
pub use follow::{FollowGuard, FollowState, HostBuilder, HostFollower, MaxOfHost, PERIOD};
pub use host::Host;
pub use limits::{HostLimit, HostLimits};
pub use memory::HostMemory;
pub use pressure::{HostPressure, HostStall, HostTrigger, StallScope};
pub use reclaim::{HostLevel, HostReclaimGuard, HostReclaimState, HostReclaimer, StallSource};
pub use reconcile::{Reconciler, Reconciliation};
