//! Waits for room that end because another charge gives it back.

#![cfg(not(loom))]

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use memcg::{Bytes, Group, Limit, Limits, OnFull, Runtime};
use memcg_bench_rows::instructions::counted;

/// Bytes of a charge, and of the room.
const SIZE: u64 = 64 << 10;

/// A thread that waits so long has been forgotten.
const WITHIN: Duration = Duration::from_secs(600);

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

/// Two threads, each of which waits for the other to give back. Each has half of the rounds.
pub(super) fn hand_overs(rounds: u64) {
    let (_runtime, group) = room_for_one();
    thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| counted(|| hand_over(&group, rounds / 2)));
        }
    });
}

#[inline(never)]
fn hand_over(group: &Group, rounds: u64) {
    for _ in 0..rounds {
        let held = group
            .charge_with(Bytes(SIZE), OnFull::Wait(WITHIN))
            .expect("the other gives it back");
        drop(held);
    }
}
