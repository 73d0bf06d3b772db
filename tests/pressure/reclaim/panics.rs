//! Reclaimers that panic: contained, counted, and the group goes on.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use memcg::{
    Bytes, Event, Group, Limit, Limits, Reclaim, ReclaimContext, ReclaimPriority, Registration,
};

use super::{
    Cache, Log, MIB, assert_sound, bare, build, call, call_of, charge, create_with, lock, runtimes,
};

/// The place where it panics.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Where {
    First,
    AfterFreeing,
    Estimate,
    Gone,
}

struct Panics {
    at: Where,
    on: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    cache: Arc<Cache>,
}

impl Panics {
    fn now(&self, at: Where) {
        if self.at == at && self.on.load(Ordering::SeqCst) {
            self.calls.fetch_add(1, Ordering::SeqCst);
            panic!("on purpose: {at:?}");
        }
    }
}

impl Reclaim for Panics {
    fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
        self.now(Where::First);
        let freed = self.cache.reclaim(want, context);
        self.now(Where::AfterFreeing);
        freed
    }

    fn reclaimable(&self) -> u64 {
        self.now(Where::Estimate);
        self.cache.bytes()
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        self.now(Where::Gone);
    }
}

struct Made {
    cache: Arc<Cache>,
    on: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    registration: Registration,
}

fn panics(group: &Group, bytes: u64, at: Where) -> Made {
    let on = Arc::new(AtomicBool::new(true));
    let calls = Arc::new(AtomicU64::new(0));
    let cache = Cache::alone(group, bytes, &Log::default());
    let reclaimer = Panics {
        at,
        on: Arc::clone(&on),
        calls: Arc::clone(&calls),
        cache: Arc::clone(&cache),
    };
    let registration = group.register_reclaimer(Arc::new(reclaimer), ReclaimPriority::NORMAL);
    Made {
        cache,
        on,
        calls,
        registration,
    }
}

/// Alone in its group: the charge is refused, or admitted by what was freed before; afterwards all
/// is as ever.
#[test]
fn contained_and_counted() {
    for at in [Where::First, Where::AfterFreeing, Where::Estimate] {
        for runtime in runtimes() {
            let root = runtime.root();
            let group = create_with(&root, "q", Limits::new().max(Limit::Bytes(16 * MIB)));
            let made = panics(&group, 16 * MIB, at);
            let held = group.charge(Bytes(MIB));
            assert!(made.calls.load(Ordering::SeqCst) > 0, "{at:?}");
            if at == Where::First {
                assert!(held.is_err());
            }
            if at == Where::AfterFreeing {
                assert!(held.is_ok(), "it was freed all the same");
            }
            let counted = group.events().local().get(Event::Panic);
            assert!(counted > 0, "{at:?}");
            assert_eq!(
                (
                    root.events().get(Event::Panic),
                    root.events().local().get(Event::Panic)
                ),
                (counted, 0)
            );
            assert_sound(&runtime);
            drop(held);
            // Nothing is left behind: no lock, no mark of being inside reclaim.
            made.on.store(false, Ordering::SeqCst);
            let live = group.live();
            let report = group
                .reclaim(Bytes(MIB))
                .expect("not inside a reclaimer any more");
            assert_eq!((report.panics, live - group.live()), (0, MIB), "{at:?}");
            let bytes = 16 * MIB - group.live() + MIB;
            drop(charge(&group, bytes));
            assert_sound(&runtime);
        }
    }
}

/// A drop that panics ends where the registration is dropped.
#[test]
fn a_drop_that_panics() {
    for runtime in runtimes() {
        let root = runtime.root();
        let group = create_with(&root, "q", Limits::new().max(Limit::Bytes(16 * MIB)));
        let made = panics(&group, 16 * MIB, Where::Gone);
        drop(made.registration);
        assert_eq!(made.calls.load(Ordering::SeqCst), 1, "dropped once");
        assert!(group.charge(Bytes(MIB)).is_err(), "registered no more");
        drop(made.cache);
        drop(charge(&group, 16 * MIB));
        assert_sound(&runtime);
    }
}

/// If the reclaimer is being asked meanwhile, the last thread that asks drops it, and counts the
/// panic.
#[test]
fn a_drop_that_panics_while_it_is_asked() {
    /// Ends its own registration, and panics when it goes.
    struct Ends {
        registration: Arc<Mutex<Option<Registration>>>,
        cache: Arc<Cache>,
    }
    impl Reclaim for Ends {
        fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
            let mine = lock(&self.registration).take();
            drop(mine);
            self.cache.evict(want.max(MIB))
        }
    }
    impl Drop for Ends {
        fn drop(&mut self) {
            panic!("on purpose: the last one has gone");
        }
    }
    for runtime in runtimes() {
        let root = runtime.root();
        let group = create_with(&root, "q", Limits::new().max(Limit::Bytes(16 * MIB)));
        let cache = Cache::alone(&group, 16 * MIB, &Log::default());
        let registration: Arc<Mutex<Option<Registration>>> = Arc::default();
        let reclaimer = Ends {
            registration: Arc::clone(&registration),
            cache: Arc::clone(&cache),
        };
        let made = group.register_reclaimer(Arc::new(reclaimer), ReclaimPriority::NORMAL);
        *lock(&registration) = Some(made);
        let held = charge(&group, MIB);
        assert!(lock(&registration).is_none());
        assert_eq!(group.events().local().get(Event::Panic), 1);
        assert_sound(&runtime);
        drop((held, cache));
        let _next = group.register_reclaimer(call(|_, _| 0), ReclaimPriority::NORMAL);
        drop(charge(&group, 16 * MIB));
        assert_sound(&runtime);
    }
}

/// What it has freed on another thread nobody counts. The next one of the group is asked for no more
/// than is left beside what is protected.
#[test]
fn the_next_one_is_asked_for_what_is_left() {
    let runtime = build(bare());
    let root = runtime.root();
    let group = create_with(&root, "q", Limits::new().min(Limit::Bytes(100)));
    let cache = Cache::alone(&group, 1_000, &Log::default());
    let held = charge(&group, 300);
    let first = call_of(1_000, move |want, _| {
        thread::scope(|scope| scope.spawn(|| cache.evict(want)).join().expect("no panic"));
        panic!("on purpose: it has freed {want}");
    });
    let _first = group.register_reclaimer(first, ReclaimPriority::LOW);
    let asked: Arc<Mutex<Vec<(u64, u64)>>> = Arc::default();
    let notes = Arc::clone(&asked);
    let next = call(move |want, context| {
        lock(&notes).push((want, context.group().usage()));
        0
    });
    let _next = group.register_reclaimer(next, ReclaimPriority::HIGH);
    let report = root.reclaim(Bytes(5_000)).expect("not inside a reclaimer");
    assert_eq!((report.panics, group.live()), (1, 300), "{report:?}");
    let asked = lock(&asked);
    let is_left = |&(want, usage): &(u64, u64)| want <= usage - 100;
    assert!(!asked.is_empty() && asked.iter().all(is_left), "{asked:?}");
    drop(held);
    assert_sound(&runtime);
}
