//! Groups weighed by a figure of their statistics: it is fresh below the target, and nothing else is flushed for it.

use memcg::expert::BarrierMode;
use memcg::{BuildError, Bytes, Freshness, Limit, Priority, Stat, Unit};

use super::{Cache, Log, MIB, assert_sound, assert_within, bare, build, call_of, charge, create};

#[test]
fn by_a_figure_of_their_own() {
    for barrier in [BarrierMode::Fence, BarrierMode::Membarrier] {
        let runtime = build(bare().barrier(barrier).reclaim_weight(Stat::FILE).max(Limit::Bytes(128 * MIB)));
        let (root, log) = (runtime.root(), Log::default());
        // What they hold is the same, what they say of it is not.
        let groups = ["small", "large"].map(|name| create(&root, name));
        let caches = groups.each_ref().map(|group| Cache::of(group, 64 * MIB, &log));
        groups[0].stat_add(Stat::FILE, (8 * MIB).cast_signed());
        groups[1].stat_add(Stat::FILE, (32 * MIB).cast_signed());
        root.reclaim(Bytes(10 * MIB)).expect("not inside a reclaimer");
        assert_within(64 * MIB - caches[0].0.bytes(), 2 * MIB, 10);
        assert_within(64 * MIB - caches[1].0.bytes(), 8 * MIB, 10);
        assert_sound(&runtime);
    }
}

/// No thread of its own, no read: the walk itself sees what was added just now, and only below its target.
#[test]
fn the_subtree_is_flushed_and_the_root_is_not() {
    let runtime = build(bare().reclaim_weight(Stat::FILE).stat_batch(1 << 40));
    let (root, log) = (runtime.root(), Log::default());
    let top = create(&root, "top");
    let beside = create(&root, "beside");
    let groups = ["small", "large"].map(|name| create(&top, name));
    let caches = groups.each_ref().map(|group| Cache::of(group, 64 * MIB, &log));
    let deltas = [8, 32].map(|size: i64| size << 20);
    groups.iter().zip(deltas).for_each(|(group, delta)| group.stat_add(Stat::FILE, delta));
    beside.stat_add(Stat::FILE, 1_000);
    let stale = |group: &memcg::Group| group.read(Freshness::Stale).get(Stat::FILE);
    assert_eq!((stale(&groups[0]), stale(&beside)), (0, 0), "no group has flushed");
    top.reclaim(Bytes(10 * MIB)).expect("not inside a reclaimer");
    assert_eq!((stale(&groups[0]), stale(&groups[1])), (deltas[0], deltas[1]));
    assert_eq!(stale(&beside), 0, "not below the target");
    assert_within(64 * MIB - caches[0].0.bytes(), 2 * MIB, 10);
    assert_within(64 * MIB - caches[1].0.bytes(), 8 * MIB, 10);
    // What turns round is seen at once.
    groups[0].stat_add(Stat::FILE, deltas[1] - deltas[0]);
    groups[1].stat_add(Stat::FILE, deltas[0] - deltas[1]);
    let before = caches.each_ref().map(|(cache, _)| cache.bytes());
    top.reclaim(Bytes(10 * MIB)).expect("not inside a reclaimer");
    assert_within(before[0] - caches[0].0.bytes(), 8 * MIB, 15);
    assert_within(before[1] - caches[1].0.bytes(), 2 * MIB, 15);
    assert_eq!(stale(&beside), 0);
    assert_sound(&runtime);
}

/// What a group has given counts as the part of its figure that it is of its memory, whatever the figure's unit.
#[test]
fn by_a_figure_that_is_not_of_bytes() {
    let runtime = build(bare().reclaim_weight(Stat::FILE));
    let (root, log) = (runtime.root(), Log::default());
    let groups = ["one", "other", "idle"].map(|name| create(&root, name));
    groups.iter().for_each(|group| group.stat_add(Stat::FILE, 1_000));
    let caches = [0, 1].map(|at| Cache::of(&groups[at], 64 * MIB, &log));
    // It gives a little and says that it could give more: the others are asked for its part in a further lap.
    let idle = Cache::alone(&groups[2], 64 * MIB, &log);
    let little = call_of(64 * MIB, move |want, _| if want > MIB { 0 } else { idle.evict(want) });
    let _idle = groups[2].register_reclaimer(little, Priority::NORMAL);
    root.reclaim(Bytes(60 * MIB)).expect("not inside a reclaimer");
    for (cache, _) in &caches {
        assert_within(64 * MIB - cache.bytes(), 30 * MIB, 10);
    }
    assert_sound(&runtime);
}

/// A figure of nothing, or below nothing, is no reason to refuse a charge while there is something to give.
#[test]
fn a_wrong_figure_refuses_no_group() {
    for figure in [0, -1, i64::MIN / 2, i64::MAX / 2] {
        let runtime = build(bare().reclaim_weight(Stat::FILE).max(Limit::Bytes(16 * MIB)));
        let (root, log) = (runtime.root(), Log::default());
        let group = create(&root, "q");
        let (cache, _registration) = Cache::of(&group, 16 * MIB, &log);
        group.stat_add(Stat::FILE, figure);
        let held = charge(&root, 10 * MIB);
        assert_eq!(cache.bytes(), 6 * MIB, "figure {figure}");
        assert_sound(&runtime);
        drop(held);
    }
}

/// An item that another builder declared is refused when the runtime is built.
#[test]
fn an_item_of_another_builder() {
    let foreign = bare().stat("mine", Unit::Bytes);
    let refused = bare().reclaim_weight(foreign).build().expect_err("not this builder's");
    assert_eq!(refused, BuildError::ForeignStat);
    assert_eq!(refused.to_string(), "reclaim is weighed by an item of another builder");
}
