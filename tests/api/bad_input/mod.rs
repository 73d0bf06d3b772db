//! Input that does not hold: names, limits, configurations, sizes, and use at the wrong time. Every
//! answer is a typed error of one line, and nothing is lost by it.

mod configurations;

use std::error::Error;

use memcg::errors::{CreateError, LimitError, NameError};
use memcg::{Bytes, Charge, CounterKey, Group, Limit, Limits, Runtime};

const USAGE_MAX: u64 = (1 << 63) - 1;

/// R{acme{q}}, of which 30 bytes are held, so that there is something to lose.
struct Held {
    runtime: Runtime,
    acme: Group,
    query: Group,
    charge: Charge,
}

impl Held {
    fn new() -> Self {
        let runtime = Runtime::builder()
            .audit(true)
            .max(1_000)
            .build()
            .expect("a configuration");
        let acme = runtime
            .root()
            .create("acme", Limits::new())
            .expect("a name");
        let query = acme.create("q", Limits::new()).expect("a name");
        let charge = query.charge(30).expect("room");
        Self {
            runtime,
            acme,
            query,
            charge,
        }
    }

    /// Everything is as it was.
    #[track_caller]
    fn assert_whole(&self) {
        let verdict = self.runtime.verify();
        assert!(verdict.is_ok() && verdict.audited(), "{verdict}");
        let root = self.runtime.root();
        assert_eq!([&root, &self.acme, &self.query].map(Group::live), [30; 3]);
        assert_eq!(
            (
                self.charge.bytes(),
                self.runtime.group_count(),
                self.runtime.dying_count()
            ),
            (30, 3, 0)
        );
        assert_eq!(self.runtime.group("/acme/q").as_ref(), Some(&self.query));
    }
}

impl Drop for Held {
    /// No thread keeps anything that an error had.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.acme.offline_tree();
            self.charge.shrink(Bytes(u64::MAX));
            self.runtime.settle();
            assert_eq!(
                (self.runtime.root().usage(), self.runtime.dying_count()),
                (0, 2),
                "two handles"
            );
        }
    }
}

/// An error prints one line that a log can take.
#[track_caller]
fn assert_says(error: &dyn Error, text: &str) {
    let said = error.to_string();
    assert_eq!(said, text);
    assert!(
        !said.contains(char::is_control) && !said.ends_with('.'),
        "{said:?}"
    );
    assert!(!format!("{error:?}").contains('\n'));
}

// === Names ===

#[test]
fn names_that_are_none() {
    let held = Held::new();
    let long = "x".repeat(Group::NAME_MAX + 1);
    for (name, fault, text) in [
        ("", NameError::Empty, "a name is not empty"),
        (
            long.as_str(),
            NameError::TooLong,
            "a name has at most 255 bytes",
        ),
        ("a/b", NameError::Slash, "a name has no `/`"),
        ("/", NameError::Slash, "a name has no `/`"),
        (
            "a\nb",
            NameError::Control,
            "a name has no control characters",
        ),
        ("\0", NameError::Control, "a name has no control characters"),
        (
            "\u{1b}[31m",
            NameError::Control,
            "a name has no control characters",
        ),
        (
            "\u{85}",
            NameError::Control,
            "a name has no control characters",
        ),
        (
            "\u{202e}txt.a",
            NameError::Format,
            "a name has no format characters and no separators of lines",
        ),
        (
            "a\u{2028}b",
            NameError::Format,
            "a name has no format characters and no separators of lines",
        ),
        (
            "a\u{2029}b",
            NameError::Format,
            "a name has no format characters and no separators of lines",
        ),
        (
            "a\u{200b}",
            NameError::Format,
            "a name has no format characters and no separators of lines",
        ),
        (
            "\u{e0041}",
            NameError::Format,
            "a name has no format characters and no separators of lines",
        ),
        ("#1.0", NameError::Sharp, "a name does not begin with `#`"),
        ("#", NameError::Sharp, "a name does not begin with `#`"),
        (".", NameError::Dots, "a name is neither `.` nor `..`"),
        ("..", NameError::Dots, "a name is neither `.` nor `..`"),
    ] {
        let error = held.acme.create(name, Limits::new()).expect_err(text);
        let beginning = if fault == NameError::TooLong {
            format!("{}…", "x".repeat(64))
        } else {
            name.to_string()
        };
        assert_says(
            &error,
            &format!("cannot create {beginning:?} in /acme: {text}"),
        );
        match error {
            CreateError::Name {
                parent,
                name: named,
                fault: found,
            } => {
                assert_eq!(
                    (parent, named, found),
                    (held.acme.clone(), beginning, fault)
                );
            }
            other => panic!("{other:?}"),
        }
        held.assert_whole();
    }
    // Just within.
    for name in [
        &long[1..],
        &"ü".repeat(127),
        " ",
        "...",
        ".a",
        "a#1.0",
        "a.b\\c",
        "max",
    ] {
        let group = held
            .acme
            .create(name, Limits::new())
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            (&*group.name(), group.path()),
            (name, format!("/acme/{name}"))
        );
        assert_eq!(held.runtime.group(&group.path()).as_ref(), Some(&group));
        group.offline().expect("no children");
    }
    held.assert_whole();
    // Of a name that is one an error prints as much, and has it all.
    let taken = held.acme.create(&long[1..], Limits::new()).expect("a name");
    let error = held
        .acme
        .create(&long[1..], Limits::new().max(1))
        .expect_err("taken");
    let name = "x".repeat(64);
    assert_says(
        &error,
        &format!(
            "cannot create \"{name}…\" in /acme: the name is taken; get_or_create returns that group"
        ),
    );
    // The first keeps its limits.
    assert!(
        matches!(&error, CreateError::Taken { group } if *group == taken && group.max() > 1),
        "{error:?}"
    );
    taken.offline().expect("no children");
    drop((taken, error));
    let of_two = "ü".repeat(128);
    assert!(
        held.acme.create(&of_two, Limits::new()).is_err(),
        "256 bytes, 128 characters"
    );
}

#[test]
fn a_parent_that_is_offline() {
    let held = Held::new();
    let gone = held.acme.create("gone", Limits::new()).expect("a name");
    gone.offline().expect("no children");
    let error = gone.create("late", Limits::new()).expect_err("offline");
    assert_says(
        &error,
        "cannot create \"late\" in /acme/gone: /acme/gone is offline",
    );
    assert!(
        matches!(error, CreateError::Offline { parent, name } if parent == gone && name == "late")
    );
    drop(gone);
    held.assert_whole();
}

#[test]
fn the_most_groups() {
    for further in 0..3_usize {
        let mut builder = Runtime::builder().groups_max(4);
        let counters: Vec<CounterKey> = (0..further)
            .map(|number| builder.counter(&format!("c{number}"), memcg::Unit::Bytes))
            .collect();
        let runtime = builder.build().expect("a configuration");
        let root = runtime.root();
        let mut groups: Vec<Group> = ["a", "b", "c"]
            .iter()
            .map(|name| root.create(name, Limits::new()).expect("room"))
            .collect();
        let refused = |name: &str| {
            let error = root.create(name, Limits::new()).expect_err("the most");
            assert_says(
                &error,
                &format!(
                    "cannot create {name:?} in /: there are 4 groups, as many as groups_max allows"
                ),
            );
            assert!(matches!(error, CreateError::Full { parent, most: 4, .. } if parent == root));
            assert_eq!(runtime.group_count() + runtime.dying_count(), 4);
        };
        refused("d");
        // One that is dying counts until it is gone, whichever of its counters is the last.
        let last = groups.pop().expect("three");
        let held = last.force_charge(0);
        let spilt = counters
            .last()
            .map(|&spill| last.charge_set(&[(spill, 5)]).expect("room"));
        last.offline().expect("no children");
        drop(last);
        refused("c");
        drop(held);
        if let Some(spilt) = spilt {
            let error = root
                .create("c", Limits::new())
                .expect_err("a counter of it is charged");
            assert!(matches!(error, CreateError::Full { .. }));
            drop(spilt);
        }
        groups.push(root.create("c", Limits::new()).expect("room again"));
        refused("d");
        assert!(runtime.verify().is_ok());
    }
    let only = Runtime::builder()
        .groups_max(1)
        .build()
        .expect("a configuration");
    assert!(matches!(
        only.root().create("a", Limits::new()),
        Err(CreateError::Full { most: 1, .. })
    ));
    let many = Runtime::builder()
        .groups_max(u32::MAX)
        .build()
        .expect("a configuration");
    assert!(many.root().create("a", Limits::new()).is_ok());
}

// === Limits ===

#[test]
fn a_percentage_of_nothing() {
    let runtime = Runtime::builder()
        .audit(true)
        .build()
        .expect("a configuration");
    let acme = runtime
        .root()
        .create("acme", Limits::new().max(10))
        .expect("a name");
    let tenth: Limit = "10%".parse().expect("a percentage");
    for (error, name) in [
        (acme.set_max(tenth), "max"),
        (acme.set_limits(Limits::new().min(tenth)), "min"),
        (acme.set_limits(Limits::new().low(tenth)), "low"),
        (acme.set_limits(Limits::new().soft(tenth)), "soft"),
    ] {
        let error = error.expect_err("no ancestor has a max");
        assert_says(
            &error,
            &format!(
                "cannot set {name} 10% for /acme: no group above has a max; set one, or bytes here"
            ),
        );
        assert!(
            matches!(error, LimitError::NoLimitedAncestor { group, limit, .. } if group == acme && limit == name)
        );
    }
    assert_eq!(
        (acme.max(), acme.inspect().min(), acme.inspect().low()),
        (10, 0, 0),
        "the old ones hold"
    );
    for limits in [
        Limits::new().max(tenth),
        Limits::new().min(tenth),
        Limits::new().low(tenth),
    ] {
        let error = runtime
            .root()
            .create("new", limits)
            .expect_err("no ancestor has a max");
        assert!(matches!(
            error,
            CreateError::Limit(LimitError::NoLimitedAncestor { .. })
        ));
    }
    assert_eq!((runtime.group_count(), runtime.dying_count()), (2, 0));
    assert!(runtime.verify().is_ok());
}

#[test]
fn limits_that_contradict_each_other() {
    type Setter = fn(Limits, Limit) -> Limits;
    let setters: [(&str, Setter); 5] = [
        ("min", |limits, limit| limits.min(limit)),
        ("low", |limits, limit| limits.low(limit)),
        ("high", |limits, limit| limits.high(limit)),
        ("soft", |limits, limit| limits.soft(limit)),
        ("max", |limits, limit| limits.max(limit)),
    ];
    let belongs_below = |lower: &str, upper: &str| match upper {
        "max" => lower != "max",
        "high" | "soft" => ["min", "low"].contains(&lower),
        _ => false,
    };
    let runtime = Runtime::builder()
        .max(100)
        .build()
        .expect("a configuration");
    for (lower, set_lower) in setters {
        for (upper, set_upper) in setters.into_iter().filter(|(upper, _)| *upper != lower) {
            for [above, below] in [
                [Limit::bytes(11), Limit::bytes(10)],
                [Limit::percent(11), Limit::percent(10)],
            ] {
                let fine = set_upper(set_lower(Limits::new(), below), above);
                let equal = set_upper(set_lower(Limits::new(), below), below);
                let crossed = set_upper(set_lower(Limits::new(), above), below);
                assert_eq!(equal.check(), Ok(()), "{lower} equals {upper}");
                assert_eq!(
                    fine.check().is_ok(),
                    !belongs_below(upper, lower),
                    "{lower} below {upper}"
                );
                let found = crossed
                    .check()
                    .err()
                    .map(|error| (error.lower(), error.upper()));
                let expected =
                    belongs_below(lower, upper).then_some(((lower, above), (upper, below)));
                assert_eq!(found, expected, "{lower} above {upper}");
                runtime
                    .root()
                    .create("crossed", crossed)
                    .expect("as the kernel does")
                    .offline()
                    .expect("no child");
            }
        }
    }
    let unlimited = Limits::new().low(Limit::Unlimited).max(10);
    assert_eq!(
        unlimited.check(),
        Ok(()),
        "all of what it holds is protected"
    );
    assert_eq!(
        Limits::new().low(Limit::percent(90)).max(10).check(),
        Ok(()),
        "nothing is known of the percentage"
    );
    assert_eq!((runtime.group_count(), runtime.dying_count()), (1, 0));
}

#[test]
fn the_largest_limits() {
    let held = Held::new();
    for group in [&held.runtime.root(), &held.query] {
        for limit in [
            Limit::Bytes(u64::MAX),
            Limit::Unlimited,
            Limit::Bytes(USAGE_MAX),
            Limit::Bytes(USAGE_MAX + 1),
        ] {
            assert_eq!(group.set_max(limit).expect("a number"), 0);
            group
                .set_limits(Limits::new().min(limit))
                .expect("a number");
            group
                .set_limits(Limits::new().low(limit))
                .expect("a number");
            held.assert_whole();
        }
        assert_eq!(group.set_max(0).expect("a number"), 30);
        assert_eq!(
            (group.forced(), group.limits().max),
            (30, Some(Limit::Bytes(0)))
        );
        group.set_max(Limit::Unlimited).expect("none");
        held.assert_whole();
    }
    held.query.memory().set_batch(u64::MAX);
    held.query.memory().set_batch(0);
    held.assert_whole();
}

// === Sizes ===

#[test]
fn the_largest_sizes() {
    for max in [Limit::Unlimited, Limit::Bytes(1_000)] {
        let mut held = Held::new();
        held.runtime.root().set_max(max).expect("a number");
        for bytes in [u64::MAX, u64::MAX - 29, 1 << 63, USAGE_MAX, USAGE_MAX - 29] {
            let refused = held.query.charge(Bytes(bytes)).expect_err("does not fit");
            assert!(
                refused
                    .over_limit()
                    .is_some_and(|refusal| refusal.requested() == bytes)
            );
            assert!(!refused.to_string().contains('\n'));
            assert!(held.charge.grow(Bytes(bytes)).is_err());
            assert!(
                held.query
                    .charge_set(&[(CounterKey::MEMORY, Bytes(bytes))])
                    .is_err()
            );
            assert!(held.charge.resize(Bytes(bytes.saturating_add(30))).is_err());
            let split = held
                .charge
                .split(Bytes(bytes))
                .expect_err("more than there is");
            assert_eq!((split.requested, split.bytes), (bytes, 30));
            assert_says(
                &split,
                &format!("cannot split off {:#}: the charge holds 30 B", Bytes(bytes)),
            );
            held.assert_whole();
        }
        assert!(held.charge.split(31).is_err());
        let mut part = held.charge.split(30).expect("all of it");
        assert_eq!((part.shrink(Bytes(u64::MAX)), part.bytes()), (30, 0));
        held.charge.force_grow(30);
        drop(part);
        held.assert_whole();
    }
}

/// By force usage ends at 2^63 - 1, and what cannot be counted is not charged.
#[test]
fn the_largest_forced_charges() {
    let mut held = Held::new();
    let all = held.query.force_charge(Bytes(u64::MAX));
    assert_eq!(
        (all.bytes(), held.query.usage()),
        (USAGE_MAX - 30, USAGE_MAX)
    );
    let none = held.query.force_charge(Bytes(u64::MAX));
    assert_eq!(none.bytes(), 0);
    held.charge.force_grow(Bytes(u64::MAX));
    assert_eq!(
        (held.charge.bytes(), held.runtime.counts().overflows),
        (30, 3)
    );
    assert!(held.runtime.verify().is_ok());
    let root = held.runtime.root();
    assert_eq!(
        (root.forced(), root.usage() - root.forced()),
        (USAGE_MAX - 1_000, 1_000)
    );
    drop((all, none));
    assert_eq!(root.forced(), 0);
    held.assert_whole();
}

// === The wrong time, the wrong place ===

#[test]
fn charging_a_group_that_is_offline() {
    let held = Held::new();
    let gone = held.acme.create("gone", Limits::new()).expect("a name");
    let mut left = gone.charge(5).expect("room");
    gone.offline().expect("no children");
    for bytes in [0, 1, 1 << 20, u64::MAX] {
        let error = gone.charge(Bytes(bytes)).expect_err("offline");
        assert_says(
            &error,
            &format!(
                "/acme/gone is offline: {} refused; charge a group that is online",
                Bytes(bytes)
            ),
        );
        assert!(error.is_offline() && *error.group() == gone && error.requested() == bytes);
        assert!(
            gone.charge_set(&[(CounterKey::MEMORY, Bytes(bytes))])
                .is_err()
        );
    }
    assert!(left.grow(1).is_err() && left.resize(6).is_err());
    left.resize(4).expect("less");
    assert_eq!(gone.live(), 4);
    drop((left, gone));
    held.assert_whole();
}

#[test]
fn taking_a_parent_offline() {
    let held = Held::new();
    let error = held.acme.offline().expect_err("it has a child");
    assert_says(
        &error,
        "/acme has 1 child online: take it offline first, or all with offline_tree",
    );
    assert_eq!((&error.group, error.children), (&held.acme, 1));
    assert!(held.runtime.root().offline().is_err());
    held.assert_whole();
}

/// The root is its runtime's: nothing but the drop of the last handle takes it offline, and then
/// all say so.
#[test]
fn taking_the_root_offline() {
    let held = Held::new();
    let root = held.runtime.root();
    let error = root.offline().expect_err("the runtime has a handle");
    assert_says(
        &error,
        "/ is the root: it goes offline when the last handle of its Runtime is dropped",
    );
    assert_eq!(
        (&error.group, error.children),
        (&root, root.children().len())
    );
    held.assert_whole();
    let runtime = Runtime::builder().build().expect("a configuration");
    let root = runtime.root();
    let a = runtime.root().create("a", Limits::new()).expect("a name");
    root.offline_tree();
    assert_eq!(
        (a.is_offline(), root.is_offline(), root.children().len()),
        (true, false, 0)
    );
    let b = root
        .create("b", Limits::new())
        .expect("the root takes groups");
    drop(b.charge(Bytes(10)).expect("and charges"));
    assert_says(
        &a.charge(Bytes(10)).expect_err("it is offline"),
        "/a is offline: 10 B refused; charge a group that is online",
    );
    drop(runtime);
    root.offline().expect("it is offline already");
    for (group, path) in [(&a, "/a"), (&b, "/b"), (&root, "/")] {
        let line = format!(
            "the runtime of {path} is gone: 10 B refused; keep a handle of the Runtime as long as its groups charge"
        );
        assert_says(&group.charge(Bytes(10)).expect_err("it is offline"), &line);
    }
    let error = b
        .create("c", Limits::new())
        .expect_err("its parent is offline");
    assert_says(
        &error,
        "cannot create \"c\" in /b: its runtime is gone, and /b is offline",
    );
}

#[test]
fn merging_charges_of_two_groups() {
    let mut builder = Runtime::builder().audit(true);
    let spill = builder.counter("spill", memcg::Unit::Bytes);
    let runtime = builder.build().expect("a configuration");
    let [a, b] = ["a", "b"].map(|name| runtime.root().create(name, Limits::new()).expect("a name"));
    for bytes in [0, 5] {
        let mut ours = a.charge(10).expect("room");
        let theirs = b.charge(Bytes(bytes)).expect("room");
        let error = ours.merge(theirs).expect_err("two groups");
        assert_says(&error, "a charge of /b does not merge into one of /a");
        let theirs = error.into_charge();
        assert_eq!(
            (ours.bytes(), theirs.bytes(), theirs.group()),
            (10, bytes, b.clone())
        );
        // An error that is dropped unread gives the charge back.
        drop(ours.merge(theirs));
        assert_eq!((a.live(), b.live()), (10, 0));
        // Another counter of the same group.
        let [spilt] = a.charge_set(&[(spill, Bytes(bytes))]).expect("room");
        let spilt = ours.merge(spilt).expect_err("two counters").into_charge();
        assert_eq!((ours.bytes(), spilt.bytes()), (10, bytes));
        assert!(runtime.verify().is_ok());
    }
    let [a, b] = [a, b].map(|group| group.offline().map(|()| drop(group)));
    assert!(a.is_ok() && b.is_ok());
    runtime.settle();
    assert_eq!(
        (runtime.dying_count(), runtime.root().usage()),
        (0, 0),
        "no error keeps a group"
    );
}

#[test]
fn a_counter_of_another_runtime() {
    let held = Held::new();
    let mut builder = Runtime::builder();
    let spill = builder.counter("spill", memcg::Unit::Bytes);
    let error = held
        .query
        .charge_set(&[(CounterKey::MEMORY, 5), (spill, 5)])
        .expect_err("not declared");
    assert_says(
        &error,
        "/acme/q has no counter number 1: it is one of another runtime",
    );
    assert!(error.is_other_runtime() && *error.group() == held.query);
    assert!(held.query.charge_set(&[(spill, 0)]).is_err());
    assert!(matches!(held.query.counter(spill).map(drop), Err(error) if error.is_other_runtime()));
    held.assert_whole();
    let theirs = builder.build().expect("a configuration");
    let there = theirs
        .root()
        .create("there", Limits::new())
        .expect("a name");
    let mut held = held;
    let error = held.charge.transfer(&there).expect_err("two runtimes");
    assert_says(&error, "/acme/q and /there belong to two runtimes");
    drop(error);
    // A counter that only they have cannot come to us either.
    let [mut spilt] = there.charge_set(&[(spill, 3)]).expect("room");
    assert!(matches!(spilt.transfer(&held.query), Err(error) if error.is_other_runtime()));
    held.assert_whole();
}

#[test]
fn a_refusal_names_the_group_and_the_reason() {
    let held = Held::new();
    held.acme.set_max(Limit::mib(512)).expect("a number");
    held.runtime.root().set_max(Limit::Unlimited).expect("none");
    let refused = held
        .query
        .charge(Bytes(u64::MAX))
        .expect_err("does not fit");
    assert_says(
        &refused,
        "/acme refused 16 EiB for /acme/q: short by 16 EiB, usage 30 B of max 512 MiB; most in /acme/q 30 B; neither \
         waiting nor reclaim can help; to fit, raise max of /acme or charge less",
    );
    let source = refused.source().expect("the figures");
    assert_eq!(
        source.to_string(),
        "the limit of /acme, usage 30 B of max 512 MiB",
    );
    let Some(refusal) = refused.over_limit() else {
        panic!("a limit")
    };
    assert_eq!(
        (refusal.group(), refusal.requester()),
        (&held.acme, &held.query)
    );
    assert_eq!(
        (refusal.usage(), refusal.max(), refusal.stocked_bound()),
        (30, 512 << 20, 0)
    );
    // Without a limit it is the largest number that refuses.
    held.acme.set_max(Limit::Unlimited).expect("none");
    let refused = held
        .query
        .charge(Bytes(u64::MAX))
        .expect_err("does not fit");
    assert_says(
        &refused,
        "/acme/q refused 16 EiB for /acme/q: short by 8 EiB, usage 30 B; neither waiting nor reclaim can help; \
         charge less: no group counts more than 8 EiB",
    );
    drop((refusal, refused));
    held.assert_whole();
}
