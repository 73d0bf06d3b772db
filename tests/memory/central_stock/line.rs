//! A charge that waits gets what is given back later: nothing is kept while it is in line.

use memcg::Bytes;

use super::{MAX, PUTS_WHILE_CLOSED, Scene, assert_opens_after_eight, create, fill, kinds, take};
use crate::support::waiters::{admitted, assert_woken, blocked, in_line, join};

/// The stock is open, and all there is is live.
fn full() -> (Scene, memcg::Charge) {
    let scene = Scene::with_credit(MAX);
    let all = take(&scene.stock, MAX);
    assert_eq!(scene.figures(), [MAX, MAX, MAX, MAX, 0]);
    assert!(
        scene.queue.memory().stocked_bound() > 0,
        "the stock is open"
    );
    (scene, all)
}

#[test]
fn a_future_of_a_sibling_gets_it_piece_by_piece() {
    for builder in kinds() {
        let scene = Scene::of(builder);
        fill(&scene.stock, MAX);
        let mut all = take(&scene.stock, MAX);
        let sibling = create(&scene.parent, "sibling");
        let mut waiter = in_line(&sibling, 50 * PUTS_WHILE_CLOSED as u64);
        let pieces = 5 * PUTS_WHILE_CLOSED;
        for piece in 1..=pieces {
            assert_woken(&waiter, false);
            scene.stock.give_back(all.split(Bytes(10)).expect("a part"));
            assert_eq!(scene.stock.credit(), 0);
            let live = if piece == pieces { MAX } else { all.bytes() };
            assert_eq!(scene.parent.usage(), live, "piece {piece}");
        }
        assert_woken(&waiter, true);
        drop((admitted(&mut waiter), waiter, all, sibling));
    }
}

#[test]
fn a_thread_gets_what_is_given_back() {
    for at_parent in [false, true] {
        let (scene, all) = full();
        let sibling = create(&scene.parent, "sibling");
        let group = if at_parent { &sibling } else { &scene.queue };
        let waiter = blocked(group, 500, &scene.parent);
        scene.stock.give_back(all);
        let charge = join(waiter).expect("it fits now");
        assert_eq!((charge.bytes(), scene.parent.usage()), (500, 500));
    }
}

#[test]
fn a_line_leaves_nothing_behind() {
    for is_dropped in [false, true] {
        let (scene, all) = full();
        let mut waiter = in_line(&scene.parent, 500);
        if is_dropped {
            drop(waiter);
            scene.stock.give_back(all);
        } else {
            scene.stock.give_back(all);
            drop((admitted(&mut waiter), waiter));
        }
        let before = scene.stock.credit();
        let puts = (0..=PUTS_WHILE_CLOSED).find(|_| {
            scene.stock.give_back(take(&scene.stock, 1));
            scene.stock.credit() > before
        });
        assert!(puts.is_some(), "credit is kept again");
    }
}

#[test]
fn eight_go_up_after_the_last_in_line() {
    let (scene, all) = full();
    let mut waiter = in_line(&scene.parent, 500);
    drop(all);
    drop((admitted(&mut waiter), waiter));
    assert_opens_after_eight(&scene.stock);
}
