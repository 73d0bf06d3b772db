use memcg::{Charge, Group, Limits};

use super::{Object, assert_figures, assert_verified, charged, group, runtime};

#[test]
fn a_covered_object_is_paid_once_and_frees_nothing() {
    let (runtime, query, charge) = charged();
    let object = charge.cover(|| Object::new(60));
    assert!(object.owner.is_covered());
    assert_figures(&query, [100, 100, 60, 0, 0]);
    let owned = query.run(|| Object::new(7));
    assert!(!owned.owner.is_covered());
    assert_figures(&query, [107, 100, 60, 7, 0]);
    std::thread::spawn(move || drop(object)).join().unwrap();
    assert_figures(&query, [107, 100, 0, 7, 0]);
    drop((charge, owned));
    assert_figures(&query, [0; 5]);
    assert_verified(&runtime);
}

#[test]
fn what_a_charge_does_not_hold_is_forced_and_goes_back() {
    let runtime = runtime();
    let query = runtime.root().create("q", Limits::new().max(200)).unwrap();
    let mut charge = query.try_charge(100).unwrap();
    let mut object = charge.cover(|| Object::new(250));
    query.flush();
    assert_figures(&query, [250, 100, 250, 0, 150]);
    assert_eq!(query.forced(), 50);
    assert!(query.run(Group::checkpoint).is_err(), "above max");
    object.shrink(100);
    assert_figures(&query, [150, 100, 150, 0, 50]);
    charge.force_grow(30);
    assert_figures(&query, [150, 130, 150, 0, 20]);
    charge.try_grow(40).unwrap();
    assert_figures(&query, [170, 170, 150, 0, 0]);
    object.grow(30);
    assert_figures(&query, [180, 170, 180, 0, 10]);
    assert!(query.run(Group::checkpoint).is_ok());
    drop(charge);
    assert_eq!(query.live(), 180, "nothing was given back before");
    drop(object);
    assert_eq!(query.live(), 0, "and all at once, in debt");
    assert_verified(&runtime);
}

#[test]
fn a_charge_that_goes_first_leaves_what_is_covered() {
    let runtime = runtime();
    let query = runtime.root().create("q", Limits::new().max(100)).unwrap();
    let charge = query.try_charge(100).unwrap();
    let object = charge.cover(|| Object::new(40));
    drop(charge);
    assert_eq!((query.live(), query.forced(), query.peak()), (40, 0, 100), "never forced, never missing");
    assert_eq!(query.try_charge(61).unwrap_err().to_string().split(':').next(), Some("/q refused 61 B for /q"));
    let rest = query.try_charge(60).unwrap();
    drop((object, rest));
    assert_figures(&query, [0; 5]);
    assert_verified(&runtime);
}

#[test]
fn parts_of_a_covering_charge_cover() {
    let (runtime, query, mut charge) = charged();
    let object = charge.cover(|| Object::new(80));
    let part = charge.split(30).unwrap();
    assert_figures(&query, [100, 100, 80, 0, 0]);
    drop(part);
    assert_figures(&query, [80, 70, 80, 0, 10]);
    let whole = charge.take();
    assert_eq!((charge.bytes(), whole.bytes()), (0, 70));
    drop(charge);
    assert_figures(&query, [80, 70, 80, 0, 10]);
    let mut other = query.try_charge(50).unwrap();
    assert_eq!(query.ledger().covering(), 70, "a charge that has covered nothing pays for nothing");
    other.merge(whole).unwrap();
    assert_eq!((other.bytes(), query.ledger().covering()), (120, 120));
    assert_figures(&query, [120, 120, 80, 0, 0]);
    let mut empty = query.force_charge(0);
    empty.merge(other).unwrap();
    assert_eq!((empty.bytes(), query.ledger().covering()), (120, 120));
    assert_eq!(empty.shrink(100), 100);
    assert_figures(&query, [80, 20, 80, 0, 60]);
    empty.resize(90).unwrap();
    assert_figures(&query, [90, 90, 80, 0, 0]);
    empty.resize(0).unwrap();
    assert_figures(&query, [80, 0, 80, 0, 80]);
    drop((empty, object));
    assert_figures(&query, [0; 5]);
    assert_verified(&runtime);
}

#[test]
fn merging_two_covering_charges_counts_neither_twice() {
    let runtime = runtime();
    let query = group(&runtime, "q");
    let mut both = [10, 20].map(|bytes| query.try_charge(bytes).unwrap());
    both.iter().for_each(|charge| charge.cover(|| {}));
    let [one, two] = &mut both;
    one.merge(two.take()).unwrap();
    assert_eq!((one.bytes(), query.ledger().covering()), (30, 30));
    two.merge(one.take()).unwrap();
    assert_eq!((two.bytes(), query.ledger().covering()), (30, 30));
    drop(both);
    assert_eq!((query.ledger().covering(), query.live()), (0, 0));
    assert_verified(&runtime);
}

#[test]
fn a_moved_charge_leaves_the_objects_where_they_are() {
    let runtime = runtime();
    let [from, to] = ["from", "to"].map(|name| group(&runtime, name));
    let mut charge = from.try_charge(100).unwrap();
    let object = charge.cover(|| Object::new(60));
    charge.transfer(&to).unwrap();
    assert_figures(&from, [60, 0, 60, 0, 60]);
    assert_figures(&to, [100, 100, 0, 0, 0]);
    let theirs = charge.cover(|| Object::new(30));
    assert_figures(&to, [100, 100, 30, 0, 0]);
    charge.transfer(&from).unwrap();
    assert_figures(&from, [100, 100, 60, 0, 0]);
    assert_figures(&to, [30, 0, 30, 0, 30]);
    drop((charge, object, theirs));
    assert_figures(&runtime.root(), [0; 5]);
    assert_verified(&runtime);
}

#[test]
#[allow(unsafe_code)]
fn a_charge_without_its_guard_covers_no_longer() {
    let (runtime, query, charge) = charged();
    let object = charge.cover(|| Object::new(60));
    let (word, bytes) = charge.into_raw();
    assert_figures(&query, [160, 100, 60, 0, 60]);
    // SAFETY: from `into_raw`, once.
    let charge = unsafe { Charge::from_raw(word, bytes) };
    assert_eq!((charge.bytes(), query.ledger().covering()), (100, 0));
    charge.cover(|| {});
    assert_figures(&query, [100, 100, 60, 0, 0]);
    drop((object, charge));
    assert_figures(&query, [0; 5]);

    let leaked = query.try_charge(10).unwrap();
    leaked.cover(|| {});
    assert_eq!((leaked.forget(), query.ledger().covering()), (10, 10), "it pays for ever");
    assert_verified(&runtime);
}

#[test]
fn two_covers_of_one_charge_count_it_once() {
    let (_runtime, query, charge) = charged();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| charge.cover(|| drop(Object::new(10))));
        }
    });
    assert_eq!(query.ledger().covering(), 100);
    assert_figures(&query, [100, 100, 0, 0, 0]);
}

#[test]
fn a_charge_of_a_counter_beside_memory_covers_nothing() {
    let mut builder = memcg::Runtime::builder();
    let spill = builder.counter("spill").independent();
    let runtime = builder.build().unwrap();
    let query = group(&runtime, "q");
    let charge = query.try_charge_counter(spill, 100).unwrap();
    let object = charge.cover(|| Object::new(60));
    assert!(!object.owner.is_covered());
    assert_figures(&query, [60, 0, 0, 60, 0]);
    drop((charge, object));
    assert_figures(&query, [0; 5]);
    assert_verified(&runtime);
}
