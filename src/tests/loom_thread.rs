//! Threads that come and go.

use super::{assert_settled, beside, model, model_without_pair, race, stocked};
use crate::PageCounter;

/// E8. Credit of an ended thread is drained once, or the next thread has it with the block.
#[test]
fn loom_thread_exit_vs_drain() {
    model_without_pair(|| {
        let counter = PageCounter::root(stocked());
        let threads = [(); 2].map(|()| beside(counter.clone(), |counter| counter.try_charge(1).unwrap()));
        counter.drain();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_settled(&counter, 2);
    });
}

/// E7, E9. A thread's first charge makes its block and its page while another drains and closes.
#[test]
fn loom_first_touch_vs_close() {
    model(|| {
        let counter = PageCounter::root(stocked());
        let touch = |counter: PageCounter| {
            counter.try_charge(1).unwrap();
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
        beside(first.clone(), |first| first.try_charge(1).unwrap()).join().unwrap();
        drop(first);
        assert_eq!(root.usage(), 0, "a retired counter takes its charges and its credit along");
        let second = root.child();
        race(second.clone(), |second| second.try_charge(1).unwrap(), || second.try_charge(1).unwrap());
        assert_settled(&root, 2);
    });
}
