//! A reclaimer that decides by a figure of the statistics: it reads what its group has, and nothing
//! else is flushed for it.

use std::sync::Arc;

use memcg::{Bytes, Freshness, Group, Reclaim, ReclaimContext, ReclaimPriority, StatKey};

use super::{Cache, Log, MIB, assert_sound, assert_within, bare, build, create};

/// Says that it could free what its group's item says.
struct ByItem {
    group: Group,
    cache: Arc<Cache>,
}

impl Reclaim for ByItem {
    fn reclaim(&self, want: u64, _: &ReclaimContext<'_>) -> u64 {
        self.cache.evict(want)
    }

    fn reclaimable(&self) -> u64 {
        self.group
            .read(Freshness::Threshold)
            .get(StatKey::FILE)
            .max(0)
            .cast_unsigned()
    }
}

/// No thread of its own flushes. The read in the reclaimer sees what was added just now, and only
/// in its own group.
#[test]
fn the_subtree_is_flushed_and_the_root_is_not() {
    let runtime = build(bare().stat_batch(0));
    let root = runtime.root();
    let log = Log::default();
    let top = create(&root, "top");
    let beside = create(&root, "beside");
    let groups = ["small", "large"].map(|name| create(&top, name));
    let caches = groups
        .each_ref()
        .map(|group| Cache::alone(group, 64 * MIB, &log));
    let _registered = [0, 1].map(|at| {
        let by_item = ByItem {
            group: groups[at].clone(),
            cache: Arc::clone(&caches[at]),
        };
        groups[at].register_reclaimer(Arc::new(by_item), ReclaimPriority::NORMAL)
    });
    let deltas = [8, 32].map(|size: i64| size << 20);
    groups
        .iter()
        .zip(deltas)
        .for_each(|(group, delta)| group.stat_add(StatKey::FILE, delta));
    beside.stat_add(StatKey::FILE, 1_000);
    let stale = |group: &Group| group.read(Freshness::Stale).get(StatKey::FILE);
    assert_eq!(
        (stale(&groups[0]), stale(&beside)),
        (0, 0),
        "no group has flushed"
    );
    top.reclaim(Bytes(10 * MIB))
        .expect("not inside a reclaimer");
    assert_eq!(
        (stale(&groups[0]), stale(&groups[1])),
        (deltas[0], deltas[1])
    );
    assert_eq!(stale(&beside), 0, "not below the target");
    assert_within(64 * MIB - caches[0].bytes(), 2 * MIB, 10);
    assert_within(64 * MIB - caches[1].bytes(), 8 * MIB, 10);
    assert_sound(&runtime);
}
