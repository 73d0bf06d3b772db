//! Counters that are declared after the runtime is built, until its first group exists.

use std::sync::Barrier;
use std::thread;

use memcg::errors::DeclareError;
use memcg::{BuildError, ChargeErrorKind, CounterKey, Group, GroupCounter, Limits, Runtime, Unit};

fn with_places(places: usize) -> (Runtime, CounterKey) {
    let mut builder = Runtime::builder().audit(true);
    let spill = builder.counter("spill", Unit::Bytes);
    (builder.counter_places(places).build().unwrap(), spill)
}

/// All that names or lists counters knows one that was declared later, and no place.
#[test]
fn a_counter_is_declared_until_the_first_group_exists() {
    let (runtime, spill) = with_places(3);
    let root = runtime.root();
    let names = |group: &Group| {
        let named = |counter: GroupCounter| counter.name().to_string();
        group.counters().map(named).collect::<Vec<_>>()
    };
    assert_eq!(names(&root), ["spill"], "a place has no name");
    let _early = root.charge(5_000).unwrap();
    let files = runtime.declare_counter("files", Unit::Events).unwrap();
    let rows = runtime.declare_counter("rows", Unit::Events).unwrap();
    assert_eq!(names(&root), ["spill", "files", "rows"]);
    root.counter(files).unwrap().set_max(10).unwrap();
    root.counter(files).unwrap().set_batch(0);

    let acme = root.create("acme", Limits::new()).unwrap();
    assert_eq!(
        runtime.declare_counter("late", Unit::Bytes),
        Err(DeclareError::GroupsExist)
    );
    assert_eq!(names(&acme), ["spill", "files", "rows"]);
    assert_eq!(acme.counter_key("files"), Some(files));
    assert_eq!(acme.counter_key(""), None);
    let set = [(CounterKey::MEMORY, 100), (files, 4), (rows, 7), (spill, 9)];
    let held = acme.try_charge_set(&set).unwrap();
    let live = |group: &Group, key| group.counter(key).unwrap().live();
    assert_eq!((live(&acme, files), live(&root, files)), (4, 4));
    assert_eq!((live(&acme, rows), live(&acme, spill)), (7, 9));
    let refused = acme.try_charge_set(&[(files, 7)]).unwrap_err();
    assert_eq!(refused.over_limit().unwrap().counter(), Some("files"));
    let snapshot = runtime.snapshot();
    assert_eq!(
        snapshot
            .counters()
            .map(|(name, _)| name)
            .collect::<Vec<_>>(),
        ["spill", "files", "rows"]
    );
    drop(held);
    super::assert_sound(&runtime);
    // Groups come and go in a pool of another shape than the root's.
    for round in 0..200 {
        let group = acme
            .create(format!("q{round}").as_str(), Limits::new())
            .unwrap();
        drop(
            group
                .try_charge_set(&[(rows, 1), (CounterKey::MEMORY, 10)])
                .unwrap(),
        );
        group.offline().unwrap();
    }
    super::assert_sound(&runtime);
    assert!(runtime.own_bytes().total() > 0);
}

#[test]
fn a_counter_that_cannot_be_declared_later_says_why() {
    let (runtime, _) = with_places(1);
    for bad in ["", "memory", "spill"] {
        let refused = runtime.declare_counter(bad, Unit::Bytes);
        assert_eq!(refused, Err(DeclareError::Name(bad.to_string())));
    }
    runtime.declare_counter("files", Unit::Events).unwrap();
    let refused = runtime.declare_counter("rows", Unit::Events).unwrap_err();
    assert_eq!(refused, DeclareError::NoPlace { counters: 3 });
    assert!(refused.to_string().contains("counter_places"), "{refused}");
    // All places are taken: groups have the root's shape.
    let acme = runtime.root().create("acme", Limits::new()).unwrap();
    assert_eq!(acme.counters().count(), 2);

    let (plain, _) = with_places(0);
    let refused = plain.declare_counter("files", Unit::Events);
    assert_eq!(refused, Err(DeclareError::NoPlace { counters: 2 }));
    let too_many = Runtime::builder().counter_places(usize::MAX).build();
    assert!(matches!(
        too_many.unwrap_err(),
        BuildError::TooManyCounters { most: 1_024, .. }
    ));
}

/// A key is known to the runtime alone that has declared it, also where two come from one builder.
#[test]
fn a_key_of_another_runtime_names_no_place() {
    let builder = Runtime::builder().counter_places(2);
    let [one, other] = [builder.clone(), builder].map(|builder| builder.build().unwrap());
    let files = one.declare_counter("files", Unit::Events).unwrap();
    let is_unknown = |group: &Group| matches!(group.counter(files), Err(error) if error.kind() == ChargeErrorKind::OtherRuntime);
    assert!(is_unknown(&other.root()));
    let group = other.root().create("acme", Limits::new()).unwrap();
    assert!(is_unknown(&group));
    let rows = other.declare_counter("rows", Unit::Events);
    assert_eq!(rows, Err(DeclareError::GroupsExist));
}

/// One thread declares, another creates the first group: the group has the counter, or there is none.
#[test]
fn a_first_group_has_each_counter_that_was_declared() {
    for _ in 0..if cfg!(miri) { 3 } else { 200 } {
        let (runtime, _) = with_places(2);
        let meet = Barrier::new(2);
        let (group, declared) = thread::scope(|scope| {
            let group = scope.spawn(|| {
                meet.wait();
                runtime.root().create("acme", Limits::new()).unwrap()
            });
            meet.wait();
            let declared = runtime.declare_counter("files", Unit::Events);
            (group.join().unwrap(), declared)
        });
        match declared {
            Ok(files) => {
                let held = group.try_charge_set(&[(files, 3), (CounterKey::MEMORY, 5)]);
                assert_eq!(group.counter(files).unwrap().live(), 3);
                drop(held);
                assert_eq!(group.counters().count(), 2);
            }
            Err(refused) => {
                assert_eq!(refused, DeclareError::GroupsExist);
                assert_eq!(group.counters().count(), 1);
            }
        }
    }
}

/// The root's object goes back to the pool of its shape, and the next root has no counter of the one
/// before.
#[test]
fn a_root_of_the_same_shape_begins_without_the_earlier_names() {
    for round in 0..5 {
        let runtime = Runtime::builder().counter_places(2).build().unwrap();
        assert_eq!(runtime.root().counters().count(), 0, "round {round}");
        let files = runtime.declare_counter("files", Unit::Events).unwrap();
        let root = runtime.root();
        let held = root.try_charge_set(&[(files, 3)]).unwrap();
        let group = root.create("acme", Limits::new()).unwrap();
        drop((held, group));
    }
}
