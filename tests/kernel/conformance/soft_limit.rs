//! Statements 93 to 98: which group is in excess, which is asked first, and which is not even
//! looked at.

use memcg::{Bytes, Limit, Limits, ReclaimPass, RuntimeBuilder};

use super::{adaptive_groups, assert_groups_sound, bare_groups, create};
use crate::support::reclaimers::{Cache, Log, MIB};

const IDLE: usize = 8_192;

fn none() -> Limits {
    Limits::new()
}

fn soft(bytes: u64) -> Limits {
    Limits::new().soft(Limit::Bytes(bytes))
}

/// The excess of a group makes all below it eligible.
fn an_ancestor_in_excess(builder: RuntimeBuilder) {
    let runtime = builder.build().expect("a configuration");
    let root = runtime.root();
    let log = Log::default();
    let a = create(&root, "a", soft(10 * MIB));
    let b = create(&a, "b", none());
    let other = create(&root, "other", none());
    let caches = [&b, &other].map(|group| Cache::of(group, 20 * MIB, &log));
    assert!(
        a.inspect().is_in_excess() && !b.inspect().is_in_excess() && b.inspect().soft() == u64::MAX
    );
    let report = root.reclaim(Bytes(MIB)).expect("not inside a reclaimer");
    assert_eq!((report.freed, log.order()), (MIB, vec!["/a/b".to_string()]));
    assert_eq!(log.in_pass(ReclaimPass::Soft).len(), log.len());
    assert!(report.soft_visited > 0, "{report:?}");
    assert_eq!(caches[1].0.bytes(), 20 * MIB);
    assert_groups_sound(&runtime);
}

#[test]
fn s093_an_ancestor_in_excess_makes_eligible() {
    an_ancestor_in_excess(bare_groups());
    an_ancestor_in_excess(adaptive_groups());
}

/// A (over) > B (below, the target) > C, D: what is above the target is none of it. The posted code
/// climbs past the target and starts a soft pass in which no group is eligible; here there is none.
fn excess_above_the_target(builder: RuntimeBuilder) {
    let runtime = builder.build().expect("a configuration");
    let log = Log::default();
    let a = create(&runtime.root(), "a", soft(10 * MIB));
    let b = create(&a, "b", soft(100 * MIB));
    let leaves = ["c", "d"].map(|name| create(&b, name, none()));
    let _caches = leaves
        .each_ref()
        .map(|group| Cache::of(group, 20 * MIB, &log));
    assert!(a.inspect().is_in_excess() && !b.inspect().is_in_excess());
    let report = b.reclaim(Bytes(20 * MIB)).expect("not inside a reclaimer");
    assert_eq!(
        (report.freed, report.soft_visited),
        (20 * MIB, 0),
        "{report:?}"
    );
    assert_eq!(log.in_pass(ReclaimPass::Unprotected).len(), log.len());
    assert_eq!(log.order().len(), 2, "both gave");
    assert_groups_sound(&runtime);
}

#[test]
fn s094_excess_above_the_target_does_not_count() {
    excess_above_the_target(bare_groups());
    excess_above_the_target(adaptive_groups());
}

/// A{B{C}}, only C in excess: it alone is asked, the others only lead there.
fn only_the_leaf_is_in_excess(builder: RuntimeBuilder) {
    let runtime = builder.build().expect("a configuration");
    let root = runtime.root();
    let log = Log::default();
    let a = create(&root, "a", soft(200 * MIB));
    let b = create(&a, "b", soft(200 * MIB));
    let c = create(&b, "c", soft(10 * MIB));
    let d = create(&b, "d", none());
    let _caches = [&a, &b, &c, &d].map(|group| Cache::of(group, 20 * MIB, &log));
    let counted = [&root, &a, &b, &c, &d].map(|group| group.inspect().descendants_in_excess());
    assert_eq!(counted, [1, 1, 1, 0, 0]);
    let report = root
        .reclaim(Bytes(5 * MIB))
        .expect("not inside a reclaimer");
    assert_eq!(
        (report.freed, log.order()),
        (5 * MIB, vec!["/a/b/c".to_string()])
    );
    assert_eq!(report.visited, report.soft_visited, "{report:?}");
    // At its soft limit it is like all others.
    root.reclaim(Bytes(5 * MIB))
        .expect("not inside a reclaimer");
    assert!(!c.inspect().is_in_excess());
    assert_eq!(
        [&root, &a, &b].map(|group| group.inspect().descendants_in_excess()),
        [0; 3]
    );
    log.take();
    let report = root
        .reclaim(Bytes(5 * MIB))
        .expect("not inside a reclaimer");
    assert_eq!(
        (report.soft_visited, log.in_pass(ReclaimPass::Soft).len()),
        (0, 0)
    );
    assert_groups_sound(&runtime);
}

#[test]
fn s095_only_the_leaf_is_in_excess() {
    only_the_leaf_is_in_excess(bare_groups());
    only_the_leaf_is_in_excess(adaptive_groups());
}

/// Groups that have nothing to give are not looked at, however many.
#[test]
fn s096_idle_groups_are_not_visited() {
    let runtime = bare_groups().build().expect("a configuration");
    let root = runtime.root();
    let log = Log::default();
    let top = create(&root, "top", none());
    // Half of them hold something and could be asked, a quarter of those has a soft limit of its
    // own.
    let idle: Vec<_> = (0..IDLE)
        .map(|number| {
            let group = create(
                &top,
                &number.to_string(),
                if number % 4 == 0 { soft(MIB) } else { none() },
            );
            let cache = (number % 2 == 0).then(|| Cache::of(&group, 64, &log));
            (group, cache)
        })
        .collect();
    let busy = create(&top, "busy", soft(0));
    let (cache, _registration) = Cache::of(&busy, 20 * MIB, &log);
    assert_eq!(root.inspect().descendants_in_excess(), 1);
    for _ in 0..10 {
        let report = root.reclaim(Bytes(MIB)).expect("not inside a reclaimer");
        let asked = log.take();
        assert_eq!(report.freed, MIB);
        assert!(asked.iter().all(|asked| asked.group == "/top/busy"));
        // The root, the one below it, the one in excess, for each question.
        assert!(
            report.visited <= 3 * asked.len() as u64,
            "{report:?} for {} questions",
            asked.len()
        );
        assert_eq!(report.visited, report.soft_visited);
    }
    assert_eq!(cache.bytes(), 10 * MIB);
    drop(idle);
    assert_groups_sound(&runtime);
}

/// No group is in excess: no group is visited for it, and every group is asked in the same call;
/// the same where those in excess give nothing.
fn no_group_in_excess(builder: RuntimeBuilder) {
    let runtime = builder.build().expect("a configuration");
    let root = runtime.root();
    let log = Log::default();
    let groups = [
        create(&root, "x", none()),
        create(&root, "y", soft(100 * MIB)),
    ];
    let _caches = groups
        .each_ref()
        .map(|group| Cache::of(group, 20 * MIB, &log));
    // In excess of nothing while it has nothing.
    let _empty = Cache::of(&create(&root, "z", soft(0)), 0, &log);
    let report = root
        .reclaim(Bytes(10 * MIB))
        .expect("not inside a reclaimer");
    assert_eq!(
        (report.freed, report.soft_visited),
        (10 * MIB, 0),
        "{report:?}"
    );
    assert!(!log.order().contains(&"/z".to_string()));
    assert_eq!(
        log.in_pass(ReclaimPass::Unprotected).len(),
        log.take().len()
    );
    // One in excess that gives nothing: every group is asked in the same call.
    let stubborn = create(&root, "stubborn", soft(0));
    let held = stubborn.charge(Bytes(MIB)).expect("unlimited");
    let _registered = [
        Cache::of(&stubborn, 0, &log),
        Cache::of(&create(&stubborn, "below", none()), 0, &log),
    ];
    let report = root
        .reclaim(Bytes(10 * MIB))
        .expect("not inside a reclaimer");
    assert_eq!(report.freed, 10 * MIB);
    let unprotected: u64 = log
        .in_pass(ReclaimPass::Unprotected)
        .iter()
        .map(|asked| asked.freed)
        .sum();
    assert_eq!(unprotected, 10 * MIB);
    drop(held);
    assert_groups_sound(&runtime);
}

#[test]
fn s098_no_group_in_excess() {
    no_group_in_excess(bare_groups());
    no_group_in_excess(adaptive_groups());
}
