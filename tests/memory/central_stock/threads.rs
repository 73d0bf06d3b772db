//! A batch that shrinks beside threads that put and take.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use memcg::Bytes;
use memcg::CentralStock;

use super::{assert_adds_up, audited, build, left_empty};

/// A thread that has stopped in the middle of a put goes on when the stock has closed and is open
/// again with a smaller batch: it holds no more than that one.
#[test]
fn a_smaller_batch_holds_at_once() {
    const LARGE: u64 = 1_000;
    const SMALL: u64 = 100;
    // The threads' stocks stay closed.
    let runtime = left_empty(build(audited().batch(Bytes(SMALL))));
    let queue = super::limited(&runtime.root(), "queue", 15 * SMALL);
    let stock = CentralStock::of(&queue);
    for round in 0..60 {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for thread in 0..6 {
                let stock = &stock;
                let over = &over;
                let bytes = if thread < 4 { 3 * SMALL } else { SMALL / 4 };
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        stock
                            .charge_if_room(Bytes(bytes))
                            .into_iter()
                            .for_each(|charge| stock.give_back(charge));
                    }
                });
            }
            for batch in [LARGE, SMALL].into_iter().cycle().take(40) {
                queue.memory().set_batch(batch);
                thread::sleep(Duration::from_micros(50));
            }
            over.store(true, Ordering::Relaxed);
        });
        let credit = stock.credit();
        let all = queue.charge(Bytes(15 * SMALL));
        assert!(
            all.is_ok(),
            "round {round}: no byte is live, {credit} of credit: {all:?}"
        );
        assert!(
            credit <= SMALL,
            "round {round}: {credit} of credit with a batch of {SMALL}"
        );
        drop(all);
        assert_adds_up(&runtime);
    }
}
