//! Calls that take the credit home: no charge is refused and no limit fails while it lies there.

use super::{
    MAX, PUTS_WHILE_CLOSED, Scene, assert_opens_after_eight, create, fill, is_kept, kinds, take,
};

#[test]
fn a_charge_of_another_group_drains_it() {
    for builder in kinds() {
        let scene = Scene::of(builder);
        fill(&scene.stock, 900);
        let _held = take(&scene.stock, 100);
        let sibling = create(&scene.parent, "sibling");
        let _all = sibling.charge(900).expect("the credit is room");
        assert_eq!(scene.figures(), [100, 100, MAX, MAX, 0]);
        let refused = sibling.charge(1).expect_err("one more than there is");
        assert!(refused.is_over_limit(), "{refused}");
    }
}

#[test]
fn a_charge_that_finds_room_leaves_it() {
    let scene = Scene::with_credit(600);
    let sibling = create(&scene.parent, "sibling");
    let _held = sibling.charge(400).expect("room beside the credit");
    assert_eq!((scene.stock.credit(), scene.parent.usage()), (600, MAX));
}

#[test]
fn a_charge_refused_elsewhere_leaves_it() {
    let scene = Scene::with_credit(600);
    let beside = super::limited(&scene.runtime.root(), "beside", 10);
    assert!(beside.charge(11).is_err());
    assert_eq!(scene.stock.credit(), 600);
}

#[test]
fn a_drain_takes_it_home_and_the_next_put_opens_it() {
    for level in 0..3 {
        let scene = Scene::with_credit(900);
        let held = take(&scene.stock, 200);
        let group = [&scene.queue, &scene.parent, &scene.runtime.root()][level].clone();
        assert_eq!((group.memory().drain(), group.memory().drain()), (700, 0));
        assert_eq!(scene.figures(), [200, 200, 200, 200, 0]);
        scene.stock.give_back(held);
        assert_eq!(scene.figures(), [200, 0, 200, 0, 200]);
    }
}

#[test]
fn a_drain_elsewhere_leaves_it() {
    let scene = Scene::with_credit(600);
    let sibling = create(&scene.parent, "sibling");
    assert_eq!((sibling.memory().drain(), scene.stock.credit()), (0, 600));
}

#[test]
fn reclaim_drains_it() {
    let scene = Scene::with_credit(600);
    let report = scene.parent.reclaim(100).expect("outside of a reclaimer");
    assert_eq!((scene.figures(), report.requested), ([0; 5], 100));
}

#[test]
fn after_a_drain_eight_go_up_the_tree() {
    for builder in kinds() {
        let scene = Scene::of(builder);
        fill(&scene.stock, 600);
        for round in 0..3 {
            drop(scene.parent.charge(1_000).expect("the credit is room"));
            assert_eq!(scene.figures(), [0; 5], "round {round}");
            assert_opens_after_eight(&scene.stock);
        }
    }
}

#[test]
fn a_second_drain_counts_anew() {
    let scene = Scene::with_credit(600);
    drop(scene.parent.charge(1_000).expect("the credit is room"));
    assert!((0..PUTS_WHILE_CLOSED).all(|_| !is_kept(&scene.stock)));
    // Closed already: this one finds nothing to drain.
    drop(scene.parent.charge(1_000).expect("all of it"));
    assert!(is_kept(&scene.stock));
}
