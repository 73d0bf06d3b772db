//! Which nodes there are, and where a page lies.

mod fixture;
mod look_up;
#[cfg(target_os = "linux")]
mod mapping;
#[cfg(target_os = "linux")]
mod move_pages;
mod sysfs;
mod topology;

use memcg::kmem::{NodeOf, PageNode};

/// The answer for these pages. What is not answered stays `Unmapped`.
pub(crate) fn ask(node_of: &dyn NodeOf, pages: &[usize]) -> Vec<PageNode> {
    let mut found = vec![PageNode::Unmapped; pages.len()];
    node_of.look_up(pages, &mut found);
    found
}
