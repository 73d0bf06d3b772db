//! Each way to fail: all limits are as they were, and so is who has set them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use memcg::errors::{CreateError, LimitError, SpecError};
use memcg::{
    ApplyOptions, Bytes, Charge, Group, GroupSpec, Limit, Limits, OomPolicy, Reclaim,
    ReclaimContext, ReclaimPriority, Runtime,
};

use super::{acme, apply, group, runtime, state};
use crate::support::reclaimers::lock;
use crate::support::trees::create;

/// A spec that sets something of each kind, in groups before and after the one that fails.
fn busy(fails: GroupSpec) -> GroupSpec {
    let tenant = |limits: Limits| GroupSpec::new().limits(limits);
    let all = Limits::new()
        .max(600)
        .high(500)
        .low(5)
        .importance(4)
        .pressure_levels(50, 60);
    GroupSpec::new()
        .limits(Limits::new().max(900).setting("limit.1"))
        .oom_policy(OomPolicy::Refuse)
        .group("a", tenant(all).oom_policy(OomPolicy::Refuse))
        .group(
            "created",
            tenant(all).group("below", tenant(Limits::new().share(2))),
        )
        .group("f", fails)
        .group("z", tenant(all.share(3)))
        .group("zz", tenant(all.soft(Limit::percent(10))))
}

/// What an earlier spec has set, and the program beside it.
fn prepared() -> (Runtime, GroupSpec) {
    let runtime = runtime();
    let tenant = |limits: Limits| GroupSpec::new().limits(limits);
    let first = GroupSpec::new()
        .limits(Limits::new().max(Limit::Bytes(800)).setting("limit.2"))
        .group(
            "a",
            tenant(
                Limits::new()
                    .max(300)
                    .high(Limit::percent(20))
                    .importance(1),
            ),
        )
        .group("f", tenant(Limits::new().max(500)))
        .group(
            "z",
            tenant(Limits::new().soft(30).pressure_levels(10, 20)).oom_policy(OomPolicy::Choose),
        );
    apply(&first, &runtime);
    let zz = create(&runtime.root(), "zz");
    zz.set_limits(Limits::new().share(9)).expect("a share");
    (runtime, first)
}

#[track_caller]
fn assert_taken_back((runtime, first): &(Runtime, GroupSpec), fails: GroupSpec) -> SpecError {
    let before = state(runtime);
    let error = busy(fails).apply(&runtime.root()).expect_err("it fails");
    assert_eq!(state(runtime), before, "{error}");
    // The first spec is still the one that has set what it set, and the program the rest.
    let again = first.clone().group("zz", GroupSpec::new());
    assert!(apply(&again, runtime).is_empty(), "{error}");
    error
}

#[test]
fn more_than_its_new_max_that_nothing_gives_back() {
    let tree = prepared();
    let (runtime, _) = &tree;
    let _held = group(runtime, "/f").charge(200).expect("it fits");
    let error = assert_taken_back(&tree, GroupSpec::new().limits(Limits::new().max(150)));
    let SpecError::AboveMax { group, max, excess } = &error else {
        panic!("{error}")
    };
    assert_eq!((group.path().as_str(), *max, *excess), ("/f", 150, 50));
    let line = "/f holds 50 B above max 150 B, and reclaim frees no more: release memory in it, \
                or let its max stand with keep_excess";
    assert_eq!(error.to_string(), line);
}

/// By a max above: its own says 40 per cent, as before.
#[test]
fn more_than_its_part_of_a_max_that_is_lowered() {
    let runtime = runtime();
    let spec = |max: u64| {
        acme(Limits::new().max(Limit::percent(40))).limits(Limits::new().max(Limit::Bytes(max)))
    };
    apply(&spec(500), &runtime);
    let acme_group = group(&runtime, "/acme");
    let _held = acme_group.charge(150).expect("it fits");
    let before = state(&runtime);
    let error = spec(300)
        .apply(&runtime.root())
        .expect_err("30 bytes are above");
    assert!(
        matches!(error, SpecError::AboveMax { excess: 30, .. }),
        "{error}"
    );
    assert_eq!(state(&runtime), before);
    let keep = ApplyOptions::new().keep_excess(true);
    let changes = spec(300)
        .apply_with(&runtime.root(), keep)
        .expect("asked for");
    assert_eq!(changes.above_max, [(acme_group.clone(), 30)]);
    let said = "/: max 500 B -> 300 B\n/acme holds 30 B above its max: its charges are refused \
                until it gives them back\n";
    assert_eq!(changes.to_string(), said);
    // It is above already, and no spec lowers its max: that fails no other change.
    let other = spec(300).group("other", GroupSpec::new());
    assert_eq!(
        other
            .apply(&runtime.root())
            .expect("it holds")
            .created
            .len(),
        1
    );
}

struct Cache {
    held: std::sync::Mutex<Charge>,
    asked: AtomicU64,
}

impl Reclaim for Cache {
    fn reclaim(&self, want: u64, _context: &ReclaimContext<'_>) -> u64 {
        self.asked.fetch_add(1, Relaxed);
        lock(&self.held).shrink(Bytes(want))
    }
}

fn cache(group: &Group, bytes: usize) -> Arc<Cache> {
    Arc::new(Cache {
        held: std::sync::Mutex::new(group.charge(bytes).expect("it fits")),
        asked: AtomicU64::new(0),
    })
}

/// What reclaim freed meanwhile does not come back. Children are asked before their parents.
#[test]
fn reclaim_frees_what_it_can() {
    let runtime = runtime();
    let tenant = |max: usize, below: usize| {
        acme(Limits::new().max(max))
            .group("f", GroupSpec::new())
            .limits(Limits::new())
            .group(
                "acme",
                GroupSpec::new()
                    .limits(Limits::new().max(max))
                    .group("q", GroupSpec::new().limits(Limits::new().max(below))),
            )
    };
    apply(&tenant(500, 400), &runtime);
    let [acme_group, query] = ["/acme", "/acme/q"].map(|path| group(&runtime, path));
    let (of_tenant, of_query) = (cache(&acme_group, 100), cache(&query, 300));
    let _registrations = [
        acme_group.register_reclaimer(of_tenant.clone(), ReclaimPriority::NORMAL),
        query.register_reclaimer(of_query.clone(), ReclaimPriority::NORMAL),
    ];
    apply(&tenant(300, 150), &runtime);
    assert_eq!((acme_group.usage(), query.usage()), (250, 150));
    assert_eq!(
        of_tenant.asked.load(Relaxed),
        0,
        "the query has given enough"
    );
    // A tenant that pins what it has: the query gives, and gets its max back.
    let _pinned = acme_group.charge(50).expect("it fits");
    let before = state(&runtime);
    let error = tenant(40, 30)
        .apply(&runtime.root())
        .expect_err("50 bytes are pinned");
    assert!(matches!(error, SpecError::AboveMax { .. }), "{error}");
    assert_eq!(state(&runtime), before);
    assert!(query.usage() <= 30, "what it gave is gone");
}

#[test]
fn groups_that_cannot_be_created() {
    let runtime = Runtime::builder().groups_max(5).build().expect("a runtime");
    let tenants = |count: usize| {
        (0..count).fold(
            GroupSpec::new().limits(Limits::new().max(900)),
            |spec, number| spec.group(format!("t{number}"), GroupSpec::new()),
        )
    };
    apply(&tenants(2), &runtime);
    let before = state(&runtime);
    let raised = tenants(7).limits(Limits::new().max(1_000));
    let error = raised
        .apply(&runtime.root())
        .expect_err("there is no room for them");
    assert!(
        matches!(error, SpecError::Create(CreateError::Full { .. })),
        "{error}"
    );
    assert_eq!(state(&runtime), before, "those that were created are gone");
    apply(&tenants(4), &runtime);
}

#[test]
fn limits_that_do_not_hold() {
    let tree = prepared();
    let covers = GroupSpec::new().limits(Limits::new().cover_allocations());
    let error = assert_taken_back(&tree, covers);
    assert!(
        matches!(error, SpecError::Limit(LimitError::CoversNot { .. })),
        "{error}"
    );
    let bare = Runtime::builder().build().expect("a runtime");
    let part = Limits::new().low(Limit::percent(10));
    for (spec, path) in [
        (GroupSpec::new().limits(part), "/"),
        (acme(part), "/acme"),
        (GroupSpec::new().group("new", acme(part)), "/new/acme"),
    ] {
        let error = spec.apply(&bare.root()).expect_err("of nothing");
        let line = format!("{path}: no group above has a max for low 10%: set one, or bytes here");
        assert_eq!(error.to_string(), line);
        assert_eq!(state(&bare).len(), 1, "nothing was created");
    }
    // The max of which it is a percentage would go with the same spec.
    let runtime = Runtime::builder().build().expect("a runtime");
    apply(&acme(part).limits(Limits::new().max(100)), &runtime);
    let error = acme(part).apply(&runtime.root()).expect_err("of nothing");
    assert!(
        matches!(error, SpecError::PercentOfNothing { .. }),
        "{error}"
    );
    assert_eq!(runtime.root().max(), 100);
}

#[test]
fn specs_that_are_wrong_in_themselves() {
    let tree = prepared();
    let group = |name: &str| GroupSpec::new().group(name, GroupSpec::new());
    let long = "x".repeat(300);
    for (name, line) in [
        ("", "cannot create \"\" in /f: a name is not empty"),
        ("a/b", "cannot create \"a/b\" in /f: a name has no `/`"),
        (
            "..",
            "cannot create \"..\" in /f: a name is neither `.` nor `..`",
        ),
        (
            "#5.1",
            "cannot create \"#5.1\" in /f: a name does not begin with `#`",
        ),
        (
            "a\u{202e}b",
            "cannot create \"a\\u{202e}b\" in /f: a name has no format characters and no separators of lines",
        ),
    ] {
        let error = assert_taken_back(&tree, group(name));
        assert!(
            matches!(error, SpecError::Name { .. }) && error.to_string() == line,
            "{error}"
        );
    }
    let error = assert_taken_back(&tree, group(&long)).to_string();
    assert!(
        error.len() < 200 && error.ends_with("at most 255 bytes"),
        "{error}"
    );

    let contradicts = GroupSpec::new().limits(Limits::new().max(10).low(20));
    let error = assert_taken_back(&tree, contradicts).to_string();
    assert_eq!(
        error,
        "/f: low 20 B is above max 10 B: no usage is above max; change one of the two"
    );
    let error = assert_taken_back(
        &tree,
        GroupSpec::new().limits(Limits::new().setting("a\nb")),
    );
    assert_eq!(
        error.to_string(),
        "cannot name a setting for /f: a name has no control characters"
    );

    let nested = |levels: usize| {
        (0..levels).fold(GroupSpec::new(), |below, _| {
            GroupSpec::new().group("n", below)
        })
    };
    let error = assert_taken_back(&tree, nested(GroupSpec::DEPTH_MAX));
    assert!(matches!(error, SpecError::TooDeep { .. }), "{error}");
    assert_eq!(
        nested(GroupSpec::DEPTH_MAX)
            .check()
            .map_err(|error| error.to_string()),
        Ok(())
    );
    assert!(nested(GroupSpec::DEPTH_MAX + 1).check().is_err());
    assert!(nested(2_000).check().is_err());
}

#[test]
fn a_group_that_is_offline() {
    let runtime = runtime();
    let acme_group = create(&runtime.root(), "acme");
    acme_group.offline().expect("no child");
    let error = GroupSpec::new().apply(&acme_group).expect_err("offline");
    assert!(
        matches!(&error, SpecError::Offline { group } if *group == acme_group),
        "{error}"
    );
    let root = runtime.root();
    drop(runtime);
    assert!(acme(Limits::new()).apply(&root).is_err());
}

/// A part of a max comes back, although the max is there again only after it: so does a share beside it.
#[test]
fn a_part_of_a_max_that_was_to_go() {
    let runtime = runtime();
    let tenant = |limits: Limits| GroupSpec::new().limits(limits);
    let half = Limit::percent(50);
    let first = GroupSpec::new()
        .limits(Limits::new().max(800))
        .group("a", tenant(Limits::new().max(half).low(half)))
        .group("b", tenant(Limits::new().soft(half)))
        .group("f", tenant(Limits::new().max(500)));
    apply(&first, &runtime);
    let before = state(&runtime);
    let _held = group(&runtime, "/f").charge(100).expect("it fits");
    let fails = GroupSpec::new()
        .group("a", tenant(Limits::new()))
        .group("b", tenant(Limits::new().share(3)))
        .group("f", tenant(Limits::new().max(50)));
    let error = fails.apply(&runtime.root()).expect_err("above max");
    assert!(matches!(error, SpecError::AboveMax { .. }), "{error}");
    assert_eq!(state(&runtime), before);
    // Whose they are is as before, too.
    let left_out = GroupSpec::new()
        .group("a", tenant(Limits::new()))
        .group("b", tenant(Limits::new()));
    let changes = apply(&left_out, &runtime).to_string();
    let gone = "/: max 800 B -> none\n\
                /a: low 50% -> 0 B, max 50% -> none\n\
                /b: soft 50% -> none\n";
    assert_eq!(changes, gone);
}
