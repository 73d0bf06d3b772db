//! Above a limit nothing is kept and nothing is taken.

use std::sync::{Arc, Mutex};

use memcg::{Bytes, Limit, Limits, OnFull, ReclaimPriority};

use super::{MAX, PUTS_WHILE_CLOSED, Scene, audited, create, fill, is_kept, take};
use crate::support::reclaimers::{call, lock};

#[test]
fn a_forced_charge_leaves_nothing_to_take() {
    for at_parent in [false, true] {
        let scene = Scene::with_credit(600);
        let group = if at_parent {
            &scene.parent
        } else {
            &scene.queue
        };
        let forced = group.force_charge(2_000);
        assert_eq!(
            (
                scene.stock.credit(),
                scene.parent.usage(),
                scene.parent.forced()
            ),
            (0, 2_000, MAX)
        );
        assert!(scene.stock.charge_if_room(1).is_none());
        drop(forced);
        drop(take(&scene.stock, 1));
    }
}

#[test]
fn above_max_nothing_is_kept() {
    let scene = Scene::with_credit(600);
    let mut forced = scene.queue.force_charge(2_000);
    for _ in 0..5 * PUTS_WHILE_CLOSED {
        scene
            .stock
            .give_back(forced.split(Bytes(10)).expect("a part"));
        assert_eq!(
            (scene.stock.credit(), scene.queue.usage()),
            (0, forced.bytes())
        );
    }
    drop(forced);
    assert!(
        (0..=PUTS_WHILE_CLOSED).any(|_| is_kept(&scene.stock)),
        "below it credit is kept again"
    );
}

#[test]
fn above_a_high_nothing_is_kept() {
    for at_parent in [false, true] {
        let scene = Scene::new();
        let level = if at_parent {
            &scene.parent
        } else {
            &scene.queue
        };
        assert_eq!(
            level
                .set_limits(Limits::new().high(Limit::Bytes(300)))
                .expect("a number"),
            0
        );
        let mut held = scene
            .queue
            .charge_with(900, OnFull::Reclaim)
            .expect("below max");
        for _ in 0..5 * PUTS_WHILE_CLOSED {
            scene
                .stock
                .give_back(held.split(Bytes(10)).expect("a part"));
            assert_eq!(
                (scene.stock.credit(), scene.queue.usage()),
                (0, held.bytes())
            );
            assert!(scene.stock.charge_if_room(1).is_none());
            assert_eq!(scene.queue.usage(), held.bytes(), "nothing of it remains");
        }
        drop(held);
        assert!(
            (0..=PUTS_WHILE_CLOSED).any(|_| is_kept(&scene.stock)),
            "below it credit is kept again"
        );
    }
}

#[test]
fn a_high_below_usage_drains_it() {
    for at_parent in [false, true] {
        let scene = Scene::with_credit(900);
        let _held = take(&scene.stock, 400);
        let level = if at_parent {
            &scene.parent
        } else {
            &scene.queue
        };
        assert_eq!(
            level
                .set_limits(Limits::new().high(Limit::Bytes(300)))
                .expect("a number"),
            100
        );
        assert_eq!(scene.figures(), [400, 400, 400, 400, 0]);
        assert!(scene.stock.charge_if_room(1).is_none());
    }
}

/// The charge that goes above high is above it by more than the credit, so that no drain would
/// help.
#[test]
fn no_credit_is_taken_above_a_high() {
    for at_parent in [false, true] {
        let scene = Scene::of(audited().batch(Bytes(100)));
        fill(&scene.stock, 80);
        let level = if at_parent {
            &scene.parent
        } else {
            &scene.queue
        };
        assert_eq!(
            level
                .set_limits(Limits::new().high(Limit::Bytes(300)))
                .expect("a number"),
            0
        );
        let parent = if at_parent {
            &scene.parent
        } else {
            &scene.queue
        };
        let beside = create(parent, "beside");
        let _held = beside.charge_with(900, OnFull::Reclaim).expect("below max");
        assert!(level.usage() > level.inspect().high());
        assert!(
            scene.stock.charge_if_room(10).is_none(),
            "above high, with {} of credit",
            scene.stock.credit()
        );
    }
}

/// No drain would help, so the stock is open still.
#[test]
fn an_open_stock_takes_nothing_above_a_high() {
    let scene = Scene::of(audited().batch(Bytes(100)));
    fill(&scene.stock, 80);
    let part = take(&scene.stock, 30);
    assert_eq!(
        scene
            .parent
            .set_limits(Limits::new().high(Limit::Bytes(300)))
            .expect("a number"),
        0
    );
    let beside = create(&scene.parent, "beside");
    let _held = beside.charge_with(900, OnFull::Reclaim).expect("below max");
    let before = scene.stock.credit();
    scene.stock.give_back(part);
    assert_eq!((scene.stock.credit(), scene.parent.live()), (before, 900));
}

#[test]
fn a_limit_that_only_counts_refuses_nothing() {
    let scene = Scene::new();
    assert_eq!(scene.queue.set_max(Limit::Bytes(100)).expect("a number"), 0);
    scene.queue.set_observe_only(true);
    let held = take(&scene.stock, 300);
    assert_eq!(scene.queue.usage(), 300);
    scene.stock.give_back(held);
    let again = take(&scene.stock, 900);
    assert!(
        scene.stock.charge_if_room(101).is_none(),
        "the parent's max holds"
    );
    drop(again);
    assert_eq!(scene.queue.live(), 0);
}

/// Bytes that reclaim frees go up the tree at once, so that the charge that has asked for them
/// finds them.
#[test]
fn inside_a_reclaimer_nothing_is_kept() {
    let scene = Scene::new();
    let held = Arc::new(Mutex::new(vec![take(&scene.stock, 900)]));
    let stock = scene.stock.clone();
    let gives = Arc::clone(&held);
    let reclaimer = call(move |_, _| {
        let charges = std::mem::take(&mut *lock(&gives));
        let bytes = charges.iter().map(memcg::Charge::bytes).sum();
        charges
            .into_iter()
            .for_each(|charge| stock.give_back(charge));
        bytes
    });
    let _registration = scene
        .queue
        .register_reclaimer(reclaimer, ReclaimPriority::NORMAL);
    let report = scene.queue.reclaim(900).expect("outside of a reclaimer");
    assert_eq!((report.freed, scene.figures()), (900, [0; 5]));
}
