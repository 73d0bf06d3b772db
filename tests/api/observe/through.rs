//! A charge that would have been refused is let through, and counted as such.

use std::time::{Duration, Instant};

use memcg::{Bytes, Event, Limit, Limits, OnFull, Runtime};

use super::{
    KIB, assert_sound, block_on, build, charge, create, kinds, left_empty, limited, locals,
    runtimes, stocked,
};

#[test]
fn above_max() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let below = create(&group, "below");
        group.set_observe_only(true);
        let _first = charge(&below, 8 * KIB);
        assert_eq!(locals(&group), [0; 3], "it fits");
        let _second = charge(&below, 8 * KIB);
        assert_eq!((locals(&group), locals(&below)), ([1, 1, 0], [0; 3]));
        let _third = charge(&group, 100 * KIB);
        assert_eq!(
            (locals(&group), group.live(), group.refused_count()),
            ([2, 2, 0], 116 * KIB, 0)
        );
        assert_eq!(runtime.root().events().get(Event::Observed), 2);
        assert_eq!(group.max(), 10 * KIB, "the limit is what it was");
        assert_sound(&runtime);
    }
}

/// A batch would pass the max, and the charge that needs it fits: the thread takes no batch, and
/// counts nothing.
#[test]
fn a_batch_is_not_counted() {
    let runtime = build(stocked().adaptive(false));
    let group = limited(&runtime.root(), "q", 10 * KIB);
    group.set_observe_only(true);
    let held = (charge(&group, 8 * KIB), charge(&group, KIB));
    assert_eq!((group.usage(), locals(&group)), (9 * KIB, [0; 3]));
    drop(held);
}

/// A charge of a group without a stock passes the max and leaves no credit below: from then on each
/// charge there is counted. Nobody looks at the level for another reason, for it has used more.
#[test]
fn what_credit_would_pay_for_is_counted() {
    // A second count of each charge would take another way.
    let runtime = build(Runtime::builder().batch(0).adaptive(false));
    let group = create(&runtime.root(), "q");
    let below = create(&group, "below");
    below.memory().set_batch(64);
    drop(charge(&group, 100 * KIB));
    group.set_max(Limit::Bytes(10 * KIB)).expect("a number");
    group.set_observe_only(true);
    drop((charge(&below, 64), charge(&below, 64)));
    assert!(below.usage() > 0, "credit");
    let _first = charge(&group, 20 * KIB);
    assert_eq!(locals(&group), [1, 1, 0]);
    let _second = charge(&below, 16);
    assert_eq!(locals(&group), [2, 2, 0], "it is above, too");
    assert_eq!(group.usage(), group.live());
    assert!(runtime.verify().is_ok());
}

/// In every form, at once, whatever it would have waited for.
#[test]
fn in_every_form() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        group.set_observe_only(true);
        let long = Duration::from_secs(600);
        let mut held = [
            charge(&group, 11 * KIB),
            group
                .charge_with(Bytes(11 * KIB), OnFull::Wait(long))
                .expect("let through"),
            block_on(group.charge_async(Bytes(11 * KIB))).expect("let through"),
            group.try_charge(Bytes(11 * KIB)).expect("let through"),
            group
                .charge_with(Bytes(11 * KIB), OnFull::Wait(long))
                .expect("let through"),
            group
                .charge_with(Bytes(11 * KIB), OnFull::Reclaim)
                .expect("let through"),
        ];
        held[0].grow(Bytes(11 * KIB)).expect("let through");
        assert_eq!((group.live(), locals(&group)), (77 * KIB, [7, 7, 0]));
        assert_eq!(
            (group.waiting_count(), group.events().get(Event::OomKill)),
            (0, 0)
        );
        let mut moved = create(&runtime.root(), "elsewhere").force_charge(Bytes(5 * KIB));
        moved.transfer(&group).expect("let through");
        assert_eq!((group.live(), locals(&group)[1]), (82 * KIB, 8));
    }
}

/// Above high no group is delayed; it is counted.
#[test]
fn above_high() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.delay_max(Duration::from_secs(600))));
        let group = runtime
            .root()
            .create("q", Limits::new().high(Limit::Bytes(KIB)))
            .expect("a free name");
        group.set_observe_only(true);
        let started = Instant::now();
        let _held: Vec<_> = (0..10).map(|_| charge(&group, 1_024 * KIB)).collect();
        let _more = group
            .charge_with(Bytes(1_024 * KIB), OnFull::Reclaim)
            .expect("no max");
        let delay = group.inspect().high_delay(Bytes(1_024 * KIB));
        assert_eq!(delay, Duration::ZERO);
        drop(block_on(group.charge_async(Bytes(1_024 * KIB))).expect("no max"));
        assert!(started.elapsed() < Duration::from_secs(500));
        assert!(group.events().local().get(Event::High) >= 10);
        assert_eq!(locals(&group), [0; 3]);
    }
}

/// A charge that can never be counted is refused even so.
#[test]
fn more_than_can_be_counted() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        group.set_observe_only(true);
        assert!(group.charge(Bytes(u64::MAX)).is_err());
        assert_eq!(group.usage(), 0);
        drop(charge(&group, 1 << 50));
    }
}
