//! Credit that does not move goes home.

use std::time::Duration;

use memcg::CentralStock;
use memcg::{Bytes, Group, Limits};

use super::{Scene, audited, build, fill, kinds, left_empty, take};
use crate::support::waiters::until;

fn visit(scene: &Scene) -> u64 {
    scene.runtime.release_idle_credit().0
}

#[test]
fn credit_that_does_not_move_goes_home() {
    for builder in kinds() {
        let scene = Scene::of(builder);
        fill(&scene.stock, 600);
        let held = take(&scene.stock, 200);
        let visits: Vec<u64> = (0..4).map(|_| visit(&scene)).collect();
        assert!(
            visits[0] == 0 && visits.iter().sum::<u64>() == 400,
            "{visits:?}"
        );
        assert_eq!(scene.figures(), [200, 200, 200, 200, 0]);
        scene.stock.give_back(held);
        assert_eq!(scene.figures(), [200, 0, 200, 0, 200], "it opens at once");
    }
}

#[test]
fn credit_that_moves_stays() {
    let scene = Scene::with_credit(600);
    let mut held = Vec::new();
    for round in 0..6 {
        assert_eq!(visit(&scene), 0, "visit {round}");
        held.push(take(&scene.stock, 10));
    }
    for charge in held {
        assert_eq!(visit(&scene), 0);
        scene.stock.give_back(charge);
    }
    assert_eq!(scene.figures(), [600, 0, 600, 0, 600]);
}

/// Credit that comes in after a visit is as new, whatever the visits before have seen.
#[test]
fn as_much_credit_as_before_is_not_idle() {
    let scene = Scene::with_credit(600);
    while visit(&scene) == 0 {}
    for round in 0..3 {
        fill(&scene.stock, 600);
        assert_eq!(
            visit(&scene),
            0,
            "round {round}: no visit has found this credit before"
        );
        assert_eq!(scene.stock.release_credit(), 600);
    }
}

#[test]
fn a_visit_takes_no_live_charge() {
    let scene = Scene::with_credit(600);
    let _all = take(&scene.stock, 600);
    assert_eq!([(); 4].map(|()| visit(&scene)), [0; 4]);
    assert_eq!(scene.figures(), [600, 600, 600, 600, 0]);
}

/// With or without credit: an open stock has a part of the budget, which a stock that is used may
/// lack.
#[test]
fn a_stock_that_stands_gives_its_part_of_the_budget_back() {
    for credit in [true, false] {
        let runtime = left_empty(build(audited().budget(Bytes(400))));
        let limited = |number: u64| {
            runtime
                .root()
                .create(number, Limits::new().max(1_000))
                .expect("a free number")
        };
        let stocks: Vec<_> = (0..5)
            .map(|number| CentralStock::of(&limited(number)))
            .collect();
        let (stands, lacks) = stocks.split_at(4);
        for stock in stands {
            assert!(super::open(stock));
            fill(stock, 100);
        }
        assert!(!super::open(&lacks[0]), "four have all of the budget");
        let held: Vec<_> = stands
            .iter()
            .filter(|_| !credit)
            .map(|stock| take(stock, 100))
            .collect();
        let released: u64 = (0..4).map(|_| runtime.release_idle_credit().0).sum();
        assert_eq!(
            (released, runtime.root().memory().stocked_bound()),
            (if credit { 400 } else { 0 }, 0)
        );
        assert!(super::open(&lacks[0]), "they stood for so long");
        held.into_iter()
            .zip(stands)
            .for_each(|(charge, stock)| stock.give_back(charge));
    }
}

#[test]
fn a_visit_reaches_each_group() {
    let runtime = left_empty(build(audited()));
    let groups: Vec<Group> = (0..5)
        .map(|number: usize| {
            runtime
                .root()
                .create(number as u64, Limits::new().max(1_000))
                .expect("a free number")
        })
        .collect();
    let stocks: Vec<_> = groups.iter().map(CentralStock::of).collect();
    assert!(stocks.iter().all(super::open));
    stocks
        .iter()
        .zip(1..)
        .for_each(|(stock, number)| fill(stock, 10 * number));
    let sum: u64 = (0..4).map(|_| runtime.release_idle_credit().0).sum();
    assert_eq!((sum, runtime.root().usage()), (10 + 20 + 30 + 40 + 50, 0));
}

#[test]
fn the_flusher_takes_it_home() {
    let scene = Scene::with_credit(600);
    let _held = take(&scene.stock, 200);
    scene
        .runtime
        .start_flusher(Duration::from_millis(5))
        .expect("a thread");
    until("the flusher visits", || scene.queue.usage() == 200);
    scene.runtime.stop_flusher();
    assert_eq!(scene.figures(), [200, 200, 200, 200, 0]);
}

#[test]
fn a_thread_that_gives_its_own_back_leaves_it() {
    let scene = Scene::with_credit(600);
    assert_eq!(scene.runtime.release_thread_credit(), Bytes(0));
    assert_eq!(scene.stock.credit(), 600);
}
