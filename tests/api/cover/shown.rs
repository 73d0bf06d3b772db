use memcg::expert::FaultKind;
use memcg::{Freshness, Group, Limits};

use super::{Object, assert_figures, charged, group, runtime};

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

#[test]
fn a_flush_an_exact_read_and_a_checkpoint_see_what_is_unpaid() {
    let runtime = runtime();
    let looks: [fn(&Group); 4] = [
        |group| group.flush(),
        |group| drop(group.read(Freshness::Exact)),
        |group| group.run(Group::checkpoint).unwrap(),
        |group| group.check().unwrap(),
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
    assert!(query.check().is_ok());
    assert_eq!(query.live(), 1 << 20);
}

#[test]
fn verify_finds_a_ledger_that_does_not_add_up() {
    let (runtime, query, charge) = charged();
    charge.cover(|| {});
    query.uncharge(40); // a bug: the charge has them
    let verdict = runtime.verify();
    let ledger: Vec<_> = verdict.faults().iter().filter(|fault| fault.kind == FaultKind::Ledger).collect();
    assert_eq!(ledger.len(), 2, "of the root and of the group: {verdict}");
    assert_eq!((ledger[1].expected, ledger[1].found), (60, 100));
    let text = "/q: 100 are allocated, unpaid or covering, 60 live: 40 too many";
    assert_eq!(ledger[1].to_string(), text);
    query.charge_raw(40);
    assert!(runtime.verify().is_ok());
}

#[test]
fn verify_looks_at_marks_of_excess() {
    let runtime = runtime();
    let query = runtime.root().create("q", Limits::new().max(100).high(50)).unwrap();
    for bytes in [40, 60, 150, 99, 3] {
        let charge = query.charge(bytes);
        let verdict = runtime.verify();
        assert!(verdict.is_ok(), "{bytes}: {verdict}");
        drop(charge);
        let verdict = runtime.verify();
        assert!(verdict.is_ok(), "after {bytes}: {verdict}");
    }
}
