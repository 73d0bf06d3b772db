//! Helpers that models and scenarios share.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

pub(super) use crate::pressure::wakers::parked_waker as waker;
use crate::sync::park;
use crate::{Bytes, ChargeFuture, Group, Limits};

pub(super) fn group(parent: &Group, name: &str) -> Group {
    parent.create(name, Limits::new()).unwrap()
}

pub(super) fn end(group: Group) {
    group.offline().unwrap();
    drop(group);
}

pub(super) fn waiting(group: &Group, bytes: u64, waker: &Waker) -> Pin<Box<ChargeFuture>> {
    let mut future = Box::pin(group.charge_async(Bytes(bytes)));
    assert!(
        future
            .as_mut()
            .poll(&mut Context::from_waker(waker))
            .is_pending()
    );
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
