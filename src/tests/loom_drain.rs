//! Slots: the owner against drains and closings, and threads that come and go.

use std::panic::catch_unwind;

use super::schedules::loads_are_exchanges;
use super::{assert_settled, beside, model, model_without_pair, race, stocked};
use crate::{CounterConfig, PageCounter};

/// E2. A unit of credit pays one charge or goes back, never both.
fn consume_vs_drain() {
    let counter = PageCounter::root(stocked());
    counter.charge(1).unwrap();
    race(
        counter.clone(),
        |counter| counter.drain(),
        || counter.charge(1).unwrap(),
    );
    assert_settled(&counter, 2);
}

#[test]
fn loom_consume_vs_drain() {
    model(consume_vs_drain);
}

/// A model without the pair sees what the pair forbids. A load that counts as an exchange reads the
/// newest value, so only loads of older values show a store that comes late.
#[test]
#[cfg_attr(
    miri,
    ignore = "Miri: one schedule, and a fence for the pair; the fault needs one of many without it"
)]
fn without_the_pair_a_unit_pays_twice() {
    if loads_are_exchanges() {
        return;
    }
    let panic =
        catch_unwind(|| model_without_pair(consume_vs_drain)).expect_err("a unit that pays twice");
    let words = panic
        .downcast_ref::<String>()
        .expect("an assertion with words");
    assert!(words.contains("usage is live charge and credit"), "{words}");
}

/// E2. Credit that is put while a claim settles stays credit.
#[test]
fn loom_put_vs_drain() {
    model(|| {
        let counter = PageCounter::root(stocked());
        counter.charge(1).unwrap();
        race(
            counter.clone(),
            |counter| counter.drain(),
            || counter.uncharge(1),
        );
        assert_settled(&counter, 0);
    });
}

/// E3. The closer drains credit that is put into a closing stock, or the owner takes it back.
#[test]
fn loom_put_vs_close() {
    model(|| {
        let counter = PageCounter::root(stocked());
        counter.charge(2).unwrap();
        race(
            counter.clone(),
            |counter| counter.set_batch(0),
            || counter.uncharge(2),
        );
        assert_eq!(counter.usage(), 0, "no credit survives the switch");
    });
}

/// E3. Credit that was put for a large batch does not stay in a stock that has become small.
#[test]
fn loom_put_vs_smaller_batch() {
    model(|| {
        let counter = PageCounter::root(stocked().batch(4));
        counter.charge(3).unwrap();
        race(
            counter.clone(),
            |counter| counter.set_batch(1),
            || counter.uncharge(3),
        );
        assert!(
            counter.stocked() <= counter.stocked_bound(),
            "{} stocked",
            counter.stocked()
        );
        assert_settled(&counter, 0);
    });
}

/// E3, E5. A stock that gets wider under another thread's first charge and put: the bound is that of
/// what each thread has reserved, and no credit is left behind.
#[test]
fn loom_put_vs_wider_stock() {
    model(|| {
        // Batches of 1: charges of 2 ask for a wider stock.
        let config = CounterConfig::new().batch(1).max(1 << 20);
        let counter = PageCounter::root(config);
        for n in [1, 1, 2] {
            counter.charge(n).unwrap();
        }
        race(
            counter.clone(),
            |counter| counter.charge(2).unwrap(),
            || {
                counter.charge(1).unwrap();
                counter.uncharge(1);
            },
        );
        assert_eq!(counter.counter().open_batch(), 4, "it is wider");
        assert!(
            counter.stocked() <= counter.stocked_bound(),
            "{} stocked",
            counter.stocked()
        );
        assert_settled(&counter, 6);
        counter.set_batch(0);
        assert_eq!((counter.usage(), counter.stocked_bound()), (6, 0));
    });
}

/// E2, E3. The undo of a consume is a put: on a closed stock it is taken back.
#[test]
fn loom_undone_consume_vs_close() {
    model(|| {
        let counter = PageCounter::root(stocked());
        counter.charge(1).unwrap();
        race(
            counter.clone(),
            |counter| counter.set_batch(0),
            || counter.charge(1).unwrap(),
        );
        assert_eq!(counter.usage(), 2, "no credit survives the switch");
    });
}

/// Two drains at once return each unit once, and each is complete when it returns: the loser waits
/// for the winner.
#[test]
fn loom_two_drainers() {
    model(|| {
        let counter = PageCounter::root(stocked());
        counter.charge(1).unwrap();
        let drain = |counter: PageCounter| {
            counter.drain();
            assert_eq!(counter.usage(), 1, "a drain is complete on return");
        };
        race(counter.clone(), drain, || drain(counter.clone()));
        assert_settled(&counter, 1);
    });
}

/// E3. A charge in flight while the stock is switched off leaves no credit behind.
#[test]
fn loom_switch_off_vs_charge() {
    model(|| {
        let counter = PageCounter::root(stocked());
        race(
            counter.clone(),
            |counter| counter.charge(1).unwrap(),
            || counter.set_batch(0),
        );
        assert_eq!(counter.usage(), 1);
    });
}

/// E8. Credit of an ended thread is drained once, or the next thread has it with the block.
#[test]
fn loom_thread_exit_vs_drain() {
    model_without_pair(|| {
        let counter = PageCounter::root(stocked());
        let threads =
            [(); 2].map(|()| beside(counter.clone(), |counter| counter.charge(1).unwrap()));
        counter.drain();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        assert_settled(&counter, 2);
    });
}

/// E7, E9, E54. A thread's first charge makes its block and its page while another drains and
/// closes.
#[test]
fn loom_first_touch_vs_close() {
    model(|| {
        let counter = PageCounter::root(stocked());
        let touch = |counter: PageCounter| {
            counter.charge(1).unwrap();
            counter.uncharge(1);
        };
        race(counter.clone(), touch, || counter.set_batch(0));
        assert_eq!(counter.usage(), 0);
    });
}

/// E12. The next counter with a freed index finds its slots vacant.
#[test]
fn loom_index_reuse() {
    model_without_pair(|| {
        let root = PageCounter::root(stocked().budget(64));
        let first = root.child();
        beside(first.clone(), |first| first.charge(1).unwrap())
            .join()
            .unwrap();
        drop(first);
        assert_eq!(
            root.usage(),
            0,
            "a retired counter takes its charges and its credit along"
        );
        let second = root.child();
        race(
            second.clone(),
            |second| second.charge(1).unwrap(),
            || second.charge(1).unwrap(),
        );
        assert_settled(&root, 2);
    });
}

/// E54. A drain takes the block of an ended thread off the list while the next thread takes it:
/// what that one puts into it is drained.
#[test]
fn loom_swept_block_vs_next_thread() {
    model_without_pair(|| {
        let counter = PageCounter::root(stocked());
        counter.charge(2).unwrap();
        beside(counter.clone(), |counter| counter.charge(2).unwrap())
            .join()
            .unwrap();
        race(
            counter.clone(),
            |counter| counter.charge(1).unwrap(),
            || counter.drain(),
        );
        assert_settled(&counter, 5);
    });
}

/// E54. The slots of a counter that ends are vacated in a block that leaves the list meanwhile.
#[test]
fn loom_swept_block_vs_retire() {
    model_without_pair(|| {
        let root = PageCounter::root(stocked().budget(64));
        let first = root.child();
        first.charge(2).unwrap();
        beside(first.clone(), |first| first.charge(2).unwrap())
            .join()
            .unwrap();
        race(first, drop, || root.drain());
        root.drain();
        let second = root.child();
        beside(second.clone(), |second| second.charge(1).unwrap())
            .join()
            .unwrap();
        assert!(
            second.stocked() <= second.stocked_bound(),
            "{} stocked",
            second.stocked()
        );
        assert_settled(&root, 1);
    });
}
