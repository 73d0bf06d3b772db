//! `charge/{no_waiters,waiters_elsewhere}/depth4/…`: what a waiter costs the threads that charge
//! beside it.

#![cfg(not(loom))]

use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Waker};

use memcg::{Bytes, Limit, Limits, Runtime};

use crate::common::rows::Rows;
use crate::common::team::Team;

/// Bytes of a charge.
const SIZE: u64 = 64;

/// Room of the group where a thread waits.
const FULL: u64 = 1 << 20;

const DEPTH: usize = 4;

const TOUCHES: u64 = 1_000;

/// Bytes that a thread charges in advance: the default, and none.
const STOCKS: [(&str, u64); 2] = [("hit", 64 << 12), ("walk", 0)];

pub(crate) fn rows(rows: &mut Rows) {
    for (what, batch) in STOCKS {
        for (name, waiters) in [("no_waiters", false), ("waiters_elsewhere", true)] {
            rows.wall(&format!("charge/{name}/depth{DEPTH}/{what}"), || {
                team(batch, waiters)
            });
        }
    }
}

/// Both rows have the same tree: the last group of the path has a sibling that is full.
fn team(batch: u64, waiters: bool) -> Team {
    Team::new(1, move |station| {
        let runtime = Runtime::builder()
            .batch(Bytes(batch))
            .build()
            .expect("nothing is asked for that cannot be had");
        let create =
            |above: &memcg::Group, name, limits| above.create(name, limits).expect("a free name");
        let above = (2..DEPTH).fold(runtime.root(), |above, _| {
            create(&above, "above", Limits::new())
        });
        let leaf = create(&above, "leaf", Limits::new());
        let other = create(&above, "other", Limits::new().max(Limit::Bytes(FULL)));
        let _full = other.charge(Bytes(FULL)).expect("it is as large");
        let mut waiter = pin!(other.charge_async(Bytes(SIZE)));
        if waiters {
            assert!(
                waiter
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_pending(),
                "it is full"
            );
            assert_eq!(other.waiting_count(), 1);
        }
        let pairs = |times| {
            for _ in 0..times {
                drop(
                    leaf.charge(Bytes(black_box(SIZE)))
                        .expect("no limit is set"),
                );
            }
        };
        pairs(TOUCHES);
        station.serve(pairs);
    })
}
