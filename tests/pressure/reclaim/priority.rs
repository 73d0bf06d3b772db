//! Priorities within a group: the lowest is asked first, the next where that is not enough.

use memcg::{Bytes, Reclaim, ReclaimPriority};

use super::{
    Cache, KIB, Log, MIB, assert_sound, assert_within, bare, build, charge, create, kinds,
};

#[test]
fn they_are_ordered() {
    assert!(
        ReclaimPriority::LOW < ReclaimPriority::NORMAL
            && ReclaimPriority::NORMAL < ReclaimPriority::HIGH
    );
    assert!(
        ReclaimPriority::new(0) <= ReclaimPriority::LOW
            && ReclaimPriority::HIGH <= ReclaimPriority::new(u8::MAX)
    );
    assert!(ReclaimPriority::new(7) < ReclaimPriority::new(8));
    assert_eq!(ReclaimPriority::new(7), ReclaimPriority::new(7));
}

#[test]
fn the_lowest_is_asked_first() {
    for builder in kinds() {
        let runtime = build(builder.max(memcg::Limit::Bytes(30 * MIB)));
        let group = create(&runtime.root(), "q");
        let logs = [(); 4].map(|()| Log::default());
        // Not in the order in which they are asked.
        let priorities = [
            ReclaimPriority::HIGH,
            ReclaimPriority::LOW,
            ReclaimPriority::new(u8::MAX),
            ReclaimPriority::NORMAL,
        ];
        let order = [1, 3, 0, 2];
        let caches: [_; 4] =
            std::array::from_fn(|i| Cache::at(&group, 7 * MIB, priorities[i], &logs[i]));
        let mut held = Vec::new();
        while held.len() < 27 {
            held.push(charge(&group, MIB));
            let left: Vec<u64> = order.iter().map(|&i| caches[i].0.bytes()).collect();
            for pair in left.windows(2) {
                assert!(
                    pair[0] == 0 || pair[1] == 7 * MIB,
                    "{left:?}: the later gave before the earlier was empty"
                );
            }
        }
        assert_sound(&runtime);
        drop((caches, held, group));
    }
}

/// Equals give all that they have before a higher one gives anything, in whatever order.
#[test]
fn equals_come_before_the_next() {
    let runtime = build(bare());
    let group = create(&runtime.root(), "q");
    let log = Log::default();
    let caches = [2, 4, 8].map(|size| Cache::of(&group, size * MIB, &log));
    let last = Cache::at(&group, MIB, ReclaimPriority::HIGH, &log);
    let first = Cache::at(&group, MIB, ReclaimPriority::LOW, &log);
    for _ in 0..15 * 16 {
        group
            .reclaim(Bytes(64 * KIB))
            .expect("not inside a reclaimer");
        assert!(
            first.0.bytes() == 0
                || caches.iter().map(|(cache, _)| cache.bytes()).sum::<u64>() == 14 * MIB
        );
        assert_eq!(last.0.bytes(), MIB);
    }
    assert_eq!(group.live(), MIB);
    assert_sound(&runtime);
}

/// Priorities are the group's own affair: another group's are not compared with them.
#[test]
fn a_priority_means_nothing_to_other_groups() {
    let runtime = build(bare());
    let root = runtime.root();
    let log = Log::default();
    let caches = [("x", ReclaimPriority::LOW), ("y", ReclaimPriority::HIGH)]
        .map(|(name, priority)| Cache::at(&create(&root, name), 32 * MIB, priority, &log));
    root.reclaim(Bytes(32 * MIB))
        .expect("not inside a reclaimer");
    for (cache, _) in &caches {
        assert_within(cache.bytes(), 16 * MIB, 10);
    }
    let shares = caches.each_ref().map(|(cache, _)| cache.reclaimable());
    assert_eq!(shares[0] + shares[1], 32 * MIB);
    assert_sound(&runtime);
}
