//! Groups as a tree: names, limits by name, events, statistics of each.

pub(crate) mod declared_counters;
pub(crate) mod events;
pub(crate) mod group_object;
pub(crate) mod group_tree;
pub(crate) mod importance;
pub(crate) mod limits;
pub(crate) mod names;
pub(crate) mod node_stats;
pub(crate) mod preorder;
pub(crate) mod service;
pub(crate) mod setting_names;
pub(crate) mod stats;
