//! The stock keeps some charges, drops others, and the figures add up with it.

use memcg::CentralStock;
use memcg::CounterKey;

use super::{MAX, Scene, assert_empty, audited, build, create, fill, kinds, limited, take};

#[test]
fn what_is_given_back_is_credit() {
    for builder in kinds() {
        let scene = Scene::of(builder);
        let charge = take(&scene.stock, 600);
        assert_eq!(scene.figures(), [600, 600, 600, 600, 0]);
        scene.stock.give_back(charge);
        assert_eq!(scene.figures(), [600, 0, 600, 0, 600]);
        let levels = [&scene.queue, &scene.parent, &scene.runtime.root()];
        assert_eq!(levels.map(|level| level.memory().stocked()), [600; 3]);
    }
}

#[test]
fn the_next_charge_takes_it_and_usage_stays() {
    for builder in kinds() {
        let scene = Scene::of(builder);
        fill(&scene.stock, 600);
        let part = take(&scene.stock, 250);
        assert_eq!((part.bytes(), part.group()), (250, scene.queue.clone()));
        assert_eq!(scene.figures(), [600, 250, 600, 250, 350]);
        let _rest = take(&scene.stock, 350);
        assert_eq!(scene.figures(), [600, 600, 600, 600, 0]);
        let _more = take(&scene.stock, 1);
        assert_eq!(
            scene.figures(),
            [601, 601, 601, 601, 0],
            "there is no credit left, and the byte comes from the tree"
        );
    }
}

#[test]
fn what_the_stock_lacks_comes_from_the_tree() {
    let scene = Scene::with_credit(300);
    let charge = take(&scene.stock, 400);
    assert_eq!(
        scene.figures(),
        [400, 400, 400, 400, 0],
        "300 of the stock and 100 of the tree"
    );
    assert!(
        scene.stock.charge_if_room(601).is_none(),
        "more than the room"
    );
    scene.stock.give_back(charge);
    assert_eq!(scene.figures(), [400, 0, 400, 0, 400]);
    assert!(
        scene.stock.charge_if_room(1_001).is_none(),
        "more than the stock and the room together"
    );
    assert_eq!(
        scene.figures(),
        [400, 0, 400, 0, 400],
        "the stock is as it was"
    );
}

#[test]
fn two_groups_have_two_stocks() {
    let scene = Scene::with_credit(300);
    let other = CentralStock::of(&create(&scene.parent, "other"));
    assert!(super::open(&other));
    fill(&other, 200);
    assert_eq!(
        (scene.stock.credit(), other.credit(), scene.parent.usage()),
        (300, 200, 500)
    );
    assert_eq!((other.release_credit(), scene.stock.credit()), (200, 300));
}

#[test]
fn release_returns_what_it_gave_back() {
    for builder in kinds() {
        let scene = Scene::of(builder);
        assert_eq!(scene.stock.release_credit(), 0, "before the first charge");
        fill(&scene.stock, 600);
        let held = take(&scene.stock, 200);
        assert_eq!(scene.stock.release_credit(), 400);
        assert_eq!(scene.figures(), [200, 200, 200, 200, 0]);
        assert_eq!(scene.stock.release_credit(), 0);
        scene.stock.give_back(held);
        assert_eq!(scene.figures(), [200, 0, 200, 0, 200], "it opens at once");
    }
}

// === What is dropped ===

#[test]
fn a_charge_of_another_group_is_dropped() {
    let scene = Scene::with_credit(100);
    let sibling = limited(&scene.parent, "sibling", MAX);
    let root = scene.runtime.root();
    let elsewhere = build(audited());
    for group in [&sibling, &scene.parent, &root, &elsewhere.root()] {
        let charge = group.charge(200).expect("room");
        assert_eq!(group.live(), 200);
        scene.stock.give_back(charge);
        assert_eq!(
            (group.live(), scene.stock.credit()),
            (0, 100),
            "{}",
            group.path()
        );
    }
    assert_eq!(scene.parent.usage(), 100);
    drop((sibling, root));
    assert_empty(&elsewhere);
}

#[test]
fn a_charge_of_another_counter_is_dropped() {
    let mut builder = audited();
    let spill = builder.counter("spill", memcg::Unit::Bytes);
    let scene = Scene::of(builder);
    fill(&scene.stock, 100);
    let [charge] = scene.queue.charge_set(&[(spill, 200)]).expect("no max");
    scene.stock.give_back(charge);
    let spilt = scene.queue.counter(spill).expect("declared");
    assert_eq!(
        (spilt.live(), scene.stock.credit(), scene.queue.usage()),
        (0, 100, 100)
    );
    let memory = scene
        .queue
        .counter(CounterKey::MEMORY)
        .expect("always there");
    assert_eq!((memory.usage(), memory.live()), (100, 0));
}

#[test]
fn a_charge_of_no_bytes_holds_the_group() {
    let scene = Scene::with_credit(600);
    let empty = take(&scene.stock, 0);
    assert_eq!((empty.bytes(), scene.figures()), (0, [600, 0, 600, 0, 600]));
    let mut grown = take(&scene.stock, 0);
    grown.grow(10).expect("room");
    scene.stock.give_back(grown);
    assert_eq!(scene.figures(), [610, 0, 610, 0, 610]);
    scene.queue.offline().expect("no children");
    let Scene {
        runtime,
        parent,
        queue,
        stock,
    } = scene;
    drop(queue);
    assert_eq!(runtime.dying_count(), 1);
    stock.give_back(empty);
    drop(stock);
    runtime.settle();
    assert_eq!(
        runtime.dying_count(),
        0,
        "the last handle was that of the charge"
    );
    drop(parent);
    assert_empty(&runtime);
}

#[test]
fn a_charge_outside_the_stock_may_come_in() {
    let scene = Scene::new();
    scene
        .stock
        .give_back(scene.queue.charge(300).expect("room"));
    assert_eq!(scene.figures(), [300, 0, 300, 0, 300]);
    drop(take(&scene.stock, 200));
    assert_eq!(
        scene.figures(),
        [100, 0, 100, 0, 100],
        "a drop goes up the tree"
    );
}
