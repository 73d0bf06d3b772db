//! Which nodes there are, and where a page lies.

mod fixture;
#[cfg(target_os = "linux")]
mod mapping;
#[cfg(target_os = "linux")]
mod move_pages;
mod sysfs;
mod table;
mod topology;

use memcg::kmem::{NodeId, NodeOf, PageNode};

/// Of the machines that are made up here.
pub(crate) const PAGE: usize = 4_096;

pub(crate) fn on(node: u16) -> PageNode {
    PageNode::On(NodeId::new(node))
}

/// What is said about these pages. What is not answered stays `Unmapped`.
pub(crate) fn ask(node_of: &dyn NodeOf, pages: &[usize]) -> Vec<PageNode> {
    let mut found = vec![PageNode::Unmapped; pages.len()];
    node_of.look_up(pages, &mut found);
    found
}
