//! The central stock: what a thread gives back is credit once, and no charge is refused or waits
//! while it lies there.

use super::schedules::EVER;
use super::{beside, build, model_without_pair, race};
use crate::CentralStock;
use crate::{Bytes, Charge, Group, Limit, Limits, OnFull, Runtime};

/// The limit is near, so the stocks of threads stay closed.
fn queue(max: u64) -> (Runtime, Group, CentralStock) {
    let (runtime, root) = build(Runtime::builder().batch(Bytes(4)).budget(Bytes(64)));
    let queue = root
        .create("queue", Limits::new().max(Limit::Bytes(max)))
        .unwrap();
    let stock = CentralStock::of(&queue);
    (runtime, queue, stock)
}

/// Open, with so many bytes of credit.
fn with_credit(stock: &CentralStock, bytes: u64) {
    let charge = stock.charge_if_room(Bytes(bytes)).unwrap();
    stock.give_back(charge);
    assert_eq!((stock.credit(), stock.group().live()), (bytes, 0));
}

fn give_back((stock, charge): (CentralStock, Charge)) {
    stock.give_back(charge);
}

/// E53. A byte of credit pays one charge or goes up the tree, never both.
#[test]
fn loom_central_take_vs_close() {
    model_without_pair(|| {
        let (runtime, queue, stock) = queue(4);
        with_credit(&stock, 2);
        let memory = queue.memory();
        let charge = race(
            stock,
            |stock| stock.charge_if_room(2),
            || memory.set_batch(0),
        )
        .0;
        assert_eq!(queue.usage(), charge.map_or(0, |charge| charge.forget()));
        assert_eq!(runtime.counts().underflows, 0, "no byte is returned twice");
    });
}

/// E53. Two threads take at once: each byte of credit pays one charge.
#[test]
fn loom_central_take_vs_take() {
    model_without_pair(|| {
        let (_runtime, queue, stock) = queue(2);
        with_credit(&stock, 2);
        let takes = |stock: CentralStock| stock.charge_if_room(1).unwrap();
        let charges = race(stock.clone(), takes, || takes(stock.clone()));
        assert_eq!((queue.usage(), queue.live(), stock.credit()), (2, 2, 0));
        drop(charges);
    });
}

/// E53. A byte that is given back while a refusal closes the stock is there for the next charge.
#[test]
fn loom_central_put_vs_refusal() {
    model_without_pair(|| {
        let (_runtime, queue, stock) = queue(4);
        with_credit(&stock, 1);
        let held = stock.charge_if_room(2).unwrap();
        race((stock, held), give_back, || drop(queue.charge(3)));
        // By a third thread, as in `loom_refusal_vs_put`.
        beside(queue, |queue| {
            drop(queue.charge(4).expect("a byte is stranded"))
        })
        .join()
        .unwrap();
    });
}

/// E10. A central stock counts as open before it has credit.
#[test]
fn loom_central_opening_vs_refusal() {
    model_without_pair(|| {
        let (_runtime, queue, stock) = queue(4);
        let [held, other] = [1, 1].map(|bytes| queue.charge(bytes).unwrap());
        drop(other);
        race((stock, held), give_back, || drop(queue.charge(4)));
        beside(queue, |queue| {
            drop(queue.charge(4).expect("a byte is stranded"))
        })
        .join()
        .unwrap();
    });
}

/// E10. A central stock that closes counts as open until its credit is back.
#[test]
fn loom_central_closing_vs_refusal() {
    model_without_pair(|| {
        let (_runtime, queue, stock) = queue(2);
        with_credit(&stock, 2);
        race(
            queue.memory(),
            |memory| memory.set_batch(0),
            || drop(queue.charge(1).expect("all that is charged is credit")),
        );
        assert_eq!(queue.usage(), 0);
    });
}

/// A byte that is given back while a charge goes into line does not stay in the stock, which is
/// open or opens.
#[test]
fn loom_central_put_vs_waiter() {
    model_without_pair(|| {
        let (_runtime, queue, stock) = queue(2);
        with_credit(&stock, 1);
        let held = stock.charge_if_room(1).unwrap();
        let other = queue.charge(1).unwrap();
        let charge = race((stock, held), give_back, || {
            queue.charge_with(1, OnFull::Wait(EVER)).unwrap()
        })
        .1;
        assert_eq!((queue.live(), queue.waiting_count()), (2, 0));
        drop((charge, other));
    });
}

/// E35. A central stock that opens while its group goes offline keeps nothing.
#[test]
fn loom_central_opening_vs_offline() {
    model_without_pair(|| {
        let (runtime, queue, stock) = queue(4);
        let held = queue.charge(1).unwrap();
        race((stock, held), give_back, || queue.offline().unwrap());
        assert_eq!(
            (queue.usage(), runtime.root().usage()),
            (0, 0),
            "credit of a group that is offline"
        );
    });
}

/// E36. A central stock closes while its group goes offline and the last handle goes: once the
/// closer has uncounted it, it does not touch the counter again.
#[test]
fn loom_central_closing_vs_release() {
    model_without_pair(|| {
        let (runtime, queue, stock) = queue(4);
        with_credit(&stock, 1);
        drop(stock);
        let memory = runtime.root().memory();
        race(queue, |queue| queue.offline().unwrap(), || memory.drain());
        drop(memory);
        assert_eq!(
            (
                runtime.group_count(),
                runtime.dying_count(),
                runtime.root().usage()
            ),
            (1, 0, 0)
        );
    });
}

/// E43. While a charge stands above high, a byte that was given back pays for no other charge,
/// which would not be delayed.
#[test]
fn loom_central_put_vs_high() {
    model_without_pair(|| {
        let (_runtime, queue, stock) = queue(8);
        queue
            .set_limits(Limits::new().high(Limit::Bytes(2)))
            .unwrap();
        with_credit(&stock, 1);
        let held = stock.charge_if_room(1).unwrap();
        let above = race((stock.clone(), held), give_back, || {
            queue.charge_with(3, OnFull::Now).unwrap()
        })
        .1;
        assert!(stock.charge_if_room(1).is_none(), "above high");
        drop(above);
    });
}

/// E4. While a forced charge stands above max, a byte that was given back is not kept, and pays for
/// no other charge.
#[test]
fn loom_central_opening_vs_forced() {
    model_without_pair(|| {
        let (_runtime, queue, stock) = queue(4);
        let held = queue.charge(1).unwrap();
        let forced = race((stock.clone(), held), give_back, || queue.force_charge(6)).1;
        assert_eq!(
            (queue.usage(), queue.memory().stocked_bound()),
            (6, 0),
            "credit above max"
        );
        assert!(stock.charge_if_room(1).is_none(), "above max");
        drop(forced);
    });
}
