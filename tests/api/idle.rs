//! Idle credit is uncharged: that of threads that sleep and of threads that have ended, and nothing
//! else.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use memcg::{Bytes, CounterKey, Group, Limits, Runtime};

use crate::support::workers::Other;

const BATCH: u64 = 1_024;

fn runtime() -> Runtime {
    Runtime::builder()
        .batch(Bytes(BATCH))
        .adaptive(false)
        .audit(true)
        .build()
        .unwrap()
}

/// With a group, and the barriers so far: the root's first child drains the root.
fn with_group() -> (Runtime, Group, u64) {
    let runtime = runtime();
    let group = runtime.root().create("tenant", Limits::new()).unwrap();
    let barriers = barriers(&runtime);
    (runtime, group, barriers)
}

/// A thread charges a byte and keeps it; the rest of the batch is its credit.
fn charge_on(other: &Other, group: &Group) -> memcg::Charge {
    let group = group.clone();
    other.run(move || group.charge(1).expect("no limit"))
}

fn releases(runtime: &Runtime) -> u64 {
    runtime.release_idle_credit().as_u64()
}

fn barriers(runtime: &Runtime) -> u64 {
    runtime.counts().barriers
}

#[test]
fn a_thousand_sleeping_threads_leave_live_charge_alone() {
    const THREADS: u64 = 1_000;
    let runtime = Runtime::builder().audit(true).build().unwrap();
    let group = runtime.root().create("tenant", Limits::new()).unwrap();
    let charged = Barrier::new(THREADS as usize + 1);
    let read = Barrier::new(THREADS as usize + 1);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let sleeper = thread::Builder::new()
                .stack_size(128 << 10)
                .spawn_scoped(scope, || {
                    let held = group.charge(512).expect("no limit");
                    charged.wait();
                    read.wait();
                    drop(held);
                });
            sleeper.expect("a thread");
        }
        charged.wait();
        let live = THREADS * 512;
        let before = barriers(&runtime);
        assert!(group.usage() > live, "there is credit");
        assert_eq!((releases(&runtime), releases(&runtime)), (0, 0));
        assert_eq!(barriers(&runtime), before, "nothing is idle yet");
        let idle = group.usage() - live;
        assert_eq!(releases(&runtime), idle);
        assert_eq!(barriers(&runtime), before + 1, "one for all of them");
        assert_eq!((group.usage(), runtime.root().usage()), (live, live));
        assert!(runtime.verify().is_ok());
        read.wait();
    });
}

#[test]
fn credit_that_moves_stays() {
    let (runtime, group, before) = with_group();
    let awake = Other::spawn();
    let asleep = Other::spawn();
    let mut held = vec![charge_on(&awake, &group), charge_on(&asleep, &group)];
    for visit in 0..6 {
        let idle = if visit == 2 { BATCH - 1 } else { 0 };
        assert_eq!(
            releases(&runtime),
            idle,
            "visit {visit}: the sleeper's, at the third"
        );
        held.push(charge_on(&awake, &group));
    }
    assert_eq!(barriers(&runtime), before + 1);
    assert_eq!(
        group.usage(),
        BATCH + 1,
        "the batch of the thread that charges, and a byte of the other"
    );
    // The sleeper wakes up: a refill, and hits again.
    for _ in 0..2 {
        held.push(charge_on(&asleep, &group));
    }
    assert_eq!(
        (group.usage(), group.live()),
        (2 * BATCH + 1, held.len() as u64)
    );
}

/// A thread of another test may take the place of the one that has ended, and its credit, before
/// the visit looks.
#[test]
fn the_credit_of_a_thread_that_has_ended_goes_at_once() {
    let goes_at_once = || {
        let (runtime, group, _) = with_group();
        let other = Other::spawn();
        let held = charge_on(&other, &group);
        assert_eq!(releases(&runtime), 0);
        drop(other);
        let gone = releases(&runtime);
        assert!([0, BATCH - 1].contains(&gone), "all of it or none: {gone}");
        assert_eq!((group.usage(), group.live()), (BATCH - gone, 1));
        drop(held);
        gone > 0
    };
    assert!((0..100).any(|_| goes_at_once()));
}

#[test]
fn a_thread_gives_its_own_credit_back_without_a_barrier() {
    let elsewhere = runtime();
    let (runtime, group, before) = with_group();
    let other = Other::spawn();
    let held = [
        group.charge(1).unwrap(),
        charge_on(&other, &group),
        elsewhere.root().charge(1).unwrap(),
    ];
    assert_eq!(runtime.release_thread_credit(), Bytes(BATCH - 1));
    assert_eq!(runtime.release_thread_credit(), Bytes(0));
    assert_eq!(group.usage(), 1 + BATCH, "the other thread's credit stays");
    assert_eq!(
        elsewhere.root().usage(),
        BATCH,
        "and that of another runtime"
    );
    assert_eq!((barriers(&runtime), barriers(&elsewhere)), (before, 0));
    assert!(runtime.verify().is_ok());
    // The stock is open.
    let again = group.charge(1).unwrap();
    assert_eq!(group.usage(), 2 * BATCH + 1);
    drop((held, again));
}

#[test]
fn each_counter_gives_back_its_own() {
    let mut builder = Runtime::builder()
        .batch(Bytes(BATCH))
        .adaptive(false)
        .audit(true);
    let spill = builder.counter("spill", memcg::Unit::Bytes);
    let memsw = builder.counter("memsw", memcg::Unit::Bytes);
    let runtime = builder.build().unwrap();
    let group = runtime.root().create("tenant", Limits::new()).unwrap();
    let amounts = [(CounterKey::MEMORY, 1), (memsw, 1), (spill, 1)];
    let mut held = vec![group.charge_set(&amounts).unwrap()];
    let usage = |group: &Group| {
        [CounterKey::MEMORY, memsw, spill].map(|counter| group.counter(counter).unwrap().usage())
    };
    assert_eq!(usage(&group), [BATCH; 3]);
    assert_eq!(
        [(); 3].map(|()| releases(&runtime)),
        [0, 0, BATCH - 1],
        "the figure is of memory"
    );
    assert_eq!(usage(&group), [1; 3]);
    held.push(group.charge_set(&amounts).unwrap());
    assert_eq!(runtime.release_thread_credit(), Bytes(BATCH - 1));
    assert_eq!(usage(&group), [2; 3]);
    assert!(runtime.verify().is_ok());
}

#[test]
fn one_runtime_leaves_the_credit_of_another() {
    let runtimes = [runtime(), runtime()];
    let held = runtimes
        .each_ref()
        .map(|runtime| runtime.root().charge(1).unwrap());
    assert_eq!([(); 3].map(|()| releases(&runtimes[0])), [0, 0, BATCH - 1]);
    assert_eq!(
        runtimes.each_ref().map(|runtime| runtime.root().usage()),
        [1, BATCH]
    );
    drop(held);
}

/// Nobody charges a group that is offline: its credit waits for no second look.
#[test]
fn credit_of_groups_offline_is_idle_at_once() {
    let (runtime, group, before) = with_group();
    let others = [Other::spawn(), Other::spawn()];
    let held = others.each_ref().map(|other| charge_on(other, &group));
    group.offline().unwrap();
    assert_eq!(runtime.root().usage(), 2 * BATCH);
    assert_eq!(releases(&runtime), 2 * BATCH - 2);
    assert_eq!(
        (barriers(&runtime), runtime.root().usage()),
        (before + 1, 2)
    );
    assert_eq!([(); 4].map(|()| releases(&runtime)), [0; 4]);
    assert_eq!(barriers(&runtime), before + 1, "nothing is left to do");
    drop(held);
}

#[test]
fn the_flusher_takes_idle_credit_home() {
    let (runtime, group, before) = with_group();
    let other = Other::spawn();
    let held = charge_on(&other, &group);
    assert_eq!(group.usage(), BATCH);
    runtime.start_flusher(Duration::from_millis(5)).unwrap();
    let start = Instant::now();
    while group.usage() > 1 {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "the flusher visits"
        );
        thread::sleep(Duration::from_millis(1));
    }
    runtime.stop_flusher();
    assert_eq!(barriers(&runtime), before + 1);
    drop(held);
}

/// A thread's credit follows its charges, and a visit has it begin again.
#[test]
fn an_adaptive_stock_grows_with_use() {
    let runtime = Runtime::builder().audit(true).build().unwrap();
    let group = runtime.root().create("tenant", Limits::new()).unwrap();
    // The second charge opens the stock.
    let mut held = vec![group.charge(1).unwrap(), group.charge(1).unwrap()];
    let mut refills = || -> Vec<u64> {
        let mut taken = |usage: u64| {
            // The charge is of all credit that is left, and one byte more.
            held.push(group.charge(Bytes(usage - group.live() + 1)).unwrap());
            group.usage() - usage
        };
        (0..5).map(|_| taken(group.usage())).collect()
    };
    let kib = |units: [u64; 5]| units.map(|units| units << 10);
    // A refill takes twice what is charged, at least.
    assert_eq!(refills(), kib([4, 16, 64, 256, 256]));
    (0..3).for_each(|_| _ = runtime.release_idle_credit());
    assert_eq!(group.usage(), group.live());
    assert_eq!(refills(), kib([4, 16, 64, 256, 256]));
    runtime.release_thread_credit();
    assert_eq!(
        refills(),
        kib([256; 5]),
        "a thread that gives its own credit back is not idle"
    );
}
