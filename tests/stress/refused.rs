//! Charges that are refused beside charges that fit: the second are not refused for the first,
//! though both want room at one level.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memcg::{Limits, OnFull, Runtime, Unit};

const TIME: Duration = Duration::from_millis(500);

/// `refused` is refused again and again by another thread, while `fits` charges what nobody else
/// holds. The walk that finds no mark shows once; then one of some thousand charges may.
#[track_caller]
fn beside(refused: impl Fn() + Sync, fits: impl Fn() -> bool) {
    refused();
    let stop = AtomicBool::new(false);
    let (mut charged, mut in_vain) = (0u64, 0u64);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                refused();
            }
        });
        let begun = Instant::now();
        while begun.elapsed() < TIME {
            if fits() {
                charged += 1;
            } else {
                in_vain += 1;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(
        in_vain <= 1 + charged / 1_000,
        "{in_vain} refused for what nobody holds, {charged} charged"
    );
}

/// One counter of a set is full, and the other one is free for everyone else.
#[test]
fn of_a_set_with_a_full_counter() {
    let mut builder = Runtime::builder();
    let [free, full] = ["free", "full"].map(|name| builder.counter(name, Unit::Events));
    let runtime = builder.build().unwrap();
    let root = runtime.root();
    root.counter(free).unwrap().set_max(1).unwrap();
    root.counter(full).unwrap().set_max(0).unwrap();
    beside(
        || drop(root.try_charge_set(&[(full, 1), (free, 1)]).unwrap_err()),
        || root.try_charge_set(&[(free, 1)]).is_ok(),
    );
}

/// The root is full for one group, and has room for its sibling, as has their parent.
#[test]
fn by_a_level_further_up() {
    let runtime = Runtime::builder().max(150).build().unwrap();
    let root = runtime.root();
    let _held = root.create("other", Limits::new()).unwrap().charge(100);
    let parent = root.create("p", Limits::new().max(100)).unwrap();
    let [large, small] = ["a", "b"].map(|name| parent.create(name, Limits::new()).unwrap());
    let refused = || drop(large.try_charge(80).unwrap_err());
    beside(refused, || small.try_charge(30).is_ok());
    beside(refused, || small.charge_with(30, OnFull::Now).is_ok());
    beside(refused, || small.charge_with(30, OnFull::IfRoom).is_ok());
}
