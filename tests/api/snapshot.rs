//! A snapshot: which groups it lists and in which order, what it prints, and that groups come and
//! go meanwhile.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use memcg::figures::{Snapshot, SnapshotRow};
use memcg::{Bytes, Charge, Event, Group, GroupName, Limit, Limits, Unit};

use crate::support::reclaimers::{KIB, MIB};
use crate::support::trees::{
    assert_empty, bare, build, charge, create, kinds, left_empty, limited, runtimes,
};
use crate::support::waiters::in_line;

fn paths(snapshot: &Snapshot) -> Vec<&str> {
    snapshot
        .rows()
        .iter()
        .map(|row| row.path.as_str())
        .collect()
}

#[track_caller]
fn assert_prints(snapshot: &Snapshot, text: &str) {
    assert_eq!(snapshot.to_string(), text);
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "wider than a terminal:\n{text}"
    );
    assert!(
        text.lines().all(|line| line == line.trim_end()),
        "blanks at the end of a line:\n{text}"
    );
}

// === The text ===

#[test]
fn a_tree_at_rest() {
    for builder in kinds() {
        let runtime = build(builder.max(Limit::gib(2)));
        let acme = limited(&runtime.root(), "acme", 512 * MIB);
        let queries =
            [1_u64, 2, 10].map(|number| acme.create(number, Limits::new()).expect("a free number"));
        let held = [
            charge(&queries[0], 300 * MIB),
            charge(&queries[2], 12 * KIB),
        ];
        let text = "\
path         live  %max      max
/         300 MiB   14%    2 GiB
/acme     300 MiB   58%  512 MiB
/acme/1   300 MiB     -        -
/acme/2       0 B     -        -
/acme/10   12 KiB     -        -
";
        assert_prints(&runtime.snapshot(), text);
        drop((held, queries, acme));
        assert_empty(&runtime);
    }
}

/// A column is there once a row has something in it.
#[test]
fn all_columns() {
    let runtime = build(bare());
    let limits = Limits::new()
        .max(Limit::kib(10))
        .high(Limit::kib(9))
        .low(Limit::kib(4));
    let acme = runtime.root().create("acme", limits).expect("a name");
    let idle = create(&runtime.root(), "idle");
    let forced = acme.force_charge(Bytes(12 * KIB));
    let waiters = [in_line(&acme, KIB), in_line(&acme, KIB)];
    let text = "\
path     live  %max     max   high    low  forced  waiting  events
/      12 KiB     -       -      -      -     0 B        0  max 2, overcharge 1
/acme  12 KiB  120%  10 KiB  9 KiB  4 KiB   2 KiB        2  max 2, overcharge 1
/idle     0 B     -       -      -      -     0 B        0
";
    let snapshot = runtime.snapshot();
    assert!(
        snapshot.rows()[1]
            .events()
            .any(|event| event == (Event::Overcharge, 1))
    );
    assert_prints(&snapshot, text);
    drop((waiters, forced, idle, acme));
    assert_empty(&runtime);
}

/// What a group has set has a column, and JSON has it. A low or a min may be all that there is.
#[test]
fn what_is_set_is_shown() {
    let runtime = build(bare().max(Limit::mib(64)));
    let root = runtime.root();
    let part = Limits::new().soft(Limit::mib(4)).min(Limit::mib(1));
    let whole = Limits::new()
        .low(Limit::Unlimited)
        .min(Limit::Unlimited)
        .importance(3);
    let _groups = [
        ("a", part),
        ("b", Limits::new().share(1).importance(0)),
        ("c", whole),
    ]
    .map(|(name, limits)| root.create(name, limits).expect("a name"));
    let text = "\
path  live  %max     max    soft  share  low    min  importance
/      0 B    0%  64 MiB       -      -    -      -           -
/a     0 B     -       -   4 MiB      -    -  1 MiB           -
/b     0 B     -       -  64 MiB      1    -      -           0
/c     0 B     -       -       -      -  max    max           3
";
    assert_prints(&runtime.snapshot(), text);
    let snapshot = runtime.snapshot();
    let [_, a, b, c] = snapshot.rows() else {
        panic!("four groups")
    };
    assert_eq!((a.share, a.importance), (0, None));
    assert_eq!((b.share, b.importance), (1, Some(0)));
    assert_eq!((c.low, c.min), (u64::MAX, u64::MAX));
    #[cfg(feature = "serde")]
    {
        let json = serde_json::to_value(&snapshot).expect("plain figures");
        assert_eq!(
            (&json[3]["low"], &json[3]["min"]),
            (&u64::MAX.into(), &u64::MAX.into())
        );
        assert_eq!((&json[0]["low"], &json[2]["share"]), (&0.into(), &1.into()));
        assert_eq!(json[2]["importance"], 0);
        assert!(json[1]["importance"].is_null());
    }
}

/// Columns of limits go first, then the beginning of a path, then the end of the events.
#[test]
fn it_fits_a_terminal() {
    let runtime = left_empty(build(bare().max(Limit::Bytes(1_023 * MIB + 900 * KIB))));
    let odd = |mib: u64| Limit::Bytes(mib * MIB + 900 * KIB);
    let limits = Limits::new().max(odd(1_000)).high(odd(999)).low(odd(998));
    let long = runtime
        .root()
        .create("a-tenant-whose-name-is-rather-long-for-a-terminal", limits)
        .expect("a name");
    let query = create(&long, "query-17");
    let _held = [
        query.force_charge(Bytes(1_000 * MIB)),
        query.force_charge(Bytes(100 * MIB)),
    ];
    assert!(query.charge(Bytes(500 * MIB)).is_err());
    let _waiter = in_line(&query, 3 * MIB);
    let text = runtime.snapshot().to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines.iter().all(|line| line.chars().count() <= 80),
        "\n{text}"
    );
    let head: Vec<&str> = lines[0].split_whitespace().collect();
    assert_eq!(
        head,
        ["path", "live", "%max", "forced", "waiting", "events"],
        "\n{text}"
    );
    assert!(
        lines[3].starts_with('…') && lines[3].contains("/query-17 "),
        "\n{text}"
    );
}

#[test]
fn percent_of_max() {
    let runtime = left_empty(build(bare()));
    let group = limited(&runtime.root(), "q", 1_000);
    let percent = || group.snapshot(0).rows()[0].percent_of_max;
    assert_eq!(percent(), Some(0));
    let mut held = charge(&group, 999);
    assert_eq!(percent(), Some(99), "rounded down");
    held.force_grow(11);
    assert_eq!(percent(), Some(101));
    group.set_max(0).expect("a number");
    assert_eq!(percent(), None);
    assert!(group.snapshot(0).to_string().contains(" -  0 B"));
    group.set_max(1).expect("a number");
    assert!(group.snapshot(0).to_string().contains(">999%"));
    group.set_max(Limit::Unlimited).expect("none");
    assert_eq!(percent(), None);
}

// === The groups ===

#[test]
fn parents_first_and_siblings_by_name() {
    let runtime = left_empty(build(bare()));
    let root = runtime.root();
    let name = |parent: &Group, name: GroupName<'_>| {
        parent.create(name, Limits::new()).expect("a free name")
    };
    let b = create(&root, "b");
    let a = create(&root, "a");
    let groups = [
        name(&root, GroupName::Unnamed),
        name(&root, GroupName::Number(10)),
        name(&root, GroupName::Number(9)),
        create(&a, "z"),
        create(&a, "10a"),
        create(&b, "y"),
    ];
    let snapshot = runtime.snapshot();
    let unnamed = groups[0].path();
    assert_eq!(
        paths(&snapshot),
        [
            "/", "/9", "/10", "/a", "/a/10a", "/a/z", "/b", "/b/y", &unnamed
        ]
    );
    assert_eq!(
        snapshot
            .rows()
            .iter()
            .map(|row| row.depth)
            .collect::<Vec<_>>(),
        [0, 1, 1, 1, 2, 2, 1, 2, 1]
    );
}

/// Groups below the depth have no rows, and what they hold is in the rows above.
#[test]
fn to_a_depth() {
    for runtime in runtimes() {
        let acme = create(&runtime.root(), "acme");
        let query = create(&acme, "q17");
        let [part, gone] = ["part", "gone"].map(|name| create(&query, name));
        let _held = [
            charge(&part, 3 * KIB),
            charge(&query, 5 * KIB),
            charge(&gone, 7 * KIB),
        ];
        gone.offline().expect("no children");
        let expected = ["/acme", "/acme/q17", "/acme/q17/part"];
        for depth in [0, 1, 2, 3, usize::MAX] {
            let snapshot = acme.snapshot(depth);
            assert_eq!(
                paths(&snapshot),
                expected[..expected.len().min(depth.saturating_add(1))]
            );
            let live = [15 * KIB, 15 * KIB, 3 * KIB];
            for (row, live) in snapshot.rows().iter().zip(live) {
                assert_eq!(row.live, live, "to a depth of {depth}, at {}", row.path);
            }
            // The last row does not know what its children hold, where no stock below is open.
            let own = [0, 12 * KIB, 3 * KIB];
            for (row, own) in snapshot.rows().iter().zip(own) {
                let is_known = row.depth < depth || row.path == expected[2];
                assert_eq!(
                    row.own.unwrap_or(own),
                    own,
                    "to a depth of {depth}, at {}",
                    row.path
                );
                assert!(
                    row.own.is_some() || !is_known,
                    "to a depth of {depth}, at {}",
                    row.path
                );
            }
        }
        assert_eq!(
            part.snapshot(9).rows()[0].depth,
            0,
            "counted from where it begins"
        );
    }
}

/// As a group says of itself, for each figure.
#[test]
fn each_figure_is_the_groups() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.max(Limit::mib(100))));
        let limits = Limits::new()
            .max(Limit::kib(64))
            .high(Limit::kib(60))
            .low(Limit::percent(25));
        let limits = limits.soft(Limit::kib(30)).min(Limit::kib(2));
        let acme = runtime.root().create("acme", limits).expect("a name");
        let queries = ["a", "b"].map(|name| create(&acme, name));
        let _held = queries.each_ref().map(|query| charge(query, 20 * KIB));
        assert!(queries[0].charge(Bytes(40 * KIB)).is_err());
        let _forced = queries[1].force_charge(Bytes(30 * KIB));
        let groups = [
            runtime.root(),
            acme.clone(),
            queries[0].clone(),
            queries[1].clone(),
        ];
        for (row, group) in runtime.snapshot().rows().iter().zip(&groups) {
            assert_eq!(row.path, group.path());
            assert_eq!(
                (row.live, row.usage, row.peak),
                (group.live(), group.usage(), group.peak()),
                "{}",
                row.path
            );
            assert_eq!(
                (row.max, row.high, row.low),
                (group.max(), group.inspect().high(), group.inspect().low()),
                "{}",
                row.path
            );
            assert_eq!(
                (row.soft, row.min),
                (group.inspect().soft(), group.inspect().min()),
                "{}",
                row.path
            );
            assert_eq!(
                (row.own, row.stocked_bound),
                (
                    Some(group.inspect().live_local()),
                    group.memory().stocked_bound()
                ),
                "{}",
                row.path
            );
            assert!(
                row.usage - row.live <= row.stocked_bound,
                "{}: the bound",
                row.path
            );
            assert_eq!(
                (row.forced, row.refused, row.waiting),
                (group.forced(), group.refused_count(), group.waiting_count())
            );
            let events = group.events();
            assert_eq!(
                row.events().collect::<Vec<_>>(),
                events
                    .iter()
                    .filter(|event| event.1 > 0)
                    .collect::<Vec<_>>(),
                "{}",
                row.path
            );
        }
    }
}

/// Each group's own bytes, and who holds most of them.
#[test]
fn own_bytes_and_holders() {
    for runtime in runtimes() {
        let root = runtime.root();
        let [a, b] = ["a", "b"].map(|name| create(&root, name));
        let below = create(&a, "below");
        let gone = create(&a, "gone");
        let _held = [
            charge(&a, 5 * KIB),
            charge(&b, 7 * KIB),
            charge(&below, 3 * KIB),
            charge(&gone, KIB),
        ];
        gone.offline().expect("no children");
        let snapshot = runtime.snapshot();
        let own: Vec<_> = snapshot
            .rows()
            .iter()
            .map(|row| (row.path.as_str(), row.own))
            .collect();
        let expected = [
            ("/", Some(0)),
            ("/a", Some(6 * KIB)),
            ("/a/below", Some(3 * KIB)),
            ("/b", Some(7 * KIB)),
        ];
        assert_eq!(
            own, expected,
            "a group that went offline counts where it was"
        );
        let sum: u64 = snapshot.rows().iter().filter_map(|row| row.own).sum();
        assert_eq!(sum, root.live(), "each byte is one group's own");
        for (n, holders) in [
            (0, &[][..]),
            (1, &["/b"]),
            (2, &["/b", "/a"]),
            (9, &["/b", "/a", "/a/below"]),
        ] {
            let top: Vec<_> = snapshot
                .top(n)
                .into_iter()
                .map(|row| row.path.as_str())
                .collect();
            assert_eq!(top, holders, "the first {n}");
        }
    }
}

/// The counters beside memory.
#[test]
fn counters_beside_memory() {
    let mut builder = bare();
    let spill = builder.counter("spill", memcg::Unit::Bytes);
    let files = builder.counter("files", Unit::Events);
    let runtime = left_empty(build(builder));
    let root = runtime.root();
    let acme = create(&root, "acme");
    acme.counter(files)
        .expect("declared")
        .set_max(3)
        .expect("a number");
    let _held = [
        acme.charge_set(&[(files, 2)]).expect("two of three"),
        root.charge_set(&[(spill, 500)]).expect("no limit"),
    ];
    assert!(acme.charge_set(&[(files, 2)]).is_err());
    let snapshot = runtime.snapshot();
    assert_eq!(
        snapshot.counters().collect::<Vec<_>>(),
        [("spill", Unit::Bytes), ("files", Unit::Events)]
    );
    for (row, group) in snapshot.rows().iter().zip([&root, &acme]) {
        for (name, counter) in [("spill", spill), ("files", files)] {
            let counter = group.counter(counter).expect("declared");
            let shown = row.counters[name];
            assert_eq!(
                (shown.usage, shown.max, shown.peak),
                (counter.usage(), counter.max(), counter.peak()),
                "{name}"
            );
            assert_eq!(
                (shown.stocked_bound, shown.refused),
                (counter.stocked_bound(), counter.refused_count()),
                "{name}"
            );
        }
    }
    let row = &snapshot.rows()[1];
    assert_eq!(
        (
            row.counters["files"].usage,
            row.counters["files"].refused,
            row.counters.len()
        ),
        (2, 1, 2)
    );
}

/// Of a group that is offline there is what it still holds.
#[test]
fn of_a_group_that_is_offline() {
    for runtime in runtimes() {
        let gone = create(&runtime.root(), "gone");
        let _held = charge(&gone, 5);
        gone.offline().expect("no children");
        let snapshot = gone.snapshot(usize::MAX);
        assert_eq!(
            (paths(&snapshot), snapshot.rows()[0].live),
            (vec!["/gone"], 5)
        );
        assert_eq!(paths(&runtime.snapshot()), ["/"]);
    }
}

#[test]
fn of_a_deep_tree_on_a_small_stack() {
    const LEVELS: usize = 2_000;
    let deep = || {
        let runtime = build(bare());
        let mut leaf = runtime.root();
        for _ in 0..LEVELS {
            leaf = create(&leaf, "x");
        }
        let held = charge(&leaf, 7);
        let snapshot = runtime.snapshot();
        assert_eq!(snapshot.rows().len(), LEVELS + 1);
        assert!(snapshot.rows().iter().all(|row| row.live == 7));
        drop((held, leaf));
        assert_empty(&runtime);
    };
    let thread = std::thread::Builder::new()
        .stack_size(512 << 10)
        .spawn(deep);
    thread
        .expect("a thread starts")
        .join()
        .expect("without recursion");
}

// === Beside other threads ===

/// Of this group the name tells the figures: `x7` has a max of 1,000,007 and charges 7 bytes.
const CAP: u64 = 1_000_000;
/// Such groups, at least.
const GROUPS: u64 = 10_000;
/// Such groups at most, where the reader gets no processor for long.
const MOST_GROUPS: u64 = 90 * GROUPS;

/// While snapshots are taken and printed, four threads create groups, charge them and take them
/// offline, until there have been 10,000 and the reader has seen one with its charge. Each row has
/// the figures of the group that it names, though others have had its place before. A group that
/// stays is in each snapshot once, after its parent, with what it holds.
#[test]
fn while_groups_come_and_go() {
    const STAY: usize = 60;
    for (is_bare, builder) in [true, false, false].into_iter().zip(kinds()) {
        let runtime = left_empty(build(builder));
        let root = runtime.root();
        let tenants = ["a", "b"].map(|name| create(&root, name));
        let stays: Vec<Group> = (0..STAY)
            .map(|number| create(&tenants[number % 2], &format!("stay{number}")))
            .collect();
        let _held: Vec<_> = stays.iter().map(|group| charge(group, 100)).collect();
        let next = AtomicU64::new(1);
        let at_work = AtomicUsize::new(4);
        let seen = AtomicBool::new(false);
        let mut charged = 0;
        let mut meanwhile = 0;
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let tenant = &tenants[thread % 2];
                let next = &next;
                let at_work = &at_work;
                let seen = &seen;
                scope.spawn(move || {
                    come_and_go(tenant, next, seen);
                    at_work.fetch_sub(1, Ordering::Relaxed);
                });
            }
            while at_work.load(Ordering::Relaxed) > 0 {
                let before = next.load(Ordering::Relaxed);
                let snapshot = runtime.snapshot();
                let text = snapshot.to_string();
                meanwhile += next.load(Ordering::Relaxed) - before;
                assert_eq!(text.lines().count(), snapshot.rows().len() + 1);
                check(&snapshot, &stays);
                charged += snapshot
                    .rows()
                    .iter()
                    .filter_map(|row| of_its_name(row, is_bare))
                    .sum::<usize>();
                seen.store(meanwhile > 0 && charged > 0, Ordering::Relaxed);
            }
        });
        assert!(meanwhile > 0, "no group was created during a snapshot");
        assert!(charged > 0, "no snapshot has such a group with its charge");
    }
}

/// Groups come and are charged, eight at a time, and those before them go. How fast a thread is
/// here says nothing of how often the reader runs, so it goes on until the reader has seen what it
/// looks for.
fn come_and_go(tenant: &Group, next: &AtomicU64, seen: &AtomicBool) {
    let end = |(charge, group): (Charge, Group)| {
        drop(charge);
        group.offline().expect("no children");
    };
    let mut before = Vec::new();
    loop {
        let first = next.fetch_add(8, Ordering::Relaxed);
        let last = if seen.load(Ordering::Relaxed) {
            GROUPS
        } else {
            MOST_GROUPS
        };
        let numbers = (first..first + 8).take_while(|&number| number <= last);
        let groups: Vec<(u64, Group)> = numbers
            .map(|number| (number, limited(tenant, &format!("x{number}"), CAP + number)))
            .collect();
        let is_last = groups.is_empty();
        let charged = groups
            .into_iter()
            .map(|(number, group)| (charge(&group, number), group))
            .collect();
        std::mem::replace(&mut before, charged)
            .into_iter()
            .for_each(end);
        if is_last {
            return;
        }
    }
}

/// Tells if a group that comes and goes has its charge now. Its figures are those of its name:
/// without credit as they are, else within the bound on it.
#[track_caller]
fn of_its_name(row: &SnapshotRow, is_bare: bool) -> Option<usize> {
    let (_, number) = row.path.rsplit_once("/x")?;
    let number: u64 = number.parse().expect("a number");
    assert_eq!(row.max, CAP + number, "{row:?}");
    let is_held =
        |held: &u64| (row.usage.saturating_sub(row.stocked_bound)..=row.usage).contains(held);
    assert!([0, number].iter().any(is_held), "{row:?}");
    if is_bare {
        assert!(
            [0, number].contains(&row.live) && row.usage - row.live <= row.stocked_bound,
            "{row:?}"
        );
        assert!([0, number].contains(&row.peak), "{row:?}");
    }
    Some(usize::from(row.live > 0))
}

#[track_caller]
fn check(snapshot: &Snapshot, stays: &[Group]) {
    let mut seen = HashSet::new();
    for row in snapshot.rows() {
        let ledger = row.ledger;
        assert!(
            row.live <= row.usage && row.own.is_some_and(|own| own <= row.live),
            "{row:?}"
        );
        assert_eq!(row.forced, row.usage.saturating_sub(row.max), "{row:?}");
        assert_eq!(ledger.reserved() + ledger.allocated(), row.live, "{row:?}");
        let (parent, _) = row.path.rsplit_once('/').expect("a path");
        assert!(
            row.path == "/" || seen.contains(if parent.is_empty() { "/" } else { parent }),
            "{}",
            row.path
        );
        assert!(seen.insert(row.path.as_str()), "{} twice", row.path);
        if row.path.contains("stay") {
            assert_eq!(row.live, 100, "{}", row.path);
        }
    }
    assert!(
        stays
            .iter()
            .all(|group| seen.contains(group.path().as_str()))
    );
}

// === As data ===

#[cfg(feature = "serde")]
#[test]
fn as_json() {
    let runtime = build(bare().max(Limit::Bytes(100)));
    assert!(runtime.root().charge(101).is_err());
    let json = serde_json::to_value(runtime.snapshot()).expect("plain figures");
    assert_eq!(json[0]["path"], "/");
    assert_eq!(
        (&json[0]["max"], &json[0]["percent_of_max"]),
        (&100.into(), &0.into())
    );
    assert!(
        json[0]["high"].is_null() && json[0]["soft"].is_null() && json[0]["low"] == 0,
        "no limit is null"
    );
    assert_eq!(json[0]["events"], serde_json::json!({"max": 1, "oom": 1}));
    assert_eq!(
        (&json[0]["own"], &json[0]["stocked_bound"]),
        (&0.into(), &0.into())
    );
    assert_eq!(json[0]["counters"], serde_json::json!({}));
}
