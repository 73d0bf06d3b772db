//! Limits of a group: a max below usage, percentages that follow, protection that leaves with its
//! group.

use memcg::errors::LimitError;
use memcg::{Bytes, Group, Limit, Limits, Runtime};

use super::{Other, assert_sound, bare, build, charge, create, kinds, left_empty};

fn percent(text: &str) -> Limit {
    text.parse().expect("a percentage")
}

/// The builder sets all limits of the root, that it covers among them.
#[test]
#[allow(unsafe_code)]
fn limits_of_the_root() {
    let limits = Limits::new()
        .max(1_000)
        .high(900)
        .low(20)
        .min(10)
        .soft(500)
        .reclaim_above(percent("80%"))
        .importance(4)
        .pressure_levels(50, 70)
        .setting("limit.0")
        .cover_allocations();
    let runtime = build(bare().limits(limits));
    let root = runtime.root();
    assert_eq!(root.limits(), limits);
    let _held = root.charge(300).expect("it fits");
    let object = root.run(|| memcg::allocator::Owner::charge(400));
    assert_eq!((root.live(), root.ledger().unpaid()), (400, 100));
    let query = create(&root, "q");
    assert!(query.limits().cover_allocations);
    // SAFETY: it owns what it charged.
    unsafe { object.uncharge(400) };
    assert_eq!(root.live(), 300);
    assert_sound(&runtime);
    // The last call holds.
    assert_eq!(build(bare().limits(limits).max(7)).root().max(), 7);
    assert_eq!(
        build(bare().max(7).limits(Limits::new())).root().max(),
        u64::MAX
    );
}

/// All limits that are named are set, or none, whichever of them is refused. A limit that is not
/// named stays.
#[test]
fn limits_are_set_together_or_not_at_all() {
    for builder in kinds() {
        let runtime = left_empty(build(builder));
        let group = create(&runtime.root(), "q");
        let held = charge(&group, 50);
        let set = Limits::new().min(1).low(2).soft(5).high(30).max(40);
        assert_eq!(
            group.set_limits(set).expect("numbers"),
            20,
            "more is above high than above max"
        );
        assert_eq!(group.limits(), set);
        let other = Limits::new().min(6).low(7).soft(8).high(90).max(100);
        let part = Limit::percent(10);
        for refused in [
            other.min(part),
            other.low(part),
            other.soft(part),
            other.high(part),
            other.max(part),
        ] {
            let error = group.set_limits(refused).expect_err("of nothing");
            assert!(
                matches!(error, LimitError::NoLimitedAncestor { .. }),
                "{error}"
            );
            assert_eq!(group.limits(), set);
        }
        let error = group
            .set_limits(other.cover_allocations())
            .expect_err("too late");
        assert_eq!(
            error.to_string(),
            "/q does not cover allocations: a group asks for that when it is created"
        );
        assert_eq!(group.limits(), set);
        assert_eq!(
            group.set_limits(Limits::new()).expect("nothing is named"),
            0
        );
        assert_eq!(
            group.set_limits(Limits::new().max(45)).expect("a number"),
            5
        );
        assert_eq!(group.limits(), set.max(45));
        let covers = runtime
            .root()
            .create("covers", other.cover_allocations())
            .expect("a free name");
        assert_eq!(covers.set_limits(covers.limits()).expect("as they are"), 0);
        drop((held, group, covers));
    }
}

/// `usage - forced <= max` at every level after every step.
#[test]
fn what_is_forced_stands_apart() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.max(500)));
        let groups = [runtime.root(), create(&runtime.root(), "a")];
        let leaf = create(&groups[1], "leaf");
        let mut held = Vec::new();
        for step in 0..400_u64 {
            match step * 7 % 11 {
                0..=3 => held.extend(leaf.charge(Bytes(step % 90)).ok()),
                4 | 5 => held.push(leaf.force_charge(Bytes(step % 50))),
                6 => drop(
                    groups[1]
                        .set_max(Limit::Bytes(step * 13 % 700))
                        .expect("a number"),
                ),
                7 => drop(
                    runtime
                        .root()
                        .set_max(Limit::Bytes(step * 17 % 900))
                        .expect("a number"),
                ),
                _ if held.is_empty() => {}
                _ => drop(held.swap_remove(step as usize % held.len())),
            }
            let sum: u64 = held.iter().map(memcg::Charge::bytes).sum();
            for group in &groups {
                assert!(
                    group.usage() - group.forced() <= group.max(),
                    "step {step}: {group:?}"
                );
                assert_eq!(group.live(), sum, "step {step}");
                let excess = group.usage().saturating_sub(group.max());
                assert_eq!(group.forced(), excess, "step {step}: {group:?}");
            }
        }
        assert_sound(&runtime);
    }
}

/// A refusal closes the stocks below a max. Once the max is raised they open again, and keep
/// credit.
#[test]
fn stocks_open_again_below_a_raised_max() {
    let runtime = left_empty(build(super::fixed()));
    let group = create(&runtime.root(), "q");
    group.set_max(1_000).expect("a number");
    let _held = charge(&group, 990);
    assert!(group.charge(100).is_err());
    assert_eq!(group.usage(), group.live(), "closed at the max");
    group.set_max(100_000).expect("a number");
    let _more = charge(&group, 1);
    assert!(group.usage() > group.live(), "no credit is kept");
}

#[test]
fn percentages_follow_the_nearest_max_above() {
    let runtime = left_empty(build(bare().max(1_000)));
    let root = runtime.root();
    let acme = root
        .create(
            "acme",
            Limits::new().max(percent("50%")).low(percent("10%")),
        )
        .expect("the root has a max");
    let free = create(&acme, "free");
    let query = free
        .create("q", Limits::new().max(percent("20%")).min(percent("5%")))
        .expect("acme has a max");
    let figures = |group: &Group| (group.max(), group.inspect().min(), group.inspect().low());
    assert_eq!(
        (figures(&acme), figures(&free), figures(&query)),
        ((500, 0, 100), (u64::MAX, 0, 0), (100, 25, 0))
    );
    root.set_max(2_000).expect("a number");
    assert_eq!(
        (figures(&acme), figures(&query)),
        ((1_000, 0, 200), (200, 50, 0)),
        "nested"
    );
    free.set_max(300).expect("a number");
    assert_eq!(figures(&query), (60, 15, 0), "a nearer one");
    free.set_max(Limit::Unlimited).expect("none");
    assert_eq!(figures(&query), (200, 50, 0), "and gone again");
    acme.set_max(400).expect("a number");
    root.set_max(10_000).expect("a number");
    assert_eq!(
        (figures(&acme), figures(&query)),
        ((400, 0, 1_000), (80, 20, 0)),
        "a number does not follow"
    );
    let limits = query.limits();
    assert_eq!(
        (limits.max, limits.min, limits.low),
        (
            Some(percent("20%")),
            Some(percent("5%")),
            Some(Limit::Bytes(0))
        )
    );
    assert_eq!(acme.limits().max, Some(Limit::Bytes(400)));
    // A charge above what a percentage has become.
    let held = charge(&query, 80);
    acme.set_max(200).expect("a number");
    assert_eq!((query.max(), query.forced(), acme.forced()), (40, 40, 0));
    assert!(query.charge(1).is_err());
    assert_eq!(query.limits().max, Some(percent("20%")), "as it was set");
    assert_sound(&runtime);
    drop((held, acme, free, query));
    root.children()[0].offline_tree();
}

#[test]
fn a_percentage_without_a_limited_ancestor() {
    let runtime = left_empty(build(bare()));
    let root = runtime.root();
    let acme = create(&root, "acme");
    let refuse = |group: &Group, error: LimitError, wanted: &str| match error {
        LimitError::NoLimitedAncestor {
            group: named,
            limit,
            percent: of,
            ..
        } => {
            assert_eq!(
                (&named, limit, of.to_string().as_str()),
                (group, wanted, "25%")
            );
        }
        other => panic!("{other}"),
    };
    let quarter = percent("25%");
    refuse(
        &root,
        root.set_max(quarter).expect_err("nothing above"),
        "max",
    );
    refuse(
        &acme,
        acme.set_max(quarter).expect_err("no max above"),
        "max",
    );
    refuse(
        &acme,
        acme.set_limits(Limits::new().min(quarter))
            .expect_err("no max above"),
        "min",
    );
    refuse(
        &acme,
        acme.set_limits(Limits::new().low(quarter))
            .expect_err("no max above"),
        "low",
    );
    assert_eq!(
        (acme.max(), acme.inspect().min(), acme.inspect().low()),
        (u64::MAX, 0, 0)
    );
    assert_eq!(
        acme.limits(),
        Limits::new()
            .max(Limit::Unlimited)
            .min(0)
            .low(0)
            .soft(Limit::Unlimited)
            .high(Limit::Unlimited)
    );
    match acme.create("q", Limits::new().low(quarter)) {
        Err(memcg::errors::CreateError::Limit(error)) => refuse(&acme, error, "low"),
        other => panic!("{other:?}"),
    }
    assert_eq!(
        (runtime.group("/acme/q"), runtime.group_count()),
        (None, 2),
        "nothing was made"
    );
    // Its own max is no help; one above is.
    acme.set_max(100).expect("a number");
    refuse(
        &acme,
        acme.set_limits(Limits::new().low(quarter))
            .expect_err("its own does not count"),
        "low",
    );
    root.set_max(400).expect("a number");
    acme.set_max(quarter).expect("the root's");
    // The max goes: what it made stays.
    root.set_max(Limit::Unlimited).expect("none");
    assert_eq!((acme.max(), acme.limits().max), (100, Some(quarter)));
    root.set_max(800).expect("a number");
    assert_eq!(acme.max(), 200, "and follows again");
}

#[test]
fn protection_is_told_to_the_parent() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.max(1_000).budget(Bytes(1_000))));
        let root = runtime.root();
        let acme = root
            .create("acme", Limits::new().min(percent("5%")).low(90))
            .expect("a max above");
        let held = charge(&acme, 70);
        let told = || {
            (
                root.memory().children_min_usage(),
                root.memory().children_low_usage(),
            )
        };
        assert_eq!(told(), (50, acme.usage().min(90)));
        root.set_max(400).expect("a number");
        assert_eq!((told().0, acme.inspect().min()), (20, 20));
        acme.set_limits(Limits::new().min(Limit::Unlimited))
            .expect("all of it");
        assert_eq!((told().0, acme.inspect().min()), (acme.usage(), u64::MAX));
        assert_sound(&runtime);
        drop(held);
        root.memory().drain();
        assert_eq!(told(), (0, 0));
    }
}

#[test]
fn a_budget_bounds_what_is_stranded() {
    for budget in [0, 100, 128, 700] {
        let runtime = build(
            Runtime::builder()
                .audit(true)
                .batch(Bytes(64))
                .adaptive(false)
                .budget(Bytes(budget)),
        );
        let root = runtime.root();
        let others = [Other::spawn(), Other::spawn()];
        let mut held = Vec::new();
        for number in 0..20 {
            let group = create(&root, &number.to_string());
            held.push(charge(&group, 3));
            held.extend(
                others
                    .each_ref()
                    .map(|other| other.with(&group, |group| charge(group, 3))),
            );
            if number % 3 == 0 {
                group.offline().expect("no children");
            }
            let stocked = root.memory().stocked();
            let bound = root.memory().stocked_bound();
            assert!(
                stocked <= bound && bound <= budget,
                "{stocked} of {bound} of {budget}"
            );
        }
        assert_sound(&runtime);
        assert_eq!(root.live(), 180);
        assert_eq!(root.memory().stocked() > 0, budget >= 128);
        others[0].run(move || drop(held));
        root.offline_tree();
        assert_eq!((root.usage(), root.memory().stocked_bound()), (0, 0));
    }
}
