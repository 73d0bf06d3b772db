//! Each form with `try_` returns whatever other threads are stopped in, and calls nothing foreign.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use memcg::{
    Bytes, Charge, Charged, ChargedVec, CounterConfig, CounterKey, Event, Group, Limits, OnFull,
    OomPolicy, PageCounter, ReclaimPriority,
};

use super::{
    Cache, KIB, Log, WATCHDOG, bare, build, call, charge, create, credit_elsewhere, kinds,
    left_empty, limited, local, lock, until,
};
use crate::support::waiters::in_line;

/// A form of charging that never blocks: charges `bytes`, and gives them back where they fit.
type Form = fn(&Group, u64) -> Made;

const FORMS: &[(&str, Form)] = &[
    ("try_charge", |group, bytes| {
        Made::of(group.try_charge(Bytes(bytes)))
    }),
    ("raw", |group, bytes| {
        let made = group.raw().try_charge(Bytes(bytes));
        Made::of(made.map(|_| Uncharges(group.clone(), bytes)))
    }),
    ("try_grow", |group, bytes| {
        let mut charge = group.force_charge(0);
        Made::with(charge.try_grow(Bytes(bytes)), charge)
    }),
    ("try_resize", |group, bytes| {
        let mut charge = group.force_charge(0);
        Made::with(charge.try_resize(Bytes(bytes)), charge)
    }),
    ("try_charge_set", |group, bytes| {
        Made::of(group.try_charge_set(&[(CounterKey::MEMORY, Bytes(bytes))]))
    }),
    ("try_make", |group, bytes| {
        Made::of(Charged::try_make(group, Bytes(bytes), || ()))
    }),
    ("try_weighed", |group, bytes| {
        Made::of(Charged::try_weighed(
            group,
            Vec::<u8>::with_capacity(bytes as usize),
        ))
    }),
    ("try_reserve", |group, bytes| {
        let mut vec = ChargedVec::<u8>::new(group);
        Made::with(vec.try_reserve(bytes as usize), vec)
    }),
    ("try_push", |group, bytes| {
        let mut vec = ChargedVec::new(group);
        let pushed = vec.try_push([0_u8; 16]).is_ok();
        let reserved = vec.try_reserve(bytes as usize / 16);
        Made {
            is_ok: pushed && reserved.is_ok(),
            _kept: Box::new((reserved, vec)),
        }
    }),
    ("start", |group, bytes| {
        Made::of(group.charge_with(Bytes(bytes), OnFull::Start))
    }),
    ("now", |group, bytes| {
        Made::of(group.charge_with(Bytes(bytes), OnFull::Now))
    }),
    ("if room", |group, bytes| {
        Made::of(group.charge_with(Bytes(bytes), OnFull::IfRoom))
    }),
];

/// What a form has returned. Its drop gives the bytes back, which may call listeners: other than
/// the form itself.
struct Made {
    is_ok: bool,
    _kept: Box<dyn Any>,
}

impl Made {
    fn of<T: 'static, E: 'static>(made: Result<T, E>) -> Made {
        Made {
            is_ok: made.is_ok(),
            _kept: Box::new(made),
        }
    }

    fn with<E: 'static>(made: Result<(), E>, charged: impl Any) -> Made {
        Made {
            is_ok: made.is_ok(),
            _kept: Box::new((made, charged)),
        }
    }
}

struct Uncharges(Group, u64);

impl Drop for Uncharges {
    fn drop(&mut self) {
        self.0.raw().uncharge(Bytes(self.1));
    }
}

/// Threads stop here until it opens. It counts those that are stopped.
#[derive(Default)]
struct Gate {
    stopped: AtomicU64,
    is_open: Mutex<bool>,
    opens: Condvar,
}

impl Gate {
    fn stop(&self) {
        self.stopped.fetch_add(1, Ordering::SeqCst);
        let mut is_open = lock(&self.is_open);
        while !*is_open {
            is_open = self.opens.wait(is_open).expect("no panic holds it");
        }
    }

    fn wait_for(&self, threads: u64) {
        until("they are stopped", || {
            self.stopped.load(Ordering::SeqCst) >= threads
        });
    }

    fn open(&self) {
        *lock(&self.is_open) = true;
        self.opens.notify_all();
    }
}

/// Runs on a thread of its own, and returns while the others are stopped.
#[track_caller]
fn returns(what: &str, work: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(work);
    until(what, || thread.is_finished());
    thread.join().expect("no panic there");
}

/// Threads are stopped in a reclaimer, a cancel hook, a listener, a delay above a high and a line:
/// charges of the same groups that never block return, whether they fit or not.
#[test]
fn it_returns_whatever_others_are_stopped_in() {
    for builder in kinds() {
        let builder = builder.delay_max(WATCHDOG * 10).oom_time(WATCHDOG * 10);
        let runtime = left_empty(build(builder));
        let gate = Arc::new(Gate::default());
        let stop = |gate: &Arc<Gate>| {
            let gate = Arc::clone(gate);
            move || gate.stop()
        };
        let [reclaims, cancels, listens, waits] = ["reclaims", "cancels", "listens", "waits"]
            .map(|name| limited(&runtime.root(), name, 100 * KIB));
        let delayed = limited(&runtime.root(), "delayed", 100 * KIB);
        let held = [&reclaims, &waits].map(|group| charge(group, 80 * KIB));
        let reclaimer = stop(&gate);
        let registration = reclaims.register_reclaimer(
            call(move |_, _| {
                reclaimer();
                0
            }),
            ReclaimPriority::NORMAL,
        );
        let victim = create(&cancels, "victim");
        let goes = charge(&victim, 80 * KIB);
        cancels.set_oom_policy(OomPolicy::Choose);
        let hook = stop(&gate);
        let hook = victim.on_cancel(move |_| hook());
        let listener = stop(&gate);
        let listener = listens.on_event(Event::Overcharge, move |_| listener());
        let others = [
            thread::spawn({
                let group = reclaims.clone();
                move || drop(group.charge(Bytes(40 * KIB)))
            }),
            thread::spawn({
                let group = cancels.clone();
                move || drop(group.charge(Bytes(40 * KIB)))
            }),
            thread::spawn({
                let group = listens.clone();
                move || drop(group.force_charge(Bytes(120 * KIB)))
            }),
        ];
        gate.wait_for(3);
        let above = charge(&delayed, 80 * KIB);
        delayed
            .set_limits(Limits::new().high(10 * KIB as usize))
            .expect("limits that agree");
        let sleeps = thread::spawn({
            let group = delayed.clone();
            move || drop(group.charge(Bytes(KIB)))
        });
        until("it is delayed", || local(&delayed, Event::High) > 0);
        let line = in_line(&waits, 90 * KIB);

        let groups = [&reclaims, &cancels, &listens, &waits, &delayed].map(Group::clone);
        for (name, form) in FORMS {
            for group in groups.clone() {
                for bytes in [256, 90 * KIB] {
                    let group = group.clone();
                    returns(name, move || _ = form(&group, bytes));
                }
            }
        }
        assert!(others.iter().all(|other| !other.is_finished()) && !sleeps.is_finished());
        assert_eq!(waits.waiting_count(), 1);
        gate.open();
        drop((held, above, goes, line));
        for other in others {
            other.join().expect("no panic there");
        }
        sleeps.join().expect("no panic there");
        drop((registration, hook, listener, groups));
        drop((reclaims, cancels, listens, waits, delayed, victim));
    }
}

/// The caller holds the lock that each listener, reclaimer and hook takes: another thread calls
/// them, once the lock is free.
#[test]
fn it_calls_nothing_that_takes_the_callers_lock() {
    for builder in kinds() {
        let runtime = left_empty(build(builder));
        for (name, form) in FORMS {
            let limits = Limits::new()
                .max(100 * KIB as usize)
                .high(60 * KIB as usize)
                .reclaim_above(50 * KIB as usize)
                .pressure_levels(40, 70);
            let top = runtime.root().create(*name, limits).expect("a name");
            let group = create(&top, "q");
            let (callers, called) = (Arc::new(Mutex::new(())), Arc::new(AtomicU64::new(0)));
            let take = || {
                let (callers, called) = (Arc::clone(&callers), Arc::clone(&called));
                move || {
                    drop(lock(&callers));
                    called.fetch_add(1, Ordering::SeqCst);
                }
            };
            let mut registrations = Vec::new();
            for event in Event::ALL {
                for group in [&top, &group, &runtime.root()] {
                    let take = take();
                    registrations.push(group.on_event(event, move |_| take()));
                }
            }
            let reclaimer = take();
            registrations.push(top.register_reclaimer(
                call(move |_, _| {
                    reclaimer();
                    0
                }),
                ReclaimPriority::NORMAL,
            ));
            let hook = take();
            registrations.push(group.on_cancel(move |_| hook()));
            top.set_oom_policy(OomPolicy::Choose);
            let (is_over, watched) = (Arc::new(AtomicBool::new(false)), *name);
            let watchdog = thread::spawn({
                let is_over = Arc::clone(&is_over);
                move || until(watched, || is_over.load(Ordering::SeqCst))
            });
            for bytes in [30 * KIB, 45 * KIB, 80 * KIB, 90 * KIB, 120 * KIB] {
                let holds = lock(&callers);
                let made = form(&group, bytes);
                drop(holds);
                drop(made);
            }
            if *name != "if room" {
                let holds = lock(&callers);
                let held = group.try_charge(Bytes(80 * KIB)).expect("room");
                let made = form(&group, 30 * KIB);
                assert!(!made.is_ok, "{name}");
                drop(holds);
                until("the levels of pressure are told", || {
                    called.load(Ordering::SeqCst) > 0
                });
                drop((made, held));
            }
            is_over.store(true, Ordering::SeqCst);
            watchdog.join().expect("it returns");
            drop(registrations);
        }
    }
}

/// Credit of another thread is no reason to refuse, at any of the forms that drain.
#[test]
fn it_is_not_refused_beside_credit() {
    for builder in kinds() {
        let runtime = left_empty(build(builder));
        let drains = |name: &str| !["now", "start", "if room"].contains(&name);
        for (name, form) in FORMS.iter().filter(|(name, _)| drains(name)) {
            let group = limited(&runtime.root(), name, 8 * KIB);
            let other = credit_elsewhere(&group);
            assert!(form(&group, 4 * KIB).is_ok, "{name}");
            let rest = charge(&group, 4 * KIB);
            drop(credit_elsewhere(&group));
            assert!(form(&group, 2 * KIB).is_ok || *name == "try_push", "{name}");
            drop((rest, other));
        }
        let group = limited(&runtime.root(), "to the byte", 8 * KIB);
        let _other = credit_elsewhere(&group);
        assert_eq!(
            group.try_charge(Bytes(8 * KIB)).expect("it drains").bytes(),
            8 * KIB
        );
    }
}

/// Above a high it is made at once, and the thread of the tree reclaims what is above.
#[test]
fn what_is_above_a_high_is_reclaimed_elsewhere() {
    let runtime = left_empty(build(bare().delay_max(WATCHDOG * 10)));
    let group = create(&runtime.root(), "q");
    group
        .set_limits(Limits::new().high(100 * KIB as usize))
        .expect("limits that agree");
    let (cache, _registration) = Cache::of(&group, 90 * KIB, &Log::default());
    let charge = group
        .try_charge(Bytes(60 * KIB))
        .expect("high refuses none");
    until("the cache has given", || group.usage() <= 100 * KIB);
    assert!(cache.bytes() <= 40 * KIB && local(&group, Event::High) > 0);
    drop(charge);
}

/// It says whether a call that blocks could find room.
#[test]
fn what_a_refusal_says() {
    let runtime = left_empty(build(bare()));
    let group = limited(&runtime.root(), "q", 10 * KIB);
    let held: Charge = charge(&group, 10 * KIB);
    let refused = |bytes| group.try_charge(Bytes(bytes)).expect_err("full");
    assert!(refused(1).is_over_limit());
    let registration = group.register_reclaimer(call(|_, _| 0), ReclaimPriority::NORMAL);
    assert!(refused(1).is_would_block());
    assert!(refused(11 * KIB).is_over_limit(), "it never fits");
    drop(registration);
    assert!(refused(1).is_over_limit());
    assert_eq!((group.refused_count(), local(&group, Event::Max)), (4, 0));
    group.offline_tree();
    assert!(refused(1).is_offline());
    drop(held);
}

/// The hook of a counter is asked by the charge that may block alone.
#[test]
fn a_counters_hook_is_not_called() {
    let calls = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&calls);
    let config = CounterConfig::new().max(100).on_pressure(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        0
    });
    let counter = PageCounter::root(config);
    counter.try_charge(80).expect("room");
    let refused = counter.try_charge(21).expect_err("no room");
    assert_eq!(
        (refused.level, calls.load(Ordering::SeqCst)),
        (counter.id(), 0)
    );
    assert!(counter.charge(21).is_err() && calls.load(Ordering::SeqCst) > 0);
    counter.uncharge(80);
}
