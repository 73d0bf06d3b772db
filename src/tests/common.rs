//! What models and scenarios have in common.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU16, Ordering};
use std::task::{Context, Poll, Waker};

use crate::kmem::{NodeId, NodeOf, PageNode};
pub(super) use crate::pressure::wakers::parked_waker as waker;
use crate::sync::{Arc, park};
use crate::{Bytes, ChargeFuture, Group, Limits, Runtime};

pub(super) fn group(parent: &Group, name: &str) -> Group {
    parent.create(name, Limits::new()).unwrap()
}

pub(super) fn end(group: Group) {
    group.offline().unwrap();
    drop(group);
}

pub(super) fn waiting(group: &Group, bytes: u64, waker: &Waker) -> Pin<Box<ChargeFuture>> {
    let mut future = Box::pin(group.charge_async(Bytes(bytes)));
    assert!(future.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    future
}

pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    let waker = waker();
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => park(None),
        }
    }
}

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
    let runtime = Runtime::builder().batch(Bytes(0)).stat_batch(4).nodes(2).node_of(nodes.clone()).build().unwrap();
    (nodes, runtime)
}
