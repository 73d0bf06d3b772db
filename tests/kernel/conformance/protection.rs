//! Statements 27 to 39: what min and low protect, and what they add up to in the parent.

use memcg::{
    Bytes, Charge, CounterConfig, Event, Group, Limit, Limits, PageCounter, ReclaimPass,
    Registration, Runtime, RuntimeBuilder,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{
    adaptive, adaptive_groups, assert_groups_sound, assert_sound, bare, bare_groups, create, fixed,
};
use crate::support::reclaimers::{Cache, Log, MIB};

/// `a` and `b` are as close as the kernel's tests want them.
#[track_caller]
fn assert_close(a: u64, b: u64, percent: u64) {
    assert!(
        a.abs_diff(b) <= (a + b) / 100 * percent,
        "{a} and {b} are not within {percent} %"
    );
}

/// Which of the two the kernel's test is run with.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Min,
    Low,
}

impl Kind {
    fn limits(self, bytes: u64) -> Limits {
        match self {
            Kind::Min => Limits::new().min(Limit::Bytes(bytes)),
            Kind::Low => Limits::new().low(Limit::Bytes(bytes)),
        }
    }

    fn effective(self, group: &Group, target: &Group) -> u64 {
        match self {
            Kind::Min => group.memory().effective_min(&target.memory()),
            Kind::Low => group.memory().effective_low(&target.memory()),
        }
    }
}

/// T: A(max 200M){B(50M){C 75M, D 25M, E 0, F 500M}, G}, where C, D and E hold 50M of cache each
/// and F nothing.
struct Tree {
    kind: Kind,
    runtime: Runtime,
    /// A, B, G.
    inner: [Group; 3],
    /// C, D, E, F.
    leaves: [Group; 4],
    /// Fields of Rust are dropped in order: the registrations go before what they ask.
    caches: Vec<(Registration, std::sync::Arc<Cache>)>,
    log: Log,
}

impl Tree {
    fn new(builder: RuntimeBuilder, kind: Kind) -> Self {
        let runtime = builder.build().expect("a configuration");
        let log = Log::default();
        let a = create(
            &runtime.root(),
            "a",
            Limits::new().max(Limit::Bytes(200 * MIB)),
        );
        let b = create(&a, "b", kind.limits(50 * MIB));
        let g = create(&a, "g", Limits::new());
        let settings = [("c", 75), ("d", 25), ("e", 0), ("f", 500)];
        let leaves = settings.map(|(name, setting)| create(&b, name, kind.limits(setting * MIB)));
        let caches = leaves[..3].iter().map(|leaf| {
            let (cache, registration) = Cache::of(leaf, 50 * MIB, &log);
            (registration, cache)
        });
        let mut caches: Vec<_> = caches.collect();
        let (cache, registration) = Cache::of(&leaves[3], 0, &log);
        caches.push((registration, cache));
        Tree {
            kind,
            runtime,
            inner: [a, b, g],
            leaves,
            caches,
            log,
        }
    }

    /// G comes to hold so much, a quarter MiB at a time.
    fn press(&self, held: &mut Vec<Charge>, bytes: u64) -> bool {
        let g = &self.inner[2];
        while g.live() < bytes {
            match g.charge(Bytes(MIB / 4)) {
                Ok(charge) => held.push(charge),
                Err(_) => return false,
            }
        }
        true
    }

    fn live(&self) -> [u64; 4] {
        self.leaves.each_ref().map(Group::live)
    }
}

fn cache_shrinks_to_its_protection(builder: RuntimeBuilder, kind: Kind) {
    let tree = Tree::new(builder, kind);
    let [_, b, _] = &tree.inner;
    assert_close(b.live(), 150 * MIB, 3);
    let mut held = Vec::new();
    assert!(
        tree.press(&mut held, 148 * MIB),
        "nothing protected is in the way"
    );
    assert_close(b.live(), 50 * MIB, 3);
    let [c, d, _, f] = tree.live();
    assert_close(c, 29 * MIB, 15);
    assert_close(d, 21 * MIB, 20);
    assert_eq!(f, 0);
    assert!(
        tree.log.in_pass(ReclaimPass::Low).is_empty(),
        "low was not in the way either"
    );
    assert!(
        tree.log.of("/a/b/f").is_empty(),
        "there was nothing to ask for"
    );
    assert_groups_sound(&tree.runtime);
}

twins! {
    cache_shrinks_to_its_protection:
    /// B is left with what protects it, and its children share that.
    s027_cache_shrinks_to_its_protection
        (bare_groups().recursive_protection(false), Kind::Min)
        (bare_groups().recursive_protection(false), Kind::Low),
    /// Recursive protection changes nothing where the children's settings use up their parent's.
    s027_adaptive_and_recursive(adaptive_groups(), Kind::Min)(adaptive_groups(), Kind::Low),
}

/// The protection of each before any group is reclaimed. The kernel leaves the figure of an empty
/// group as it was; nothing is kept here, and an empty group has nothing to protect.
#[test]
fn s028_shares_of_a_protection_that_is_too_small() {
    for kind in [Kind::Min, Kind::Low] {
        for recursive in [false, true] {
            let tree = Tree::new(bare_groups().recursive_protection(recursive), kind);
            let [a, b, g] = &tree.inner;
            let effective = |group: &Group| tree.kind.effective(group, a);
            assert_eq!((effective(a), effective(b), effective(g)), (0, 50 * MIB, 0));
            let shares = tree.leaves.each_ref().map(effective);
            assert_eq!(
                shares,
                [50 * 50 * MIB / 75, 50 * 25 * MIB / 75, 0, 0],
                "recursive: {recursive}"
            );
        }
    }
}

#[test]
fn s028_of_page_counters() {
    for recursive in [false, true] {
        let r = PageCounter::root(bare().recursive_protection(recursive));
        let a = r.child();
        let b = a.child();
        b.set_min(50);
        b.set_low(50);
        let leaves = [75, 25, 0, 500].map(|setting| {
            let leaf = b.child();
            leaf.set_min(setting);
            leaf.set_low(setting);
            leaf
        });
        leaves[..3].iter().for_each(|leaf| leaf.force_charge(50));
        assert_eq!((a.effective_min(&a), b.effective_min(&a)), (0, 50));
        assert_eq!(
            leaves.each_ref().map(|leaf| leaf.effective_min(&a)),
            [33, 16, 0, 0]
        );
        assert_eq!(
            leaves.each_ref().map(|leaf| leaf.effective_low(&a)),
            [33, 16, 0, 0]
        );
    }
}

/// Low gives way when nothing else is left, and says so; min does not.
#[test]
fn s030_low_breaks_with_an_event() {
    for builder in [bare_groups(), adaptive_groups()] {
        for recursive in [false, true] {
            let tree = Tree::new(builder.clone().recursive_protection(recursive), Kind::Low);
            let mut held = Vec::new();
            assert!(tree.press(&mut held, 166 * MIB), "low is no limit");
            assert_close(tree.inner[1].live(), 34 * MIB, 3);
            let low = |group: &Group| group.events().local().get(Event::Low);
            let [c, d, e, f] = tree.leaves.each_ref().map(low);
            assert!(c > 0 && d > 0, "{c} and {d}");
            assert_eq!(f, 0);
            assert!(recursive || e == 0, "{e}");
            for group in tree.runtime.root().inspect().descendants() {
                assert_eq!(group.events().get(Event::Oom), 0, "{}", group.path());
            }
            assert_groups_sound(&tree.runtime);
        }
    }
}

/// The other half of the kernel's test: with min in the place of low, what does not fit is refused.
#[test]
fn s030_min_does_not_break() {
    for builder in [bare_groups(), adaptive_groups()] {
        let tree = Tree::new(builder, Kind::Min);
        let mut held = Vec::new();
        assert!(tree.press(&mut held, 148 * MIB));
        assert!(
            !tree.press(&mut held, 170 * MIB),
            "min is a limit to others"
        );
        assert_close(tree.inner[1].live(), 50 * MIB, 3);
        for leaf in &tree.leaves {
            assert_eq!(leaf.events().get(Event::Low), 0);
        }
        assert!(tree.inner[0].events().local().get(Event::Oom) > 0);
        assert_groups_sound(&tree.runtime);
    }
}

/// The target's own protection does not count, and what it was in another reclaim is not
/// remembered.
#[test]
fn s031_the_target_is_not_protected_from_itself() {
    for kind in [Kind::Min, Kind::Low] {
        for builder in [bare_groups(), adaptive_groups()] {
            let tree = Tree::new(builder, kind);
            let mut held = Vec::new();
            assert!(tree.press(&mut held, 148 * MIB));
            let c = &tree.leaves[0];
            while c.usage() > 10 * MIB {
                let want = c.usage() - 10 * MIB;
                let report = c.reclaim(Bytes(want)).expect("not inside a reclaimer");
                assert!(report.freed > 0, "{report:?}");
                if report.freed >= want {
                    assert_close(c.usage().max(10 * MIB), 10 * MIB, 3);
                }
            }
            assert!(tree.caches[0].1.bytes() <= 10 * MIB);
            assert_groups_sound(&tree.runtime);
        }
    }
}

/// The surplus of a parent's protection floats to the groups that use more than they are promised.
#[test]
fn s032_surplus_goes_by_use() {
    for (recursive, shares) in [(true, [25, 16, 8]), (false, [20, 10, 0])] {
        let r = PageCounter::root(bare().recursive_protection(recursive));
        let parent = r.child();
        parent.set_min(50);
        parent.set_low(50);
        let children = [20, 10, 0].map(|setting| {
            let child = parent.child();
            child.set_min(setting);
            child.set_low(setting);
            child.force_charge(50);
            child
        });
        assert_eq!(
            children.each_ref().map(|child| child.effective_min(&r)),
            shares
        );
        assert_eq!(
            children.each_ref().map(|child| child.effective_low(&r)),
            shares
        );
    }
    for (recursive, shares) in [(true, [25, 16, 8]), (false, [20, 10, 0])] {
        let runtime = bare_groups()
            .recursive_protection(recursive)
            .build()
            .expect("a configuration");
        let parent = create(&runtime.root(), "parent", Kind::Min.limits(50));
        let children = [("x", 20), ("y", 10), ("z", 0)].map(|(name, setting)| {
            let child = create(&parent, name, Kind::Min.limits(setting));
            let held = child.charge(50).expect("unlimited");
            (child, held)
        });
        assert_eq!(
            children
                .each_ref()
                .map(|(child, _)| child.memory().effective_min(&runtime.root().memory())),
            shares
        );
    }
}

#[track_caller]
fn assert_sums(parent: &PageCounter, children: &[PageCounter]) {
    let min: u64 = children
        .iter()
        .map(|child| child.usage().min(child.min()))
        .sum();
    let low: u64 = children
        .iter()
        .map(|child| child.usage().min(child.low()))
        .sum();
    assert_eq!(
        (parent.children_min_usage(), parent.children_low_usage()),
        (min, low)
    );
}

fn sums_are_a_recount(config: CounterConfig) {
    let r = PageCounter::root(config);
    let mut children: Vec<PageCounter> = (0..4).map(|_| r.child()).collect();
    for round in 0..200 {
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let children = &children;
                scope.spawn(move || {
                    let mut rng = SmallRng::seed_from_u64(round * 3 + thread);
                    for _ in 0..50 {
                        let child = &children[rng.random_range(0..children.len())];
                        let units = rng.random_range(0..100);
                        match rng.random_range(0..4) {
                            0 => child.set_min(units),
                            1 => child.set_low(units),
                            _ if child.charge(units).is_ok() => child.uncharge(units),
                            _ => {}
                        }
                    }
                });
            }
        });
        assert_sums(&r, &children);
        if round % 10 == 9 {
            let last = children.remove(0);
            last.set_min(50);
            drop(last);
            assert_sums(&r, &children);
            children.push(r.child());
        }
    }
    assert_sound(&r);
}

twins! {
    sums_are_a_recount:
    /// children_min_usage is the sum of min(usage, min) over the children after any history that
    /// has come to rest. The kernel can lose an update when two charges race; here the exchange is
    /// repeated until it holds.
    s035_children_min_usage_is_a_recount(bare())(fixed()),
    s035_adaptive(adaptive()),
}

/// A counter that goes takes its protection out of the parent at once. In the kernel its charges
/// stay; a bare counter has no owner left to uncharge them, so they leave with it.
#[test]
fn s039_gone_child_protects_nothing() {
    let r = PageCounter::root(fixed());
    let child = r.child();
    child.set_min(40);
    child.set_low(50);
    child.charge(60).expect("unlimited");
    assert_eq!((r.children_min_usage(), r.children_low_usage()), (40, 50));
    drop(child);
    assert_eq!((r.children_min_usage(), r.children_low_usage()), (0, 0));
    assert_eq!((r.usage(), r.live()), (0, 0));
    assert_sound(&r);
}

/// A group that uses no more than its protection is protected, the target never is, and an empty
/// group always.
#[test]
fn s036_equality_protects() {
    for builder in [bare_groups(), bare_groups().recursive_protection(false)] {
        let runtime = builder.build().expect("a configuration");
        let root = runtime.root();
        let log = Log::default();
        let even = create(&root, "even", Kind::Low.limits(20 * MIB));
        let above = create(&root, "above", Kind::Low.limits(20 * MIB));
        let empty = create(&root, "empty", Limits::new());
        let caches = [(&even, 20 * MIB), (&above, 21 * MIB), (&empty, 0)]
            .map(|(group, n)| Cache::of(group, n, &log));
        let report = root.reclaim(Bytes(MIB)).expect("not inside a reclaimer");
        assert_eq!(
            (report.freed, log.order()),
            (MIB, vec!["/above".to_string()])
        );
        assert!(log.in_pass(ReclaimPass::Low).is_empty());
        // Now both use what protects them: the one that is asked by itself gives.
        log.take();
        even.reclaim(Bytes(MIB)).expect("not inside a reclaimer");
        assert_eq!(
            (log.order(), caches[0].0.bytes()),
            (vec!["/even".to_string()], 19 * MIB)
        );
        assert_eq!(
            even.events().get(Event::Low),
            0,
            "the target is not protected"
        );
        assert_groups_sound(&runtime);
    }
}

/// A parent that is protected whatever it uses: the product of its protection and a large use does
/// not wrap. With products of 64 bits, in pages, the kernel comes out at 8,388,606.
#[test]
fn s038_products_do_not_wrap() {
    for usage in [(1 << 28) + 1, (1 << 40) + 4_096, PageCounter::USAGE_MAX / 4] {
        let r = PageCounter::root(bare().recursive_protection(true));
        let parent = r.child();
        parent.set_low(u64::MAX);
        parent.set_min(u64::MAX);
        let child = parent.child();
        child.force_charge(usage);
        assert!(
            child.effective_low(&r) >= usage,
            "{} of {usage}",
            child.effective_low(&r)
        );
        assert!(
            child.effective_min(&r) >= usage,
            "{} of {usage}",
            child.effective_min(&r)
        );
    }
}

/// A group that goes offline takes its protection out of the parent at once, though its charges
/// stay.
#[test]
fn s039_offline_group_protects_nothing() {
    for builder in [bare_groups(), adaptive_groups()] {
        let runtime = builder
            .recursive_protection(false)
            .build()
            .expect("a configuration");
        let parent = create(&runtime.root(), "parent", Kind::Min.limits(60));
        let limits = Limits::new().min(60).low(50);
        let [gone, stays] = ["gone", "stays"].map(|name| create(&parent, name, limits));
        let held = [gone.force_charge(60), stays.force_charge(60)];
        // 120 are to share 60.
        assert_eq!(
            (
                parent.memory().children_min_usage(),
                stays.memory().effective_min(&runtime.root().memory())
            ),
            (120, 30)
        );
        gone.offline().expect("no children");
        assert_eq!(
            (
                parent.memory().children_min_usage(),
                parent.memory().children_low_usage()
            ),
            (60, 50)
        );
        assert_eq!(
            (
                stays.memory().effective_min(&runtime.root().memory()),
                parent.live()
            ),
            (60, 120)
        );
        assert_groups_sound(&runtime);
        drop(held);
    }
}
