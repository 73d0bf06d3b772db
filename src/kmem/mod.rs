//! Memory on nodes: a group admits bytes before their allocation, and accounts them to the nodes
//! where they lie.
//!
//! ```text
//! group.precharge(bound)        admission: a charge of the group, and of each tier where the memory may come to lie
//!   allocate, see where it lies
//! precharge.account(placement)  one update for each node that is touched, the rest goes back
//! drop(kmem)                    from each node what was accounted there, and then the charge
//! ```
//!
//! `README.md` has the protocol, what becomes of groups that go meanwhile, and the races.

mod account;
mod engine;
mod lines;
mod member;
mod node_account;
mod packed;
mod placement;
mod precharge;
mod tiers;

pub use crate::group::NumaTable;
pub use crate::hierarchy::node_stats::NodeStats;
pub use crate::numa::{
    MovePages, NodeId, NodeOf, OneNode, PageNode, Topology, TopologyError, look_up_each,
};
pub use account::Kmem;
pub use engine::node_of;
pub use member::{KmemMember, KmemMover};
pub use node_account::NodeAccount;
pub use packed::PackedKmem;
pub use placement::{Placement, PrechargeBound};
pub use precharge::Precharge;
