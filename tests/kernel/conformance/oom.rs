//! Statements 47 to 49 and 56 to 61: max with a policy that chooses, which groups are killed together, and which are
//! notified.
//!
//! A kill is a call of the cancel hook of a group, which is a process; where the kernel frees the memory itself, the
//! process gives its charges up. The root counts as every other group does; the kernel's shows no events.

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
        Err(ChargeError::Cancelled { group, .. }) => assert_eq!(&group, of),
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
    assert!(group.usage() <= 30 * MIB && group.live() > 0, "{}", group.usage());
    assert_eq!((second.kills(), local(&group, Event::Oom)), (0, 1), "not for what can be reclaimed");
    assert_groups_sound(&runtime);
}

twins! {
    a_charger_above_max_is_killed:
    s047_a_charger_above_max_is_killed(bare_groups()),
    s047_adaptive(adaptive_groups()),
}

fn one_oom_one_kill(builder: RuntimeBuilder) {
    let runtime = build(builder);
    let group = create(&runtime.root(), "q", max(30 * MIB));
    let process = Process::below(&group, "process");
    assert_cancelled(process.allocate(100 * MIB), process.group());
    process.wait_until_dead();
    assert_eq!((count(&group, Event::Oom), count(&group, Event::OomKill)), (1, 1));
    assert_eq!((local(&group, Event::Oom), local(process.group(), Event::OomKill)), (1, 1));
    process.exit().offline().expect("no children");
    assert!(group.children().is_empty(), "cgroup.procs");
    runtime.settle();
    assert_eq!((group.live(), runtime.dying_count()), (0, 0));
    assert_groups_sound(&runtime);
}

twins! {
    one_oom_one_kill:
    s048_one_oom_one_kill(bare_groups()),
    s048_adaptive(adaptive_groups()),
}

/// 50M that are pinned, and a max of 30M.
fn writing_max_below_pinned_memory(builder: RuntimeBuilder) {
    let runtime = build(builder);
    let group = create(&runtime.root(), "q", Limits::new());
    let process = Process::below(&group, "process");
    process.allocate(50 * MIB).expect("no limit yet");
    // O_NONBLOCK: written, and nothing else.
    assert_eq!(group.set_max_now(Limit::Bytes(40 * MIB)).expect("a number"), 10 * MIB);
    assert_eq!((group.max(), group.live(), process.kills()), (40 * MIB, 50 * MIB, 0));
    assert_eq!((count(&group, Event::Oom), count(&group, Event::OomKill)), (0, 0));
    // The other form comes back when it holds.
    assert_eq!(group.set_max(Limit::Bytes(30 * MIB)).expect("a number"), 0);
    assert!(group.usage() <= 30 * MIB, "{}", group.usage());
    process.wait_until_dead();
    assert_eq!((process.kills(), local(process.group(), Event::OomKill)), (1, 1));
    assert_eq!(local(&group, Event::Oom), 1);
    // Or when there is no group left.
    let pinned = group.try_charge(Bytes(20 * MIB)).expect("room");
    assert_eq!(group.set_max(Limit::Bytes(MIB)).expect("a number"), 19 * MIB);
    assert_eq!((group.live(), group.forced(), group.max()), (20 * MIB, 19 * MIB, MIB));
    assert_eq!(count(&group, Event::OomKill), 1);
    assert_groups_sound(&runtime);
    drop(pinned);
}

twins! {
    writing_max_below_pinned_memory:
    s049_writing_max_below_pinned_memory(bare_groups()),
    s049_adaptive(adaptive_groups()),
}

/// A{B}, B is killed for a limit of its own. Where the kernel's root shows nothing, ours shows what is below it.
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
        assert_eq!([&b, &a, &root].map(|group| count(group, event)), [1, 1, 1], "{event:?}");
        // Local events are what the mount option shows.
        assert_eq!([&b, &a, &root].map(|group| local(group, event)), [1, 0, 0], "{event:?}");
    }
    assert_groups_sound(&runtime);
}

twins! {
    hierarchical_and_local:
    s056_hierarchical_and_local(bare_groups()),
    s056_adaptive(adaptive_groups()),
}

/// The parent has the limit, the child is one group to be killed: it is killed as a whole, and no group beside it.
fn the_whole_child_dies(builder: RuntimeBuilder) {
    let runtime = build(builder);
    let parent = create(&runtime.root(), "parent", max(50 * MIB));
    let child = create(&parent, "child", Limits::new());
    child.set_oom_group(true);
    let survivor = Process::below(&parent, "survivor");
    survivor.allocate(MIB).expect("room");
    let sleepers = ["sleeper", "second sleeper"].map(|name| Process::below(&child, name));
    let hog = Process::below(&child, "hog");
    assert_cancelled(hog.allocate(100 * MIB), hog.group());
    for process in sleepers.iter().chain([&hog]) {
        process.wait_until_dead();
        assert_eq!((process.kills(), local(process.group(), Event::OomKill)), (1, 1));
    }
    assert_eq!((survivor.kills(), survivor.is_dead()), (0, false));
    survivor.allocate(MIB).expect("it lives");
    assert_eq!((local(&parent, Event::Oom), local(&child, Event::OomGroupKill)), (1, 1));
    assert_eq!((count(&child, Event::OomKill), count(&parent, Event::OomKill)), (3, 3));
    assert_eq!((local(&child, Event::Oom), local(&parent, Event::OomGroupKill)), (0, 0));
    assert_eq!(parent.live(), 2 * MIB);
    assert_groups_sound(&runtime);
}

twins! {
    the_whole_child_dies:
    s057_the_whole_child_dies(bare_groups()),
    s057_adaptive(adaptive_groups()),
}

/// The same one level up: all die, at whatever depth.
fn all_below_the_parent_die(builder: RuntimeBuilder) {
    let runtime = build(builder);
    let parent = create(&runtime.root(), "parent", max(50 * MIB));
    parent.set_oom_group(true);
    let child = create(&parent, "child", Limits::new());
    let grandchild = create(&child, "grandchild", Limits::new());
    let processes = [&parent, &child, &grandchild].map(|group| Process::below(group, "sleeper"));
    let hog = Process::below(&child, "hog");
    let outside = Process::below(&runtime.root(), "outside");
    assert_cancelled(hog.allocate(100 * MIB), hog.group());
    for process in processes.iter().chain([&hog]) {
        process.wait_until_dead();
        assert_eq!(process.kills(), 1, "{}", process.group().path());
    }
    assert_eq!((count(&parent, Event::OomKill), local(&parent, Event::OomGroupKill)), (4, 1));
    assert_eq!((outside.kills(), parent.live()), (0, 0));
    assert_groups_sound(&runtime);
}

twins! {
    all_below_the_parent_die:
    s058_all_below_the_parent_die(bare_groups()),
    s058_adaptive(adaptive_groups()),
}

/// oom_score_adj -1000 is an exempt group.
fn an_exempt_group_survives(builder: RuntimeBuilder) {
    let runtime = build(builder);
    let group = create(&runtime.root(), "q", max(50 * MIB));
    group.set_oom_group(true);
    let sleepers = ["first", "second"].map(|name| Process::below(&group, name));
    let exempt = Process::below(&group, "exempt");
    exempt.group().set_oom_exempt(true);
    exempt.allocate(20 * MIB).expect("room");
    let hog = Process::below(&group, "hog");
    assert_cancelled(hog.allocate(100 * MIB), hog.group());
    for process in sleepers.iter().chain([&hog]) {
        process.wait_until_dead();
        assert_eq!(process.kills(), 1);
    }
    assert_eq!((count(&group, Event::OomKill), exempt.kills()), (3, 0));
    exempt.allocate(MIB).expect("it lives");
    assert_eq!(group.live(), 21 * MIB);
    assert_groups_sound(&runtime);
}

twins! {
    an_exempt_group_survives:
    s059_who_is_exempt_survives(bare_groups()),
    s059_adaptive(adaptive_groups()),
}

/// A listener at each level above, and a thread that waits there: all are notified of what moved the count they read.
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
    assert!(b.try_charge(Bytes(2 * MIB)).is_err());
    let until = Instant::now() + PATIENCE;
    let told = || heard.iter().map(|heard| heard.load(Ordering::SeqCst)).collect::<Vec<_>>();
    let counts = levels.map(|level| count(level, Event::Max));
    while told() != counts && Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(told(), counts);
    assert!(counts[0] > 0 && counts[3] == 0);
    for wait in waits {
        assert!(wait.join().expect("no panic"));
    }
    assert!(!before[3].wait(Event::Max, Duration::ZERO), "nothing has happened there");
    drop(subscriptions);
    assert_groups_sound(&runtime);
}

twins! {
    each_ancestor_hears:
    s061_each_ancestor_hears(bare_groups()),
    s061_adaptive(adaptive_groups()),
}
