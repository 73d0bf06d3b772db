//! Nodes of pages as a test wants them, and what is left to say about groups.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use memcg::kmem::{NodeId, NodeOf, PageNode};
use memcg::{Freshness, Group, Runtime, StatKey};
use memcg_kmem::KmemVec;

/// Bytes of the system's page.
pub(crate) fn page() -> usize {
    let runtime = Runtime::builder().build().unwrap();
    KmemVec::<u8>::with_capacity_in(1, &runtime.root())
        .unwrap()
        .capacity()
}

pub(crate) fn node(number: usize) -> NodeId {
    NodeId::new(number as u16)
}

/// A page lies where the next one was to come to lie when it was first asked for, until it is
/// moved.
pub(crate) struct Nodes {
    page: usize,
    pages: Mutex<HashMap<usize, PageNode>>,
    next: Mutex<Next>,
    pub(crate) calls: AtomicU64,
    pub(crate) looked_up: AtomicU64,
}

#[derive(Clone, Copy)]
pub(crate) enum Next {
    All(PageNode),
    /// By address.
    Interleaved(usize),
}

impl Nodes {
    pub(crate) fn new(next: Next) -> Arc<Nodes> {
        let calls = AtomicU64::new(0);
        let looked_up = AtomicU64::new(0);
        Arc::new(Nodes {
            page: page(),
            pages: Mutex::default(),
            next: Mutex::new(next),
            calls,
            looked_up,
        })
    }

    /// Pages that are first asked for from here on.
    pub(crate) fn next_on(&self, number: usize) {
        self.set_next(PageNode::On(node(number)));
    }

    pub(crate) fn set_next(&self, found: PageNode) {
        *self.next.lock().unwrap() = Next::All(found);
    }

    /// All pages that lie on one node move to another one.
    pub(crate) fn shift(&self, from: usize, to: usize) {
        for on in self
            .pages
            .lock()
            .unwrap()
            .values_mut()
            .filter(|on| **on == PageNode::On(node(from)))
        {
            *on = PageNode::On(node(to));
        }
    }

    pub(crate) fn set_all(&self, to: PageNode) {
        self.pages
            .lock()
            .unwrap()
            .values_mut()
            .for_each(|on| *on = to);
    }

    /// Forgets the answers for pages: for pages whose addresses were others'.
    pub(crate) fn forget(&self) {
        self.pages.lock().unwrap().clear();
    }

    pub(crate) fn call_count(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }
}

impl NodeOf for Nodes {
    fn page_size(&self) -> usize {
        self.page
    }

    fn look_up(&self, pages: &[usize], found: &mut [PageNode]) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.looked_up
            .fetch_add(pages.len() as u64, Ordering::Relaxed);
        let mut known = self.pages.lock().unwrap();
        let next = *self.next.lock().unwrap();
        for (&page, found) in pages.iter().zip(found) {
            assert_eq!(page % self.page, 0);
            *found = *known.entry(page).or_insert(match next {
                Next::All(on) => on,
                Next::Interleaved(nodes) => PageNode::On(node(page / self.page % nodes)),
            });
        }
    }
}

/// Panics when it is asked.
pub(crate) struct Panics;

impl NodeOf for Panics {
    fn page_size(&self) -> usize {
        4_096
    }

    fn look_up(&self, _: &[usize], _: &mut [PageNode]) {
        panic!("as it was to");
    }
}

pub(crate) fn runtime(count: usize, nodes: &Arc<Nodes>) -> Runtime {
    Runtime::builder()
        .nodes(count)
        .node_of(Arc::clone(nodes))
        .build()
        .unwrap()
}

/// Bytes of a group alone, by node.
pub(crate) fn local(group: &Group, stat: StatKey) -> Vec<i64> {
    let stats = group.numa_stat(stat, Freshness::Exact);
    stats.iter().map(|(node, _)| stats.local(node)).collect()
}

/// Of its subtree.
pub(crate) fn on(group: &Group, stat: StatKey) -> Vec<i64> {
    group
        .numa_stat(stat, Freshness::Exact)
        .iter()
        .map(|(_, bytes)| bytes)
        .collect()
}

/// Nothing of it is left anywhere.
pub(crate) fn assert_clean(group: &Group, stat: StatKey) {
    let stats = group.numa_stat(stat, Freshness::Exact);
    assert_eq!(group.live(), 0);
    assert!(stats.iter().all(|(_, bytes)| bytes == 0), "{stats}");
    assert_eq!((stats.unplaced(), stats.sum()), (0, 0));
}
