//! The charge code's own counts, against those of the counters.

use memcg::{Bytes, Freshness, Group, Runtime, RuntimeBuilder, StatKey};

use super::{Other, assert_exact, build, charge, create};

/// A batch of 64 bytes that stays open: exact numbers of refills and returns.
fn fixed() -> RuntimeBuilder {
    Runtime::builder().batch(Bytes(64)).adaptive(false)
}

fn own(group: &Group, stat: StatKey) -> i64 {
    group.read(Freshness::Exact).local(stat)
}

#[test]
fn refills_and_returns_are_counted() {
    for builder in [fixed(), fixed().audit(true)] {
        let runtime = build(builder);
        let root = runtime.root();
        let other = Other::spawn();
        let group = create(&root, "q");
        let events = || {
            (
                own(&group, StatKey::STOCK_REFILL),
                own(&group, StatKey::STOCK_RETURN),
            )
        };
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
        assert!(
            refills == 5 && returns >= 1,
            "{returns} returns of 129 bytes into a stock of 128"
        );
        assert_exact(&root, StatKey::STOCK_REFILL, 5, 0);
        assert_exact(&root, StatKey::STOCK_RETURN, returns, 0);
    }
}

/// Charged here and freed there, as a service does: as many batches come as go.
#[test]
fn charges_that_wander_are_counted_where_they_are_made() {
    let runtime = build(fixed());
    let root = runtime.root();
    let other = Other::spawn();
    let group = create(&root, "q");
    const ROUNDS: i64 = 100;
    for _ in 0..ROUNDS {
        let held: Vec<_> = (0..64).map(|_| charge(&group, 1)).collect();
        other.run(move || drop(held));
    }
    let refills = own(&group, StatKey::STOCK_REFILL);
    let returns = own(&group, StatKey::STOCK_RETURN);
    assert_eq!(refills, ROUNDS, "64 bytes are a batch");
    assert!(
        (ROUNDS - 3..=ROUNDS).contains(&returns),
        "{returns} returns: two batches stay with the other thread"
    );
}

/// Without a stock there is nothing to refill.
#[test]
fn a_group_without_stock_refills_nothing() {
    let runtime = build(Runtime::builder().batch(Bytes(0)));
    let group = create(&runtime.root(), "q");
    (0..100).for_each(|_| drop(charge(&group, 7)));
    assert_exact(&runtime.root(), StatKey::STOCK_REFILL, 0, 0);
    assert_exact(&runtime.root(), StatKey::STOCK_RETURN, 0, 0);
}

/// The charge code's counts of a group are there when the group is gone, and its thread with it.
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
    assert_eq!((runtime.dying_count(), root.usage()), (0, 0));
    assert_exact(&root, StatKey::STOCK_REFILL, 4 * ROUNDS, 0);
}
