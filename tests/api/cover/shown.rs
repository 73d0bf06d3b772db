use memcg::inspect::VerifyFaultKind;
use memcg::{BuildError, Freshness, Group, Limits, Runtime, StatKey, Unit};

use super::{Object, assert_figures, covering, group, runtime};

#[test]
fn a_subtree_has_what_its_groups_have() {
    let runtime = runtime();
    let acme = group(&runtime, "acme");
    let queries = [1_u64, 2].map(|number| {
        acme.create(number, Limits::new().cover_allocations())
            .unwrap()
    });
    let charges = queries.each_ref().map(|query| query.charge(100).unwrap());
    let objects = queries.each_ref().map(|query| Object::of(query, 130));
    // Its objects outlive it.
    queries[1].offline().unwrap();
    assert_figures(&queries[0], [130, 100, 130, 30]);
    assert_figures(&acme, [260, 200, 260, 60]);
    assert_figures(&runtime.root(), [260, 200, 260, 60]);
    assert_eq!(
        (
            acme.inspect().allocated_local(),
            queries[0].inspect().allocated_local()
        ),
        (0, 130)
    );
    assert_eq!(runtime.root().inspect().ledger_local().allocated(), 0);
    let ours = acme.charge(1_000).unwrap();
    let object = Object::of(&acme, 7);
    // Beside its own bytes what the group that went offline left behind, and nothing of the other
    // one.
    let local = acme.inspect().ledger_local();
    assert_eq!(
        (local.reserved(), local.allocated(), local.unpaid()),
        (1_100, 137, 30)
    );
    assert_eq!(
        (
            acme.inspect().live_local(),
            queries[0].inspect().ledger_local()
        ),
        (1_137, queries[0].ledger())
    );
    drop((object, ours));

    let snapshot = runtime.snapshot();
    let row = |path: &str| {
        snapshot
            .rows()
            .iter()
            .find(|row| row.path == path)
            .unwrap()
            .ledger
    };
    assert_eq!(
        (row("/acme").allocated(), row("/acme/1").unpaid()),
        (260, 30)
    );
    let shallow = runtime.root().snapshot(0);
    assert_eq!(
        (shallow.rows().len(), shallow.rows()[0].ledger.allocated()),
        (1, 260)
    );
    let table = snapshot.to_string();
    let [head, root, ..] = table.lines().collect::<Vec<_>>()[..] else {
        panic!("{table}")
    };
    assert!(
        head.contains("reserved") && head.contains("allocated") && head.contains("unpaid"),
        "{table}"
    );
    assert!(root.contains("260 B") && root.contains("60 B"), "{table}");
    assert!(
        table.lines().all(|line| line.chars().count() <= 80),
        "{table}"
    );
    drop((objects, charges));
    assert!(
        !runtime.snapshot().to_string().contains("allocated"),
        "a table without objects has no column for them"
    );
}

/// A group whose parent went offline, too, left its objects to the nearest group above that is
/// online.
#[test]
fn a_dying_group_leaves_its_objects_to_a_group_online() {
    let runtime = runtime();
    let acme = group(&runtime, "acme");
    let session = acme.create("session", Limits::new()).unwrap();
    let query = session.create("query", Limits::new()).unwrap();
    let object = Object::of(&query, 30);
    query.offline().unwrap();
    session.offline().unwrap();
    let row = |of: &Runtime| {
        of.snapshot()
            .rows()
            .iter()
            .find(|row| row.path == "/acme")
            .unwrap()
            .ledger
            .allocated()
    };
    assert_eq!(
        (
            acme.inspect().ledger_local().allocated(),
            acme.ledger().allocated(),
            row(&runtime)
        ),
        (30, 30, 30)
    );
    drop(object);
    assert_eq!(acme.ledger().allocated(), 0);
}

/// Above a group that covers as well: its reserved bytes pay for them.
#[test]
fn objects_of_a_dying_group_are_paid_for() {
    let runtime = runtime();
    let acme = group(&runtime, "acme");
    let query = covering(&acme, "query");
    let parts = ["one", "two"].map(|name| query.create(name, Limits::new()).unwrap());
    let charge = query.charge(100).unwrap();
    let objects = parts.each_ref().map(|part| Object::of(part, 70));
    for part in &parts {
        part.offline().unwrap();
        for level in [&query, &acme, &runtime.root()] {
            assert_figures(level, [140, 100, 140, 40]);
            assert_eq!(level.snapshot(0).rows()[0].ledger, query.ledger());
        }
    }
    assert_eq!(
        (
            query.inspect().ledger_local(),
            acme.inspect().ledger_local().allocated()
        ),
        (query.ledger(), 0)
    );
    drop((charge, objects));
}

const LEDGER: [(&str, StatKey); 3] = [
    ("reserved", StatKey::RESERVED),
    ("allocated", StatKey::ALLOCATED),
    ("unpaid", StatKey::UNPAID),
];

/// The items of the ledger in an exact read: of the subtree, and of the group alone.
#[track_caller]
fn assert_items(group: &Group, subtree: [i64; 3], local: [i64; 3]) {
    let now = group.read(Freshness::Exact);
    assert_eq!(
        LEDGER.map(|(_, stat)| now.get(stat)),
        subtree,
        "of {}",
        group.path()
    );
    assert_eq!(
        LEDGER.map(|(_, stat)| now.local(stat)),
        local,
        "of {} alone",
        group.path()
    );
    let bounds = LEDGER.map(|(_, stat)| now.max_error_of(stat));
    assert_eq!(
        (bounds, now.get(StatKey::ANON)),
        ([0; 3], 4_096),
        "another item is beside them"
    );
    assert_eq!(subtree[1].cast_unsigned(), group.ledger().allocated());
}

#[test]
fn statistics_have_the_ledger() {
    let runtime = runtime();
    let acme = group(&runtime, "acme");
    let queries = [1_u64, 2].map(|number| {
        acme.create(number, Limits::new().cover_allocations())
            .unwrap()
    });
    queries[0].stat_add(StatKey::ANON, 4_096);
    let charge = queries[0].charge(100).unwrap();
    let objects = [
        Object::of(&queries[0], 137),
        Object::of(&acme, 11),
        Object::of(&queries[1], 5),
    ];
    queries[1].offline().unwrap();
    assert_items(&queries[0], [100, 137, 37], [100, 137, 37]);
    assert_items(&acme, [100, 153, 42], [0, 16, 5]);
    assert_items(&runtime.root(), [100, 153, 42], [0; 3]);
    let left = |group: &Group| {
        let now = group.read(Freshness::Exact);
        let figures = [
            now.get(StatKey::LEFT_BEHIND),
            now.local(StatKey::LEFT_BEHIND),
        ];
        assert_eq!(figures[0].cast_unsigned(), group.ledger().left_behind());
        figures
    };
    assert_eq!(
        [&queries[0], &queries[1], &acme, &runtime.root()].map(left),
        [[0, 0], [5, 5], [5, 5], [5, 0]],
        "of the query that went offline"
    );

    for freshness in [Freshness::Stale, Freshness::Threshold, Freshness::Within(0)] {
        let now = acme.read(freshness);
        let figures = LEDGER.map(|(_, stat)| (now.get(stat), now.max_error_of(stat)));
        assert_eq!(figures, [(0, u64::MAX); 3], "they were not read");
    }
    let snapshot = runtime.snapshot();
    let row = snapshot
        .rows()
        .iter()
        .find(|row| row.path == "/acme")
        .unwrap();
    assert_eq!(LEDGER.map(|(name, _)| row.stats[name]), [100, 153, 42]);
    assert!(
        LEDGER
            .iter()
            .all(|&(name, _)| snapshot.items().any(|item| item == (name, Unit::Bytes)))
    );
    let table = snapshot.with_stats(&["unpaid"]).to_string();
    assert!(table.lines().nth(2).unwrap().ends_with("42 B"), "{table}");
    drop((objects, charge));
    assert_items(&acme, [0; 3], [0; 3]);
}

#[test]
fn no_thread_adds_to_the_ledger() {
    let runtime = runtime();
    let query = covering(&runtime.root(), "q");
    let charge = query.charge(100).unwrap();
    let _object = Object::of(&query, 60);
    for (number, (name, stat)) in (1..).zip(LEDGER) {
        // On cells that are not there yet, and on cells that are.
        query.stat_add(stat, 1_000);
        query.stat_add(StatKey::ANON, 1);
        charge.stat_add(stat, -7);
        assert_eq!(runtime.counts().foreign_stats, 2 * number, "{name}");
        let mut builder = Runtime::builder();
        let own = builder.stat(name, Unit::Bytes);
        assert_eq!(
            builder.build().unwrap_err(),
            BuildError::StatName(name.to_string()),
            "a name means one thing"
        );
        assert_ne!(own, stat);
        assert_eq!(format!("{stat:?}"), format!("StatKey({name})"));
    }
    assert_figures(&query, [100, 100, 60, 0]);
}

/// Bytes allocated beyond the reserved ones are charged at once: the next checkpoint refuses.
#[test]
fn a_checkpoint_sees_what_is_unpaid() {
    let runtime = runtime();
    let query = runtime
        .root()
        .create("q", Limits::new().max(1 << 20).cover_allocations())
        .unwrap();
    let _charge = query.charge(1 << 20).unwrap();
    let mut objects = Vec::new();
    query.run(|| {
        for allocated in (1..=400_u64).map(|count| count * 10_000) {
            objects.push(Object::new(10_000));
            assert_eq!(query.live(), allocated.max(1 << 20));
            assert_eq!(Group::checkpoint().is_ok(), allocated <= 1 << 20);
        }
        let error = Group::checkpoint().unwrap_err().to_string();
        assert!(
            error.starts_with("/q refuses a checkpoint of /q"),
            "{error}"
        );
    });
    drop(objects);
    assert!(query.run(Group::checkpoint).is_ok());
    assert_eq!(query.live(), 1 << 20);
}

#[test]
fn verify_finds_a_ledger_that_does_not_add_up() {
    let runtime = runtime();
    let query = group(&runtime, "q");
    let object = Object::of(&query, 100);
    query.raw().uncharge(40); // a bug: the object has them
    let verdict = runtime.verify();
    let ledger: Vec<_> = verdict
        .faults()
        .iter()
        .filter(|fault| fault.kind == VerifyFaultKind::Ledger)
        .collect();
    assert_eq!(ledger.len(), 2, "of the root and of the group: {verdict}");
    assert_eq!((ledger[1].expected, ledger[1].found), (60, 100));
    assert_eq!(
        ledger[1].to_string(),
        "/q: 100 are counted as allocated, 60 are or may be: 40 too many"
    );
    query.raw().force_charge(40);
    assert!(runtime.verify().is_ok());
    drop(object);
}

#[test]
fn verify_looks_at_marks_of_excess() {
    let runtime = runtime();
    for limits in [Limits::new(), Limits::new().cover_allocations()] {
        let query = runtime.root().scope("q", limits.max(100).high(50)).unwrap();
        for bytes in [40, 60, 150, 99, 3] {
            let charge = query.force_charge(bytes);
            let verdict = runtime.verify();
            assert!(verdict.is_ok(), "{bytes}: {verdict}");
            drop(charge);
            let verdict = runtime.verify();
            assert!(verdict.is_ok(), "after {bytes}: {verdict}");
        }
    }
}
