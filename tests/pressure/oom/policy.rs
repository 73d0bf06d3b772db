//! Which policy holds where: that of the group whose max refused, else of the nearest above that
//! has one.

use memcg::{Bytes, Event, Group, OomPolicy};

use super::{KIB, Victims, all, bare, charge, create, kinds, left_empty, limited, runtimes};

/// The charge is refused, and no hook was called.
#[track_caller]
fn assert_refuses(group: &Group, level: &Group, victims: &Victims) {
    let error = group.charge(Bytes(10 * KIB)).expect_err("full");
    assert!(
        error
            .over_limit()
            .is_some_and(|refusal| refusal.group() == level),
        "{error}"
    );
    assert!(victims.take().is_empty());
}

#[test]
fn by_default_it_refuses() {
    for builder in kinds() {
        let runtime = left_empty(builder.build().expect("a configuration that holds"));
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let victims = Victims::default();
        let _hook = victims.obedient(&group, 8 * KIB);
        assert_refuses(&group, &group, &victims);
        assert_eq!(
            (all(&group, Event::Oom), all(&group, Event::OomKill)),
            (1, 0)
        );
    }
}

#[test]
fn the_nearest_above_decides() {
    for builder in kinds() {
        let runtime = left_empty(builder.build().expect("a configuration that holds"));
        let root = runtime.root();
        let top = create(&root, "top");
        let inner = create(&top, "inner");
        let group = limited(&inner, "q", 10 * KIB);
        let victims = Victims::default();
        let chooses = |chosen: bool| {
            let victim = create(&group, "victim");
            let hook = victims.obedient(&victim, 8 * KIB);
            if chosen {
                drop(charge(&group, 10 * KIB));
                assert_eq!(victims.paths(), ["/top/inner/q/victim"]);
            } else {
                assert_refuses(&group, &group, &victims);
            }
            drop(hook);
            victim.offline().expect("no children");
        };
        chooses(false);
        root.set_oom_policy(OomPolicy::Choose);
        chooses(true);
        top.set_oom_policy(OomPolicy::Refuse);
        chooses(false);
        inner.set_oom_policy(OomPolicy::Choose);
        chooses(true);
        group.set_oom_policy(OomPolicy::Refuse);
        chooses(false);
        group.set_oom_policy(OomPolicy::Inherit);
        chooses(true);
        inner.set_oom_policy(OomPolicy::Inherit);
        chooses(false);
        top.set_oom_policy(OomPolicy::Inherit);
        chooses(true);
        root.set_oom_policy(OomPolicy::Inherit);
        chooses(false);
    }
}

/// It is asked of the group that refused, not of the one that charges.
#[test]
fn of_the_group_that_refused() {
    for builder in kinds() {
        let runtime = left_empty(builder.build().expect("a configuration that holds"));
        let top = limited(&runtime.root(), "top", 10 * KIB);
        let group = limited(&top, "q", 100 * KIB);
        let victim = create(&top, "victim");
        group.set_oom_policy(OomPolicy::Choose);
        let victims = Victims::default();
        let _hook = victims.obedient(&victim, 8 * KIB);
        assert_refuses(&group, &top, &victims);
        top.set_oom_policy(OomPolicy::Choose);
        group.set_oom_policy(OomPolicy::Refuse);
        drop(charge(&group, 10 * KIB));
        assert_eq!(victims.paths(), ["/top/victim"]);
    }
}

/// No group is stopped for what would not fit even then.
#[test]
fn not_for_what_can_never_fit() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let victims = Victims::default();
        let victim = create(&group, "victim");
        let _hook = victims.obedient(&victim, 8 * KIB);
        for bytes in [10 * KIB + 1, 1 << 40, u64::MAX] {
            assert!(matches!(group.charge(Bytes(bytes)), Err(error) if error.is_over_limit()));
        }
        assert!(victims.take().is_empty());
        assert_eq!(all(&group, Event::OomKill), 0);
    }
}

/// Force needs no group's memory.
#[test]
fn not_for_force() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let victims = Victims::default();
        let victim = create(&group, "victim");
        let _hook = victims.obedient(&victim, 8 * KIB);
        drop(group.force_charge(Bytes(100 * KIB)));
        assert!(victims.take().is_empty());
    }
}

/// A further counter is no memory: no group's memory helps.
#[test]
fn not_for_further_counters() {
    let mut builder = bare();
    let swap = builder.counter("swap", memcg::Unit::Bytes);
    let runtime = left_empty(super::build(builder));
    let group = create(&runtime.root(), "q");
    group
        .counter(swap)
        .expect("declared")
        .set_max(10)
        .expect("a number");
    let victims = Victims::default();
    let _hook = victims.obedient(&group, 8 * KIB);
    let error = group
        .charge_set(&[(swap, 8), (memcg::CounterKey::MEMORY, 1)])
        .map(drop);
    assert!(error.is_ok());
    assert!(matches!(group.charge_set(&[(swap, 11)]), Err(error) if error.is_over_limit()));
    let _held = group.charge_set(&[(swap, 10)]).expect("room");
    assert!(matches!(group.charge_set(&[(swap, 1)]), Err(error) if error.is_over_limit()));
    assert!(victims.take().is_empty());
}

/// A charge that is made in any case cancels no group, nor does one that never blocks.
#[test]
fn not_for_an_overcharge() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let victims = Victims::default();
        let victim = create(&group, "victim");
        let _hook = victims.obedient(&victim, 10 * KIB);
        let refused = group.try_charge(Bytes(8 * KIB)).expect_err("full");
        assert!(refused.is_would_block(), "{refused}");
        let _held = group.force_charge(Bytes(8 * KIB));
        assert_eq!((victims.paths().len(), group.forced()), (0, 8 * KIB));
    }
}
