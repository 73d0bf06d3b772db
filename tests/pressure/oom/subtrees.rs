//! Groups that go as a whole, and groups that never go.

use memcg::{Bytes, Charge, Event, Group, Registration};

use super::{
    HASTY, KIB, Victims, build, charge, create, domain, kinds, left_empty, limited, local,
};

/// Groups with hooks that note the call only.
fn tasks<const N: usize>(
    victims: &Victims,
    groups: [(&Group, u64); N],
) -> Vec<(Charge, Registration)> {
    groups
        .iter()
        .map(|(group, kib)| (charge(group, kib * KIB), victims.stubborn(group)))
        .collect()
}

#[track_caller]
fn assert_kills(domain: &Group, victims: &Victims, expected: &[&str]) {
    assert!(matches!(domain.charge(Bytes(KIB)), Err(error) if error.is_over_limit()));
    let mut paths = victims.paths();
    paths.sort();
    assert_eq!(paths, expected);
}

#[test]
fn the_flags() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = create(&runtime.root(), "q");
        assert_eq!((group.oom_group(), group.oom_exempt()), (false, false));
        group.set_oom_group(true);
        group.set_oom_exempt(true);
        assert_eq!((group.oom_group(), group.oom_exempt()), (true, true));
        group.set_oom_group(false);
        group.set_oom_exempt(false);
        assert_eq!((group.oom_group(), group.oom_exempt()), (false, false));
        group.set_oom_group(true);
        drop(group);
        runtime.root().offline_tree();
        drop(runtime);
    }
}

/// Compared as one: together they are the largest, though each is small; and all of them go.
#[test]
fn compared_as_one() {
    for builder in kinds() {
        for grouped in [false, true] {
            let runtime = left_empty(build(builder.clone().oom_time(HASTY)));
            let (domain, victims) = domain(&runtime);
            let team = create(&domain, "team");
            let single = create(&domain, "single");
            let members = ["a", "b", "c"].map(|name| create(&team, name));
            team.set_oom_group(grouped);
            let hold = [
                (&members[0], 20),
                (&members[1], 20),
                (&members[2], 0),
                (&single, 30),
            ];
            let _held = tasks(&victims, hold);
            let _rest = domain.force_charge(Bytes(30 * KIB));
            assert!(domain.charge(Bytes(KIB)).is_err());
            let mut paths = victims.paths();
            if grouped {
                // The whole team, then the other.
                assert_eq!(paths.pop().as_deref(), Some("/domain/single"));
                paths.sort();
                assert_eq!(
                    paths,
                    ["/domain/team/a", "/domain/team/b", "/domain/team/c"]
                );
            } else {
                assert_eq!(paths.remove(0), "/domain/single");
                paths.sort();
                assert_eq!(paths, ["/domain/team/a", "/domain/team/b"]);
            }
            assert_eq!(local(&team, Event::OomGroupKill), u64::from(grouped));
        }
    }
}

/// Of several levels that are to go as a whole, the highest within the domain; none above it.
#[test]
fn the_highest_within_the_domain() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.oom_time(HASTY)));
        let above = create(&runtime.root(), "above");
        let domain = limited(&above, "domain", 100 * KIB);
        let outer = create(&domain, "outer");
        let inner = create(&outer, "inner");
        let task = create(&inner, "task");
        let beside = create(&outer, "beside");
        let alone = create(&domain, "alone");
        let far = create(&above, "far");
        for group in [&above, &outer, &inner] {
            group.set_oom_group(true);
        }
        let victims = Victims::default();
        let _held = tasks(
            &victims,
            [(&task, 80), (&beside, 0), (&alone, 0), (&far, 100)],
        );
        let _rest = domain.force_charge(Bytes(20 * KIB));
        assert_kills(
            &domain,
            &victims,
            &[
                "/above/domain/outer/beside",
                "/above/domain/outer/inner/task",
            ],
        );
        let kills =
            [&above, &domain, &outer, &inner].map(|group| local(group, Event::OomGroupKill));
        assert_eq!(kills, [0, 0, 1, 0]);
    }
}

#[test]
fn exempt_is_never_chosen() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.oom_time(HASTY)));
        let (domain, victims) = domain(&runtime);
        let exempt = create(&domain, "exempt");
        let plain = create(&domain, "plain");
        let below = create(&exempt, "below");
        exempt.set_oom_exempt(true);
        let _held = tasks(&victims, [(&exempt, 40), (&below, 40), (&plain, 10)]);
        let _rest = domain.force_charge(Bytes(10 * KIB));
        assert_kills(&domain, &victims, &["/domain/plain"]);
        exempt.set_oom_exempt(false);
        assert!(domain.charge(Bytes(KIB)).is_err());
        assert!(
            victims
                .paths()
                .contains(&"/domain/exempt/below".to_string()),
            "not exempt any more"
        );
    }
}
