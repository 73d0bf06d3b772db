//! Counters of some nodes: asked where the memory may lie, moved with it, and back at zero in the end.

use memcg::kmem::{Bound, Kmem, NodeId, Placement};
use memcg::{BuildError, Bytes, ChargeError, Counter, Freshness, Group, Limit, Runtime, Stat};

use super::{Other, assert_empty, assert_sums, hold, node, on, placed, scattered};
use crate::support::trees::{assert_sound, bare, build, create, kinds, stocked};

const FAST: [NodeId; 2] = [node(0), node(1)];
const SLOW: [NodeId; 1] = [node(2)];

/// Nodes 0 and 1 are fast, 2 and 3 are not.
fn tiered(builder: memcg::RuntimeBuilder) -> (Runtime, Counter) {
    let mut builder = builder.nodes(4);
    let toptier = builder.tier("toptier", FAST);
    (build(builder), toptier)
}

fn limit(group: &Group, tier: Counter, bytes: u64) {
    group.counter(tier).expect("declared").set_max(Limit::Bytes(bytes)).expect("a limit");
}

fn on_tier(group: &Group, tier: Counter) -> u64 {
    group.counter(tier).expect("declared").live()
}

fn forced(group: &Group, tier: Counter) -> u64 {
    group.counter(tier).expect("declared").forced()
}

fn is_refused_by_tier<T: std::fmt::Debug>(refused: Result<T, ChargeError>, by: &Group) -> bool {
    match refused {
        Err(ChargeError::Limit(refusal)) => refusal.counter() == Some("toptier") && refusal.group() == by,
        _ => false,
    }
}

#[test]
fn a_tier_is_asked_where_the_memory_may_lie() {
    for builder in kinds() {
        let (runtime, toptier) = tiered(builder);
        let root = runtime.root();
        let group = create(&root, "q");
        limit(&root, toptier, 100);
        // Anywhere, so on the tier too.
        assert!(is_refused_by_tier(group.precharge(101), &root));
        assert!(is_refused_by_tier(group.precharge(Bound::from(101).within(&[node(3), node(1)])), &root));
        assert_eq!((group.live(), on_tier(&root, toptier)), (0, 0), "refused leaves nothing");
        // Elsewhere it has no say.
        let far = group.precharge(Bound::from(5_000).within(&[node(2), node(3)])).expect("no limit there");
        assert_eq!((group.live(), on_tier(&group, toptier)), (5_000, 0));
        let near = group.precharge(Bound::from(100).within(&FAST)).expect("just so much");
        assert_eq!((group.live(), on_tier(&group, toptier), on_tier(&root, toptier)), (5_100, 100, 100));
        // What did not come to lie there goes back.
        let near = near.account(&placed(&[(1, 30), (3, 50)]));
        let far = far.account(&placed(&[(2, 5_000)]));
        assert_eq!((on_tier(&root, toptier), group.live()), (30, 5_080));
        assert!(is_refused_by_tier(group.precharge(71), &root));
        // The group's own limit refuses: what the tier has admitted goes back.
        group.set_max(5_100).expect("a limit");
        let refused = group.precharge(60);
        assert!(matches!(&refused, Err(ChargeError::Limit(refusal)) if refusal.counter().is_none()), "{refused:?}");
        drop(refused);
        assert_eq!((on_tier(&root, toptier), group.live()), (30, 5_080));
        drop((near, far));
        assert_eq!((on_tier(&root, toptier), forced(&root, toptier)), (0, 0));
        drop(group);
        assert_empty(&runtime);
    }
}

/// The hint was wrong: the memory is there, so the tier is charged whatever it says.
#[test]
fn a_tier_is_forced_by_what_lies_there() {
    for builder in kinds() {
        let (runtime, toptier) = tiered(builder);
        let root = runtime.root();
        limit(&root, toptier, 10);
        let precharge = root.precharge(Bound::from(50).within(&SLOW)).expect("elsewhere");
        let kmem = precharge.account(&placed(&[(0, 30), (2, 20)]));
        assert_eq!((on_tier(&root, toptier), forced(&root, toptier), root.live()), (30, 20, 50));
        // More than the bound, too.
        let more = root.precharge(Bound::from(1).within(&FAST));
        assert!(is_refused_by_tier(more, &root));
        drop(kmem);
        let kmem = root.precharge(10).expect("room").account(&placed(&[(0, 15), (1, 5)]));
        assert_eq!((on_tier(&root, toptier), forced(&root, toptier), root.live()), (20, 10, 20));
        drop(kmem);
        assert_eq!((on_tier(&root, toptier), forced(&root, toptier)), (0, 0));
        assert_empty(&runtime);
    }
}

#[test]
fn it_moves_with_migration() {
    for builder in kinds() {
        let (runtime, toptier) = tiered(builder);
        let root = runtime.root();
        let group = create(&root, "q");
        let mut kmem = hold(&group, &placed(&[(0, 100), (2, 100)]));
        for (from, to, bytes, expected) in [
            (0, 1, 40, 100),
            (0, 2, 60, 40),
            (2, 3, 160, 40),
            (1, 3, 15, 25),
            (3, 0, 75, 100),
            (3, 0, 100, 200),
            (0, 2, 1_000, 25),
            (1, 3, 25, 0),
        ] {
            kmem.migrate(Some(node(from)), Some(node(to)), bytes);
            assert_eq!((on_tier(&group, toptier), on_tier(&root, toptier)), (expected, expected), "{from} -> {to}");
            assert_eq!((kmem.bytes(), group.live()), (200, 200));
            assert_sound(&runtime);
        }
        kmem.relocate(&placed(&[(1, 120), (3, 80)]));
        assert_eq!(on_tier(&group, toptier), 120);
        kmem.relocate(&placed(&[(3, 120), (0, 80)]));
        assert_eq!(on_tier(&group, toptier), 80);
        // 30 bytes of the tier are on no node now, and stay admitted.
        kmem.relocate(&placed(&[(3, 120), (0, 50)]));
        assert_eq!(on_tier(&group, toptier), 80);
        kmem.relocate(&placed(&[(3, 150), (0, 50)]));
        assert_eq!(kmem.shrink(&placed(&[(0, 20), (3, 1)])), 21);
        assert_eq!((on_tier(&group, toptier), group.live()), (30, 179));
        drop(kmem);
        assert_eq!((on_tier(&group, toptier), on_tier(&root, toptier)), (0, 0));
        drop(group);
        assert_empty(&runtime);
    }
}

/// Admitted before it is moved, or nothing happens.
#[test]
fn asked_before_it_moves() {
    for builder in kinds() {
        let (runtime, toptier) = tiered(builder);
        let root = runtime.root();
        let group = create(&root, "q");
        limit(&root, toptier, 100);
        let far = |bytes| {
            let precharge = group.precharge(Bound::from(Bytes(bytes)).within(&SLOW)).expect("elsewhere");
            precharge.account(&placed(&[(2, bytes)]))
        };
        let mut kmem = far(300);
        let before = (kmem.placement(), on::<4>(&root), group.live());
        let to = |kmem: &mut Kmem, from, to, bytes| kmem.try_migrate(Some(node(from)), Some(node(to)), Bytes(bytes));
        for bytes in [101, 300, u64::MAX] {
            assert!(is_refused_by_tier(to(&mut kmem, 2, 0, bytes), &root));
            assert_eq!((kmem.placement(), on::<4>(&root), group.live()), before);
            assert_eq!((on_tier(&root, toptier), forced(&root, toptier)), (0, 0));
        }
        assert_eq!(to(&mut kmem, 2, 0, 70).expect("room"), 70);
        assert!(is_refused_by_tier(to(&mut kmem, 2, 1, 31), &root));
        // Within the tier, out of it and beside it no thread is asked.
        assert_eq!(to(&mut kmem, 0, 1, 70).expect("the same tier"), 70);
        assert_eq!(to(&mut kmem, 2, 3, 30).expect("no tier"), 30);
        assert_eq!((on_tier(&root, toptier), kmem.bytes()), (70, 300));
        assert_eq!(to(&mut kmem, 1, 2, 50).expect("out"), 50);
        assert_eq!(on_tier(&root, toptier), 20);
        // What there is not is not asked for.
        assert_eq!(to(&mut kmem, 0, 1, 1_000).expect("nothing"), 0);
        assert_eq!(to(&mut kmem, 1, 0, u64::MAX).expect("all"), 20);
        // To no node, and to one that is not there.
        assert_eq!(kmem.try_migrate(Some(node(0)), None, 5).expect("no tier to ask"), 5);
        assert_eq!(kmem.try_migrate(Some(node(2)), Some(node(17)), 5).expect("no tier to ask"), 5);
        assert_eq!((kmem.bytes(), forced(&root, toptier)), (300, 0));
        assert_sums(&runtime);
        drop((kmem, group));
        assert_empty(&runtime);
    }
}

/// What no thread has touched may come to lie on the tier: where that was admitted it stays so.
#[test]
fn untouched_bytes_stay_admitted() {
    for builder in kinds() {
        let (runtime, toptier) = tiered(builder);
        let root = runtime.root();
        limit(&root, toptier, 100);
        let mut kmem = root.precharge(100).expect("room").account(&scattered(&[(2, 10)], 90));
        assert_eq!((on_tier(&root, toptier), root.live()), (90, 100));
        assert!(is_refused_by_tier(root.precharge(11), &root));
        for (to, bytes, expected) in [(0, 20, 90), (1, 20, 90), (3, 30, 60), (0, 20, 60)] {
            assert_eq!(kmem.try_migrate(None, Some(node(to)), Bytes(bytes)).expect("admitted"), bytes);
            assert_eq!((on_tier(&root, toptier), forced(&root, toptier)), (expected, 0));
        }
        assert_eq!(kmem.placement(), placed(&[(0, 40), (1, 20), (2, 10), (3, 30)]));
        // Given up there, to be touched again some day.
        assert_eq!(kmem.migrate(Some(node(0)), None, 40), 40);
        assert_eq!(on_tier(&root, toptier), 60);
        assert_eq!(kmem.shrink(&scattered(&[], 15)), 15);
        assert_eq!(on_tier(&root, toptier), 45);
        drop(kmem);
        assert_eq!((on_tier(&root, toptier), forced(&root, toptier)), (0, 0));
        assert_empty(&runtime);
    }
}

/// Where it was not admitted the tier is asked for every byte of it, whatever else it has of the same guard.
#[test]
fn untouched_bytes_that_were_admitted_elsewhere() {
    for builder in kinds() {
        let (runtime, toptier) = tiered(builder);
        let root = runtime.root();
        limit(&root, toptier, 50);
        let precharge = root.precharge(Bound::from(200).within(&SLOW)).expect("elsewhere");
        let mut kmem = precharge.account(&scattered(&[(2, 100)], 100));
        assert_eq!(on_tier(&root, toptier), 0);
        assert_eq!(kmem.try_migrate(Some(node(2)), Some(node(0)), 10).expect("room"), 10);
        assert!(is_refused_by_tier(kmem.try_migrate(None, Some(node(0)), 41), &root));
        assert_eq!((on_tier(&root, toptier), forced(&root, toptier)), (10, 0));
        assert_eq!(kmem.try_migrate(None, Some(node(1)), 40).expect("room"), 40);
        assert_eq!((on_tier(&root, toptier), forced(&root, toptier)), (50, 0));
        // Out again: the tier has what lies there, and no more.
        assert_eq!(kmem.migrate(Some(node(1)), Some(node(2)), 40), 40);
        assert_eq!(on_tier(&root, toptier), 10);
        assert_eq!(kmem.migrate(Some(node(0)), Some(node(3)), 10), 10);
        assert_eq!((on_tier(&root, toptier), kmem.placement().unplaced()), (0, 60));
        drop(kmem);
        // Both kinds in one guard.
        let promised = root.precharge(30).expect("room").account(&scattered(&[], 30));
        let mut both = root.precharge(Bound::from(40).within(&SLOW)).expect("elsewhere").account(&scattered(&[], 40));
        both.merge(promised).expect("of one group");
        assert_eq!((on_tier(&root, toptier), both.placement().unplaced()), (30, 70));
        assert_eq!(both.try_migrate(None, Some(node(0)), 20).expect("promised"), 20);
        assert_eq!(on_tier(&root, toptier), 30);
        assert!(is_refused_by_tier(both.try_migrate(None, Some(node(0)), 50), &root), "10 promised and 40 not");
        assert_eq!(both.try_migrate(None, Some(node(0)), 30).expect("10 promised and 20 more"), 30);
        assert_eq!((on_tier(&root, toptier), forced(&root, toptier)), (50, 0));
        drop(both);
        assert_eq!(on_tier(&root, toptier), 0);
        assert_empty(&runtime);
    }
}

#[test]
fn it_follows_to_another_group() {
    for builder in kinds() {
        let (runtime, toptier) = tiered(builder);
        let root = runtime.root();
        let [a, b] = ["a", "b"].map(|name| create(&root, name));
        let other = Other::spawn();
        let mut kmem = other.hold(&a, &scattered(&[(0, 60), (2, 30)], 10));
        let tiers = || [&root, &a, &b].map(|group| on_tier(group, toptier));
        assert_eq!(tiers(), [70, 70, 0]);
        // The root is full, and is not asked.
        limit(&root, toptier, 70);
        kmem.transfer(&b).expect("room");
        assert_eq!((tiers(), kmem.group()), ([70, 0, 70], b.clone()));
        // The tier refuses there, or the group does.
        limit(&a, toptier, 69);
        let peak = root.counter(toptier).expect("declared").peak();
        let before = (tiers(), on::<4>(&a), on::<4>(&b), a.live(), b.live());
        assert!(is_refused_by_tier(kmem.transfer(&a), &a));
        assert_eq!((tiers(), on::<4>(&a), on::<4>(&b), a.live(), b.live()), before);
        limit(&a, toptier, 70);
        a.set_max(99).expect("a limit");
        let refused = kmem.transfer(&a);
        assert!(matches!(&refused, Err(ChargeError::Limit(refusal)) if refusal.counter().is_none()), "{refused:?}");
        drop(refused);
        assert_eq!((tiers(), on::<4>(&a), on::<4>(&b), a.live(), b.live()), before);
        assert_eq!((kmem.group(), kmem.bytes()), (b.clone(), 100));
        // Not for an instant above its limit, for nothing has changed.
        assert_eq!((forced(&root, toptier), root.counter(toptier).expect("declared").peak()), (0, peak));
        a.set_max(100).expect("a limit");
        kmem.transfer(&a).expect("100 and 70");
        assert_eq!(tiers(), [70, 70, 0]);
        assert_sums(&runtime);
        // Out of a group that is offline, refused and admitted.
        a.offline().expect("no children");
        b.set_max(99).expect("a limit");
        assert!(kmem.transfer(&b).is_err());
        assert_eq!((tiers(), kmem.group(), forced(&root, toptier)), ([70, 70, 0], a.clone(), 0));
        b.set_max(Limit::Unlimited).expect("a limit");
        kmem.transfer(&b).expect("room");
        assert_eq!(tiers(), [70, 0, 70]);
        assert_sound(&runtime);
        drop((kmem, a, b));
        assert_empty(&runtime);
    }
}

/// Nodes may be in several tiers, tiers of one node or of all.
#[test]
fn several_tiers() {
    let mut builder = bare().topology(super::machine(&[0, 4, 9]));
    let near = builder.tier("near", [node(0), node(4)]);
    let far = builder.tier("far", [node(4), node(9)]);
    let all = builder.tier("all", [node(0), node(4), node(9)]);
    let spill = builder.counter("spill").independent();
    let runtime = build(builder);
    let root = runtime.root();
    let tiers = |group: &Group| [near, far, all, spill].map(|tier| on_tier(group, tier));
    let group = create(&root, "q");
    let mut kmem = hold(&group, &placed(&[(0, 1), (4, 10), (9, 100)]));
    assert_eq!((tiers(&group), tiers(&root)), ([11, 110, 111, 0], [11, 110, 111, 0]));
    limit(&root, far, 110);
    assert!(kmem.try_migrate(Some(node(0)), Some(node(9)), 1).is_err());
    assert_eq!(tiers(&group), [11, 110, 111, 0]);
    assert_eq!(kmem.try_migrate(Some(node(9)), Some(node(4)), 50).expect("near takes it"), 50);
    assert_eq!(tiers(&group), [61, 110, 111, 0]);
    // One of several refuses: the others have admitted nothing.
    limit(&root, near, 61);
    limit(&root, all, 1_000);
    assert!(group.precharge(1).is_err());
    assert!(kmem.try_migrate(Some(node(9)), Some(node(0)), 1).is_err());
    assert_eq!((tiers(&group), tiers(&root)), ([61, 110, 111, 0], [61, 110, 111, 0]));
    let beside = create(&root, "beside");
    limit(&beside, all, 110);
    assert!(kmem.transfer(&beside).is_err());
    assert_eq!((tiers(&group), tiers(&beside), tiers(&root)), ([61, 110, 111, 0], [0; 4], [61, 110, 111, 0]));
    limit(&beside, all, 111);
    kmem.transfer(&beside).expect("room");
    assert_eq!((tiers(&group), tiers(&beside), tiers(&root)), ([0; 4], [61, 110, 111, 0], [61, 110, 111, 0]));
    drop((kmem, group, beside));
    assert_eq!(tiers(&root), [0; 4]);
    assert_empty(&runtime);
}

/// With one node the tier has all or nothing is asked of it.
#[test]
fn a_tier_of_the_only_node() {
    let mut builder = stocked();
    let toptier = builder.tier("toptier", [node(0)]);
    let runtime = build(builder);
    let root = runtime.root();
    limit(&root, toptier, 100);
    let mut kmem = root.precharge(100).expect("room").account(&scattered(&[(0, 50)], 30));
    assert_eq!(on_tier(&root, toptier), 80);
    assert!(is_refused_by_tier(root.precharge(21), &root));
    assert_eq!(kmem.shrink(&Placement::on(node(0), 60)), 60);
    assert_eq!(on_tier(&root, toptier), 20);
    kmem.transfer(&create(&root, "q")).expect("room");
    drop(kmem);
    assert_eq!(on_tier(&root, toptier), 0);
    assert_empty(&runtime);
}

/// Offline, the tier's bytes stay where they are and go with the guard.
#[test]
fn offline_and_gone() {
    for builder in kinds() {
        let (runtime, toptier) = tiered(builder);
        let root = runtime.root();
        let group = create(&root, "q");
        let precharge = group.precharge(100).expect("room");
        let other = Other::spawn();
        group.offline().expect("no children");
        let mut kmem = precharge.account(&scattered(&[(1, 50)], 30));
        assert_eq!((on_tier(&group, toptier), on_tier(&root, toptier)), (80, 80));
        assert_eq!(kmem.migrate(None, Some(node(0)), 20), 20);
        assert_eq!(kmem.migrate(Some(node(1)), Some(node(2)), 50), 50);
        assert_eq!((on_tier(&root, toptier), root.numa_stat(Stat::KERNEL, Freshness::Exact).sum()), (30, 80));
        // Back by force: admission is over.
        assert!(kmem.try_migrate(Some(node(2)), Some(node(0)), 1).is_err());
        assert_eq!(kmem.migrate(Some(node(2)), Some(node(0)), 1), 1);
        assert_eq!(on_tier(&root, toptier), 31);
        drop(group);
        assert_eq!(runtime.dying_count(), 1);
        other.run(move || drop(kmem));
        assert_eq!(on_tier(&root, toptier), 0);
        assert_empty(&runtime);
    }
}

#[test]
fn tiers_that_do_not_hold() {
    let with = |name: &str, nodes: &[u16]| {
        let mut builder = bare().topology(super::machine(&[0, 2]));
        builder.tier(name, nodes.iter().map(|&number| node(number)));
        builder.build().err()
    };
    let tier = |node| Some(BuildError::Tier { name: "toptier".into(), node });
    assert_eq!(with("toptier", &[]), tier(None));
    assert_eq!(with("toptier", &[1]), tier(Some(node(1))));
    assert_eq!(with("toptier", &[0, 2, 3]), tier(Some(node(3))));
    assert_eq!(with("toptier", &[2, 0, 2]), None, "twice is once");
    // Its name is a counter's.
    let name = |name: &str| with(name, &[0]).map(|error| error.to_string());
    assert!(name("").is_some());
    let mut twice = bare().nodes(2);
    twice.tier("toptier", [node(0)]);
    twice.tier("toptier", [node(1)]);
    assert!(twice.build().is_err());
    let mut twice = bare().nodes(2);
    twice.counter("spill").independent();
    twice.tier("spill", [node(1)]);
    assert!(twice.build().is_err());
    // Declared first, the nodes said later.
    let mut builder = bare();
    let toptier = builder.tier("toptier", [node(3)]);
    assert_eq!(builder.clone().build().err(), tier(Some(node(3))));
    let runtime = build(builder.nodes(4));
    drop(hold(&runtime.root(), &placed(&[(3, 5)])));
    assert_eq!(on_tier(&runtime.root(), toptier), 0);
}
