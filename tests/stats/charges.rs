//! What the charge code counts by itself, against what the counters say.

use memcg::{Bytes, ChargeError, Counter, Group, Limit, Runtime, RuntimeBuilder, Stat};

use super::{Other, assert_exact, build, charge, create};

/// A batch of 64 bytes that stays open: exact numbers of refills and returns.
fn fixed() -> RuntimeBuilder {
    Runtime::builder().batch(Bytes(64)).adaptive(false)
}

fn own(group: &Group, stat: Stat) -> i64 {
    group.read_exact().local(stat)
}

#[test]
fn refills_and_returns_are_counted() {
    for builder in [fixed(), fixed().audit(true)] {
        let runtime = build(builder);
        let (root, other) = (runtime.root(), Other::spawn());
        let group = create(&root, "q");
        let events = || (own(&group, Stat::STOCK_REFILL), own(&group, Stat::STOCK_RETURN));
        // A batch for each 64 of them.
        let mut held: Vec<_> = (0..64).map(|_| charge(&group, 1)).collect();
        assert_eq!(events(), (1, 0));
        held.extend((0..64).map(|_| charge(&group, 1)));
        assert_eq!(events(), (2, 0));
        // Within two batches what comes back stays; then all above one batch goes back at once.
        held.truncate(64);
        held.truncate(0);
        assert_eq!(events(), (2, 0));
        let theirs = group.clone();
        held.extend(other.run(move || (0..129).map(|_| charge(&theirs, 1)).collect::<Vec<_>>()));
        assert_eq!(events(), (5, 0));
        held.truncate(0);
        let (refills, returns) = events();
        assert!(refills == 5 && returns >= 1, "{returns} returns of 129 bytes into a stock of 128");
        assert_exact(&root, Stat::STOCK_REFILL, 5, 0);
        assert_exact(&root, Stat::STOCK_RETURN, returns, 0);
    }
}

/// Charged here and freed there, as a service does: as many batches come as go.
#[test]
fn charges_that_wander_are_counted_where_they_are_made() {
    let runtime = build(fixed());
    let (root, other) = (runtime.root(), Other::spawn());
    let group = create(&root, "q");
    const ROUNDS: i64 = 100;
    for _ in 0..ROUNDS {
        let held: Vec<_> = (0..64).map(|_| charge(&group, 1)).collect();
        other.run(move || drop(held));
    }
    let (refills, returns) = (own(&group, Stat::STOCK_REFILL), own(&group, Stat::STOCK_RETURN));
    assert_eq!(refills, ROUNDS, "64 bytes are a batch");
    assert!((ROUNDS - 3..=ROUNDS).contains(&returns), "{returns} returns: two batches stay with the other thread");
}

/// Without a stock there is nothing to refill.
#[test]
fn a_group_without_stock_refills_nothing() {
    let runtime = build(Runtime::builder().batch(Bytes(0)));
    let group = create(&runtime.root(), "q");
    (0..100).for_each(|_| drop(charge(&group, 7)));
    assert_exact(&runtime.root(), Stat::STOCK_REFILL, 0, 0);
    assert_exact(&runtime.root(), Stat::STOCK_RETURN, 0, 0);
}

/// A refusal is counted for the group that asked; `refused()` for the level that refused. Over the whole tree both are
/// as many.
#[test]
fn refusals_are_counted_for_whoever_asked() {
    for builder in [fixed(), Runtime::builder().batch(Bytes(0)), Runtime::builder().audit(true)] {
        let runtime = build(builder.max(Limit::Bytes(1_000)));
        let (root, other) = (runtime.root(), Other::spawn());
        let [a, b] = ["a", "b"].map(|name| create(&root, name));
        let below = create(&a, "below");
        a.set_max(Limit::Bytes(100)).expect("a number");
        let held = charge(&below, 60);
        let refuse = |group: &Group, bytes| {
            let refused = group.try_charge(bytes).expect_err("does not fit");
            assert!(matches!(refused, ChargeError::Limit(_)), "{refused}");
        };
        refuse(&below, 41);
        refuse(&below, 1_000);
        refuse(&a, 50);
        let theirs = b.clone();
        other.run(move || assert!(theirs.try_charge(941).is_err() && theirs.try_charge(u64::MAX).is_err()));
        let mut grows = charge(&below, 40);
        assert!(grows.try_grow(1).is_err());
        // (group, refused by it, refused to it)
        for (group, by, to) in [(&root, 2, 0), (&a, 4, 1), (&below, 0, 3), (&b, 0, 2)] {
            assert_eq!((group.refused(), own(group, Stat::REFUSED)), (by, to), "{}", group.path());
        }
        assert_exact(&root, Stat::REFUSED, 6, 0);
        assert_exact(&a, Stat::REFUSED, 4, 1);
        let all: u64 = root.descendants().chain([root.clone()]).map(|group| group.refused()).sum();
        assert_eq!(all, 6);
        // What is refused for another reason is none.
        b.offline().expect("no children");
        assert!(b.try_charge(1).is_err());
        assert_exact(&root, Stat::REFUSED, 6, 0);
        drop((held, grows));
    }
}

/// A set that is refused is one refusal, whichever counter was full.
#[test]
fn refusals_of_every_counter_are_counted() {
    let mut builder = fixed();
    let spill = builder.counter("spill");
    let runtime = build(builder);
    let group = create(&runtime.root(), "q");
    let spilt = group.counter(spill).expect("declared");
    spilt.set_max(Limit::Bytes(10)).expect("a number");
    assert!(group.try_charge_set(&[(Counter::MEMORY, 5), (spill, 11)]).is_err());
    assert_eq!((spilt.refused(), group.refused()), (1, 0));
    assert_exact(&group, Stat::REFUSED, 1, 1);
    assert_exact(&runtime.root(), Stat::REFUSED, 1, 0);
}

/// Bytes that were charged without asking the limits; those above them are in `forced()`.
#[test]
fn forced_bytes_are_counted() {
    for builder in [fixed(), Runtime::builder().batch(Bytes(0)), Runtime::builder().audit(true)] {
        let runtime = build(builder);
        let (root, other) = (runtime.root(), Other::spawn());
        let group = create(&root, "q");
        group.set_max(Limit::Bytes(100)).expect("a number");
        let held = charge(&group, 100);
        assert_exact(&group, Stat::FORCED, 0, 0);
        let mut forced = group.charge(500);
        assert_eq!((group.forced(), own(&group, Stat::FORCED)), (500, 500));
        forced.grow(50);
        let theirs = group.clone();
        let far = other.run(move || theirs.charge(5_000));
        assert_eq!((group.forced(), own(&group, Stat::FORCED)), (5_550, 5_550));
        // It tells what came, `forced()` what is above the limit now.
        drop((held, forced, far));
        assert_eq!((group.forced(), own(&group, Stat::FORCED)), (0, 5_550));
        assert_exact(&root, Stat::FORCED, 5_550, 0);
        group.offline().expect("no children");
        drop(group.charge(7));
        drop(group);
        assert_exact(&root, Stat::FORCED, 5_557, 0);
    }
}

/// What the charge code counts of a group is counted when the group is gone, and its thread with it.
#[test]
fn the_last_uncharge_of_a_group_is_counted() {
    let runtime = build(fixed());
    let root = runtime.root();
    const ROUNDS: i64 = 50;
    for _ in 0..ROUNDS {
        let group = create(&root, "q");
        let held = std::thread::spawn(move || {
            let held: Vec<_> = (0..200).map(|_| charge(&group, 1)).collect();
            group.offline().expect("no children");
            held
        });
        drop(held.join().expect("no panic"));
        runtime.settle();
    }
    assert_eq!((runtime.dying(), root.usage()), (0, 0));
    assert_exact(&root, Stat::STOCK_REFILL, 4 * ROUNDS, 0);
    assert_exact(&root, Stat::REFUSED, 0, 0);
}
