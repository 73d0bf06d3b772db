//! Which foreign code each call runs on its own thread: the cells of the table in
//! `docs/src/waiting.md`, and that of `Group::charge_with`.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, ThreadId};
use std::time::Duration;

use memcg::{
    Bytes, Charge, Event, Group, Limit, Limits, OnFull, OomPolicy, Reclaim, ReclaimContext,
    ReclaimPriority, Registration, Runtime,
};

use crate::support::reclaimers::{KIB, lock};
use crate::support::trees::{LeftEmpty, bare, build, left_empty, stocked};
use crate::support::waiters::{Polled, Waiter};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Code {
    Reclaimer,
    /// [`Reclaim::start`].
    Start,
    /// Of a victim.
    Hook,
    /// [`OomPolicy::by`].
    Order,
    Listener,
    Waker,
}

use Code::{Hook, Listener, Order, Reclaimer, Start};

const ALL: &[Code] = &[Reclaimer, Hook, Order, Listener, Code::Waker];
const TOLD: &[Code] = &[Listener, Code::Waker];
const NONE: &[Code] = &[];

/// What ran on the thread that made it.
#[derive(Clone)]
struct Seen(Arc<Mutex<BTreeSet<Code>>>, ThreadId);

impl Seen {
    fn here() -> Seen {
        Seen(Arc::default(), thread::current().id())
    }

    fn note(&self, code: Code) {
        if thread::current().id() == self.1 {
            lock(&self.0).insert(code);
        }
    }
}

impl Wake for Seen {
    fn wake(self: Arc<Self>) {
        self.note(Code::Waker);
    }
}

struct Shelf(Seen, Mutex<Charge>);

impl Reclaim for Shelf {
    fn reclaim(&self, want: u64, _context: &ReclaimContext<'_>) -> u64 {
        self.0.note(Reclaimer);
        lock(&self.1).shrink(Bytes(want))
    }

    fn reclaimable(&self) -> u64 {
        self.0.note(Reclaimer);
        lock(&self.1).bytes()
    }

    fn start(&self, _want: u64, _context: &ReclaimContext<'_>) {
        self.0.note(Start);
    }
}

/// `top` has a max of 100 KiB, which is met: `q` holds 50 KiB, a group that has a hook 40, a cache
/// the rest. A task waits in line. All groups have listeners for all events.
struct Scene {
    top: Group,
    q: Group,
    held: Charge,
    seen: Seen,
    /// What the call has charged: its drop is another call, and may run more.
    charged: Option<Charge>,
    _task: Waiter,
    _registrations: Vec<Registration>,
    runtime: LeftEmpty,
}

impl Scene {
    fn new(runtime: Runtime) -> Scene {
        let (runtime, seen) = (left_empty(runtime), Seen::here());
        let root = runtime.root();
        let limits = Limits::new().max(Limit::kib(100)).pressure_levels(50, 90);
        let top = root.create("top", limits).expect("a name");
        let below = |name: &str| top.create(name, Limits::new()).expect("a name");
        let [q, victim, cache] = ["q", "victim", "cache"].map(below);
        q.set_limits(
            Limits::new()
                .high(60 * KIB as usize)
                .pressure_levels(50, 90),
        )
        .expect("limits that agree");
        let held = q.charge(Bytes(50 * KIB)).expect("room");
        let goes = Mutex::new(victim.charge(Bytes(40 * KIB)).expect("room"));
        let gives = cache.charge(Bytes(10 * KIB)).expect("room");
        // Before there is a reclaimer that could serve it.
        let mut task = Polled::new(top.charge_async(Bytes(KIB)));
        assert!(
            task.poll_with(&Waker::from(Arc::new(seen.clone())))
                .is_pending()
        );
        let mut registrations = Vec::new();
        for group in [&root, &top, &q, &victim, &cache] {
            for event in Event::ALL {
                let seen = seen.clone();
                registrations.push(group.on_event(event, move |_| seen.note(Listener)));
            }
        }
        let shelf = Arc::new(Shelf(seen.clone(), Mutex::new(gives)));
        registrations.push(top.register_reclaimer(shelf, ReclaimPriority::NORMAL));
        let hook = seen.clone();
        registrations.push(victim.on_cancel(move |_| {
            hook.note(Hook);
            drop(lock(&goes).take());
        }));
        let order = seen.clone();
        top.set_oom_policy(OomPolicy::by(move |_| {
            order.note(Order);
            Some(0)
        }));
        lock(&seen.0).clear();
        Scene {
            top,
            q,
            held,
            seen,
            charged: None,
            _task: task,
            _registrations: registrations,
            runtime,
        }
    }

    /// The same with room for what the calls charge, above the high of `q` and beyond thresholds.
    fn with_room(runtime: Runtime) -> Scene {
        let scene = Scene::new(runtime);
        scene.top.set_oom_policy(OomPolicy::Refuse);
        scene.top.set_max(Limit::kib(200)).expect("bytes");
        lock(&scene.seen.0).clear();
        scene
    }

    /// The same below the high of `q`: what they charge passes a threshold of pressure of `top`.
    fn with_a_threshold(runtime: Runtime) -> Scene {
        let scene = Scene::new(runtime);
        scene.top.set_oom_policy(OomPolicy::Refuse);
        scene.top.set_max(Limit::kib(140)).expect("bytes");
        let limits = Limits::new().high(Limit::kib(90));
        scene.q.set_limits(limits).expect("limits that agree");
        lock(&scene.seen.0).clear();
        scene
    }
}

type Call = fn(&mut Scene);

/// Polls once, with a waker that does nothing.
fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    Box::pin(future)
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
}

fn with(scene: &mut Scene, full: OnFull) {
    scene.charged = scene.q.charge_with(Bytes(30 * KIB), full).ok();
}

/// A call, what it may run on its thread, and what it is shown to run here.
const CALLS: &[(&str, Call, &[Code], &[Code])] = &[
    (
        "charge",
        |scene| scene.charged = scene.q.charge(Bytes(30 * KIB)).ok(),
        ALL,
        ALL,
    ),
    (
        "grow",
        |scene| _ = scene.held.grow(Bytes(30 * KIB)),
        ALL,
        ALL,
    ),
    (
        "transfer",
        |scene| {
            let mut other = scene.runtime.root().force_charge(Bytes(30 * KIB));
            _ = other.transfer(&scene.q);
        },
        ALL,
        ALL,
    ),
    (
        "OnFull::Wait",
        |scene| with(scene, OnFull::Wait(Duration::from_secs(600))),
        ALL,
        ALL,
    ),
    (
        "OnFull::Reclaim",
        |scene| with(scene, OnFull::Reclaim),
        ALL,
        ALL,
    ),
    (
        "OnFull::Start",
        |scene| with(scene, OnFull::Start),
        &[Start],
        &[Start],
    ),
    ("OnFull::Now", |scene| with(scene, OnFull::Now), NONE, NONE),
    (
        "OnFull::IfRoom",
        |scene| with(scene, OnFull::IfRoom),
        NONE,
        NONE,
    ),
    (
        "try_charge",
        |scene| scene.charged = scene.q.try_charge(Bytes(30 * KIB)).ok(),
        NONE,
        NONE,
    ),
    (
        "try_grow",
        |scene| _ = scene.held.try_grow(Bytes(30 * KIB)),
        NONE,
        NONE,
    ),
    (
        "a poll of charge_async",
        |scene| _ = poll_once(scene.q.charge_async(Bytes(30 * KIB))),
        TOLD,
        &[Listener],
    ),
    (
        "force_charge",
        |scene| scene.charged = Some(scene.q.force_charge(Bytes(30 * KIB))),
        TOLD,
        &[Listener],
    ),
    (
        "checkpoint",
        |scene| {
            scene.held.force_grow(Bytes(30 * KIB));
            lock(&scene.seen.0).clear();
            _ = scene.q.run(Group::checkpoint);
        },
        ALL,
        ALL,
    ),
    (
        "a poll of checkpoint_async",
        |scene| {
            scene.held.force_grow(Bytes(30 * KIB));
            lock(&scene.seen.0).clear();
            _ = scene.q.run(|| poll_once(Group::checkpoint_async()));
        },
        ALL,
        ALL,
    ),
    (
        "shrink",
        |scene| _ = scene.held.shrink(Bytes(50 * KIB)),
        TOLD,
        TOLD,
    ),
    (
        "uncharge",
        |scene| {
            let (_word, bytes) = scene.held.take().into_raw();
            scene.q.raw().uncharge(Bytes(bytes));
        },
        TOLD,
        TOLD,
    ),
    ("drop", |scene| drop(scene.held.take()), TOLD, TOLD),
    (
        "set_max",
        |scene| _ = scene.top.set_max(Limit::kib(60)).expect("bytes"),
        ALL,
        ALL,
    ),
    (
        "set_limits",
        |scene| {
            let limits = Limits::new().max(Limit::kib(60));
            _ = scene.top.set_limits(limits).expect("limits that agree");
        },
        ALL,
        ALL,
    ),
    (
        "set_max_now",
        |scene| {
            _ = scene
                .top
                .memory()
                .set_max_now(Limit::kib(300))
                .expect("bytes")
        },
        TOLD,
        TOLD,
    ),
    (
        "reclaim",
        |scene| _ = scene.top.reclaim(Bytes(10 * KIB)),
        &[Reclaimer, Listener, Code::Waker],
        &[Reclaimer, Code::Waker],
    ),
    ("offline", |scene| scene.top.offline_tree(), TOLD, TOLD),
];

#[test]
fn each_call_runs_what_the_table_says() {
    for (name, call, may, shown) in CALLS {
        for builder in [bare, stocked] {
            let mut ran = BTreeSet::new();
            // What a call may run, another thread may run before it: `memcg-reclaim` works for the task in
            // line at the same time. So a call has some tries to show all that it runs.
            for _ in 0..100 {
                for scene in [Scene::new, Scene::with_room, Scene::with_a_threshold] {
                    let runtime = build(builder().delay_max(Duration::from_millis(1)));
                    let mut scene = scene(runtime);
                    call(&mut scene);
                    ran.append(&mut lock(&scene.seen.0));
                }
                assert!(ran.iter().all(|code| may.contains(code)), "{name}: {ran:?}");
                if shown.iter().all(|code| ran.contains(code)) {
                    break;
                }
            }
            assert!(
                shown.iter().all(|code| ran.contains(code)),
                "{name}: {ran:?}"
            );
        }
    }
}
