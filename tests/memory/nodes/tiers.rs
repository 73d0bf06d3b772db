//! Counters of some nodes: asked where the memory may lie, moved with it, and back at zero in the
//! end.

use memcg::kmem::{NodeId, PrechargeBound};
use memcg::{BuildError, ChargeError, CounterKey, Group, Limit, Runtime};

use super::{Other, assert_empty, assert_sums, hold, left_empty, node, on, placed, scattered};
use crate::support::trees::{assert_sound, bare, build, create, kinds};

const FAST: [NodeId; 2] = [node(0), node(1)];
const SLOW: [NodeId; 1] = [node(2)];

/// Nodes 0 and 1 are fast, 2 and 3 are not.
fn tiered(builder: memcg::RuntimeBuilder) -> (Runtime, CounterKey) {
    let mut builder = builder.nodes(4);
    let toptier = builder.tier("toptier", FAST);
    (build(builder), toptier)
}

fn limit(group: &Group, tier: CounterKey, bytes: u64) {
    group
        .counter(tier)
        .expect("declared")
        .set_max(Limit::Bytes(bytes))
        .expect("a limit");
}

fn on_tier(group: &Group, tier: CounterKey) -> u64 {
    group.counter(tier).expect("declared").live()
}

fn forced(group: &Group, tier: CounterKey) -> u64 {
    group.counter(tier).expect("declared").forced()
}

fn is_refused_by_tier<T: std::fmt::Debug>(refused: Result<T, ChargeError>, by: &Group) -> bool {
    match refused {
        Err(error) if error.is_over_limit() => {
            let refusal = error.over_limit().expect("a refusal");
            refusal.counter() == Some("toptier") && refusal.group() == by
        }
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
        assert!(is_refused_by_tier(
            group.precharge(PrechargeBound::from(101).within(&[node(3), node(1)])),
            &root
        ));
        assert_eq!(
            (group.live(), on_tier(&root, toptier)),
            (0, 0),
            "refused leaves nothing"
        );
        // Elsewhere it has no say.
        let far = group
            .precharge(PrechargeBound::from(5_000).within(&[node(2), node(3)]))
            .expect("no limit there");
        assert_eq!((group.live(), on_tier(&group, toptier)), (5_000, 0));
        let near = group
            .precharge(PrechargeBound::from(100).within(&FAST))
            .expect("just so much");
        assert_eq!(
            (
                group.live(),
                on_tier(&group, toptier),
                on_tier(&root, toptier)
            ),
            (5_100, 100, 100)
        );
        // Bytes that did not come to lie there go back.
        let near = near.account(&placed(&[(1, 30), (3, 50)]));
        let far = far.account(&placed(&[(2, 5_000)]));
        assert_eq!((on_tier(&root, toptier), group.live()), (30, 5_080));
        assert!(is_refused_by_tier(group.precharge(71), &root));
        // The group's own limit refuses: what the tier has admitted goes back.
        group.set_max(5_100).expect("a limit");
        let refused = group.precharge(60);
        assert!(
            matches!(&refused, Err(error) if error.over_limit().is_some_and(|refusal| refusal.counter().is_none())),
            "{refused:?}"
        );
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
        let precharge = root
            .precharge(PrechargeBound::from(50).within(&SLOW))
            .expect("elsewhere");
        let kmem = precharge.account(&placed(&[(0, 30), (2, 20)]));
        assert_eq!(
            (on_tier(&root, toptier), forced(&root, toptier), root.live()),
            (30, 20, 50)
        );
        // More than the bound, too.
        let more = root.precharge(PrechargeBound::from(1).within(&FAST));
        assert!(is_refused_by_tier(more, &root));
        drop(kmem);
        let kmem = root
            .precharge(10)
            .expect("room")
            .account(&placed(&[(0, 15), (1, 5)]));
        assert_eq!(
            (on_tier(&root, toptier), forced(&root, toptier), root.live()),
            (20, 10, 20)
        );
        drop(kmem);
        assert_eq!((on_tier(&root, toptier), forced(&root, toptier)), (0, 0));
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
        assert_eq!(
            (tiers(), on::<4>(&a), on::<4>(&b), a.live(), b.live()),
            before
        );
        limit(&a, toptier, 70);
        a.set_max(99).expect("a limit");
        let refused = kmem.transfer(&a);
        assert!(
            matches!(&refused, Err(error) if error.over_limit().is_some_and(|refusal| refusal.counter().is_none())),
            "{refused:?}"
        );
        drop(refused);
        assert_eq!(
            (tiers(), on::<4>(&a), on::<4>(&b), a.live(), b.live()),
            before
        );
        assert_eq!((kmem.group(), kmem.bytes()), (b.clone(), 100));
        // Not for an instant above its limit, for nothing has changed.
        assert_eq!(
            (
                forced(&root, toptier),
                root.counter(toptier).expect("declared").peak()
            ),
            (0, peak)
        );
        // Nor where the tier has no room any more that it comes back to: nobody has asked for it.
        limit(&b, toptier, 60);
        let figures = |group: &Group| {
            let tier = group.counter(toptier).expect("declared");
            (tier.refused_count(), tier.live(), tier.max())
        };
        let known = [&root, &a, &b].map(figures);
        assert!(kmem.transfer(&a).is_err());
        assert_eq!([&root, &a, &b].map(figures), known);
        limit(&b, toptier, 70);
        a.set_max(100).expect("a limit");
        kmem.transfer(&a).expect("100 and 70");
        assert_eq!(tiers(), [70, 70, 0]);
        assert_sums(&runtime);
        // Out of a group that is offline, refused and admitted.
        a.offline().expect("no children");
        b.set_max(99).expect("a limit");
        assert!(kmem.transfer(&b).is_err());
        assert_eq!(
            (tiers(), kmem.group(), forced(&root, toptier)),
            ([70, 70, 0], a.clone(), 0)
        );
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
    let spill = builder.counter("spill", memcg::Unit::Bytes);
    let runtime = left_empty(build(builder));
    let root = runtime.root();
    let tiers = |group: &Group| [near, far, all, spill].map(|tier| on_tier(group, tier));
    let group = create(&root, "q");
    let mut kmem = hold(&group, &placed(&[(0, 1), (4, 10), (9, 100)]));
    assert_eq!(
        (tiers(&group), tiers(&root)),
        ([11, 110, 111, 0], [11, 110, 111, 0])
    );
    limit(&root, far, 110);
    assert!(kmem.migrate(Some(node(0)), Some(node(9)), 1).is_err());
    assert_eq!(tiers(&group), [11, 110, 111, 0]);
    assert_eq!(
        kmem.migrate(Some(node(9)), Some(node(4)), 50)
            .expect("near takes it"),
        50
    );
    assert_eq!(tiers(&group), [61, 110, 111, 0]);
    // One of several refuses: the others have admitted nothing.
    limit(&root, near, 61);
    limit(&root, all, 1_000);
    assert!(group.precharge(1).is_err());
    assert!(kmem.migrate(Some(node(9)), Some(node(0)), 1).is_err());
    assert_eq!(
        (tiers(&group), tiers(&root)),
        ([61, 110, 111, 0], [61, 110, 111, 0])
    );
    let beside = create(&root, "beside");
    limit(&beside, all, 110);
    assert!(kmem.transfer(&beside).is_err());
    assert_eq!(
        (tiers(&group), tiers(&beside), tiers(&root)),
        ([61, 110, 111, 0], [0; 4], [61, 110, 111, 0])
    );
    limit(&beside, all, 111);
    kmem.transfer(&beside).expect("room");
    assert_eq!(
        (tiers(&group), tiers(&beside), tiers(&root)),
        ([0; 4], [61, 110, 111, 0], [61, 110, 111, 0])
    );
    drop((kmem, group, beside));
    assert_eq!(tiers(&root), [0; 4]);
}

#[test]
fn tiers_that_do_not_hold() {
    let with = |name: &str, nodes: &[u16]| {
        let mut builder = bare().topology(super::machine(&[0, 2]));
        builder.tier(name, nodes.iter().map(|&number| node(number)));
        builder.build().err()
    };
    let tier = |node| {
        Some(BuildError::Tier {
            name: "toptier".into(),
            node,
        })
    };
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
    twice.counter("spill", memcg::Unit::Bytes);
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
