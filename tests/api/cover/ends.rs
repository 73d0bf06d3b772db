use memcg::Limits;

use super::{Object, assert_figures, assert_verified, charged, group, runtime};

#[test]
fn a_group_goes_offline_under_a_cover() {
    let runtime = runtime();
    let parent = group(&runtime, "p");
    let query = parent.create("q", Limits::new()).unwrap();
    let charge = query.try_charge(100).unwrap();
    let object = charge.cover(|| {
        query.offline().unwrap();
        Object::new(60)
    });
    assert_figures(&query, [100, 100, 60, 0, 0]);
    assert_figures(&parent, [100, 100, 60, 0, 0]);
    drop((charge, query));
    assert_figures(&parent, [60, 0, 60, 0, 60]);
    assert_eq!((runtime.group_count(), runtime.dying_count()), (2, 1), "the object keeps its group");
    drop(object);
    assert_figures(&parent, [0; 5]);
    assert_eq!((runtime.group_count(), runtime.dying_count()), (2, 0));
    assert_verified(&runtime);
}

#[test]
fn an_object_outlives_charge_group_and_runtime() {
    let runtime = memcg::Runtime::builder().build().unwrap();
    let query = group(&runtime, "q");
    let charge = query.try_charge(100).unwrap();
    let object = charge.cover(|| Object::new(60));
    query.offline().unwrap();
    drop((query, charge, runtime));
    std::thread::spawn(move || drop(object)).join().unwrap();
}

#[test]
fn the_next_group_in_the_object_begins_at_zero() {
    let runtime = runtime();
    for round in 0..200_usize {
        let query = runtime.root().create(round as u64, Limits::new()).unwrap();
        assert_figures(&query, [0; 5]);
        let charge = query.try_charge(100).unwrap();
        let mut objects = vec![charge.cover(|| Object::new(round % 150 + 1)), query.run(|| Object::new(3))];
        if round % 3 == 0 {
            query.offline().unwrap();
        }
        if round % 2 == 0 {
            objects.reverse();
            std::thread::spawn(move || drop(objects)).join().unwrap();
            drop(charge);
        } else {
            drop(charge);
            drop(objects);
        }
        assert_figures(&query, [0; 5]);
    }
    assert_verified(&runtime);
}

#[test]
fn a_charge_of_another_runtime_pays_there() {
    let [ours, theirs] = [runtime(), runtime()];
    let [here, there] = [group(&ours, "here"), group(&theirs, "there")];
    let charge = there.try_charge(10).unwrap();
    let object = here.run(|| charge.cover(|| Object::new(25)));
    assert_figures(&here, [0; 5]);
    assert_figures(&there, [25, 10, 25, 0, 15]);
    drop(charge);
    assert_figures(&there, [25, 0, 25, 0, 25]);
    drop(object);
    assert_figures(&there, [0; 5]);
    assert_verified(&theirs);
}

#[test]
fn a_thread_ends_with_covered_objects() {
    let (runtime, query, charge) = charged();
    let objects: Vec<Object> = std::thread::scope(|scope| {
        let allocate = || charge.cover(|| Object::new(10));
        (0..5).map(|_| scope.spawn(allocate).join().unwrap()).collect()
    });
    assert_figures(&query, [100, 100, 50, 0, 0]);
    drop(charge);
    assert_figures(&query, [50, 0, 50, 0, 50]);
    drop(objects);
    assert_figures(&query, [0; 5]);
    assert_verified(&runtime);
}
