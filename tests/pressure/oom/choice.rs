//! Which group is chosen: the one furthest above its share that has a hook.

use memcg::{Bytes, Event, Group, Limit, Limits};

use super::{
    HASTY, KIB, MIB, Told, Victims, all, assert_sound, bare, build, charge, create, domain, kinds,
    left_empty, limited, runtimes,
};

/// In a domain of 100 KiB, which is full when all have charged what they have.
struct Candidate {
    name: &'static str,
    bytes: u64,
    low: u64,
    soft: Option<u64>,
}

const fn candidate(name: &'static str, bytes: u64, low: u64, soft: Option<u64>) -> Candidate {
    Candidate {
        name,
        bytes,
        low,
        soft,
    }
}

#[track_caller]
fn assert_order(candidates: &[Candidate], order: &[&str]) {
    for builder in kinds() {
        let runtime = left_empty(build(builder.oom_time(HASTY)));
        let (domain, victims) = domain(&runtime);
        let mut made = Vec::new();
        for Candidate {
            name,
            bytes,
            low,
            soft,
        } in candidates
        {
            let mut limits = Limits::new().low(Limit::Bytes(low * KIB));
            limits.soft = soft.map(|soft| Limit::Bytes(soft * KIB));
            let group = domain.create(name, limits).expect("a free name");
            made.push((charge(&group, bytes * KIB), victims.stubborn(&group)));
        }
        let _rest = domain.force_charge(Bytes(100 * KIB - domain.live()));
        let error = domain
            .charge(Bytes(KIB))
            .expect_err("no group gives anything");
        assert!(error.is_over_limit(), "{error}");
        let paths: Vec<String> = order.iter().map(|name| format!("/domain/{name}")).collect();
        assert_eq!(
            victims.paths(),
            paths,
            "each once, the largest overrun first"
        );
        assert_eq!(all(&domain, Event::OomKill), order.len() as u64);
        assert_sound(&runtime);
    }
}

#[test]
fn the_largest_first() {
    let candidates = [
        candidate("small", 10, 0, None),
        candidate("large", 50, 0, None),
        candidate("middle", 30, 0, None),
    ];
    assert_order(&candidates, &["large", "middle", "small"]);
}

#[test]
fn a_group_that_has_nothing_is_left_alone() {
    let candidates = [
        candidate("nothing", 0, 0, None),
        candidate("some", 10, 0, None),
    ];
    assert_order(&candidates, &["some"]);
}

/// Usage above low counts, not usage. A group within its low is not chosen at all.
#[test]
fn low_is_a_share() {
    let candidates = [
        candidate("protected", 50, 45, None),
        candidate("plain", 20, 0, None),
        candidate("within", 15, 15, None),
    ];
    assert_order(&candidates, &["plain", "protected"]);
}

#[test]
fn a_soft_limit_is_a_share() {
    let candidates = [
        candidate("softly", 50, 0, Some(40)),
        candidate("plain", 20, 0, None),
        candidate("within", 25, 0, Some(25)),
        candidate("far", 1, 0, Some(100)),
    ];
    assert_order(&candidates, &["plain", "softly"]);
}

/// Of the two the larger: they do not add up.
#[test]
fn the_larger_of_both() {
    let candidates = [
        candidate("low", 30, 20, Some(5)),
        candidate("soft", 30, 5, Some(22)),
        candidate("both", 30, 10, Some(21)),
    ];
    assert_order(&candidates, &["low", "both", "soft"]);
}

/// A low that is not covered from above protects that much less.
#[test]
fn low_as_it_takes_effect() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.oom_time(HASTY)));
        let (domain, victims) = domain(&runtime);
        let bare_parent = create(&domain, "bare");
        let boasts = bare_parent
            .create("boasts", Limits::new().low(Limit::Unlimited))
            .expect("a free name");
        let plain = create(&domain, "plain");
        let _held = [charge(&boasts, 60 * KIB), charge(&plain, 40 * KIB)];
        assert_eq!(
            boasts.memory().effective_low(&domain.memory()),
            0,
            "its parent has none"
        );
        let _hooks = [&boasts, &plain].map(|group| victims.stubborn(group));
        assert!(domain.charge(Bytes(KIB)).is_err());
        let told = victims.take();
        let expected =
            [("/domain/bare/boasts", 60), ("/domain/plain", 40)].map(|(group, overrun)| Told {
                group: group.into(),
                domain: "/domain".into(),
                wanted: told[0].wanted,
                overrun: overrun * KIB,
            });
        assert_eq!(told, expected);
    }
}

/// The argument of the hook.
#[test]
fn it_is_told_why() {
    for runtime in runtimes() {
        let (domain, victims) = domain(&runtime);
        let inner = limited(&domain, "inner", 200 * KIB);
        let group = inner
            .create("q", Limits::new().soft(Limit::Bytes(10 * KIB)))
            .expect("a free name");
        let _hook = victims.obedient(&group, 90 * KIB);
        drop(charge(&inner, 30 * KIB));
        let told = victims.take();
        let [
            Told {
                group: path,
                domain: level,
                wanted,
                overrun,
            },
        ] = &told[..]
        else {
            panic!("{told:?}")
        };
        assert_eq!(
            (path.as_str(), level.as_str(), *overrun),
            ("/domain/inner/q", "/domain", 80 * KIB)
        );
        assert!(
            (20 * KIB..=30 * KIB).contains(wanted),
            "{wanted} of 20 that are missing and 30 asked for"
        );
    }
}

/// A group that is not below the level that refused is none of it, however large.
#[test]
fn within_the_domain() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.oom_time(HASTY)));
        let (domain, victims) = domain(&runtime);
        let outside = create(&runtime.root(), "outside");
        let inside = create(&domain, "inside");
        let _held = [
            charge(&outside, 100 * MIB),
            charge(&inside, KIB),
            domain.force_charge(Bytes(99 * KIB)),
        ];
        let _hooks = [&runtime.root(), &outside, &inside].map(|group| victims.stubborn(group));
        assert!(domain.charge(Bytes(KIB)).is_err());
        assert_eq!(victims.paths(), ["/domain/inside"]);
    }
}

/// If a group and one above it have hooks, the inner one goes that has most of it: the smaller
/// harm.
#[test]
fn the_innermost_of_nested_hooks() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.oom_time(HASTY)));
        let (domain, victims) = domain(&runtime);
        let outer = create(&domain, "outer");
        let inner = create(&outer, "inner");
        let leaf = create(&inner, "leaf");
        let _held = (charge(&leaf, 90 * KIB), charge(&outer, 10 * KIB));
        let _hooks = [&outer, &inner].map(|group| victims.stubborn(group));
        assert!(domain.charge(Bytes(KIB)).is_err());
        // Usage of the outer one is larger, by what is its own: after the inner one it is chosen,
        // if at all.
        let paths = victims.paths();
        assert_eq!(
            paths.first().map(String::as_str),
            Some("/domain/outer/inner"),
            "{paths:?}"
        );
        assert!(paths.len() <= 2);
    }
}

/// The domain itself may be the task.
#[test]
fn the_domain_itself() {
    for runtime in runtimes() {
        let domain: Group = limited(&runtime.root(), "domain", 100 * KIB);
        let victims = Victims::default();
        let _hook = victims.obedient(&domain, 80 * KIB);
        let error = domain
            .charge(Bytes(50 * KIB))
            .expect_err("it is its own victim");
        assert!(error.is_cancelled(), "{error}");
        assert_eq!(
            (victims.paths(), domain.live()),
            (vec!["/domain".to_string()], 0)
        );
        drop(charge(&domain, 100 * KIB));
    }
}

/// Counters decide: what was charged this moment by another thread, and is in no flushed
/// statistics, counts.
#[test]
fn decided_on_counters() {
    let runtime = left_empty(build(bare()));
    let (domain, victims) = domain(&runtime);
    let old = create(&domain, "old");
    let new = create(&domain, "new");
    // As the statistics have it, the one has everything and the other nothing.
    old.stat_add(memcg::StatKey::ANON, 1 << 40);
    domain.inspect().flush();
    let _held = charge(&old, 10 * KIB);
    let _hooks = std::thread::scope(|scope| {
        let charged = scope.spawn(|| victims.obedient(&new, 80 * KIB));
        [charged.join().expect("no panic"), victims.stubborn(&old)]
    });
    drop(charge(&domain, 50 * KIB));
    assert_eq!(victims.paths(), ["/domain/new"]);
    old.stat_add(memcg::StatKey::ANON, -(1 << 40));
}
