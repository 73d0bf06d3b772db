#![doc = include_str!("../README.md")]
#![warn(missing_debug_implementations)]

mod external;
mod global;
#[cfg(feature = "allocator-api2")]
mod group_alloc;
mod probe;
mod word;

pub use external::{ExternalCharge, charge_external};
pub use global::{EVERY_OBJECT, LARGE_OBJECTS, MemcgAlloc, PROCESS_ONLY};
#[cfg(feature = "allocator-api2")]
pub use group_alloc::GroupAlloc;
pub use memcg::allocator::{charge_unowned_to, settle, unowned_bytes};
pub use probe::is_installed;
