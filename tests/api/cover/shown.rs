use memcg::expert::FaultKind;
use memcg::{BuildError, Freshness, Group, Limits, Runtime, Stat, Unit};

use super::{Object, assert_figures, assert_verified, charged, group, runtime};

#[test]
fn a_subtree_has_what_its_groups_have() {
    let runtime = runtime();
    let acme = group(&runtime, "acme");
    let queries = [1_u64, 2].map(|number| acme.create(number, Limits::new()).unwrap());
    let charges = queries.each_ref().map(|query| query.try_charge(100).unwrap());
    let covered = charges.each_ref().map(|charge| charge.cover(|| Object::new(130)));
    let owned = queries.each_ref().map(|query| query.run(|| Object::new(7)));
    // Its objects outlive it.
    queries[1].offline().unwrap();
    assert_figures(&queries[0], [137, 100, 130, 7, 30]);
    assert_figures(&acme, [274, 200, 260, 14, 60]);
    assert_figures(&runtime.root(), [274, 200, 260, 14, 60]);
    assert_eq!((acme.allocated_local(), queries[0].allocated_local()), (0, 137));
    assert_eq!(runtime.root().ledger_local().allocated(), 0);
    let mut ours = acme.try_charge(1_000).unwrap();
    let object = ours.cover(|| Object::new(1_003));
    // Beside its own bytes what the group that went offline left behind, and nothing of the other one.
    let local = acme.ledger_local();
    assert_eq!((local.reserved(), local.covering()), (1_100, 1_100));
    assert_eq!((local.covered(), local.uncovered(), local.unpaid()), (1_133, 7, 33));
    assert_eq!((acme.live_local(), queries[0].ledger_local()), (1_100 + 7 + 33, queries[0].ledger()));
    ours.shrink(1_000);
    drop((object, ours));

    let snapshot = runtime.snapshot();
    let row = |path: &str| snapshot.rows().iter().find(|row| row.path == path).unwrap().ledger;
    assert_eq!((row("/acme").allocated(), row("/acme/1").unpaid()), (274, 30));
    let shallow = runtime.root().snapshot(0);
    assert_eq!((shallow.rows().len(), shallow.rows()[0].ledger.allocated()), (1, 274));
    let table = snapshot.to_string();
    let [head, root, ..] = table.lines().collect::<Vec<_>>()[..] else { panic!("{table}") };
    assert!(head.contains("reserved") && head.contains("allocated") && head.contains("unpaid"), "{table}");
    assert!(root.contains("274 B") && root.contains("60 B"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    drop((covered, owned, charges));
    assert!(!runtime.snapshot().to_string().contains("allocated"), "a table without objects has no column for them");
}

/// A group whose parent went offline, too, left its objects to the nearest group above that is online.
#[test]
fn a_dying_group_leaves_its_objects_to_a_group_online() {
    let runtime = runtime();
    let acme = group(&runtime, "acme");
    let session = acme.create("session", Limits::new()).unwrap();
    let query = session.create("query", Limits::new()).unwrap();
    let object = query.run(|| Object::new(30));
    query.offline().unwrap();
    session.offline().unwrap();
    let row = |of: &Runtime| of.snapshot().rows().iter().find(|row| row.path == "/acme").unwrap().ledger.allocated();
    assert_eq!((acme.ledger_local().allocated(), acme.ledger().allocated(), row(&runtime)), (30, 30, 30));
    drop(object);
    assert_eq!(acme.ledger().allocated(), 0);
}

const LEDGER: [(&str, Stat); 5] = [
    ("reserved", Stat::RESERVED),
    ("allocated", Stat::ALLOCATED),
    ("covered", Stat::COVERED),
    ("uncovered", Stat::UNCOVERED),
    ("unpaid", Stat::UNPAID),
];

/// The items of the ledger in an exact read: of the subtree, and of the group alone.
#[track_caller]
fn assert_items(group: &Group, subtree: [i64; 5], local: [i64; 5]) {
    let now = group.read(Freshness::Exact);
    assert_eq!(LEDGER.map(|(_, stat)| now.get(stat)), subtree, "of {}", group.path());
    assert_eq!(LEDGER.map(|(_, stat)| now.local(stat)), local, "of {} alone", group.path());
    let bounds = LEDGER.map(|(_, stat)| now.max_error_of(stat));
    let [reserved, allocated, .., uncovered, unpaid] = subtree;
    assert_eq!((bounds, now.get(Stat::ANON)), ([0; 5], 4_096), "another item is beside them");
    assert_eq!(reserved + uncovered + unpaid, group.live().cast_signed());
    assert_eq!(allocated.cast_unsigned(), group.ledger().allocated());
}

#[test]
fn statistics_have_the_ledger() {
    let runtime = runtime();
    let acme = group(&runtime, "acme");
    let queries = [1_u64, 2].map(|number| acme.create(number, Limits::new()).unwrap());
    queries[0].stat_add(Stat::ANON, 4_096);
    let charge = queries[0].try_charge(100).unwrap();
    let objects = [charge.cover(|| Object::new(130)), queries[0].run(|| Object::new(7))];
    let ours = [acme.run(|| Object::new(11)), queries[1].run(|| Object::new(5))];
    queries[1].offline().unwrap();
    assert_items(&queries[0], [100, 137, 130, 7, 30], [100, 137, 130, 7, 30]);
    assert_items(&acme, [100, 153, 130, 23, 30], [0, 16, 0, 16, 0]);
    assert_items(&runtime.root(), [100, 153, 130, 23, 30], [0; 5]);

    for freshness in [Freshness::Stale, Freshness::Threshold, Freshness::Within(0)] {
        let now = acme.read(freshness);
        let figures = LEDGER.map(|(_, stat)| (now.get(stat), now.max_error_of(stat)));
        assert_eq!(figures, [(0, u64::MAX); 5], "they were not read");
    }
    let snapshot = runtime.snapshot();
    let row = snapshot.rows().iter().find(|row| row.path == "/acme").unwrap();
    assert_eq!(LEDGER.map(|(name, _)| row.stats[name]), [100, 153, 130, 23, 30]);
    assert!(LEDGER.iter().all(|&(name, _)| snapshot.items().any(|item| item == (name, Unit::Bytes))));
    let table = snapshot.with_stats(&["uncovered"]).to_string();
    assert!(table.lines().nth(2).unwrap().ends_with("23 B"), "{table}");
    drop((objects, ours, charge));
    assert_items(&acme, [0; 5], [0; 5]);
}

#[test]
fn no_thread_adds_to_the_ledger() {
    let (runtime, query, charge) = charged();
    let object = charge.cover(|| Object::new(60));
    for (number, (name, stat)) in (1..).zip(LEDGER) {
        // On cells that are not there yet, and on cells that are.
        query.stat_add(stat, 1_000);
        query.stat_add(Stat::ANON, 1);
        charge.stat_add(stat, -7);
        assert_eq!(runtime.counts().foreign_stats, 2 * number, "{name}");
        let mut builder = Runtime::builder();
        let own = builder.stat(name, Unit::Bytes);
        assert_eq!(builder.build().unwrap_err(), BuildError::StatName(name.to_string()), "a name means one thing");
        assert_ne!(own, stat);
        assert_eq!(format!("{stat:?}"), format!("Stat({name})"));
        assert!(Runtime::builder().reclaim_weight(stat).build().is_err(), "{name} has no published figure");
    }
    assert_figures(&query, [100, 100, 60, 0, 0]);
    drop((object, charge));
    assert_verified(&runtime);
}

#[test]
fn a_flush_an_exact_read_and_a_checkpoint_see_what_is_unpaid() {
    let runtime = runtime();
    let looks: [fn(&Group); 4] = [
        |group| group.flush(),
        |group| drop(group.read(Freshness::Exact)),
        |group| group.run(Group::checkpoint).unwrap(),
        |group| group.run(Group::checkpoint).unwrap(),
    ];
    for (number, look) in (0_u64..).zip(looks) {
        let query = runtime.root().create(number, Limits::new()).unwrap();
        let charge = query.try_charge(100).unwrap();
        let objects = [charge.cover(|| Object::new(90)), charge.cover(|| Object::new(90))];
        assert_eq!(query.live(), 100, "less than a step");
        look(&query);
        assert_eq!(query.live(), 180);
        drop((objects, charge));
        assert_eq!(query.live(), 0);
    }
}

#[test]
fn what_is_allocated_beyond_the_charge_is_forced_within_a_step() {
    let runtime = runtime();
    let query = runtime.root().create("q", Limits::new().max(1 << 20)).unwrap();
    let charge = query.try_charge(1 << 20).unwrap();
    let mut objects = Vec::new();
    charge.cover(|| {
        for allocated in (1..=400_u64).map(|count| count * 10_000) {
            objects.push(Object::new(10_000));
            let unpaid = allocated.saturating_sub(1 << 20);
            assert!(query.live().abs_diff((1 << 20) + unpaid) <= 64 << 10, "{} at {allocated}", query.live());
        }
        let error = Group::checkpoint().unwrap_err().to_string();
        assert!(error.starts_with("/q refuses a checkpoint of /q"), "{error}");
    });
    drop(objects);
    assert!(query.run(Group::checkpoint).is_ok());
    assert_eq!(query.live(), 1 << 20);
}

#[test]
fn verify_finds_a_ledger_that_does_not_add_up() {
    let (runtime, query, charge) = charged();
    charge.cover(|| {});
    query.raw().uncharge(40); // a bug: the charge has them
    let verdict = runtime.verify();
    let ledger: Vec<_> = verdict.faults().iter().filter(|fault| fault.kind == FaultKind::Ledger).collect();
    assert_eq!(ledger.len(), 2, "of the root and of the group: {verdict}");
    assert_eq!((ledger[1].expected, ledger[1].found), (60, 100));
    let text = "/q: 100 are allocated, unpaid or covering, 60 live: 40 too many";
    assert_eq!(ledger[1].to_string(), text);
    query.raw().force_charge(40);
    assert!(runtime.verify().is_ok());
}

#[test]
fn verify_looks_at_marks_of_excess() {
    let runtime = runtime();
    let query = runtime.root().create("q", Limits::new().max(100).high(50)).unwrap();
    for bytes in [40, 60, 150, 99, 3] {
        let charge = query.force_charge(bytes);
        let verdict = runtime.verify();
        assert!(verdict.is_ok(), "{bytes}: {verdict}");
        drop(charge);
        let verdict = runtime.verify();
        assert!(verdict.is_ok(), "after {bytes}: {verdict}");
    }
}
