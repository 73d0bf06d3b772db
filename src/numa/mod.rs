//! Memory nodes: which there are, and on which of them a page lies.
//!
//! The system numbers the nodes, and its numbers may be sparse. Inside the crate a node is its
//! place among the possible ones ([`Topology::index_of`]). The crate asks where memory lies and
//! never assumes it: what a policy asks for and what the kernel does are two things
//! (`Documentation/admin-guide/mm/numa_memory_policy.rst`).

pub(crate) mod config;
pub(crate) mod mapping;
mod move_pages;
pub(crate) mod node_of;
mod sysfs;
pub(crate) mod system;
pub(crate) mod topology;

pub use move_pages::MovePages;
pub use node_of::{NodeOf, OneNode, PageNode, look_up_each};
pub use topology::{NodeId, Topology, TopologyError};
