//! Pressure comes from one level: what is not below it is none of it.

use memcg::{Bytes, Group, Limit, Limits, ReclaimPass};

use super::{
    Cache, Log, MIB, assert_sound, bare, build, charge, create, create_with, runtimes, soft,
};

fn max(bytes: u64) -> Limits {
    Limits::new().max(Limit::Bytes(bytes))
}

/// Each level of a chain is full in turn: what gives lies below it, and the target is that level.
#[test]
fn any_level_may_be_the_target() {
    for runtime in runtimes() {
        let root = runtime.root();
        let log = Log::default();
        let mut chain = vec![root.clone()];
        for name in ["a", "b", "c", "d"] {
            chain.push(create(&chain[chain.len() - 1], name));
        }
        // Each level has a leaf of its own beside the chain.
        let leaves: Vec<Group> = chain.iter().map(|level| create(level, "leaf")).collect();
        let _caches: Vec<_> = leaves
            .iter()
            .map(|leaf| Cache::of(leaf, 4 * MIB, &log))
            .collect();
        for (depth, level) in chain.iter().enumerate() {
            level.set_max(Limit::Bytes(level.live())).expect("a number");
            let held = charge(&chain[4], MIB);
            let asked = log.take();
            assert!(!asked.is_empty());
            for asked in asked {
                assert_eq!(asked.target, level.path());
                let at = leaves
                    .iter()
                    .position(|leaf| leaf.path() == asked.group)
                    .expect("a leaf");
                assert!(at >= depth, "{asked:?} is not below level {depth}");
            }
            level.set_max(Limit::Unlimited).expect("none");
            drop(held);
        }
        assert_sound(&runtime);
    }
}

/// The excess of the target itself makes all below it eligible, that of a group above it no group.
#[test]
fn excess_counts_up_to_the_target() {
    for runtime in runtimes() {
        let log = Log::default();
        let above = create_with(&runtime.root(), "above", soft(MIB));
        let target = create_with(
            &above,
            "target",
            soft(100 * MIB).max(Limit::Bytes(20 * MIB)),
        );
        let inner = create(&target, "inner");
        let leaf = create(&inner, "leaf");
        let _caches = Cache::of(&leaf, 20 * MIB, &log);
        assert!(above.inspect().is_in_excess());
        drop(charge(&target, MIB));
        assert!(
            log.take()
                .iter()
                .all(|asked| asked.pass == ReclaimPass::Unprotected)
        );
        target
            .set_limits(Limits::new().soft(Limit::Bytes(MIB)))
            .expect("a number");
        drop(charge(&target, 2 * MIB));
        let asked = log.take();
        assert!(
            !asked.is_empty() && asked.iter().all(|asked| asked.pass == ReclaimPass::Soft),
            "{asked:?}"
        );
        let report = target.reclaim(Bytes(MIB)).expect("not inside a reclaimer");
        assert!(
            report.soft_visited > 0 && report.visited == report.soft_visited,
            "{report:?}"
        );
        assert_sound(&runtime);
    }
}

/// Protection is what the target's children have; the target's own, and that of what is above it,
/// is not asked for.
#[test]
fn protection_counts_from_the_target() {
    let runtime = build(bare());
    let log = Log::default();
    let above = create_with(
        &runtime.root(),
        "above",
        Limits::new().min(Limit::Unlimited),
    );
    let target = create_with(&above, "target", max(20 * MIB).min(Limit::Unlimited));
    let leaf = create(&target, "leaf");
    let (cache, _registration) = Cache::of(&leaf, 20 * MIB, &log);
    let held = charge(&target, 5 * MIB);
    assert_eq!(cache.bytes(), 15 * MIB);
    assert_eq!(
        above
            .reclaim(Bytes(MIB))
            .expect("not inside a reclaimer")
            .freed,
        0,
        "from there it is protected"
    );
    leaf.set_limits(Limits::new().min(Limit::Bytes(15 * MIB)))
        .expect("a number");
    assert!(target.charge(Bytes(MIB)).is_err());
    assert_eq!(cache.bytes(), 15 * MIB);
    assert_sound(&runtime);
    drop(held);
}
