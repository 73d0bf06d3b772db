//! Which waiter is woken: the one that is admitted, once, through the waker of its last poll, and
//! no other.

use memcg::Bytes;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Wake, Waker};
use std::thread;

use memcg::Group;

use super::{
    KIB, Polled, Waiter, Wakes, admitted, assert_empty, assert_woken, build, charge, create, full,
    in_line, kinds, limited, lock, runtimes, until,
};

/// Several threads, each with charges of its own as futures: a poll, and another when it has been
/// woken.
#[test]
fn once_for_each_admission() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 4 * KIB);
        let waited = AtomicU64::new(0);
        let woken = AtomicU64::new(0);
        let held = charge(&group, 4 * KIB);
        thread::scope(|scope| {
            for number in 0..4 {
                let group = create(&group, &number.to_string());
                let waited = &waited;
                let woken = &woken;
                scope.spawn(move || {
                    for round in 0..500 {
                        let mut waiter = Polled::new(
                            group.charge_async(Bytes((1 + (number + round) % 4) * KIB)),
                        );
                        let charge = match waiter.poll() {
                            Poll::Ready(charge) => charge,
                            Poll::Pending => {
                                waited.fetch_add(1, Ordering::SeqCst);
                                waiter.finish_woken()
                            }
                        };
                        // Others come meanwhile.
                        thread::yield_now();
                        drop(charge.expect("its turn"));
                        woken.fetch_add(waiter.wakes(), Ordering::SeqCst);
                    }
                });
            }
            until("all in line", || group.waiting_count() == 4);
            drop(held);
        });
        let waited = waited.into_inner();
        assert!(waited >= 4);
        assert_eq!(
            woken.into_inner(),
            waited,
            "wake-ups, and charges that waited"
        );
    }
}

impl<F: Future> Polled<F> {
    /// It is in line already: woken once, it is done.
    fn finish_woken(&mut self) -> F::Output {
        until("woken", || self.wakes() > 0);
        match self.poll() {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("woken for nothing"),
        }
    }
}

#[test]
fn through_the_last_waker() {
    for runtime in runtimes() {
        let (group, held) = full(&runtime);
        let mut waiter = in_line(&group, KIB);
        let old: Vec<Arc<Wakes>> = (0..3)
            .map(|_| {
                let old = waiter.renew();
                assert!(waiter.poll().is_pending());
                old
            })
            .collect();
        assert_eq!(group.waiting_count(), 1, "it is in line once");
        drop(held);
        assert!(old.iter().all(|old| old.count() == 0));
        assert_woken(&waiter, true);
        drop(admitted(&mut waiter));
        // No charge keeps a waker that it does not need.
        assert!(old.iter().all(|old| Arc::strong_count(old) == 1));
    }
}

/// Polled again and again, it keeps its place and wakes no charge.
#[test]
fn a_poll_too_many_is_none() {
    for runtime in runtimes() {
        let (group, held) = full(&runtime);
        let mut first = in_line(&group, 6 * KIB);
        let mut second = in_line(&group, 6 * KIB);
        for _ in 0..100 {
            assert!(first.poll().is_pending() && second.poll().is_pending());
        }
        assert_eq!(group.waiting_count(), 2);
        drop(held);
        assert_woken(&first, true);
        assert_woken(&second, false);
        assert!(second.poll().is_pending(), "not its turn");
        drop(admitted(&mut first));
        drop(admitted(&mut second));
    }
}

/// Begun by one thread, ended by another.
#[test]
fn polled_by_another_thread() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        for _ in 0..50 {
            let held = charge(&group, 10 * KIB);
            let mut waiter = in_line(&group, KIB);
            let ends = thread::spawn(move || waiter.finish().expect("its turn"));
            thread::yield_now();
            drop(held);
            let charge = super::join(ends);
            assert_eq!((charge.bytes(), group.live()), (KIB, KIB));
        }
    }
}

/// The action of a waker when it is called.
struct Does(Mutex<Box<dyn FnMut() + Send>>);

impl Wake for Does {
    fn wake(self: Arc<Self>) {
        lock(&self.0)();
    }
}

fn does(what: impl FnMut() + Send + 'static) -> Waker {
    Waker::from(Arc::new(Does(Mutex::new(Box::new(what)))))
}

/// Wakers are called with no lock held: they may use the whole crate.
#[test]
fn wakers_may_do_anything() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let called = Arc::new(AtomicU64::new(0));
        let held = charge(&group, 10 * KIB);
        let mut other = Some(in_line(&group, 9 * KIB));
        let mut waiters: Vec<_> = (0..3)
            .map(|_| Polled::new(group.charge_async(Bytes(KIB))))
            .collect();
        for waiter in &mut waiters {
            let group = group.clone();
            let called = Arc::clone(&called);
            // The first drops a future that waits as well.
            let mut other = other.take();
            let waker = does(move || {
                drop(other.take());
                drop(group.charge(Bytes(KIB)));
                drop(group.force_charge(1));
                let mut more = Polled::new(group.charge_async(Bytes(KIB)));
                drop(more.poll());
                drop(more);
                drop(
                    group
                        .create("new", memcg::Limits::new())
                        .map(|new: Group| new.offline()),
                );
                group
                    .set_max(memcg::Limit::Bytes(10 * KIB))
                    .expect("a number");
                assert!(group.usage() > 0 && group.waiting_count() <= 4);
                called.fetch_add(1, Ordering::SeqCst);
            });
            assert!(waiter.poll_with(&waker).is_pending());
        }
        drop(held);
        until("all have been called", || {
            called.load(Ordering::SeqCst) == 3
        });
        drop(waiters.iter_mut().map(admitted).collect::<Vec<_>>());
    }
}

/// Of two runtimes: the thread that is woken in the one gives back in the other, and so on.
#[test]
fn from_one_runtime_to_another() {
    for (one, other) in kinds().into_iter().zip(kinds()) {
        let runtimes = [build(one), build(other)];
        let groups = runtimes
            .each_ref()
            .map(|runtime| limited(&runtime.root(), "q", 10 * KIB));
        let mut held: Vec<_> = groups
            .iter()
            .map(|group| Some(charge(group, 10 * KIB)))
            .collect();
        let last = held.remove(1);
        let mut first = Polled::new(groups[0].charge_async(Bytes(KIB)));
        let mut gives = last;
        assert!(
            first
                .poll_with(&does(move || drop(gives.take())))
                .is_pending()
        );
        let mut second = in_line(&groups[1], KIB);
        drop(held);
        assert_woken(&second, true);
        drop((admitted(&mut first), admitted(&mut second)));
        drop((first, second, groups));
        runtimes.iter().for_each(assert_empty);
    }
}

/// Whatever becomes of it, its waker is given back.
#[test]
fn wakers_are_given_back() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let wakes = Wakes::new();
        let waker = Waker::from(Arc::clone(&wakes));
        let kept = || Arc::strong_count(&wakes) > 2;
        let wait = |group: &Group| {
            let mut waiter = Polled::new(group.charge_async(Bytes(KIB)));
            assert!(waiter.poll_with(&waker).is_pending() && kept());
            waiter
        };
        let held = charge(&group, 10 * KIB);
        drop(wait(&group));
        assert!(!kept(), "given up");
        let mut waiter = wait(&group);
        drop(held);
        assert!(!kept(), "admitted");
        drop((admitted(&mut waiter), waiter));
        let _held = charge(&group, 10 * KIB);
        let _waiter = wait(&group);
        group.offline().expect("no children");
        assert!(!kept(), "offline");
        assert_eq!(wakes.count(), 2);
    }
}

/// Polls the future at once, and drops what it was given.
#[derive(Default)]
struct InPlace {
    future: Mutex<Option<Waiter>>,
    nested: Arc<Nested>,
}

/// The depth of nested wakers, now and at most.
#[derive(Default)]
struct Nested {
    depth: AtomicU64,
    most: AtomicU64,
    /// Wakers that have been called and have found no charge.
    in_vain: AtomicU64,
}

impl Wake for InPlace {
    fn wake(self: Arc<Self>) {
        let depth = self.nested.depth.fetch_add(1, Ordering::SeqCst) + 1;
        self.nested.most.fetch_max(depth, Ordering::SeqCst);
        let future = lock(&self.future).take();
        if !matches!(
            future.map(|mut future| future.poll()),
            Some(Poll::Ready(Ok(_)))
        ) {
            self.nested.in_vain.fetch_add(1, Ordering::SeqCst);
        }
        self.nested.depth.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Each waker gives back what the next waiter is in line for. The stack has room for few of them,
/// and each comes.
#[test]
fn wakers_that_poll_in_place_do_not_nest_without_bound() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", KIB);
        let held = charge(&group, KIB);
        let nested = Arc::new(Nested::default());
        let wakers: Vec<_> = (0..500)
            .map(|_| {
                let waker = Arc::new(InPlace {
                    nested: Arc::clone(&nested),
                    ..InPlace::default()
                });
                let mut future = Polled::new(group.charge_async(Bytes(KIB)));
                assert!(
                    future
                        .poll_with(&Waker::from(Arc::clone(&waker)))
                        .is_pending()
                );
                *lock(&waker.future) = Some(future);
                waker
            })
            .collect();
        drop(held);
        // All have come before the thread that gave the first bytes back goes on.
        assert_eq!(
            (
                group.waiting_count(),
                group.live(),
                nested.in_vain.load(Ordering::SeqCst)
            ),
            (0, 0, 0)
        );
        assert!(wakers.iter().all(|waker| lock(&waker.future).is_none()));
        let most = nested.most.load(Ordering::SeqCst);
        assert!(most <= 4, "{most} wakers are on one stack");
    }
}
