use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use memcg::{CoveredBy, Group, InGroup};

use super::{Object, assert_figures, assert_verified, charged, group, runtime};

#[test]
fn the_innermost_scope_counts() {
    let runtime = runtime();
    let [outer, inner] = ["outer", "inner"].map(|name| group(&runtime, name));
    let charges = [&outer, &inner].map(|group| group.try_charge(100).unwrap());
    let mut objects = Vec::new();
    charges[0].cover(|| {
        assert_eq!(Group::current(), Some(outer.clone()));
        objects.push(Object::new(1));
        charges[1].cover(|| objects.push(Object::new(2)));
        outer.run(|| objects.push(Object::new(4)));
        objects.push(Object::new(8));
    });
    objects.push(Object::new(16));
    assert_figures(&outer, [104, 100, 9, 4, 0]);
    assert_figures(&inner, [100, 100, 2, 0, 0]);
    drop((objects, charges));
    assert_verified(&runtime);
}

#[test]
fn a_panic_ends_the_cover() {
    let (_runtime, query, charge) = charged();
    let objects = Mutex::new(Vec::new());
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        charge.cover(|| {
            objects.lock().unwrap().push(Object::new(10));
            std::panic::resume_unwind(Box::new(()));
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(Group::current(), None);
    assert_figures(&query, [100, 100, 10, 0, 0]);
}

#[test]
fn guards_of_two_covers_end_in_any_order() {
    let runtime = runtime();
    let [one, two] = ["one", "two"].map(|name| group(&runtime, name));
    let charges = [&one, &two].map(|group| group.try_charge(100).unwrap());
    let [first, second] = charges.each_ref().map(|charge| charge.enter_cover());
    let mut objects = vec![Object::new(1)];
    drop(first);
    objects.push(Object::new(2));
    drop(second);
    objects.push(Object::new(4));
    assert_figures(&one, [100, 100, 0, 0, 0]);
    assert_figures(&two, [100, 100, 3, 0, 0]);
    drop((objects, charges));
    assert_verified(&runtime);
}

#[test]
fn what_a_forgotten_guard_covers_keeps_its_group() {
    let runtime = runtime();
    let query = group(&runtime, "q");
    let object = runtime.root().run(|| {
        let charge = query.try_charge(100).unwrap();
        std::mem::forget(charge.enter_cover());
        drop(charge);
        query.offline().unwrap();
        drop(query);
        // Too little for a look, and no charge pays.
        Object::new(70)
    });
    assert_eq!(runtime.root().ledger().covered(), 70);
    assert_eq!((runtime.root().live(), runtime.dying_count()), (70, 1));
    drop(object);
    assert_figures(&runtime.root(), [0; 5]);
}

#[test]
fn a_forgotten_guard_covers_until_the_scope_around_it_ends() {
    let runtime = runtime();
    let query = group(&runtime, "q");
    let objects = runtime.root().run(|| {
        let charge = query.try_charge(100).unwrap();
        std::mem::forget(charge.enter_cover());
        drop(charge);
        [Object::new(30), query.run(|| Object::new(4))]
    });
    assert_eq!(Group::current(), None);
    assert_figures(&query, [34, 0, 30, 4, 30]);
    query.offline().unwrap();
    drop(objects);
    query.flush();
    assert_figures(&query, [0; 5]);
}

/// Allocates 10 bytes at each poll, and when it is dropped.
struct Allocates {
    objects: Arc<Mutex<Vec<Object>>>,
    polls: usize,
}

impl Future for Allocates {
    type Output = usize;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<usize> {
        self.objects.lock().unwrap().push(Object::new(10));
        self.polls += 1;
        if self.polls < 3 { Poll::Pending } else { Poll::Ready(self.polls) }
    }
}

impl Drop for Allocates {
    fn drop(&mut self) {
        self.objects.lock().unwrap().push(Object::new(100));
    }
}

#[test]
fn each_poll_and_the_drop_of_a_future_are_covered() {
    let runtime = runtime();
    let query = group(&runtime, "q");
    let objects = Arc::default();
    let charge = Arc::new(query.try_charge(200).unwrap());
    let task = || Allocates { objects: Arc::clone(&objects), polls: 0 }.covered_by(Arc::clone(&charge));
    let mut context = Context::from_waker(Waker::noop());
    let mut done = Box::pin(task());
    assert_eq!(done.charge().bytes(), 200);
    while done.as_mut().poll(&mut context).is_pending() {
        assert_eq!(Group::current(), None);
    }
    drop(done);
    assert_figures(&query, [200, 200, 130, 0, 0]);
    // Aborted after a poll, and dropped on another thread.
    let mut aborted = Box::pin(task());
    assert!(aborted.as_mut().poll(&mut context).is_pending());
    std::thread::spawn(move || drop(aborted)).join().unwrap();
    assert_figures(&query, [240, 200, 240, 0, 40]);
    drop(charge);
    assert_figures(&query, [240, 0, 240, 0, 240]);
    objects.lock().unwrap().clear();
    assert_figures(&query, [0; 5]);
}

#[test]
fn a_future_may_own_its_charge_and_be_in_a_group() {
    let runtime = runtime();
    let [query, other] = ["q", "other"].map(|name| group(&runtime, name));
    let objects = Arc::default();
    let task = Allocates { objects: Arc::clone(&objects), polls: 0 };
    let charge = query.try_charge(200).unwrap();
    let mut task = Box::pin(task.covered_by(charge).in_group(&other));
    assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(task);
    assert_figures(&query, [110, 0, 110, 0, 110]);
    assert_figures(&other, [0; 5]);
    objects.lock().unwrap().clear();
    assert_verified(&runtime);
}
