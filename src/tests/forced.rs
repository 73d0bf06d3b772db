//! Schedules that pause points force, with real threads, and states that no test reaches from
//! outside: each test fails at once where its rule is broken.

use std::mem::ManuallyDrop;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::allocator::Owner;
use crate::counter::children;
use crate::hierarchy::preorder;
use crate::sync::at;
use crate::thread::local::with_local;
use crate::{Bytes, Charge, Limits, OnFull, Reclaim, ReclaimContext, ReclaimPriority, Runtime};

/// E15. A guard loses its last byte before the claimer of its group reads usage, and takes a byte
/// again after that. Its handle has come and gone: the mark *moved* tells the claimer, and the
/// group stays.
#[test]
fn a_guard_turns_over_while_its_group_is_claimed() {
    let runtime = Runtime::builder().batch(Bytes(0)).build().unwrap();
    let gone = runtime.root().create("gone", Limits::new()).unwrap();
    let mut guard = gone.charge(1).unwrap();
    gone.offline().unwrap();
    let (claimer, at_claimer) = channel();
    let (turner, at_turner) = channel();
    let claims = thread::spawn(move || {
        let turner_1 = turner.clone();
        let turner_2 = turner;
        let at_claimer = std::rc::Rc::new(at_claimer);
        let waits = at_claimer.clone();
        at("claimed", move || {
            turner_1.send("claimed").unwrap();
            waits.recv().unwrap();
        });
        at("usage read", move || {
            turner_2.send("usage read").unwrap();
            at_claimer.recv().unwrap();
        });
        drop(gone);
    });
    assert_eq!(at_turner.recv(), Ok("claimed"));
    guard.shrink(1);
    claimer.send(()).unwrap();
    assert_eq!(at_turner.recv(), Ok("usage read"));
    guard.force_grow(1);
    claimer.send(()).unwrap();
    claims.join().unwrap();
    // A guard of a released group panics when it is dropped, also while the assertion unwinds.
    let guard = ManuallyDrop::new(guard);
    assert_eq!(
        (runtime.root().usage(), runtime.dying_count()),
        (1, 1),
        "the guard keeps its group"
    );
    drop(ManuallyDrop::into_inner(guard));
    assert_eq!((runtime.root().usage(), runtime.dying_count()), (0, 0));
}

struct Gives(Mutex<Option<Charge>>);

impl Reclaim for Gives {
    fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
        self.0.lock().unwrap().take().map_or(0, |held| held.bytes())
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri: it counts or leaves groups of the process")]
fn a_group_with_forgotten_handles_is_like_any_other() {
    for batch in [0, 4_096] {
        let runtime = Runtime::builder().batch(Bytes(batch)).build().unwrap();
        let group = runtime.root().create("q", Limits::new().max(100)).unwrap();
        group.first().state().forget_handles();
        assert_eq!(runtime.find(group.id()), Some(group.clone()), "by its id");
        // A thread that waits is served.
        let held = group.charge(100).unwrap();
        let mut waits = Box::pin(group.charge_async(60));
        assert!(
            waits
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        drop(held);
        let Poll::Ready(Ok(charge)) = waits.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("no thread has served it");
        };
        // A reclaimer that can give is called.
        let gives = Arc::new(Gives(Mutex::new(Some(charge))));
        let registration = group.register_reclaimer(gives, ReclaimPriority::NORMAL);
        assert_eq!(group.reclaim(60).unwrap().freed, 60);
        let held = group.charge(100).unwrap();
        assert!(
            group
                .charge_with(1, OnFull::Wait(Duration::from_millis(1)))
                .is_err()
        );
        drop((registration, waits, held));
        assert_eq!(group.live(), 0);
        // The object stays: dying, and it blocks no other group.
        group.offline().unwrap();
        drop(group);
        assert_eq!(runtime.dying_count(), 1);
        runtime.root().create("q", Limits::new()).unwrap();
        assert!(runtime.verify().is_ok());
    }
}

/// A destructor that runs after its thread has given the block up finds no slot of it: another
/// thread may have the block.
#[test]
fn a_thread_forgets_its_slots_with_its_block() {
    struct Late(std::sync::mpsc::Sender<u32>);

    impl Drop for Late {
        fn drop(&mut self) {
            let kept = with_local(|local| {
                local
                    .block()
                    .map_or(local.slot_cache.word(), |_| panic!("the block is there"))
            });
            self.0.send(kept).unwrap();
        }
    }

    thread_local! {
        static LATE: std::cell::OnceCell<Late> = const { std::cell::OnceCell::new() };
    }

    let (tells, told) = channel();
    let runtime = Runtime::builder().build().unwrap();
    let group = runtime.root().create("q", Limits::new()).unwrap();
    let charges = move || {
        // Destructors run in reverse order: this one after the one that gives the block up.
        LATE.with(|late| assert!(late.set(Late(tells)).is_ok()));
        let nothing = with_local(|local| local.slot_cache.word());
        // A slot is kept once a charge has hit it. Any thread of the process may be the one that
        // opens the stock.
        while with_local(|local| local.slot_cache.word()) == nothing {
            let object = group.run(|| Owner::charge(1));
            // SAFETY: the byte is charged.
            #[allow(unsafe_code)]
            unsafe {
                object.uncharge(1);
            }
            thread::yield_now();
        }
        nothing
    };
    let nothing = thread::spawn(charges).join().unwrap();
    assert_eq!(told.recv().unwrap(), nothing);
}

/// Children that a listing has passed, that it names next and that it has not reached go offline
/// between two of its steps, and others come. Each child that stays is listed once.
#[test]
#[cfg_attr(miri, ignore = "Miri: thousands of groups take minutes")]
fn a_listing_goes_on_while_children_come_and_go() {
    let runtime = Runtime::builder().batch(Bytes(0)).build().unwrap();
    let root = runtime.root();
    // Enough for several steps in each shard.
    let children: Vec<_> = (0..3_000_u64)
        .map(|number| root.create(number, Limits::new()).unwrap())
        .collect();
    let (stay, mut go): (Vec<_>, Vec<_>) = children
        .into_iter()
        .partition(|child| child.name().ends_with(['1', '5']));
    let steps = 20;
    let each = go.len() / steps;
    for step in 0..steps as u64 {
        let gone = go.split_off(go.len() - each);
        let root = root.clone();
        at("between children", move || {
            gone.iter().for_each(|child| child.offline().unwrap());
            (0..100).for_each(|number| {
                drop(
                    root.create(1_000_000 + 100 * step + number, Limits::new())
                        .unwrap(),
                )
            });
        });
    }
    let listed: Vec<_> = children::pin(root.first())
        .iter()
        .map(|child| child.id())
        .collect();
    for child in &stay {
        assert_eq!(
            listed
                .iter()
                .filter(|&&id| id == child.first().id())
                .count(),
            1,
            "{}",
            child.path()
        );
    }
    let once: std::collections::HashSet<_> = listed.iter().collect();
    assert_eq!(once.len(), listed.len(), "a child twice");
    assert!(go.len() < each, "every step was made");
    assert!(root.first().tree().hierarchy.has_no_cursors());
}

/// No lock is held while a row is read: the thread that reads it creates groups, takes groups
/// offline and charges.
#[test]
fn a_row_is_read_without_locks() {
    let runtime = Runtime::builder().build().unwrap();
    let root = runtime.root();
    let acme = root.create("acme", Limits::new()).unwrap();
    let _queries: Vec<_> = (0..10_u64)
        .map(|number| acme.create(number, Limits::new()).unwrap())
        .collect();
    let rows = preorder::read(root.first(), usize::MAX, |visited| {
        let new = root
            .create(visited.group.id().0 + 1_000, Limits::new())
            .unwrap();
        drop(new.charge(1_000).unwrap());
        new.offline().unwrap();
        visited.depth
    });
    assert_eq!(rows, [&[0, 1][..], &[2; 10]].concat());
}
