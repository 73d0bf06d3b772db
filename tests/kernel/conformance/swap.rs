//! Statements 66 and 67: swap, which is a further counter that the owner of the memory charges when
//! it spills.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memcg::{Bytes, CounterKey, Event, Group, Limit, Limits, OomPolicy, Runtime, RuntimeBuilder};

use super::{adaptive_groups, assert_groups_sound, bare_groups, create};
use crate::support::reclaimers::MIB;
use crate::support::swapping::Anon;

const PATIENCE: Duration = Duration::from_secs(30);

fn build(mut builder: RuntimeBuilder) -> (Runtime, CounterKey) {
    let swap = builder.counter("swap", memcg::Unit::Bytes);
    let runtime = builder
        .oom_time(PATIENCE)
        .reclaim_time(PATIENCE)
        .build()
        .expect("a configuration");
    runtime.root().set_oom_policy(OomPolicy::Choose);
    (runtime, swap)
}

fn set_swap_max(group: &Group, swap: CounterKey, bytes: u64) {
    group
        .counter(swap)
        .expect("declared")
        .set_max(Limit::Bytes(bytes))
        .expect("a number");
}

/// No swap at all: what is above max is an OOM, and each attempt to swap is counted with the
/// counter.
fn no_swap(builder: RuntimeBuilder) {
    let (runtime, swap) = build(builder);
    let group = create(
        &runtime.root(),
        "q",
        Limits::new().max(Limit::Bytes(30 * MIB)),
    );
    set_swap_max(&group, swap, 0);
    let process = create(&group, "process", Limits::new());
    let (anon, registration) = Anon::of(&process, swap, MIB);
    let hook = process.on_cancel(|_| ());
    let killed = anon.allocate(31 * MIB).expect_err("30 is all there is");
    assert!(killed.is_cancelled(), "{killed}");
    let swap_of = group.counter(swap).expect("declared");
    assert_eq!(
        (swap_of.usage(), swap_of.peak(), group.live()),
        (0, 0, 30 * MIB)
    );
    assert_eq!(
        (
            group.events().get(Event::Oom),
            group.events().get(Event::OomKill)
        ),
        (1, 1)
    );
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

/// The parent's swap is full: the child is refused there, keeps its memory, and no group is killed
/// for swap.
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
    let report = child
        .reclaim(Bytes(20 * MIB))
        .expect("not inside a reclaimer");
    assert_eq!((report.freed, child.live()), (10 * MIB, 10 * MIB));
    let refused = child
        .charge_set(&[(swap, Bytes(MIB))])
        .expect_err("full above");
    let Some(refusal) = refused.over_limit() else {
        panic!("{refused}")
    };
    assert_eq!(
        (refusal.group(), refusal.requester(), refusal.counter()),
        (&parent, &child, Some("swap"))
    );
    assert_eq!(child.live(), 10 * MIB, "memory is as it was");
    let max = |group: &Group| {
        group
            .counter(swap)
            .expect("declared")
            .events()
            .local()
            .get(Event::Max)
    };
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
