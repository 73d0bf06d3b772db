//! The credit as others see it: charges that never block, limits that only count, and users that
//! uncharge too much.

use memcg::CentralStock;
use memcg::{Bytes, Event, Limit, OnFull, OomPolicy};

use super::{MAX, PUTS_WHILE_CLOSED, Scene, create, fill, kinds, open, take};

#[test]
fn a_charge_that_never_blocks_takes_it() {
    for builder in kinds() {
        let scene = Scene::of(builder);
        fill(&scene.stock, 600);
        let other = create(&scene.parent, "other");
        let charge = other
            .charge_with(900, OnFull::Now)
            .expect("nothing is held");
        assert_eq!(scene.figures(), [0, 0, 900, 900, 0]);
        drop(charge);
        assert!(open(&scene.stock));
        fill(&scene.stock, 600);
        assert!(
            other.charge_with(900, OnFull::IfRoom).is_ok(),
            "nothing is held"
        );
    }
}

/// It takes what each level lacks in its turn: the credit of its own group, then that of a
/// neighbour.
#[test]
fn a_charge_that_never_blocks_takes_that_of_each_level() {
    for builder in kinds() {
        let scene = Scene::of(builder);
        scene.queue.set_max(500).expect("a number");
        fill(&scene.stock, 300);
        let beside = CentralStock::of(&create(&scene.parent, "beside"));
        assert!(open(&beside));
        fill(&beside, 700);
        assert_eq!(scene.figures(), [300, 0, MAX, 0, 300]);
        let _charge = scene
            .queue
            .charge_with(450, OnFull::Now)
            .expect("nothing is held");
        assert_eq!(
            (scene.figures(), beside.credit()),
            ([450, 450, 450, 450, 0], 0)
        );
    }
}

#[test]
fn a_limit_that_only_counts_counts_each_charge() {
    let scene = Scene::with_credit(600);
    scene.parent.set_observe_only(true);
    assert_eq!(scene.stock.credit(), 0);
    let held = scene.queue.charge(Bytes(MAX)).expect("it refuses nothing");
    let before = scene.parent.events().get(Event::Observed);
    for _ in 0..10 * PUTS_WHILE_CLOSED {
        scene.stock.give_back(take(&scene.stock, 10));
    }
    assert_eq!(
        scene.parent.events().get(Event::Observed) - before,
        10 * PUTS_WHILE_CLOSED as u64
    );
    drop(held);
    scene.parent.set_observe_only(false);
}

/// More is uncharged than usage has: what has none behind it pays for nothing.
#[test]
fn credit_without_usage_pays_for_nothing() {
    let scene = Scene::with_credit(500);
    scene.queue.raw().uncharge(501);
    assert_eq!(scene.queue.usage(), 0);
    let charge = take(&scene.stock, 500);
    assert_eq!((scene.queue.usage(), scene.parent.usage()), (500, 500));
    scene.stock.give_back(charge);
    assert_eq!(scene.stock.credit(), 0, "nothing is kept from then on");
    scene.runtime.drop_as_it_is();
}

/// A mark of excess stays until usage is well below the limit, and does not close the stock where
/// usage is within it.
#[test]
fn a_channel_goes_on_after_a_forced_charge() {
    let scene = Scene::new();
    let _held = scene.queue.charge(Bytes(MAX - 10)).expect("it fits");
    drop(scene.queue.force_charge(100));
    assert!(open(&scene.stock), "usage is within the limit");
}

#[test]
fn no_group_is_cancelled_for_credit() {
    let scene = Scene::with_credit(600);
    scene.parent.set_oom_policy(OomPolicy::Choose);
    let victim = create(&scene.parent, "victim");
    let _held = victim.charge(300).expect("it fits");
    let _hook = victim.on_cancel(|_| panic!("600 are credit"));
    let _charge = scene.queue.charge(700).expect("drains the credit");
    assert_eq!(scene.parent.events().get(Event::OomKill), 0);
}

/// Amounts that no stock holds.
#[test]
fn any_amount_is_taken_or_dropped() {
    let scene = Scene::with_credit(600);
    scene
        .parent
        .set_max(Limit::Unlimited)
        .expect("no percentage");
    for bytes in [0, 1, u64::from(u32::MAX), 1 << 32, (1 << 40) + 1] {
        let charge = scene
            .stock
            .charge_if_room(Bytes(bytes))
            .expect("without a limit");
        assert_eq!(charge.bytes(), bytes);
        scene.stock.give_back(charge);
        assert_eq!(
            (scene.queue.live(), scene.queue.usage()),
            (0, scene.queue.memory().stocked())
        );
    }
    assert!(scene.stock.charge_if_room(Bytes(u64::MAX)).is_none());
}
