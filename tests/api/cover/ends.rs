use memcg::Limits;

use super::{Object, assert_figures, assert_verified, covering, group, runtime};

#[test]
fn a_group_goes_offline_while_it_covers() {
    let runtime = runtime();
    let parent = group(&runtime, "p");
    let query = covering(&parent, "q");
    let charge = query.charge(100).unwrap();
    let object = query.run(|| {
        let object = Object::new(60);
        query.offline().unwrap();
        object
    });
    // The group takes nothing any more: what is allocated is its parent's.
    let next = Object::of(&query, 5);
    assert_figures(&query, [100, 100, 60, 0]);
    assert_figures(&parent, [105, 100, 65, 0]);
    let own = parent.inspect().ledger_local();
    assert_eq!(
        (
            own.reserved(),
            own.allocated(),
            parent.inspect().live_local()
        ),
        (100, 65, 105)
    );
    drop((charge, query));
    assert_figures(&parent, [65, 0, 65, 60]);
    assert_verified(&runtime);
    assert_eq!(
        (runtime.group_count(), runtime.dying_count()),
        (2, 1),
        "the object keeps its group"
    );
    drop(object);
    assert_eq!((runtime.group_count(), runtime.dying_count()), (2, 0));
    drop(next);
    assert_figures(&parent, [0; 4]);
}

/// Groups below go offline before the one that has asked, and after it.
#[test]
fn groups_below_go_offline() {
    let runtime = runtime();
    let query = covering(&runtime.root(), "q");
    let operators = ["a", "b"].map(|name| query.create(name, Limits::new()).unwrap());
    let charge = operators[0].charge(100).unwrap();
    let objects = operators
        .each_ref()
        .map(|operator| Object::of(operator, 70));
    operators
        .iter()
        .for_each(|operator| operator.offline().unwrap());
    assert_figures(&query, [140, 100, 140, 40]);
    query.offline().unwrap();
    assert_figures(&runtime.root(), [140, 100, 140, 40]);
    assert_verified(&runtime);
    drop((operators, query));
    drop(charge);
    assert_figures(&runtime.root(), [140, 0, 140, 140]);
    drop(objects);
    assert_eq!((runtime.root().live(), runtime.dying_count()), (0, 0));
}

#[test]
fn an_object_outlives_charge_group_and_runtime() {
    let runtime = memcg::Runtime::builder().build().unwrap();
    let query = covering(&runtime.root(), "q");
    let charge = query.charge(100).unwrap();
    let object = Object::of(&query, 60);
    query.offline().unwrap();
    drop((query, charge, runtime));
    std::thread::spawn(move || drop(object)).join().unwrap();
}

/// The next group in an object begins at zero, and covers only where it asks. Nothing of the ones
/// before is left.
#[test]
fn the_next_group_in_the_object_begins_at_zero() {
    let runtime = runtime();
    let mut bytes = Vec::new();
    for round in 0..600_usize {
        let limits = if round % 4 == 0 {
            Limits::new()
        } else {
            Limits::new().cover_allocations()
        };
        let query = runtime.root().scope(round as u64, limits).unwrap();
        assert_figures(&query, [0; 4]);
        let charge = query.charge(100).unwrap();
        let object = Object::of(&query, round % 150 + 1);
        let size = round as u64 % 150 + 1;
        let live = if query.limits().cover_allocations {
            size.max(100)
        } else {
            size + 100
        };
        assert_eq!(query.live(), live);
        if round % 2 == 0 {
            std::thread::spawn(move || drop(object)).join().unwrap();
            drop(charge);
        } else {
            drop(charge);
            drop(object);
        }
        assert_figures(&query, [0; 4]);
        bytes.push(runtime.own_bytes().tables);
    }
    let most = bytes.iter().max().copied().unwrap_or_default();
    assert!(most < 32 << 10, "no list outlives its groups: {most} bytes");
}

#[test]
fn a_thread_ends_with_objects() {
    let runtime = runtime();
    let query = covering(&runtime.root(), "q");
    let charge = query.charge(100).unwrap();
    let objects: Vec<Object> = std::thread::scope(|scope| {
        let allocate = || Object::of(&query, 10);
        (0..20)
            .map(|_| scope.spawn(allocate).join().unwrap())
            .collect()
    });
    assert_figures(&query, [200, 100, 200, 100]);
    drop((charge, objects));
    assert_figures(&query, [0; 4]);
}
