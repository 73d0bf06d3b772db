//! Refusals: no charge is refused while credit is stranded, in a slot or in transit.

use super::{beside, model, model_without_pair, race, stocked, walk_first};
use crate::PageCounter;

/// E5, E6. Once the stock is off, room for a charge is room: a refill in flight has brought its
/// surplus back. The thread's mark as the charger is old: a new mark comes with a fence.
#[test]
fn loom_refill_vs_close() {
    model(|| {
        let counter = PageCounter::root(stocked().max(4).budget(64));
        // The next thread has this one's block, and with it the mark.
        beside(counter.clone(), |counter| counter.charge(2).unwrap())
            .join()
            .unwrap();
        let charger = beside(counter.clone(), |counter| counter.charge(1).unwrap());
        counter.set_batch(0);
        counter
            .charge(1)
            .expect("two units of room, two charges of one");
        charger.join().unwrap();
        assert_eq!(counter.usage(), 4);
    });
}

/// E5, E6, E10. Two charges that fit together both succeed, whatever credit either has in transit.
#[test]
fn loom_refusal_vs_refill_in_transit() {
    model(|| {
        let counter = PageCounter::root(stocked().max(2).budget(64));
        race(
            counter.clone(),
            |counter| counter.charge(1).unwrap(),
            || counter.charge(1).unwrap(),
        );
        assert_eq!(counter.usage(), 2);
    });
}

/// E10. The adaptive stock: it opens and closes by margin while both threads charge.
#[test]
fn loom_refusal_vs_adaptive() {
    model(|| {
        let counter = PageCounter::root(stocked().adaptive(true).max(40).budget(64));
        walk_first(&counter);
        // Room for a batch of one more charge opens the stock; the limit comes down on it.
        counter.charge(1).unwrap();
        let charger = beside(counter.clone(), |counter| counter.charge(1).unwrap());
        counter.set_max(3).unwrap();
        counter.charge(1).unwrap();
        charger.join().unwrap();
        assert_eq!(counter.usage() - counter.stocked(), 3);
    });
}

/// E3. A unit freed while another thread's refusal closes the stock is there for the next charge.
#[test]
fn loom_refusal_vs_put() {
    model(|| {
        let counter = PageCounter::root(stocked().adaptive(true).max(40).budget(64));
        walk_first(&counter);
        // Exactly, which opens the stock; then for a batch, which leaves credit.
        counter.charge(1).unwrap();
        counter.charge(1).unwrap();
        race(
            counter.clone(),
            |counter| counter.charge(38).expect("fits once the credit is drained"),
            || counter.uncharge(1),
        );
        // By a third thread: this thread's own slot would pay with what is stranded in it.
        beside(counter.clone(), |counter| {
            counter.charge(1).expect("the freed unit is stranded")
        })
        .join()
        .unwrap();
    });
}

/// E10. A stock that is closing counts as open until its credit is back.
#[test]
fn loom_refusal_vs_closing() {
    model_without_pair(|| {
        let counter = PageCounter::root(stocked().max(2).budget(64));
        counter.charge(1).unwrap();
        let closer = beside(counter.clone(), |counter| counter.set_batch(0));
        let charger = beside(counter.clone(), |counter| counter.charge(1).unwrap());
        charger.join().unwrap();
        closer.join().unwrap();
        assert_eq!(counter.usage(), 2);
    });
}

/// E10. A refusal that found no open stock looks again: a stock that opened meanwhile may hold the
/// credit that it lacks.
#[test]
fn loom_refusal_vs_opening() {
    model_without_pair(|| {
        let counter = PageCounter::root(stocked().adaptive(true).max(40).budget(64));
        walk_first(&counter);
        // The first charge leaves room enough to open the stock, the second takes a batch.
        race(
            counter.clone(),
            |counter| [1, 1].map(|n| counter.charge(n).unwrap()),
            || counter.charge(38).expect("38 and 2 fit into 40"),
        );
        assert_eq!(counter.usage(), 40 + counter.stocked());
    });
}

/// E4. While a forced charge stands above max, no stock is open: freed units are not credit to hit
/// on.
#[test]
fn loom_forced_vs_opening() {
    model_without_pair(|| {
        let counter = PageCounter::root(stocked().adaptive(true).max(40).budget(64));
        walk_first(&counter);
        // Exactly, which opens the stock.
        race(
            counter.clone(),
            |counter| counter.charge(1).is_ok(),
            || counter.force_charge(60),
        );
        counter.uncharge(1);
        counter.charge(1).expect_err("above max");
    });
}

/// E10. The stock of a counter that is retired counts as open until its credit is back.
#[test]
fn loom_refusal_vs_retire() {
    model_without_pair(|| {
        let root = PageCounter::root(stocked().max(2).budget(64));
        let gone = root.child();
        let stays = root.child();
        stays.set_batch(0);
        gone.charge(1).unwrap();
        gone.uncharge(1);
        race(gone, drop, || stays.charge(2).expect("no charge is left"));
        assert_eq!(root.usage(), 2);
    });
}
