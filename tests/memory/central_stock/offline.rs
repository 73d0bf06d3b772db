//! Groups that go offline keep none, and leave nothing to the groups that come after them.

use memcg::CentralStock;
use memcg::{Bytes, Group};

use super::{
    MAX, PUTS_WHILE_CLOSED, Scene, assert_adds_up, assert_empty, audited, build, create, fill,
    is_kept, kinds, left_empty, limited, take,
};

#[test]
fn a_group_offline_keeps_none() {
    for builder in kinds() {
        let scene = Scene::of(builder);
        fill(&scene.stock, 900);
        let held = take(&scene.stock, 200);
        scene.queue.offline().expect("no children");
        assert_eq!(
            (
                scene.parent.usage(),
                scene.parent.live(),
                scene.stock.credit()
            ),
            (200, 200, 0)
        );
        assert_eq!(scene.parent.memory().stocked_bound(), 0);
        assert!(scene.stock.charge_if_room(1).is_none());
        assert!(matches!(scene.queue.charge(1), Err(error) if error.is_offline()));
        assert_eq!(scene.parent.usage(), 200);
        scene.stock.give_back(held);
        assert_eq!(
            (
                scene.parent.usage(),
                scene.stock.credit(),
                scene.stock.release_credit()
            ),
            (0, 0, 0)
        );
    }
}

#[test]
fn nothing_is_kept_after_many_puts_offline() {
    let scene = Scene::with_credit(900);
    let mut held = take(&scene.stock, 900);
    scene.queue.offline().expect("no children");
    for _ in 0..5 * PUTS_WHILE_CLOSED {
        scene
            .stock
            .give_back(held.split(Bytes(10)).expect("a part"));
        assert_eq!(
            (scene.stock.credit(), scene.parent.usage()),
            (0, held.bytes())
        );
    }
    let mut forced = scene.queue.force_charge(100);
    scene
        .stock
        .give_back(forced.split(Bytes(50)).expect("a part"));
    assert_eq!(
        (scene.stock.credit(), scene.parent.usage()),
        (0, held.bytes() + 50)
    );
}

#[test]
fn a_stock_made_offline_keeps_none() {
    let scene = Scene::new();
    let late = create(&scene.parent, "late");
    let held = late.charge(100).expect("room");
    late.offline().expect("no children");
    let stock = CentralStock::of(&late);
    assert!(stock.charge_if_room(1).is_none());
    stock.give_back(held);
    assert_eq!((stock.credit(), scene.parent.usage()), (0, 0));
}

#[test]
fn the_stock_keeps_the_group() {
    let scene = Scene::with_credit(300);
    let Scene {
        runtime,
        parent,
        queue,
        stock,
    } = scene;
    queue.offline().expect("no children");
    drop(queue);
    runtime.settle();
    assert_eq!(
        (runtime.dying_count(), stock.group().path().is_empty()),
        (1, false)
    );
    drop(stock);
    runtime.settle();
    assert_eq!(runtime.dying_count(), 0);
    drop(parent);
    assert_empty(&runtime);
}

/// All handles go while credit lies there: the group stays, for it is online, and so does the
/// credit.
#[test]
fn credit_outlives_the_last_handle() {
    let scene = Scene::with_credit(300);
    let Scene {
        runtime,
        parent,
        queue,
        stock,
    } = scene;
    drop((queue, stock));
    assert_eq!((parent.usage(), parent.live()), (300, 0));
    let again = CentralStock::of(parent.children().first().expect("it is online"));
    assert_eq!(again.credit(), 300);
    drop(again);
    assert_adds_up(&runtime);
    parent.offline_tree();
    assert_eq!(runtime.root().usage(), 0);
    drop(parent);
    assert_empty(&runtime);
}

/// The history of the group before, which had the object, is nothing to this one.
#[test]
fn the_next_group_keeps_its_first_put() {
    let runtime = left_empty(build(audited()));
    for round in 0..20 {
        let group: Group = limited(&runtime.root(), "queue", MAX);
        assert!(
            is_kept(&CentralStock::of(&group)),
            "round {round}: no charge has drained this group"
        );
        group.offline().expect("no children");
        drop(group);
        runtime.settle();
    }
}
