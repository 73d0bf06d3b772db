//! Idle credit: visits and threads that give their own credit back, against owners that wake up,
//! drains and closings.

use super::{assert_settled, beside, model, race, stocked};
use crate::PageCounter;
use crate::counter::idle;

fn visit(counter: &PageCounter) -> u64 {
    idle::release_credit(counter.counter().tree())
}

/// A unit of this thread's and a unit of credit, which two visits have seen: the next one claims
/// it.
fn asleep(counter: &PageCounter) {
    counter.charge(1).unwrap();
    assert_eq!((visit(counter), visit(counter)), (0, 0));
}

/// Credit can be put back: the stock is open.
#[track_caller]
fn assert_open(counter: &PageCounter) {
    counter.charge(1).unwrap();
    counter.uncharge(1);
    assert!(counter.stocked() > 0, "the stock stays open");
}

/// E2. The unit pays for the charge of the owner that wakes up, or is uncharged, never both.
#[test]
fn loom_visit_vs_owner_that_charges() {
    model(|| {
        let counter = PageCounter::root(stocked());
        asleep(&counter);
        race(
            counter.clone(),
            |counter| visit(&counter),
            || counter.charge(1).unwrap(),
        );
        assert_settled(&counter, 2);
        assert_open(&counter);
    });
}

/// E2. What the owner puts while a visit settles stays credit.
#[test]
fn loom_visit_vs_owner_that_uncharges() {
    model(|| {
        let counter = PageCounter::root(stocked());
        asleep(&counter);
        race(
            counter.clone(),
            |counter| visit(&counter),
            || counter.uncharge(1),
        );
        assert_settled(&counter, 0);
        assert_open(&counter);
    });
}

/// A visit and a closing take the credit once.
#[test]
fn loom_visit_vs_close() {
    model(|| {
        let counter = PageCounter::root(stocked());
        asleep(&counter);
        let close = || {
            counter.set_batch(0);
            assert_eq!(counter.usage(), 1, "no credit survives the switch");
        };
        race(counter.clone(), |counter| visit(&counter), close);
        assert_settled(&counter, 1);
    });
}

/// A charge that fits waits for the visit that has claimed the credit which it needs.
#[test]
fn loom_visit_vs_refusal() {
    model(|| {
        let counter = PageCounter::root(stocked().max(2).budget(64));
        asleep(&counter);
        let visitor = beside(counter.clone(), |counter| visit(&counter));
        let charger = beside(counter.clone(), |counter| {
            counter.charge(1).expect("1 and 1 fit into 2")
        });
        charger.join().unwrap();
        visitor.join().unwrap();
        assert_settled(&counter, 2);
    });
}

/// E2, E8. A visit claims the credit of an ended thread while the next thread takes the block and
/// charges from it.
#[test]
fn loom_visit_vs_next_thread_of_block() {
    model(|| {
        let counter = PageCounter::root(stocked());
        // This thread has a block of its own.
        counter.charge(2).unwrap();
        beside(counter.clone(), |counter| counter.charge(1).unwrap())
            .join()
            .unwrap();
        // The next thread refills with its first charge and hits with the others.
        let next = |counter: PageCounter| (0..3).for_each(|_| counter.charge(1).unwrap());
        race(counter.clone(), next, || visit(&counter));
        assert_settled(&counter, 6);
    });
}

/// E2. A thread that gives its own credit back and a drain take it once.
#[test]
fn loom_own_release_vs_drain() {
    model(|| {
        let counter = PageCounter::root(stocked());
        counter.charge(1).unwrap();
        let release = || idle::release_own_credit(counter.counter().tree());
        race(counter.clone(), |counter| counter.drain(), release);
        assert_eq!(
            (counter.usage(), counter.counts().underflows),
            (1, 0),
            "the unit is uncharged once"
        );
        assert_settled(&counter, 1);
        assert_open(&counter);
    });
}

/// E5, E6. Credit that its owner gives back is in transit: a charge that fits waits for it.
#[test]
fn loom_own_release_vs_refusal() {
    model(|| {
        let counter = PageCounter::root(stocked().max(2).budget(64));
        counter.charge(1).unwrap();
        let release = || idle::release_own_credit(counter.counter().tree());
        race(
            counter.clone(),
            |counter| counter.charge(1).expect("1 and 1 fit into 2"),
            release,
        );
        assert_settled(&counter, 2);
    });
}
