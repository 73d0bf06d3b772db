//! Statements 65 to 67: swap, which is a further counter that the owner of the memory charges when it spills.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memcg::{Bytes, ChargeError, Counter, Event, Group, Limit, Limits, OomPolicy, Runtime, RuntimeBuilder};

use super::{adaptive_groups, assert_groups_sound, bare_groups, create};
use crate::support::reclaimers::MIB;
use crate::support::swapping::Anon;

const PATIENCE: Duration = Duration::from_secs(30);

fn build(mut builder: RuntimeBuilder) -> (Runtime, Counter) {
    let swap = builder.counter("swap").independent();
    let runtime = builder.oom_time(PATIENCE).reclaim_time(PATIENCE).build().expect("a configuration");
    runtime.root().set_oom_policy(OomPolicy::Choose);
    (runtime, swap)
}

fn set_swap_max(group: &Group, swap: Counter, bytes: u64) {
    group.counter(swap).expect("declared").set_max(Limit::Bytes(bytes)).expect("a number");
}

/// `got` is `expected` as `values_close(got, expected, 3)` has it.
#[track_caller]
fn assert_close(got: u64, expected: u64) {
    assert!(got.abs_diff(expected) <= (got + expected) / 100 * 3, "{got}, expected {expected}");
}

fn both_full_then_both_enough(builder: RuntimeBuilder) {
    let (runtime, swap) = build(builder);
    let group = create(&runtime.root(), "q", Limits::new().max(Limit::Bytes(30 * MIB)));
    set_swap_max(&group, swap, 30 * MIB);
    let swap_of = group.counter(swap).expect("declared");
    let windows = [group.peak_window(), swap_of.peak_window()];
    windows.iter().for_each(memcg::PeakWindow::reset);
    let process = create(&group, "process", Limits::new());
    let (anon, registration) = Anon::of(&process, swap, MIB);
    let kills = Arc::new(AtomicU64::new(0));
    let hook = {
        let kills = Arc::clone(&kills);
        process.on_cancel(move |_| {
            kills.fetch_add(1, Ordering::SeqCst);
        })
    };
    let killed = anon.allocate(100 * MIB).expect_err("60 is all there is");
    assert!(matches!(&killed, ChargeError::Cancelled { group, .. } if *group == process), "{killed}");
    anon.exit();
    assert_eq!(kills.load(Ordering::SeqCst), 1);
    assert_eq!((group.events().get(Event::Oom), group.events().get(Event::OomKill)), (1, 1));
    for peak in [group.peak(), swap_of.peak(), windows[0].peak(), windows[1].peak()] {
        assert!(peak >= 29 * MIB, "{peak}");
    }
    group.drain();
    windows.iter().for_each(memcg::PeakWindow::reset);
    // Another of another group, opened, reset and closed meanwhile.
    let others = [group.peak_window(), swap_of.peak_window()];
    others.iter().for_each(memcg::PeakWindow::reset);
    drop(others);
    assert!(windows[0].peak() <= MIB && windows[1].peak() <= 10 * MIB);
    assert!(group.peak() >= 29 * MIB && swap_of.peak() >= 29 * MIB);
    anon.allocate(50 * MIB).expect("30 in memory, 20 in swap");
    assert_close(group.live(), 30 * MIB);
    assert_close(group.live() + swap_of.live(), 50 * MIB);
    assert!(windows[0].peak() >= 29 * MIB && windows[1].peak() >= 19 * MIB);
    assert_eq!(kills.load(Ordering::SeqCst), 1, "it survives");
    assert!(group.events().get(Event::Max) > 0);
    anon.exit();
    drop((hook, registration));
    assert_groups_sound(&runtime);
}

twins! {
    both_full_then_both_enough:
    s065_both_full_then_both_enough(bare_groups()),
    s065_adaptive(adaptive_groups()),
}

/// No swap at all: what is above max is an OOM, and each attempt to swap is counted with the counter.
fn no_swap(builder: RuntimeBuilder) {
    let (runtime, swap) = build(builder);
    let group = create(&runtime.root(), "q", Limits::new().max(Limit::Bytes(30 * MIB)));
    set_swap_max(&group, swap, 0);
    let process = create(&group, "process", Limits::new());
    let (anon, registration) = Anon::of(&process, swap, MIB);
    let hook = process.on_cancel(|_| ());
    let killed = anon.allocate(31 * MIB).expect_err("30 is all there is");
    assert!(matches!(&killed, ChargeError::Cancelled { .. }), "{killed}");
    let swap_of = group.counter(swap).expect("declared");
    assert_eq!((swap_of.usage(), swap_of.peak(), group.live()), (0, 0, 30 * MIB));
    assert_eq!((group.events().get(Event::Oom), group.events().get(Event::OomKill)), (1, 1));
    // The swap fail event: refused there, and its max met.
    assert!(swap_of.refused_count() > 0 && swap_of.events().local().get(Event::Max) > 0);
    anon.exit();
    drop((hook, registration));
    assert_groups_sound(&runtime);
}

twins! {
    no_swap:
    s066_no_swap(bare_groups()),
    s066_adaptive(adaptive_groups()),
}

/// The parent's swap is full: the child is refused there, keeps its memory, and no group is killed for swap.
fn swap_is_hierarchical(builder: RuntimeBuilder) {
    let (runtime, swap) = build(builder);
    let parent = create(&runtime.root(), "parent", Limits::new());
    let child = create(&parent, "child", Limits::new());
    set_swap_max(&parent, swap, 10 * MIB);
    let kills = Arc::new(AtomicU64::new(0));
    let hook = {
        let kills = Arc::clone(&kills);
        child.on_cancel(move |_| {
            kills.fetch_add(1, Ordering::SeqCst);
        })
    };
    let (anon, registration) = Anon::of(&child, swap, MIB);
    anon.allocate(20 * MIB).expect("no limit");
    let report = child.reclaim(Bytes(20 * MIB)).expect("not inside a reclaimer");
    assert_eq!((report.freed, child.live()), (10 * MIB, 10 * MIB));
    let refused = child.try_charge_set(&[(swap, MIB)]).expect_err("full above");
    let ChargeError::Limit(refusal) = refused else { panic!("{refused}") };
    assert_eq!((refusal.group(), refusal.requester(), refusal.counter()), (&parent, &child, Some("swap")));
    assert_eq!(child.live(), 10 * MIB, "memory is as it was");
    let max = |group: &Group| group.counter(swap).expect("declared").events().local().get(Event::Max);
    assert!(max(&parent) > 0);
    assert_eq!((max(&child), max(&runtime.root())), (0, 0));
    for group in [&child, &parent, &runtime.root()] {
        let events = group.events();
        let counts = [Event::Max, Event::Oom, Event::OomKill].map(|event| events.get(event));
        assert_eq!(counts, [0; 3], "memory's, of {}", group.path());
    }
    assert_eq!(kills.load(Ordering::SeqCst), 0);
    anon.exit();
    drop((hook, registration));
    assert_groups_sound(&runtime);
}

twins! {
    swap_is_hierarchical:
    s067_swap_is_hierarchical(bare_groups()),
    s067_adaptive(adaptive_groups()),
}
