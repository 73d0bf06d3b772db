//! Waits for room that end because another charge gives it back.

#![cfg(not(loom))]

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use memcg::{Bytes, Group, Limit, Limits, Runtime};
use memcg_bench_rows::instructions::counted;

/// Bytes of a charge, and of the room.
const SIZE: u64 = 64 << 10;

fn room_for_one() -> (Runtime, Group) {
    let runtime = Runtime::builder()
        .build()
        .expect("nothing is asked for that cannot be had");
    let limits = Limits::new().max(Limit::Bytes(SIZE));
    let group = runtime
        .root()
        .create("tenant", limits)
        .expect("a free name in a group that is");
    (runtime, group)
}

/// One task after the other waits for the one before it.
pub(super) fn served(waits: u64) {
    let (_runtime, group) = room_for_one();
    wait(&group, 100);
    counted(|| wait(&group, waits));
}

#[inline(never)]
fn wait(group: &Group, waits: u64) {
    let mut held = group.charge(Bytes(SIZE)).expect("it is as large");
    let context = &mut Context::from_waker(Waker::noop());
    for _ in 0..waits {
        let mut next = pin!(group.charge_async(Bytes(SIZE)));
        assert!(next.as_mut().poll(context).is_pending(), "it is full");
        drop(held);
        held = match next.poll(context) {
            Poll::Ready(charge) => charge.expect("it fits"),
            Poll::Pending => panic!("the room was given back"),
        };
    }
}
