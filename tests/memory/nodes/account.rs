//! A precharge is accounted to the nodes where the memory lies; freed bytes are taken off the same
//! nodes.

use memcg::{Freshness, Limits, StatKey};

use super::{Other, assert_sums, hold, left_empty, on, placed, runtimes, scattered};
use crate::support::trees::{build, create};

/// Usage ends at 2^63. What does not fit is neither charged nor accounted: the account is never
/// more than the charge.
#[test]
fn never_more_than_is_charged() {
    for placement in [
        placed(&[(0, u64::MAX)]),
        placed(&[(0, 7), (1, u64::MAX)]),
        scattered(&[(1, 1 << 63)], 1 << 63),
    ] {
        for nodes in [1, 2] {
            let runtime = left_empty(build(crate::support::trees::bare().nodes(nodes)));
            let root = runtime.root();
            let kmem = root.precharge(10).expect("room").account(&placement);
            assert_eq!(kmem.placement().bytes(), kmem.bytes());
            assert_eq!(
                (
                    root.numa_stat(StatKey::KERNEL, Freshness::Exact).sum(),
                    root.live()
                ),
                (kmem.bytes().cast_signed(), kmem.bytes())
            );
        }
    }
}

#[test]
fn freed_elsewhere_it_leaves_the_nodes_where_it_lay() {
    for runtime in runtimes(4) {
        let root = runtime.root();
        let groups = ["a", "b"].map(|name| create(&root, name));
        let others = [Other::spawn(), Other::spawn(), Other::spawn()];
        let mut held = Vec::new();
        let mut expected = [[0_i64; 4]; 2];
        for round in 0..60_usize {
            let at = round % 2;
            let bytes = 1 + round as u64 * 13 % 5_000;
            let first = round % 4;
            let second = (round / 3) % 4;
            let placement = placed(&[(first as u16, bytes), (second as u16, 10)]);
            expected[at][first] += bytes.cast_signed();
            expected[at][second] += 10;
            held.push((
                others[round % 3].hold(&groups[at], &placement),
                at,
                placement,
            ));
            assert_eq!([on(&groups[0]), on(&groups[1])], expected);
        }
        assert_sums(&runtime);
        for (number, (kmem, at, placement)) in held.into_iter().enumerate() {
            assert_eq!(kmem.placement(), placement);
            others[number * 7 % 3].run(move || drop(kmem));
            placement
                .nodes()
                .for_each(|(of, bytes)| expected[at][usize::from(of.get())] -= bytes.cast_signed());
            assert_eq!([on(&groups[0]), on(&groups[1])], expected);
        }
        assert_eq!(expected, [[0; 4]; 2]);
    }
}

/// The runtime goes before what it has admitted: that is accounted and taken off all the same.
#[test]
fn it_outlives_its_runtime() {
    for builder in super::kinds(3) {
        let runtime = build(builder);
        let root = runtime.root();
        let group = root.create("q", Limits::new()).expect("a name");
        let before = hold(&group, &placed(&[(0, 10)]));
        let precharges = [&root, &group].map(|group| group.precharge(100).expect("room"));
        drop(runtime);
        let after = precharges.map(|precharge| precharge.account(&placed(&[(0, 30), (2, 40)])));
        assert_eq!((on(&root), root.live()), ([70, 0, 80], 150));
        let other = Other::spawn();
        other.run(move || drop((before, after)));
        assert_eq!((on(&root), root.live()), ([0, 0, 0], 0));
        drop(group);
    }
}

#[test]
fn it_says_what_it_is() {
    let runtime = build(crate::support::trees::bare().nodes(2));
    let group = create(&runtime.root(), "q");
    let kmem = group
        .precharge(10)
        .expect("room")
        .account_as(StatKey::PERCPU, &placed(&[(1, 10)]));
    assert_eq!(
        (kmem.stat(), kmem.group(), kmem.bytes()),
        (StatKey::PERCPU, group.clone(), 10)
    );
    assert!(format!("{kmem:?}").contains("placement"));
    assert_eq!(on(&group), [0, 0], "an item of its own");
    assert_eq!(
        group
            .numa_stat(StatKey::PERCPU, Freshness::Exact)
            .to_string(),
        "N0=0 N1=10"
    );
}

/// A guard of another group, or one accounted as another item, is not merged, and comes back as it
/// was.
#[test]
fn strangers_do_not_become_one() {
    for runtime in runtimes(2) {
        let root = runtime.root();
        let [group, beside] = ["q", "beside"].map(|name| create(&root, name));
        let mut all = hold(&group, &scattered(&[(0, 10), (1, 20)], 5));
        let as_slab = group
            .precharge(7)
            .expect("room")
            .account_as(StatKey::SLAB, &placed(&[(0, 7)]));
        for stranger in [hold(&beside, &placed(&[(0, 7)])), as_slab] {
            let whose = stranger.group();
            let what = stranger.stat();
            let back = all.merge(stranger).expect_err("a stranger");
            assert_eq!(
                (back.group(), back.stat(), back.placement()),
                (whose, what, placed(&[(0, 7)]))
            );
            assert_eq!(all.bytes(), 35);
        }
    }
}
