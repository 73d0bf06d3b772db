//! The stock keeps one batch at most, and a quarter of the budget.

use memcg::CentralStock;
use memcg::{Bytes, Limits};

use super::{MAX, Scene, assert_adds_up, audited, build, fill, left_empty, take};

#[test]
fn no_more_than_a_batch_is_kept() {
    let scene = Scene::of(audited().batch(Bytes(128)));
    let charges: Vec<_> = (0..20).map(|_| take(&scene.stock, 10)).collect();
    charges
        .into_iter()
        .for_each(|charge| scene.stock.give_back(charge));
    assert_eq!(scene.figures(), [120, 0, 120, 0, 120]);
    let large = take(&scene.stock, 129);
    assert_eq!(
        scene.figures(),
        [129, 129, 129, 129, 0],
        "what is there, and nine bytes of the tree"
    );
    scene.stock.give_back(large);
    assert_eq!(scene.figures(), [0; 5], "it goes up the tree");
    fill_to(&scene, 128);
}

/// The stock takes what fits.
fn fill_to(scene: &Scene, credit: u64) {
    let missing = credit - scene.stock.credit();
    let all = take(&scene.stock, scene.stock.credit());
    let more = take(&scene.stock, missing);
    scene.stock.give_back(all);
    scene.stock.give_back(more);
    assert_eq!(scene.stock.credit(), credit);
}

#[test]
fn a_charge_far_above_the_batch_goes_up() {
    let runtime = left_empty(build(audited().batch(Bytes(128))));
    let queue = runtime
        .root()
        .create("queue", Limits::new().max(Bytes(1 << 40)))
        .expect("a name");
    // The threads' stock would be open so far from the limit.
    let held = queue.charge(Bytes((1 << 40) - 100)).expect("room");
    let stock = CentralStock::of(&queue);
    assert!(super::open(&stock));
    fill(&stock, 100);
    stock.give_back(held);
    assert_eq!(
        (queue.usage(), queue.live(), queue.memory().stocked()),
        (100, 0, 100)
    );
    let forced = queue.force_charge(Bytes(1 << 62));
    stock.give_back(forced);
    assert_eq!(queue.live(), 0);
}

#[test]
fn batch_zero_keeps_nothing() {
    let scene = Scene::of(audited().batch(Bytes(0)));
    for _ in 0..20 {
        let charge = take(&scene.stock, 10);
        scene.stock.give_back(charge);
        assert_eq!(scene.figures(), [0; 5]);
    }
    assert_eq!(
        (
            scene.stock.release_credit(),
            scene.queue.memory().stocked_bound()
        ),
        (0, 0)
    );
}

#[test]
fn batch_zero_later_empties_it() {
    for above in [false, true] {
        let scene = Scene::with_credit(600);
        let held = take(&scene.stock, 100);
        let group = if above {
            scene.runtime.root()
        } else {
            scene.queue.clone()
        };
        group.memory().set_batch(0);
        assert_eq!(scene.figures(), [100, 100, 100, 100, 0]);
        assert_eq!(scene.queue.memory().stocked_bound(), 0);
        scene.stock.give_back(held);
        for _ in 0..20 {
            scene.stock.give_back(take(&scene.stock, 10));
            assert_eq!(scene.figures(), [0; 5]);
        }
        group.memory().set_batch(1_000);
        drop(group);
        assert!(super::open(&scene.stock), "after eight puts at most");
    }
}

#[test]
fn a_smaller_batch_is_the_next_bound() {
    let scene = Scene::with_credit(600);
    scene.queue.memory().set_batch(200);
    assert_eq!(scene.figures(), [0; 5]);
    super::assert_opens_after_eight(&scene.stock);
    let charges = [
        take(&scene.stock, 1),
        take(&scene.stock, 200),
        take(&scene.stock, 199),
    ];
    charges
        .into_iter()
        .for_each(|charge| scene.stock.give_back(charge));
    assert_eq!(
        scene.figures(),
        [200, 0, 200, 0, 200],
        "the second one found a byte there"
    );
}

#[test]
fn a_quarter_of_the_budget_is_kept() {
    let scene = Scene::of(audited().budget(Bytes(400)));
    fill(&scene.stock, 100);
    let charges = [take(&scene.stock, 100), take(&scene.stock, 101)];
    charges
        .into_iter()
        .for_each(|charge| scene.stock.give_back(charge));
    assert_eq!(scene.figures(), [100, 0, 100, 0, 100]);
    assert_eq!(scene.runtime.root().memory().stocked_bound(), 100);
}

/// By default the budget is a sixteenth of the root's max.
#[test]
fn the_budget_follows_the_max_of_the_root() {
    let scene = Scene::of(audited().max(64 * 100));
    fill(&scene.stock, 100);
    let [fits, too_large] = [take(&scene.stock, 100), take(&scene.stock, 101)];
    scene.stock.give_back(too_large);
    assert_eq!(scene.stock.credit(), 0);
    scene.stock.give_back(fits);
    assert_eq!(scene.stock.credit(), 100);
    let root = scene.runtime.root();
    assert_eq!(root.set_max(Bytes(64 * 20)).expect("a number"), 0);
    assert!(
        root.memory().stocked_bound() <= 64 * 20 / 16,
        "{}",
        root.memory().stocked_bound()
    );
    assert!(scene.stock.credit() <= root.memory().stocked_bound());
}

#[test]
fn all_stocks_together_stay_within_the_budget() {
    const BUDGET: u64 = 400;
    let runtime = left_empty(build(audited().budget(Bytes(BUDGET))));
    let root = runtime.root();
    let create = |number: u64| {
        CentralStock::of(
            &root
                .create(number, Limits::new().max(Bytes(MAX)))
                .expect("a free number"),
        )
    };
    let stocks: Vec<_> = (0..10).map(create).collect();
    // One after the other: as many as the budget has room for stay open.
    stocks.iter().for_each(|stock| _ = super::open(stock));
    let check = || {
        assert!(
            root.memory().stocked() <= root.memory().stocked_bound()
                && root.memory().stocked_bound() <= BUDGET
        )
    };
    for round in 0..10 {
        for stock in &stocks {
            let charges = [60, 40, 30].map(|bytes| take(stock, bytes));
            charges.into_iter().for_each(|charge| {
                stock.give_back(charge);
                check();
            });
        }
        let open = stocks.iter().filter(|stock| stock.credit() > 0).count();
        assert_eq!(
            (open, root.memory().stocked()),
            (4, BUDGET),
            "round {round}: as many as the budget has room for"
        );
    }
    assert_adds_up(&runtime);
    // One closes, and another one opens.
    stocks[0].group().memory().set_batch(0);
    assert_eq!(
        (root.memory().stocked(), root.memory().stocked_bound()),
        (BUDGET - 100, BUDGET - 100)
    );
    assert!(super::open(&stocks[9]));
    fill(&stocks[9], 100);
    check();
}
