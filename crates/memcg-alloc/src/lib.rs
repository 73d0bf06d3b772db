#![doc = include_str!("../README.md")]
#![warn(missing_debug_implementations)]

/// A chapter of the book, so that its code is tested.
#[cfg(all(doctest, feature = "allocator-api2"))]
#[doc = include_str!("../../../docs/src/allocator.md")]
struct Chapter;

mod external;
mod global;
#[cfg(feature = "allocator-api2")]
mod group_alloc;
mod panic;
mod probe;
mod word;

pub use external::{ExternalCharge, charge_external};
pub use global::{EVERY_OBJECT, LARGE_OBJECTS, MemcgAlloc, PROCESS_ONLY};
#[cfg(feature = "allocator-api2")]
pub use group_alloc::GroupAlloc;
pub use memcg::allocator::{catch_up, charge_unowned_to, unowned, unowned_bytes};
pub use panic::unowned_panic_hook;
pub use probe::is_installed;
