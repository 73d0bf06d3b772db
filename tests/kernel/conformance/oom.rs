//! Statements 47, 49, 56, 60 and 61: max with a policy that chooses, which level counts a kill, and
//! which are notified.
//!
//! A kill is a call of the cancel hook of a group, which is a process; where the kernel frees the
//! memory itself, the process gives its charges up. The root counts as every other group does; the
//! kernel's shows no events.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memcg::{Bytes, ChargeError, Event, Group, Limit, Limits, OomPolicy, Runtime, RuntimeBuilder};

use super::{adaptive_groups, assert_groups_sound, bare_groups, create};
use crate::support::processes::Process;
use crate::support::reclaimers::{Cache, Log, MIB};

/// No group is given up on because the machine is slow.
const PATIENCE: Duration = Duration::from_secs(30);

fn build(builder: RuntimeBuilder) -> Runtime {
    let runtime = builder.oom_time(PATIENCE).build().expect("a configuration");
    runtime.root().set_oom_policy(OomPolicy::Choose);
    runtime
}

fn max(bytes: u64) -> Limits {
    Limits::new().max(Limit::Bytes(bytes))
}

fn count(group: &Group, event: Event) -> u64 {
    group.events().get(event)
}

fn local(group: &Group, event: Event) -> u64 {
    group.events().local().get(event)
}

#[track_caller]
fn assert_cancelled(result: Result<(), ChargeError>, of: &Group) {
    match result {
        Err(error) if error.is_cancelled() => assert_eq!(error.group(), of),
        other => panic!("{other:?}"),
    }
}

/// 100M that no group can reclaim; then 50M that can be.
fn a_charger_above_max_is_killed(builder: RuntimeBuilder) {
    let runtime = build(builder);
    let group = create(&runtime.root(), "q", max(30 * MIB));
    let first = Process::below(&group, "first");
    assert_cancelled(first.allocate(100 * MIB), first.group());
    first.wait_until_dead();
    assert!(count(&group, Event::Max) > 0);
    assert_eq!((first.kills(), group.live()), (1, 0));
    first.exit().offline().expect("no children");
    let second = Process::below(&group, "second");
    let (cache, _registration) = Cache::of(&group, 0, &Log::default());
    for _ in 0..50 {
        cache.add(MIB).expect("it takes from itself");
    }
    assert!(
        group.usage() <= 30 * MIB && group.live() > 0,
        "{}",
        group.usage()
    );
    assert_eq!(
        (second.kills(), local(&group, Event::Oom)),
        (0, 1),
        "not for what can be reclaimed"
    );
    assert_groups_sound(&runtime);
}

twins! {
    a_charger_above_max_is_killed:
    s047_a_charger_above_max_is_killed(bare_groups()),
    s047_adaptive(adaptive_groups()),
}

/// 50M that are pinned, and a max of 30M.
fn writing_max_below_pinned_memory(builder: RuntimeBuilder) {
    let runtime = build(builder);
    let group = create(&runtime.root(), "q", Limits::new());
    let process = Process::below(&group, "process");
    process.allocate(50 * MIB).expect("no limit yet");
    // O_NONBLOCK: written, and nothing else.
    assert_eq!(
        group
            .memory()
            .set_max_now(Limit::Bytes(40 * MIB))
            .expect("a number"),
        10 * MIB
    );
    assert_eq!(
        (group.max(), group.live(), process.kills()),
        (40 * MIB, 50 * MIB, 0)
    );
    assert_eq!(
        (count(&group, Event::Oom), count(&group, Event::OomKill)),
        (0, 0)
    );
    // The other form comes back when it holds.
    assert_eq!(group.set_max(Limit::Bytes(30 * MIB)).expect("a number"), 0);
    assert!(group.usage() <= 30 * MIB, "{}", group.usage());
    process.wait_until_dead();
    assert_eq!(
        (process.kills(), local(process.group(), Event::OomKill)),
        (1, 1)
    );
    assert_eq!(local(&group, Event::Oom), 1);
    // Or when there is no group left.
    let pinned = group.charge(Bytes(20 * MIB)).expect("room");
    assert_eq!(
        group.set_max(Limit::Bytes(MIB)).expect("a number"),
        19 * MIB
    );
    assert_eq!(
        (group.live(), group.forced(), group.max()),
        (20 * MIB, 19 * MIB, MIB)
    );
    assert_eq!(count(&group, Event::OomKill), 1);
    assert_groups_sound(&runtime);
    drop(pinned);
}

twins! {
    writing_max_below_pinned_memory:
    s049_writing_max_below_pinned_memory(bare_groups()),
    s049_adaptive(adaptive_groups()),
}

/// A{B}, B is killed for a limit of its own. Where the kernel's root shows nothing, ours shows what
/// is below it.
fn hierarchical_and_local(builder: RuntimeBuilder) {
    let runtime = build(builder);
    let root = runtime.root();
    let a = create(&root, "a", Limits::new());
    let b = create(&a, "b", max(50 * MIB));
    b.set_oom_group(true);
    let process = Process::in_group(&b);
    assert_cancelled(process.allocate(100 * MIB), &b);
    process.wait_until_dead();
    for event in [Event::OomKill, Event::Oom, Event::OomGroupKill] {
        assert_eq!(
            [&b, &a, &root].map(|group| count(group, event)),
            [1, 1, 1],
            "{event:?}"
        );
        // Local events are what the mount option shows.
        assert_eq!(
            [&b, &a, &root].map(|group| local(group, event)),
            [1, 0, 0],
            "{event:?}"
        );
    }
    assert_groups_sound(&runtime);
}

twins! {
    hierarchical_and_local:
    s056_hierarchical_and_local(bare_groups()),
    s056_adaptive(adaptive_groups()),
}

/// A listener at each level above, and a thread that waits there: all are notified of what moved
/// the count they read.
fn each_ancestor_hears(builder: RuntimeBuilder) {
    let runtime = builder.build().expect("a configuration");
    let root = runtime.root();
    let a = create(&root, "a", Limits::new());
    let b = create(&a, "b", max(MIB));
    let beside = create(&a, "beside", Limits::new());
    let levels = [&root, &a, &b, &beside];
    let heard: Vec<Arc<AtomicU64>> = levels.iter().map(|_| Arc::default()).collect();
    let subscriptions = levels.iter().zip(&heard).map(|(level, heard)| {
        let heard = Arc::clone(heard);
        level.on_event(Event::Max, move |happened| {
            heard.fetch_add(happened.times(), Ordering::SeqCst);
        })
    });
    let subscriptions: Vec<_> = subscriptions.collect();
    let before = levels.map(Group::events);
    let waits: Vec<_> = before[..3]
        .iter()
        .map(|events| {
            let events = events.clone();
            std::thread::spawn(move || events.wait(Event::Max, PATIENCE))
        })
        .collect();
    assert!(b.charge(Bytes(2 * MIB)).is_err());
    let until = Instant::now() + PATIENCE;
    let told = || {
        heard
            .iter()
            .map(|heard| heard.load(Ordering::SeqCst))
            .collect::<Vec<_>>()
    };
    let counts = levels.map(|level| count(level, Event::Max));
    while told() != counts && Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(told(), counts);
    assert!(counts[0] > 0 && counts[3] == 0);
    for wait in waits {
        assert!(wait.join().expect("no panic"));
    }
    assert!(
        !before[3].wait(Event::Max, Duration::ZERO),
        "nothing has happened there"
    );
    drop(subscriptions);
    assert_groups_sound(&runtime);
}

twins! {
    each_ancestor_hears:
    s061_each_ancestor_hears(bare_groups()),
    s061_adaptive(adaptive_groups()),
}
