//! `wait/handover/…` and `wait/try_refused…`: one group, with room for one charge.

#![cfg(not(loom))]

use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use memcg::{Bytes, Group, Limit, Limits, OnFull, Runtime};

use crate::common::rows::Rows;
use crate::common::team::Team;

/// Bytes of a charge, and of the room.
const SIZE: u64 = 64 << 10;

/// A thread that waits so long has been forgotten.
const WITHIN: Duration = Duration::from_secs(60);

const TOUCHES: u64 = 1_000;

pub(crate) fn rows(rows: &mut Rows) {
    rows.wall("wait/handover/threads2", handover);
    rows.wall("wait/try_refused", || refused(false));
    rows.wall("wait/try_refused_with_waiters", || refused(true));
}

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

fn handover() -> Team {
    let (runtime, group) = room_for_one();
    Team::new(2, move |station| {
        // Groups go offline with their runtime.
        let _kept = &runtime;
        let group = group.clone();
        station.serve(|iters| {
            for _ in 0..iters {
                drop(
                    group
                        .charge_with(Bytes(black_box(SIZE)), OnFull::Wait(WITHIN))
                        .expect("the other gives it back"),
                );
            }
        });
    })
}

fn refused(a_thread_waits: bool) -> Team {
    let (runtime, group) = room_for_one();
    Team::new(1, move |station| {
        let _kept = &runtime;
        let group = group.clone();
        let _full = group.charge(Bytes(SIZE)).expect("it is as large");
        let mut waiter = pin!(group.charge_async(Bytes(SIZE)));
        if a_thread_waits {
            assert!(
                waiter
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_pending(),
                "it is full"
            );
            assert_eq!(group.waiting_count(), 1);
        }
        let refusals = |times| {
            for _ in 0..times {
                black_box(group.charge(Bytes(black_box(SIZE)))).expect_err("it is full");
            }
        };
        refusals(TOUCHES);
        station.serve(refusals);
    })
}
