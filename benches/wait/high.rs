//! `charge/high/…`: what a high costs a charge that goes up the tree, as each does without a stock.

#![cfg(not(loom))]

use std::hint::black_box;

use memcg::{Bytes, Limit, Limits, OnFull, Runtime};

use crate::common::rows::Rows;
use crate::common::team::Team;

/// Bytes of a charge.
const SIZE: u64 = 64;

const HIGH: u64 = 100 << 20;

const DEPTH: usize = 4;

const TOUCHES: u64 = 1_000;

#[derive(Clone, Copy, PartialEq)]
enum Row {
    Unset,
    Below,
    Over,
}

pub(crate) fn rows(rows: &mut Rows) {
    for (name, row) in [
        ("unset", Row::Unset),
        ("below", Row::Below),
        ("over_undelayed", Row::Over),
    ] {
        rows.wall(&format!("charge/high/{name}"), || team(row));
    }
}

/// The lowest group has the high, and a thread holds as much as brings its usage there.
fn team(row: Row) -> Team {
    Team::new(1, move |station| {
        let runtime = Runtime::builder()
            .batch(Bytes(0))
            .build()
            .expect("nothing is asked for that cannot be had");
        let leaf = (1..DEPTH).fold(runtime.root(), |above, depth| {
            let limits = Limits::new();
            let limits = if depth + 1 < DEPTH || row == Row::Unset {
                limits
            } else {
                limits.high(Limit::Bytes(HIGH))
            };
            above
                .create("below", limits)
                .expect("a free name in a group that is")
        });
        let _held = (row == Row::Over).then(|| leaf.force_charge(Bytes(HIGH)));
        let pairs = |times| {
            for _ in 0..times {
                if row == Row::Over {
                    drop(
                        leaf.charge_with(Bytes(black_box(SIZE)), OnFull::Reclaim)
                            .expect("high refuses no charge"),
                    );
                } else {
                    drop(
                        leaf.charge(Bytes(black_box(SIZE)))
                            .expect("no limit is set"),
                    );
                }
            }
        };
        pairs(TOUCHES);
        station.serve(pairs);
    })
}
