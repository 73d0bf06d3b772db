//! A delay ends with its group: cancelled or offline, in whatever way the call is delayed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use memcg::{Bytes, Charge, ChargeError, Event, Group, OnFull, OomPolicy, Runtime};

use super::{
    LONG, MIB, WATCHDOG, assert_empty, bare, build, charge, create, left_empty, until, with_high,
};
use crate::support::waiters::{block_on, join};

type Way = fn(&Group) -> Result<Option<Charge>, ChargeError>;

const WAYS: [Way; 6] = [
    |group| group.charge(Bytes(MIB)).map(Some),
    |group| group.charge_with(Bytes(MIB), OnFull::Wait(LONG)).map(Some),
    |group| block_on(group.charge_async(Bytes(MIB))).map(Some),
    |group| group.run(Group::checkpoint).map(|()| None),
    |group| group.run(Group::checkpoint).map(|()| None),
    |group| block_on(group.run(Group::checkpoint_async)).map(|()| None),
];

/// A group far above its high, with a call that is delayed until the group ends.
struct Scene {
    runtime: Runtime,
    group: Group,
    /// Gives back what it was given once its call is back. Returns whether that was refused.
    delayed: JoinHandle<Result<(), ChargeError>>,
}

fn scene(way: Way) -> Scene {
    let runtime = build(
        bare()
            .max(memcg::Limit::Bytes(100 * MIB))
            .delay_max(LONG)
            .oom_time(LONG),
    );
    runtime.root().set_oom_policy(OomPolicy::Choose);
    let group = with_high(&runtime.root(), "v", 10 * MIB);
    let held = group.force_charge(Bytes(60 * MIB));
    let delayed = thread::spawn({
        let group = group.clone();
        move || {
            let more = way(&group);
            drop(held);
            more.map(drop)
        }
    });
    until("a call in its delay", || {
        group.pressure().some.total > std::time::Duration::ZERO || delayed.is_finished()
    });
    Scene {
        runtime,
        group,
        delayed,
    }
}

/// The victim gives back what it has as soon as it is told, so no other group is asked.
#[test]
fn of_a_victim() {
    for way in WAYS {
        let Scene {
            runtime,
            group,
            delayed,
        } = scene(way);
        let root = runtime.root();
        let [other, asks] = ["other", "asks"].map(|name| create(&root, name));
        let told = Arc::new(AtomicBool::new(false));
        let held = charge(&other, 20 * MIB);
        let hooks = [group.on_cancel(|_| ()), {
            let told = Arc::clone(&told);
            other.on_cancel(move |_| told.store(true, Ordering::SeqCst))
        }];
        let charge = asks
            .charge(Bytes(50 * MIB))
            .expect("the victim gives back what it has");
        if let Err(error) = join(delayed) {
            assert!(error.is_cancelled(), "{error}");
        }
        assert_eq!(
            (
                root.events().get(Event::OomKill),
                told.load(Ordering::SeqCst)
            ),
            (1, false)
        );
        drop((charge, hooks, held, other, asks, group, root));
        assert_empty(&runtime);
    }
}

/// A call of a group below the victim.
#[test]
fn below_a_victim() {
    let runtime = left_empty(build(
        bare()
            .max(memcg::Limit::Bytes(100 * MIB))
            .delay_max(LONG)
            .oom_time(LONG),
    ));
    let root = runtime.root();
    root.set_oom_policy(OomPolicy::Choose);
    let top = with_high(&root, "top", MIB);
    let below = create(&top, "below");
    let held = below.force_charge(Bytes(60 * MIB));
    let _hook = top.on_cancel(|_| ());
    let delayed = thread::spawn({
        let below = below.clone();
        move || {
            let more = below.charge(Bytes(MIB)).map(drop);
            drop(held);
            more
        }
    });
    until("a call in its delay", || {
        below.pressure().some.total > std::time::Duration::ZERO || delayed.is_finished()
    });
    let _charge = root
        .charge(Bytes(50 * MIB))
        .expect("the victim gives back what it has");
    let _ = join(delayed);
}

#[test]
fn of_a_group_that_goes_offline() {
    for way in WAYS {
        let Scene {
            runtime,
            group,
            delayed,
        } = scene(way);
        group.offline().expect("no children");
        assert!(join(delayed).is_ok(), "what was charged is charged");
        drop(group);
        assert_empty(&runtime);
    }
}

/// A group that is cancelled is not delayed: it is to give back what it has.
#[test]
fn it_does_not_begin_in_a_victim() {
    let runtime = left_empty(build(
        bare()
            .max(memcg::Limit::Bytes(100 * MIB))
            .delay_max(LONG)
            .oom_time(LONG),
    ));
    let root = runtime.root();
    root.set_oom_policy(OomPolicy::Choose);
    let group = with_high(&root, "v", 10 * MIB);
    let asks = create(&root, "asks");
    let held = group.force_charge(Bytes(60 * MIB));
    let (told, tell) = std::sync::mpsc::channel();
    let _hook = group.on_cancel(move |_| told.send(()).expect("it is awaited"));
    let thread = thread::spawn(move || asks.charge(Bytes(50 * MIB)));
    tell.recv_timeout(WATCHDOG).expect("it is chosen");
    for way in WAYS {
        match way(&group) {
            Err(error) if error.is_cancelled() => {}
            Ok(Some(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    drop(held);
    drop(join(thread).expect("there is room"));
}
