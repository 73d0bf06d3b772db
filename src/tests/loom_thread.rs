//! Threads that come and go.

use super::{assert_settled, beside, model, model_without_pair, stocked};
use crate::PageCounter;

/// E8. Credit of an ended thread is drained once, or the next thread has it with the block.
#[test]
fn loom_thread_exit_vs_drain() {
    model_without_pair(|| {
        let counter = PageCounter::root(stocked());
        let threads = [(); 2].map(|()| beside(&counter, |counter| counter.try_charge(1).unwrap()));
        counter.drain();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_settled(&counter, 2);
    });
}

/// E7, E9. A thread's first charge makes its block and its page while another drains and closes.
#[test]
fn loom_first_touch_vs_close() {
    model(|| {
        let counter = PageCounter::root(stocked());
        let toucher = beside(&counter, |counter| {
            counter.try_charge(1).unwrap();
            counter.uncharge(1);
        });
        counter.set_batch(0);
        toucher.join().unwrap();
        assert_eq!(counter.usage(), 0);
    });
}

/// E12. The next counter with a freed index finds its slots vacant.
#[test]
fn loom_index_reuse() {
    model_without_pair(|| {
        let root = PageCounter::root(stocked().budget(64));
        let first = root.child();
        let user = beside(&first, |first| first.try_charge(1).unwrap());
        user.join().unwrap();
        drop(first);
        assert_eq!(root.usage(), 0, "a retired counter takes its charges and its credit along");
        let second = root.child();
        let user = beside(&second, |second| second.try_charge(1).unwrap());
        second.try_charge(1).unwrap();
        user.join().unwrap();
        assert_settled(&root, 2);
    });
}
