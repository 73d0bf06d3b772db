//! Statements 83 to 91: statistics and their flush.

use memcg::{Freshness, Group, Limits, Runtime, StatKey};

use super::Other;

/// Counted one by one, so that an addition of 1 is one of 64 to a batch.
const STAT: StatKey = StatKey::WORKINGSET_REFAULT;
const BATCH: u64 = 64;

fn runtime() -> Runtime {
    Runtime::builder()
        .stat_batch(BATCH)
        .build()
        .expect("a configuration")
}

fn create(parent: &Group, name: &str) -> Group {
    parent
        .create(name, Limits::new())
        .expect("a name that is free")
}

fn add_units(group: &Group, units: u64) {
    (0..units).for_each(|_| group.stat_add(STAT, 1));
}

/// T: R{A{B, C}}. A group that is flushed: a parent that is read after its child shows at least
/// what the child showed, and after a flush of the parent exactly the children's sum and its own.
///
/// In the kernel a flush of the child leaves its parent behind until the parent is flushed. Here it
/// publishes the parents first.
#[test]
fn s083_parent_is_never_below_child() {
    let runtime = runtime();
    let a = create(&runtime.root(), "a");
    let [b, c] = ["b", "c"].map(|name| create(&a, name));
    let readers = [Freshness::Stale, Freshness::Threshold, Freshness::Exact];
    for round in 0..200 {
        a.stat_add(STAT, 3);
        b.stat_add(STAT, round % 9);
        add_units(&c, 10);
        [&b, &c, &a][round as usize % 3].inspect().flush();
        for child in readers {
            for parents in readers {
                let children = b.read(child).get(STAT) + c.read(child).get(STAT);
                let parent = a.read(parents);
                assert!(
                    parent.get(STAT) >= children + parent.local(STAT),
                    "round {round}"
                );
                assert!(
                    runtime.root().read(parents).get(STAT) >= parent.get(STAT),
                    "round {round}"
                );
            }
        }
        a.inspect().flush();
        let of_a = a.read(Freshness::Stale);
        let of_b = b.read(Freshness::Stale);
        let of_c = c.read(Freshness::Stale);
        assert_eq!(
            of_a.get(STAT),
            of_b.get(STAT) + of_c.get(STAT) + of_a.local(STAT)
        );
        assert_eq!(
            (of_a.local(STAT), of_c.get(STAT)),
            (3 * (round + 1), 10 * (round + 1))
        );
    }
}

/// Tells if the thresholded read of `group` flushes now.
fn flushes(runtime: &Runtime, group: &Group) -> bool {
    let before = runtime.counts().flushes;
    assert!(group.read(Freshness::Threshold).max_error() <= 4 * BATCH);
    runtime.counts().flushes > before
}

/// The kernel's threshold is 64 for each processor that is online, however many write: with 4 of
/// them 256 updates by one thread are not flushed and 320 are.
///
/// Here it is 64 for each thread that writes, and the read counts what may be held back as missing:
/// half a batch for each writer. So with one writer a read flushes at 33 and never leaves more than
/// 64 out; with four it lets the first announce as much as the four may hold back, 128, in pieces
/// of 33. Magnitudes count: +1 and -1 are 2.
#[test]
fn s084_threshold_follows_the_writers() {
    let runtime = runtime();
    let a = create(&runtime.root(), "a");
    add_units(&a, BATCH / 2);
    assert!(!flushes(&runtime, &a), "32 by one writer");
    a.stat_add(STAT, -1);
    assert!(flushes(&runtime, &a), "a magnitude of 33");
    assert_eq!(a.read(Freshness::Stale).get(STAT), 31);
    // Opposite signs, one unit less than before.
    (0..16).for_each(|_| {
        [1, -1]
            .into_iter()
            .for_each(|delta| a.stat_add(STAT, delta))
    });
    assert!(!flushes(&runtime, &a), "a magnitude of 32");
    a.stat_add(STAT, 1);
    assert!(flushes(&runtime, &a), "a magnitude of 33");

    let four = create(&runtime.root(), "four");
    let others = [Other::spawn(), Other::spawn(), Other::spawn()];
    for other in &others {
        let four = four.clone();
        other.run(move || four.stat_add(STAT, 1));
    }
    // So much that nothing is held back.
    add_units(&four, 33);
    four.inspect().flush();
    add_units(&four, 3 * 33 + 32);
    assert!(!flushes(&runtime, &four), "131 by one of four writers");
    add_units(&four, 1);
    assert!(flushes(&runtime, &four), "132, of which none is held back");
    assert_eq!(four.read(Freshness::Stale).get(STAT), 3 + 33 + 132);
}

/// T: R{A{B, C}}, updates in B only: a flush of C takes nothing of B, a flush of A does.
#[test]
fn s085_flush_of_a_sibling_consumes_nothing() {
    let runtime = runtime();
    let a = create(&runtime.root(), "a");
    let [b, c] = ["b", "c"].map(|name| create(&a, name));
    let other = Other::spawn();
    add_units(&b, 20);
    let theirs = b.clone();
    other.run(move || add_units(&theirs, 10));
    let pending = b.read(Freshness::Stale).max_error();
    c.inspect().flush();
    assert_eq!(
        (
            b.read(Freshness::Stale).get(STAT),
            a.read(Freshness::Stale).get(STAT)
        ),
        (0, 0)
    );
    assert_eq!(
        b.read(Freshness::Stale).max_error(),
        pending,
        "still to come"
    );
    assert_eq!(c.read(Freshness::Exact).get(STAT), 0);
    a.inspect().flush();
    assert_eq!(
        (
            b.read(Freshness::Stale).get(STAT),
            a.read(Freshness::Stale).get(STAT)
        ),
        (30, 30)
    );
    assert_eq!(
        (
            a.read(Freshness::Stale).local(STAT),
            c.read(Freshness::Stale).get(STAT)
        ),
        (0, 0)
    );
}

/// Sibling +1, child +63, child +63, by one thread: in the kernel (2025) the child passes its
/// threshold here, and from then on its updates no longer reach the parent, which misses any number
/// of them until the timer comes. Here what the child holds is in the parent's bound, so a
/// thresholded read of the parent never misses more than 64 for each writer.
#[test]
fn s087_updates_of_a_flushable_child_reach_the_parent() {
    let runtime = runtime();
    let parent = create(&runtime.root(), "p");
    let [sibling, child] = ["s", "c"].map(|name| create(&parent, name));
    sibling.stat_add(STAT, 1);
    child.stat_add(STAT, 63);
    child.stat_add(STAT, 63);
    for update in 1..=1_000_i64 {
        child.stat_add(STAT, 1);
        let sum = 127 + update;
        let stale = parent.read(Freshness::Stale);
        assert!(
            sum.abs_diff(stale.get(STAT)) <= stale.max_error(),
            "update {update}"
        );
        if update % 250 == 0 {
            let read = parent.read(Freshness::Threshold);
            assert!(
                read.max_error() <= 2 * BATCH && sum.abs_diff(read.get(STAT)) <= 2 * BATCH,
                "update {update}"
            );
        }
    }
    // A flush of the child alone is no reason to miss it above either.
    child.inspect().flush();
    assert!(parent.read(Freshness::Stale).get(STAT) >= 1_126);
    assert_eq!(parent.read(Freshness::Exact).get(STAT), 1_127);
}
