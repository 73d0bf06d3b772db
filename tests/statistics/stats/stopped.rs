//! Writers that stopped: without a flusher, a few reads or flushes, and they widen no thread's
//! bound any more.

use memcg::{Freshness, Group, Runtime, RuntimeBuilder, StatKey};

use super::{Other, assert_exact, assert_honest, build, create};

const STAT: StatKey = StatKey::PERCPU;

/// Bytes that each writer has written.
const BYTES: i64 = 192;

/// The most reads or flushes that a single writer may need: alone it wastes little.
const LOOKS_MOST: usize = 48;

/// With no delay for a lone writer's sake.
const LOOKS_OF_MANY: usize = 12;

fn looks_most(writers: usize) -> usize {
    if writers < 8 {
        LOOKS_MOST
    } else {
        LOOKS_OF_MANY
    }
}

/// So many threads write once to a group of their own below `top`, and stop.
fn write_once(top: &Group, writers: usize) -> Vec<Other> {
    let group = |number: usize| create(top, &number.to_string());
    let write = |number| {
        let other = Other::spawn();
        other.add(&group(number), STAT, BYTES);
        other
    };
    (0..writers).map(write).collect()
}

/// The number of looks until a stale read of `group` is exact, and stays so.
#[track_caller]
fn looks_until_exact(group: &Group, writers: usize, mut look: impl FnMut(&Group)) -> usize {
    let truth = BYTES * writers as i64;
    let is_exact = || {
        let stale = group.read(Freshness::Stale);
        assert_honest(&stale, STAT, truth);
        stale.max_error() == 0
    };
    let most = looks_most(writers);
    let looks = (0..=most).find(|_| {
        is_exact() || {
            look(group);
            false
        }
    });
    let looks = looks.unwrap_or_else(|| {
        panic!(
            "{writers} writers: an error of {}",
            group.read(Freshness::Stale).max_error()
        )
    });
    look(group);
    assert!(is_exact(), "{writers} writers");
    looks
}

fn builders() -> [RuntimeBuilder; 3] {
    [
        Runtime::builder(),
        Runtime::builder().stat_batch(64),
        Runtime::builder().barrier(memcg::barrier::BarrierMode::Fence),
    ]
}

#[test]
fn a_few_reads_forget_threads_that_are_idle() {
    for writers in [1, 2, 8, 1_000] {
        for builder in builders() {
            let runtime = build(builder);
            let top = create(&runtime.root(), "top");
            let others = write_once(&top, writers);
            let looks = looks_until_exact(&top, writers, |group| {
                assert_honest(
                    &group.read(Freshness::Threshold),
                    STAT,
                    BYTES * writers as i64,
                )
            });
            assert!(looks > 0, "no thread has looked yet");
            // They come back, and are counted again.
            others[0].add(&top, STAT, 1);
            assert!(top.read(Freshness::Stale).max_error() > 0);
            assert_exact(&top, STAT, BYTES * writers as i64 + 1, 1);
        }
    }
}

#[test]
fn a_few_flushes_forget_threads_that_are_idle() {
    for writers in [1, 2, 8, 100] {
        for builder in builders() {
            let runtime = build(builder);
            let top = create(&runtime.root(), "top");
            let others = write_once(&top, writers);
            looks_until_exact(&top, writers, |group| group.inspect().flush());
            drop(others);
            assert_eq!(top.read(Freshness::Stale).get(STAT), BYTES * writers as i64);
        }
    }
}

#[test]
fn a_few_reads_forget_threads_that_have_ended() {
    for writers in [1, 8, 100] {
        let runtime = build(Runtime::builder());
        let top = create(&runtime.root(), "top");
        drop(write_once(&top, writers));
        looks_until_exact(&top, writers, |group| {
            drop(group.read(Freshness::Threshold))
        });
    }
}

/// Those that write on are no reason to keep the others.
#[test]
fn one_that_writes_on_keeps_no_others() {
    const WRITERS: usize = 100;
    let runtime = build(Runtime::builder());
    let top = create(&runtime.root(), "top");
    let others = write_once(&top, WRITERS);
    let mut truth = BYTES * WRITERS as i64;
    for _ in 0..LOOKS_OF_MANY {
        top.stat_add(STAT, 1);
        truth += 1;
        assert_honest(&top.read(Freshness::Threshold), STAT, truth);
    }
    let stale = top.read(Freshness::Stale);
    assert!(
        stale.max_error() <= 1_024,
        "{} with one writer left",
        stale.max_error()
    );
    assert_honest(&stale, STAT, truth);
    drop(others);
}

/// As long as they write on, reads within the bound leave the cells alone, but for one now and
/// then.
#[test]
fn reads_beside_writers_seldom_flush() {
    const READS: u64 = 10_000;
    let runtime = build(Runtime::builder().stat_batch(1 << 20));
    let top = create(&runtime.root(), "top");
    let before = runtime.counts();
    for truth in 1..=READS {
        top.stat_add(STAT, 1);
        assert_honest(&top.read(Freshness::Threshold), STAT, truth as i64);
    }
    let after = runtime.counts();
    let flushes = after.flushes - before.flushes;
    assert!(
        (READS / 100..=READS / 50).contains(&flushes),
        "{flushes} flushes"
    );
    assert_eq!(after.stat_unlists, before.stat_unlists);
    // It stops, and is forgotten though no thread had looked often.
    let reads = (0..170).find(|_| {
        top.read(Freshness::Threshold).max_error() == 0
            && top.read(Freshness::Stale).max_error() == 0
    });
    assert!(
        reads.is_some(),
        "an error of {}",
        top.read(Freshness::Stale).max_error()
    );
}
