//! One that asks for 64 MiB among many that ask for 1 KiB: admitted after as many bytes as it asks for, at the latest.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use memcg::{Bytes, Charge, ChargeError, Group, OnFull, RuntimeBuilder};

use super::{KIB, MIB, WATCHDOG, assert_empty, build, create, in_line, kinds, limited, until};

const THREADS: u64 = 3;
const LARGE: u64 = 64 * MIB;

/// How small ones charge.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Small {
    /// Refused, they try again.
    Try,
    /// They wait as well.
    Wait,
}

fn small(group: &Group, kind: Small) -> Option<Charge> {
    let charged = match kind {
        Small::Try => group.try_charge(Bytes(KIB)),
        Small::Wait => group.try_charge_with(Bytes(KIB), OnFull::Wait(Duration::from_millis(1))),
    };
    match charged {
        Ok(charge) => Some(charge),
        Err(ChargeError::Limit(_) | ChargeError::TimedOut { .. }) => None,
        Err(other) => panic!("{other}"),
    }
}

/// Usage never falls to nothing by itself: each thread gives back the oldest of many only. When the large one is in,
/// no other charge is: what was counted until then has passed it.
fn among_small_ones(builder: RuntimeBuilder, kind: Small) {
    let runtime = build(builder);
    let group = limited(&runtime.root(), "q", LARGE);
    let (stop, admitted) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (group, stop, admitted) = (create(&group, &number.to_string()), &stop, &admitted);
            scope.spawn(move || {
                let mut held = VecDeque::new();
                while !stop.load(Ordering::SeqCst) {
                    match small(&group, kind) {
                        Some(charge) => {
                            admitted.fetch_add(KIB, Ordering::SeqCst);
                            held.push_back(charge);
                            if held.len() > 64 {
                                drop(held.pop_front());
                            }
                        }
                        None => drop(held.pop_front()),
                    }
                }
            });
        }
        until("small ones at work", || admitted.load(Ordering::SeqCst) > MIB);
        let mut large = in_line(&group, LARGE);
        let before = admitted.load(Ordering::SeqCst);
        let charge = large.finish().expect("admitted in the end");
        let passed = admitted.load(Ordering::SeqCst) - before;
        stop.store(true, Ordering::SeqCst);
        assert_eq!((charge.bytes(), group.live()), (LARGE, LARGE));
        // Each thread may have been in before, and counted afterwards.
        assert!(passed <= LARGE + THREADS * KIB, "{passed} bytes have passed it");
    });
    drop(group);
    assert_empty(&runtime);
}

#[test]
fn among_those_that_try() {
    kinds().into_iter().for_each(|builder| among_small_ones(builder, Small::Try));
}

#[test]
fn among_those_that_wait() {
    kinds().into_iter().for_each(|builder| among_small_ones(builder, Small::Wait));
}

/// Both block; all are served, the large ones again and again.
#[test]
fn large_and_small_threads_all_end() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q", LARGE);
        thread::scope(|scope| {
            for number in 0..4 {
                let group = &group;
                let (bytes, times) = if number == 0 { (LARGE, 20) } else { (KIB, 2_000) };
                scope.spawn(move || {
                    for _ in 0..times {
                        let charge = group.try_charge_with(Bytes(bytes), OnFull::Wait(WATCHDOG)).expect("its turn");
                        assert_eq!(charge.bytes(), bytes);
                    }
                });
            }
        });
        drop(group);
        assert_empty(&runtime);
    }
}
