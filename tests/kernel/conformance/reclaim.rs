//! Statements 51 to 54: max and what is reclaimed for it, and what is reclaimed because a group
//! asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memcg::{Bytes, Event, Group, Limit, Limits, OomPolicy, ReclaimPriority, RuntimeBuilder};

use super::{adaptive_groups, assert_groups_sound, bare_groups, create};
use crate::support::reclaimers::{Cache, Log, MIB, call};

fn max(bytes: u64) -> Limits {
    Limits::new().max(Limit::Bytes(bytes))
}

fn nothing_fits_below_max_0(builder: RuntimeBuilder) {
    let runtime = builder.build().expect("a configuration");
    let log = Log::default();
    let group = create(&runtime.root(), "q", max(0));
    let (_cache, _registration) = Cache::of(&group, 0, &log);
    for bytes in [1, 4_096, MIB, u64::MAX] {
        let refused = group.charge(Bytes(bytes)).expect_err("max is 0");
        assert!(
            refused.over_limit().is_some_and(|by| by.group() == &group),
            "{refused}"
        );
    }
    assert_eq!(
        (group.usage(), group.peak(), runtime.root().usage()),
        (0, 0, 0)
    );
    assert!(log.is_empty(), "an empty group is not asked");
    assert_groups_sound(&runtime);
}

#[test]
fn s051_nothing_fits_below_max_0() {
    nothing_fits_below_max_0(bare_groups());
    nothing_fits_below_max_0(adaptive_groups());
}

/// Half of the group cannot be reclaimed, as anonymous memory without swap.
fn reclaim_to_a_goal(builder: RuntimeBuilder) {
    let runtime = builder.build().expect("a configuration");
    let log = Log::default();
    let group = create(&runtime.root(), "q", max(500 * MIB));
    let pinned = group.charge(Bytes(25 * MIB)).expect("room");
    let (cache, _registration) = Cache::of(&group, 30 * MIB, &log);
    let goal = 30 * MIB;
    for _ in 0..16 {
        let Some(want) = group.live().checked_sub(goal).filter(|&want| want > 0) else {
            break;
        };
        let report = group.reclaim(Bytes(want)).expect("not inside a reclaimer");
        assert_eq!(report.requested, want);
        if report.freed >= want {
            assert!(
                group.live() <= goal + goal * 3 / 100,
                "{report:?} left {}",
                group.live()
            );
        }
    }
    let live = group.live();
    assert!(live.abs_diff(goal) <= (live + goal) / 100 * 3, "{live}");
    assert_eq!(live, cache.bytes() + pinned.bytes());
    for level in [&group, &runtime.root()] {
        for event in [Event::High, Event::Max, Event::Oom] {
            assert_eq!(
                level.events().get(event),
                0,
                "{event:?} of {}",
                level.path()
            );
        }
    }
    assert_groups_sound(&runtime);
}

#[test]
fn s053_reclaim_to_a_goal() {
    reclaim_to_a_goal(bare_groups());
    reclaim_to_a_goal(adaptive_groups());
}

/// A(max 30M){B(max 60M){C}}: A refuses what C is charged, and A and what is above it show the
/// event. The kernel's root shows none; here it is a group like all others.
fn the_refusing_level_counts(builder: RuntimeBuilder) {
    let runtime = builder.build().expect("a configuration");
    let a = create(&runtime.root(), "a", max(30 * MIB));
    let b = create(&a, "b", max(60 * MIB));
    let c = create(&b, "c", Limits::new());
    let refused = c.charge(Bytes(40 * MIB)).expect_err("A is smaller");
    assert!(
        refused
            .over_limit()
            .is_some_and(|by| by.group() == &a && by.requester() == &c),
        "{refused}"
    );
    let local = |group: &Group| group.events().local().get(Event::Max);
    let all = |group: &Group| group.events().get(Event::Max);
    assert!(local(&a) >= 1);
    assert_eq!((local(&b), local(&c), local(&runtime.root())), (0, 0, 0));
    assert_eq!((all(&a), all(&b), all(&c)), (local(&a), 0, 0));
    assert_eq!(all(&runtime.root()), local(&a));
    assert_groups_sound(&runtime);
}

#[test]
fn s054_the_refusing_level_counts() {
    the_refusing_level_counts(bare_groups());
    the_refusing_level_counts(adaptive_groups());
}

/// A reclaimer has no memory to wait for: its own charge counts `max` where it does not fit, and
/// never `oom`. Here it is refused; the kernel, which may not refuse it, lets it through
/// (`PF_MEMALLOC` in `try_charge_memcg`). The same inside a cancel hook (`task_in_memcg_oom`).
fn inside_reclaim_nothing_counts_as_oom(builder: RuntimeBuilder) {
    let runtime = builder.build().expect("a configuration");
    let root = runtime.root();
    let group = create(&root, "q", max(10 * MIB));
    let pinned = group.charge(Bytes(10 * MIB)).expect("room");
    let refused = Arc::new(AtomicU64::new(0));
    let charges = {
        let refused = Arc::clone(&refused);
        move |group: &Group| {
            let error = group.charge(Bytes(MIB)).expect_err("it is full");
            assert!(error.is_in_reclaim(), "{error}");
            refused.fetch_add(1, Ordering::SeqCst);
        }
    };
    let registration = {
        let charges = charges.clone();
        let reclaimer = call(move |_, context| {
            charges(&context.group());
            0
        });
        group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL)
    };
    let counts = |event| (group.events().local().get(event), root.events().get(event));
    group.reclaim(Bytes(MIB)).expect("not inside a reclaimer");
    let inside = refused.load(Ordering::SeqCst);
    assert!(inside > 0 && counts(Event::Panic) == (0, 0));
    assert_eq!(
        (counts(Event::Max), counts(Event::Oom)),
        ((inside, inside), (0, 0))
    );
    assert_eq!(group.refused_count(), inside, "refused it is");
    // The charge that it is asked for counts, once.
    drop(registration);
    group.set_oom_policy(OomPolicy::Choose);
    let hook = group.on_cancel(move |cancel| charges(&cancel.group()));
    group
        .charge(Bytes(MIB))
        .expect_err("it is the victim itself");
    assert_eq!(
        (refused.load(Ordering::SeqCst), counts(Event::Oom)),
        (inside + 1, (1, 1))
    );
    drop((hook, pinned));
    assert_groups_sound(&runtime);
}

#[test]
fn inside_reclaim_nothing_is_oom() {
    inside_reclaim_nothing_counts_as_oom(bare_groups());
    inside_reclaim_nothing_counts_as_oom(adaptive_groups());
}
