#![doc = include_str!("../README.md")]
#![warn(missing_debug_implementations)]

mod error;
mod mapping;
mod node_table;
mod nodes;
mod percpu;
mod slab;
mod store;
mod sync;
mod vec;

#[cfg(all(test, any(loom, miri, shuttle)))]
mod tests;

pub use error::{KmemError, NotStoredError};
pub use node_table::NodeTable;
pub use percpu::{PerCpu, PerCpuAllocator, PerCpuBytes, PerCpuShape};
pub use slab::{KmemBox, KmemSlab};
pub use store::compact::Compaction;
pub use store::{KmemStore, StoreKey};
pub use vec::KmemVec;
