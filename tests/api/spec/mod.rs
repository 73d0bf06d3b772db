//! A tree of groups from a spec: what is set, what stays, what comes back.
//!
//! * this file: what one spec after the other does;
//! * `failing`: each way to fail, after which all is as it was;
//! * `racing`: charges, limits and other specs meanwhile;
//! * `files`: JSON and TOML, with all that may be wrong in them.

mod failing;
#[cfg(feature = "serde")]
mod files;
mod racing;

use memcg::figures::SpecChanges;
use memcg::{ApplyOptions, Group, GroupSpec, Limit, Limits, OomPolicy, Percent, Runtime};

use crate::support::trees::create;

fn runtime() -> Runtime {
    Runtime::builder()
        .audit(true)
        .max(Limit::Bytes(1_000))
        .batch(memcg::Bytes(0))
        .build()
        .expect("a runtime")
}

/// A spec of a root with one tenant.
fn acme(limits: Limits) -> GroupSpec {
    GroupSpec::new().group("acme", GroupSpec::new().limits(limits))
}

#[track_caller]
fn apply(spec: &GroupSpec, runtime: &Runtime) -> SpecChanges {
    spec.apply(&runtime.root())
        .unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn group(runtime: &Runtime, path: &str) -> Group {
    runtime
        .group(path)
        .unwrap_or_else(|| panic!("no group {path}"))
}

/// All paths with what is set there.
fn state(runtime: &Runtime) -> Vec<(String, Limits, OomPolicy, u64)> {
    let mut state: Vec<_> = std::iter::once(runtime.root())
        .chain(runtime.root().inspect().descendants())
        .map(|group| {
            (
                group.path(),
                group.limits(),
                group.oom_policy(),
                group.max(),
            )
        })
        .collect();
    state.sort_by(|a, b| a.0.cmp(&b.0));
    state
}

#[test]
fn a_spec_creates_and_sets_all_kinds() {
    let runtime = runtime();
    let whole = Limits::new()
        .max(Limit::percent(50))
        .high(400)
        .low(100)
        .min(50)
        .reclaim_above(Limit::percent(80))
        .importance(3)
        .pressure_levels(70, 90)
        .setting("limit.0");
    let spec = GroupSpec::new()
        .limits(Limits::new().max(2_000))
        .oom_policy(OomPolicy::Choose)
        .group(
            "acme",
            GroupSpec::new()
                .limits(whole)
                .group("fast", GroupSpec::new().limits(Limits::new().share(3)))
                .group("17", GroupSpec::new().limits(Limits::new().share(1))),
        );
    let changes = apply(&spec, &runtime);
    let expected = "/acme: created, min 50 B, low 100 B, high 400 B, max 50%, reclaim_above 80%, \
                    elevated 70%, critical 90%, importance 3, setting limit.0\n\
                    /acme/17: created, share 1\n\
                    /acme/fast: created, share 3\n\
                    /: max 1000 B -> 2000 B, oom_policy inherit -> choose\n";
    assert_eq!(changes.to_string(), expected);
    let acme = group(&runtime, "/acme");
    assert_eq!((acme.max(), acme.inspect().low()), (1_000, 100));
    assert_eq!(runtime.root().oom_policy(), OomPolicy::Choose);
    assert_eq!(group(&runtime, "/acme/fast").inspect().soft(), 750);
    assert_eq!(
        acme.child(17).map(|child| child.inspect().soft()),
        Some(250)
    );
    assert!(apply(&spec, &runtime).is_empty());

    // A file that says nothing any more.
    let nothing = acme_with(["fast", "17"]);
    apply(&nothing, &runtime);
    let limits = acme.limits();
    assert_eq!(
        (limits.max, limits.high),
        (Some(Limit::Unlimited), Some(Limit::Unlimited))
    );
    assert_eq!(
        (limits.low, limits.min),
        (Some(Limit::Bytes(0)), Some(Limit::Bytes(0)))
    );
    assert_eq!(
        (limits.importance, limits.elevated, limits.critical),
        (None, None, None)
    );
    assert_eq!((limits.setting_name(), limits.reclaim_above), (None, None));
    assert_eq!(group(&runtime, "/acme/fast").limits().share, None);
    assert_eq!(group(&runtime, "/acme/fast").inspect().soft(), u64::MAX);
    assert_eq!(runtime.root().max(), u64::MAX);
    assert_eq!(runtime.root().oom_policy(), OomPolicy::Inherit);
    assert!(apply(&nothing, &runtime).is_empty());
}

fn acme_with(children: [&str; 2]) -> GroupSpec {
    let acme = children.into_iter().fold(GroupSpec::new(), |acme, name| {
        acme.group(name, GroupSpec::new())
    });
    GroupSpec::new().group("acme", acme)
}

/// What others have set stays: before a spec names it, and from the moment that they set it again.
#[test]
fn what_others_set_stays() {
    let runtime = runtime();
    let acme_group = create(&runtime.root(), "acme");
    acme_group.set_limits(Limits::new().low(10)).expect("bytes");
    apply(
        &acme(Limits::new().max(100).high(90).importance(2)),
        &runtime,
    );
    acme_group.set_max(200).expect("bytes");
    acme_group
        .set_limits(Limits::new().importance(7))
        .expect("a number");
    acme_group.set_oom_policy(OomPolicy::Refuse);
    let changes = apply(&acme(Limits::new()), &runtime);
    assert_eq!(changes.to_string(), "/acme: high 90 B -> none\n");
    let limits = acme_group.limits();
    assert_eq!(
        (limits.max, limits.low),
        (Some(Limit::Bytes(200)), Some(Limit::Bytes(10)))
    );
    assert_eq!(
        (limits.importance, acme_group.oom_policy()),
        (Some(7), OomPolicy::Refuse)
    );

    // A max that follows the host is set so.
    apply(&GroupSpec::new().limits(Limits::new().max(500)), &runtime);
    let root = runtime.root();
    root.memory().set_max_now(700).expect("bytes");
    apply(&GroupSpec::new(), &runtime);
    assert_eq!(root.max(), 700);

    // What the spec sets to what it is already is the spec's from then on.
    apply(&acme(Limits::new().max(200)), &runtime);
    apply(&acme(Limits::new()), &runtime);
    assert_eq!(acme_group.max(), u64::MAX);
}

/// A share is a soft limit that follows the siblings: either takes the other's place, and only what
/// the spec has set is unset.
#[test]
fn shares_and_soft_limits() {
    let runtime = runtime();
    let limits = |runtime: &Runtime| {
        let group = group(runtime, "/acme");
        (group.limits().share, group.inspect().soft())
    };
    apply(&acme(Limits::new().soft(70)), &runtime);
    apply(&acme(Limits::new().share(2)), &runtime);
    assert_eq!(limits(&runtime), (Some(2), 1_000));
    apply(&acme(Limits::new().soft(80)), &runtime);
    assert_eq!(limits(&runtime), (None, 80));
    let group = group(&runtime, "/acme");
    group.set_limits(Limits::new().share(5)).expect("a share");
    apply(&acme(Limits::new()), &runtime);
    assert_eq!(
        limits(&runtime),
        (Some(5), 1_000),
        "a share of the program stays"
    );
    apply(&acme(Limits::new().share(6).soft(3)), &runtime);
    assert!(apply(&acme(Limits::new().share(6).soft(3)), &runtime).is_empty());
    assert_eq!(limits(&runtime), (Some(6), 1_000));
    apply(&acme(Limits::new().soft(3)), &runtime);
    assert_eq!(limits(&runtime), (None, 3));
    group.set_limits(Limits::new().soft(4)).expect("bytes");
    apply(&acme(Limits::new()), &runtime);
    assert_eq!(limits(&runtime), (None, 4), "so does a soft limit");
}

/// An order of the service's own stays while the file says that victims are chosen.
#[test]
fn an_order_of_choice_stays() {
    let runtime = runtime();
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counts = std::sync::Arc::clone(&asked);
    runtime.root().set_oom_policy(OomPolicy::by(move |_| {
        counts.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        None
    }));
    let hog = create(&runtime.root(), "hog");
    let _hook = hog.on_cancel(|_| ());
    let _held = hog.charge(1_000).expect("it fits");
    let refused = || {
        let before = asked.load(std::sync::atomic::Ordering::Relaxed);
        assert!(runtime.root().charge(10).is_err());
        asked.load(std::sync::atomic::Ordering::Relaxed) - before
    };
    let spec = GroupSpec::new().oom_policy(OomPolicy::Choose);
    assert!(apply(&spec, &runtime).is_empty());
    assert_eq!(refused(), 1);
    // Taken away, and back with what took it away.
    let refuse = GroupSpec::new()
        .oom_policy(OomPolicy::Refuse)
        .group("hog", GroupSpec::new().limits(Limits::new().max(10)));
    refuse.apply(&runtime.root()).expect_err("hog holds more");
    assert_eq!(refused(), 1);
    apply(&GroupSpec::new().oom_policy(OomPolicy::Refuse), &runtime);
    assert_eq!(refused(), 0);
}

/// A first file may give the root the max that its tenants have their parts of, in any order, and
/// each later one may move it.
#[test]
fn percentages_follow_up_and_down() {
    let runtime = Runtime::builder().build().expect("a runtime");
    create(&runtime.root(), "old");
    let part = |percent| GroupSpec::new().limits(Limits::new().max(Limit::percent(percent)));
    let spec = |max: u64, percent| {
        GroupSpec::new()
            .limits(Limits::new().max(Limit::Bytes(max)))
            .group("old", part(percent).group("q", part(50)))
            .group("new", part(percent))
    };
    for (max, percent) in [(1_000, 50), (4_000, 10), (100, 90), (200, 20), (200, 80)] {
        apply(&spec(max, percent), &runtime);
        let share = max * u64::from(percent) / 100;
        let maxes = ["/old", "/old/q", "/new"].map(|path| group(&runtime, path).max());
        assert_eq!(maxes, [share, share / 2, share], "{max} {percent}");
        assert!(apply(&spec(max, percent), &runtime).is_empty());
    }
    // From a percentage to bytes and back, with a max above that goes.
    let bytes = GroupSpec::new().group(
        "old",
        GroupSpec::new()
            .limits(Limits::new().max(70))
            .group("q", part(50)),
    );
    apply(&bytes, &runtime);
    assert_eq!(
        ["/", "/old", "/old/q"].map(|path| group(&runtime, path).max()),
        [u64::MAX, 70, 35]
    );
    let own = GroupSpec::new().group(
        "old",
        GroupSpec::new().limits(
            Limits::new()
                .max(200)
                .reclaim_above(Limit::percent(50))
                .low(Limit::Bytes(7)),
        ),
    );
    apply(&own, &runtime);
    assert_eq!(
        group(&runtime, "/old").limits().reclaim_above,
        Percent::new(50).map(Limit::Percent)
    );
}

/// Below a group that is not the root, too; others are not looked at.
#[test]
fn a_spec_of_a_part_of_the_tree() {
    let runtime = runtime();
    let [acme_group, other] = ["acme", "other"].map(|name| create(&runtime.root(), name));
    let spec = GroupSpec::new().limits(Limits::new().max(100)).group(
        "q",
        GroupSpec::new().limits(Limits::new().max(Limit::percent(10))),
    );
    assert_eq!(
        spec.apply(&acme_group).expect("it holds").created[0]
            .group
            .path(),
        "/acme/q"
    );
    assert_eq!(
        (group(&runtime, "/acme/q").max(), other.max()),
        (10, u64::MAX)
    );
    let wrong = GroupSpec::new().group("q", GroupSpec::new().limits(Limits::new().max(1).min(2)));
    let error = wrong.apply(&acme_group).unwrap_err().to_string();
    assert!(
        error.starts_with("/acme/q: min 2 B is above max 1 B"),
        "{error}"
    );
}

#[test]
fn groups_that_a_file_has_no_more() {
    let runtime = runtime();
    let root = runtime.root();
    let spec = acme(Limits::new().max(100)).group("globex", GroupSpec::new());
    apply(&spec, &runtime);
    let acme_group = group(&runtime, "/acme");
    let query = create(&acme_group, "q17");
    create(&root, "by-hand");
    let fewer = GroupSpec::new().group("globex", GroupSpec::new());
    assert!(
        apply(&fewer, &runtime).is_empty(),
        "it stays, with its limits"
    );
    assert_eq!(acme_group.max(), 100);
    let prune = ApplyOptions::new().prune(true);
    assert!(spec.apply_with(&root, prune).expect("it holds").is_empty());
    let changes = fewer.apply_with(&root, prune).expect("it holds");
    assert_eq!(changes.to_string(), "/acme: offline\n");
    assert!(acme_group.is_offline() && query.is_offline());
    assert!(root.child("by-hand").is_some() && root.child("globex").is_some());
    // Its object is used again: by a group that no spec knows.
    drop((acme_group, query, changes));
    runtime.settle();
    let next = create(&root, "next");
    assert!(fewer.apply_with(&root, prune).expect("it holds").is_empty());
    assert!(!next.is_offline());
}

/// A group that covers is created so, and stays so whatever a later file says.
#[test]
fn covering_groups() {
    let runtime = runtime();
    let covers = acme(Limits::new().cover_allocations());
    let changes = apply(&covers, &runtime);
    assert_eq!(
        changes.to_string(),
        "/acme: created, cover_allocations true\n"
    );
    assert!(apply(&covers, &runtime).is_empty());
    assert!(apply(&acme(Limits::new()), &runtime).is_empty());
    assert!(group(&runtime, "/acme").limits().cover_allocations);
}
