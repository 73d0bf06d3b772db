//! Memory nodes: which there are, and on which of them a page lies.
//!
//! ```text
//! topology   nodes and processors, from sysfs or fixed; the node of the thread that asks
//! sysfs      the files that say so, and their lists of numbers
//! node_of    who finds the node of a page: the trait, one node for all, a table
//! move_pages asks the kernel
//! cache      asks once for each page, and again after an invalidation
//! system     the system calls behind it
//! mapping    whole pages of the system's, for whoever places memory himself
//! ```
//!
//! A node's number is the system's and may be sparse; inside the crate a node is its place among the possible ones
//! ([`Topology::index_of`]). Where memory lies is asked, never assumed: what a policy asked for and what the kernel
//! did are two things (`Documentation/admin-guide/mm/numa_memory_policy.rst`).

pub(crate) mod config;
pub(crate) mod mapping;
mod move_pages;
mod node_cache;
mod node_of;
mod node_table;
mod number_list;
mod sysfs;
pub(crate) mod system;
pub(crate) mod topology;

pub use move_pages::{MovePages, MovePagesError};
pub use node_cache::NodeCache;
pub use node_of::{NodeOf, OneNode, PageNode};
pub use node_table::NodeTable;
pub use topology::{NodeId, Topology, TopologyError};
