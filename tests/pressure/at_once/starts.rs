//! Reclaimers with threads of their own, which begin before a charge that never blocks is refused.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use memcg::{
    Bytes, Charge, Event, Group, Limits, OnFull, OomPolicy, Reclaim, ReclaimCause, ReclaimContext,
    ReclaimPriority, ReclaimPromise, Registration,
};

use super::{
    KIB, bare, build, charge, charged_in_the_end, create, kinds, left_empty, limited, local, lock,
    until, would_block,
};

/// The bytes that it was called for, and the group.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Called {
    start: bool,
    on: ThreadId,
    want: u64,
}

/// Notes its calls, and does in `start` what the test says.
struct Starts<F> {
    calls: Mutex<Vec<Called>>,
    begin: F,
}

impl<F: Fn(&ReclaimContext<'_>) + Send + Sync> Reclaim for Starts<F> {
    fn reclaim(&self, want: u64, _context: &ReclaimContext<'_>) -> u64 {
        self.note(false, want);
        0
    }

    fn start(&self, want: u64, context: &ReclaimContext<'_>) {
        self.note(true, want);
        (self.begin)(context);
    }
}

impl<F> Starts<F> {
    fn note(&self, start: bool, want: u64) {
        lock(&self.calls).push(Called {
            start,
            on: thread::current().id(),
            want,
        });
    }

    fn count(&self, start: bool) -> usize {
        lock(&self.calls)
            .iter()
            .filter(|called| called.start == start)
            .count()
    }
}

fn register<F>(group: &Group, begin: F) -> (Arc<Starts<F>>, Registration)
where
    F: Fn(&ReclaimContext<'_>) + Send + Sync + 'static,
{
    let reclaimer = Arc::new(Starts {
        calls: Mutex::default(),
        begin,
    });
    (
        Arc::clone(&reclaimer),
        group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL),
    )
}

/// A group that is full, and promises that its reclaimer has made and not kept yet.
type Promises = Arc<Mutex<Vec<ReclaimPromise>>>;

/// Adds what `start` promises.
fn promise_in(promises: &Promises) -> impl Fn(&ReclaimContext<'_>) + Send + Sync + 'static {
    let promises = Arc::clone(promises);
    move |context| lock(&promises).push(context.promise())
}

/// Frees what was promised, as the reclaimer's own thread does.
fn keep(promises: &Promises, held: &mut Charge) {
    for later in std::mem::take(&mut *lock(promises)) {
        let freed = held.shrink(Bytes(later.want()));
        later.report(freed);
    }
}

fn patient() -> memcg::RuntimeBuilder {
    bare().reclaim_time(super::WATCHDOG)
}

/// It is called on the charger's thread, for what is missing, and not again while its promise is
/// open. No other thread asks it.
#[test]
fn it_begins_on_the_chargers_thread() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.reclaim_time(super::WATCHDOG)));
        let group = limited(&runtime.root(), "q", 100 * KIB);
        let mut held = charge(&group, 80 * KIB);
        let promises = Promises::default();
        let promise = promise_in(&promises);
        let (reclaimer, _registration) = register(&group, move |context| {
            assert_eq!(
                (context.cause(), context.target().path().as_str()),
                (ReclaimCause::Full, "/q")
            );
            assert_eq!(context.group(), context.target());
            promise(context);
        });
        for _ in 0..3 {
            would_block(group.charge_with(Bytes(30 * KIB), OnFull::Start));
        }
        let expected = Called {
            start: true,
            on: thread::current().id(),
            want: 10 * KIB,
        };
        assert_eq!(*lock(&reclaimer.calls), [expected]);
        until("the thread counts", || local(&group, Event::Max) > 0);
        keep(&promises, &mut held);
        let _more = charged_in_the_end(&group, 30 * KIB);
        assert_eq!(
            (
                held.bytes(),
                reclaimer.count(false),
                local(&group, Event::Panic)
            ),
            (70 * KIB, 0, 0)
        );
    }
}

/// Charges that start nothing, and those that may block, do not call it. Growing does.
#[test]
fn only_charges_that_start_call_it() {
    let runtime = build(bare());
    let group = limited(&runtime.root(), "q", 100 * KIB);
    let held = charge(&group, 100 * KIB);
    let (reclaimer, registration) = register(&group, |_| ());
    would_block(group.charge_with(1, OnFull::Now));
    group.charge(1).expect_err("nothing comes");
    assert_eq!(
        (reclaimer.count(true), reclaimer.count(false) > 0),
        (0, true)
    );
    let before = reclaimer.count(false);
    // It has freed nothing: it is spared until its group grows, and then begins again.
    group.force_charge(Bytes(KIB)).forget();
    would_block(group.charge_with(Bytes(KIB), OnFull::Start));
    assert_eq!(reclaimer.count(true), 1);
    until("what it has not promised is asked elsewhere", || {
        reclaimer.count(false) > before
    });
    let elsewhere = lock(&reclaimer.calls).last().cloned().expect("asked");
    assert!(!elsewhere.start && elsewhere.on != thread::current().id());
    drop((held, registration, reclaimer, runtime));
    group.raw().uncharge(Bytes(KIB));
}

/// A panic ends in the call. The charge is refused as ever, and the reclaimer is asked elsewhere.
#[test]
fn a_panic_is_contained() {
    let runtime = left_empty(build(bare()));
    let group = limited(&runtime.root(), "q", 100 * KIB);
    let _held = charge(&group, 100 * KIB);
    let (reclaimer, _registration) = register(&group, |_| panic!("on purpose"));
    would_block(group.charge_with(1, OnFull::Start));
    assert!(local(&group, Event::Panic) > 0);
    until("it is asked", || reclaimer.count(false) > 0);
}

/// A promise keeps others from being asked and from being cancelled: until it is broken.
#[test]
fn a_promise_stands_for_reclaim_and_for_a_victim() {
    let runtime = left_empty(build(patient()));
    let domain = limited(&runtime.root(), "domain", 100 * KIB);
    domain.set_oom_policy(OomPolicy::Choose);
    let [victim, promises_too_much] = ["victim", "promises"].map(|name| create(&domain, name));
    let gives = Arc::new(Mutex::new(Some(charge(&victim, 50 * KIB))));
    let given = Arc::clone(&gives);
    let _hook = victim.on_cancel(move |_| drop(lock(&given).take()));
    let _held = charge(&promises_too_much, 50 * KIB);
    let promises = Promises::default();
    let (promise, has_promised) = (promise_in(&promises), AtomicBool::new(false));
    let (reclaimer, _registration) = register(&promises_too_much, move |context| {
        // A reclaimer that has freed nothing is asked again some milliseconds later. A second promise
        // would stand for the victim as the first did.
        if !has_promised.swap(true, Ordering::SeqCst) {
            promise(context);
        }
    });
    let group = create(&domain, "q");
    would_block(group.charge_with(Bytes(10 * KIB), OnFull::Start));
    until("the thread counts", || local(&domain, Event::Max) > 0);
    until("it is done", || {
        domain.refused_count() == 1 && group.charge_with(1, OnFull::Now).is_err()
    });
    assert!(lock(&gives).is_some(), "no victim");
    let asked = (reclaimer.count(true), lock(&promises).len());
    assert_eq!(asked, (1, 1), "not again while it has promised");
    // Dropped, the promise has freed nothing.
    lock(&promises).clear();
    let _charged = charged_in_the_end(&group, 10 * KIB);
    assert!(lock(&gives).is_none(), "the victim");
}

/// A promise that is not kept counts for the time of reclaim.
#[test]
fn a_promise_that_is_late_does_not_count() {
    let runtime = left_empty(build(bare().reclaim_time(Duration::from_millis(20))));
    let group = limited(&runtime.root(), "q", 100 * KIB);
    let _held = charge(&group, 100 * KIB);
    let promises = Promises::default();
    let (slow, _of_slow) = register(&group, promise_in(&promises));
    let (other, _of_other) = register(&group, |_| ());
    would_block(group.charge_with(Bytes(KIB), OnFull::Start));
    assert_eq!(
        (slow.count(true), other.count(true), lock(&promises).len()),
        (1, 0, 1)
    );
    until("the other is asked", || {
        would_block(group.charge_with(Bytes(KIB), OnFull::Start));
        other.count(true) > 0 && other.count(false) > 0
    });
    assert_eq!((slow.count(true), slow.count(false)), (1, 0));
    lock(&promises).clear();
}

/// One after the other, for what is still missing; none in a group that is protected.
#[test]
fn each_for_what_is_missing() {
    let runtime = left_empty(build(patient()));
    let top = limited(&runtime.root(), "top", 100 * KIB);
    let [protected, small, large] = ["protected", "small", "large"].map(|name| create(&top, name));
    top.set_limits(Limits::new().min(Bytes(100 * KIB)))
        .expect("memory");
    protected
        .set_limits(Limits::new().min(Bytes(40 * KIB)))
        .expect("memory");
    let _held =
        [(&protected, 40), (&small, 10), (&large, 50)].map(|(group, kib)| charge(group, kib * KIB));
    let promises = Promises::default();
    let all = [&protected, &small, &large].map(|group| register(group, promise_in(&promises)));
    would_block(top.charge_with(Bytes(30 * KIB), OnFull::Start));
    let wants = all.each_ref().map(|(reclaimer, _)| {
        lock(&reclaimer.calls)
            .iter()
            .filter(|called| called.start)
            .map(|called| called.want)
            .sum::<u64>()
    });
    assert_eq!(wants, [0, 10 * KIB, 20 * KIB]);
    lock(&promises).clear();
}

/// Inside it nothing starts: it charges as a reclaimer does, and what it gives back is there
/// afterwards.
#[test]
fn inside_it_nothing_starts() {
    let runtime = left_empty(build(patient()));
    let group = limited(&runtime.root(), "q", 100 * KIB);
    let held = Mutex::new(Some(charge(&group, 60 * KIB)));
    let _rest = charge(&group, 40 * KIB);
    let inside = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&inside);
    let of = group.clone();
    let (reclaimer, _registration) = register(&group, move |_| {
        let refused = of.charge_with(Bytes(10 * KIB), OnFull::Start);
        assert!(matches!(&refused, Err(error) if error.is_in_reclaim()));
        drop(lock(&held).take());
        seen.fetch_add(1, Ordering::SeqCst);
    });
    would_block(group.charge_with(Bytes(10 * KIB), OnFull::Start));
    assert_eq!(
        (
            inside.load(Ordering::SeqCst),
            reclaimer.count(true),
            group.live()
        ),
        (1, 1, 40 * KIB)
    );
    drop(
        group
            .charge_with(Bytes(60 * KIB), OnFull::Start)
            .expect("it was given back"),
    );
    assert_eq!(local(&group, Event::Panic), 0);
}

/// Its registration goes while it begins: no call is under way afterwards.
#[test]
fn its_registration_goes_meanwhile() {
    for _ in 0..50 {
        let runtime = left_empty(build(bare()));
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let _held = charge(&group, 10 * KIB);
        let (reclaimer, registration) = register(&group, |_| thread::yield_now());
        thread::scope(|scope| {
            scope.spawn(|| drop(group.charge_with(1, OnFull::Start)));
            drop(registration);
        });
        let after = lock(&reclaimer.calls).len();
        let _ = group.charge_with(1, OnFull::Start);
        assert_eq!(lock(&reclaimer.calls).len(), after, "gone");
    }
}
