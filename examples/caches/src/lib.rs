//! Three caches of other crates that give back under pressure: each module is a recipe to copy. An entry keeps the charge
//! that pays for it, and a reclaimer evicts as many bytes as a charge elsewhere lacks.

mod entry;
mod foyer_cache;
mod loads;
mod moka_cache;
mod quick;

pub use entry::{Entry, OVERHEAD};
pub use foyer_cache::FoyerCache;
pub use loads::Loads;
pub use moka_cache::MokaCache;
pub use quick::QuickCache;
