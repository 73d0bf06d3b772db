//! Helpers that models and scenarios share.

use std::sync::atomic::{AtomicU16, Ordering};

use memcg::kmem::{NodeId, NodeOf, PageNode};
use memcg::{Bytes, Runtime};

use crate::sync::Arc;

/// Every page lies where the model has put it last.
#[derive(Clone, Default)]
pub(super) struct Everything(Arc<AtomicU16>);

impl Everything {
    pub(super) fn lies_on(&self, node: u16) {
        self.0.store(node, Ordering::Relaxed);
    }
}

impl NodeOf for Everything {
    fn page_size(&self) -> usize {
        4_096
    }

    fn look_up(&self, _: &[usize], found: &mut [PageNode]) {
        found.fill(PageNode::On(NodeId::new(self.0.load(Ordering::Relaxed))));
    }
}

/// Two nodes, and every page on the first.
pub(super) fn machine() -> (Everything, Runtime) {
    let nodes = Everything::default();
    let runtime = Runtime::builder()
        .batch(Bytes(0))
        .stat_batch(4)
        .nodes(2)
        .node_of(nodes.clone())
        .build()
        .unwrap();
    (nodes, runtime)
}

#[cfg(shuttle)]
pub(super) fn end(group: memcg::Group) {
    group.offline().unwrap();
    drop(group);
}

/// No charge is left, and a drain leaves no credit.
#[cfg(shuttle)]
#[track_caller]
pub(super) fn assert_adds_up(runtime: &Runtime) {
    let root = runtime.root();
    assert_eq!(root.usage(), root.memory().stocked(), "usage is credit");
    let verdict = runtime.verify();
    assert!(verdict.is_ok(), "{verdict}");
    root.memory().drain();
    runtime.settle();
    assert_eq!(root.usage(), 0, "a drain leaves no credit behind");
}
