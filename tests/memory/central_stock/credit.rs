//! The stock keeps some charges, drops others, and the figures add up with it.

use memcg::CentralStock;
use memcg::{Bytes, CounterKey, Limits};

use super::{
    MAX, Scene, assert_adds_up, assert_empty, audited, build, create, fill, kinds, left_empty,
    limited, take,
};

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
fn two_values_of_a_group_are_one_stock() {
    let scene = Scene::new();
    let [again, copy] = [CentralStock::of(&scene.queue), scene.stock.clone()];
    scene.stock.give_back(take(&again, 600));
    assert_eq!(
        [&scene.stock, &again, &copy].map(memcg::CentralStock::credit),
        [600; 3]
    );
    let _charge = take(&copy, 600);
    assert_eq!(
        (
            [&scene.stock, &again, &copy].map(memcg::CentralStock::credit),
            scene.queue.usage()
        ),
        ([0; 3], 600)
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

#[test]
fn snapshot_and_verify_add_up_with_credit() {
    for builder in kinds() {
        let scene = Scene::of(builder);
        fill(&scene.stock, 600);
        let _held = take(&scene.stock, 150);
        let sibling = create(&scene.parent, "sibling");
        let _beside = sibling.charge(100).expect("room");
        assert_adds_up(&scene.runtime);
        let snapshot = scene.runtime.snapshot();
        let rows: Vec<_> = snapshot
            .rows()
            .iter()
            .map(|row| (row.path.as_str(), row.live, row.usage, row.own))
            .collect();
        let expected = [
            ("/", 250, 700, Some(0)),
            ("/parent", 250, 700, Some(0)),
            ("/parent/queue", 150, 600, Some(150)),
            ("/parent/sibling", 100, 100, Some(100)),
        ];
        assert_eq!(rows, expected);
        assert!(
            snapshot.rows()[..3]
                .iter()
                .all(|row| row.stocked_bound >= 450),
            "{snapshot}"
        );
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
fn parts_and_sums_of_charges_are_kept() {
    let scene = Scene::new();
    let mut charge = take(&scene.stock, 600);
    scene
        .stock
        .give_back(charge.split(Bytes(100)).expect("a part"));
    let other = take(&scene.stock, 100);
    charge.merge(other).expect("of one group");
    charge.shrink(50);
    assert_eq!(scene.figures(), [550, 550, 550, 550, 0]);
    scene.stock.give_back(charge);
    assert_eq!(scene.figures(), [550, 0, 550, 0, 550]);
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

#[test]
fn the_root_has_one() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.max(Bytes(MAX)).budget(Bytes(MAX))));
        let stock = CentralStock::of(&runtime.root());
        assert!(super::open(&stock));
        fill(&stock, 200);
        let group = runtime
            .root()
            .create("first", Limits::new())
            .expect("a name");
        assert!(group.charge(900).is_ok());
    }
}
