//! Figures of memory on nodes: sums, by which readers, how exactly, on which nodes.

use memcg::{BuildError, Freshness, Group, Runtime, StatKey};

use super::{Other, assert_sums, hold, left_empty, machine, node, placed, runtimes, scattered};
use crate::support::trees::{bare, build, create, stocked};

/// The root's figure on each node is the sum of all groups' own.
#[track_caller]
fn assert_machine_wide(runtime: &Runtime, stat: StatKey) {
    let root = runtime.root();
    let groups: Vec<Group> = root.inspect().descendants().chain([root.clone()]).collect();
    let now = root.numa_stat(stat, Freshness::Exact);
    for of in runtime.topology().nodes() {
        let sum: i64 = groups
            .iter()
            .map(|group| group.numa_stat(stat, Freshness::Exact).local(of))
            .sum();
        assert_eq!(now.get(of), sum, "{stat:?} on node {of}");
    }
}

#[test]
fn the_root_has_what_all_groups_have() {
    for runtime in runtimes(8) {
        let root = runtime.root();
        let others = [Other::spawn(), Other::spawn()];
        let mut groups = vec![root.clone()];
        let mut held = Vec::new();
        for number in 0..40_usize {
            let parent = groups[number * 7 % groups.len()].clone();
            groups.push(create(&parent, &number.to_string()));
            let of = number as u16 % 8;
            let placement = scattered(
                &[(of, 1_000 + number as u64), ((of + 3) % 8, 17)],
                number as u64 % 5,
            );
            held.push(others[number % 2].hold(&groups[number], &placement));
            groups[number].stat_add(StatKey::ANON, 5);
        }
        for stat in [StatKey::KERNEL, StatKey::ANON, StatKey::SLAB] {
            assert_machine_wide(&runtime, stat);
        }
        assert_sums(&runtime);
        held.truncate(13);
        assert_machine_wide(&runtime, StatKey::KERNEL);
        assert_sums(&runtime);
        let expected: u64 = held.iter().map(memcg::kmem::Kmem::bytes).sum();
        assert_eq!(
            root.numa_stat(StatKey::KERNEL, Freshness::Exact).sum(),
            expected.cast_signed()
        );
        groups[..40]
            .iter()
            .for_each(|group| group.stat_add(StatKey::ANON, -5));
    }
}

/// Numbers with holes, the largest that there are among them.
#[test]
fn nodes_are_numbered_as_the_system_numbers_them() {
    let numbers = [0, 2, 7, 60, 300, u16::MAX];
    let runtime = left_empty(build(stocked().topology(machine(&numbers))));
    let root = runtime.root();
    let group = create(&root, "q");
    assert!(runtime.topology().nodes().eq(numbers.map(node)));
    let everywhere: Vec<(u16, u64)> = numbers
        .iter()
        .map(|&number| (number, u64::from(number) + 1))
        .collect();
    let mut kmem = hold(&group, &placed(&everywhere));
    let now = root.numa_stat(StatKey::KERNEL, Freshness::Exact);
    for number in [0, 1, 2, 3, 7, 59, 60, 61, 300, 65_534, u16::MAX] {
        let expected = if numbers.contains(&number) {
            i64::from(number) + 1
        } else {
            0
        };
        assert_eq!(
            (
                now.get(node(number)),
                kmem.placement().on_node(node(number)).cast_signed()
            ),
            (expected, expected)
        );
    }
    assert!(now.iter().map(|(of, _)| of.get()).eq(numbers));
    assert_eq!(
        now.to_string(),
        "N0=1 N2=3 N7=8 N60=61 N300=301 N65535=65536"
    );
    assert_eq!(
        kmem.migrated(Some(node(u16::MAX)), Some(node(7)), 65_536),
        65_536
    );
    assert_eq!(
        root.numa_stat(StatKey::KERNEL, Freshness::Exact)
            .to_string(),
        "N0=1 N2=3 N7=65544 N60=61 N300=301 N65535=0"
    );
    assert_sums(&runtime);
}

/// As many nodes as there may be.
#[test]
fn all_the_nodes_there_may_be() {
    let runtime = left_empty(build(stocked().nodes(64)));
    let group = create(&runtime.root(), "q");
    let everywhere: Vec<(u16, u64)> = (0..64)
        .map(|number| (number, u64::from(number) + 1))
        .collect();
    let kmem = hold(&group, &placed(&everywhere));
    assert_eq!(kmem.placement(), placed(&everywhere));
    for (of, bytes) in runtime
        .root()
        .numa_stat(StatKey::KERNEL, Freshness::Exact)
        .iter()
    {
        assert_eq!(bytes, i64::from(of.get()) + 1);
    }
}

/// An addition without a node is on no node, and part of the sum.
#[test]
fn what_was_added_without_a_node() {
    for runtime in runtimes(2) {
        let root = runtime.root();
        let group = create(&root, "q");
        group.stat_add(StatKey::KERNEL, 100);
        let _kmem = hold(&group, &placed(&[(1, 10)]));
        let now = group.numa_stat(StatKey::KERNEL, Freshness::Exact);
        assert_eq!(
            (now.get(node(1)), now.unplaced(), now.sum()),
            (10, 100, 110)
        );
        assert_eq!(group.read(Freshness::Exact).get(StatKey::KERNEL), 110);
        assert_eq!(group.live(), 10, "a statistic is no charge");
        group.stat_add(StatKey::KERNEL, -100);
    }
}

/// The flusher flushes the nodes as well: a stale read becomes exact by waiting.
#[test]
fn the_flusher_comes_by_the_nodes() {
    let runtime = left_empty(build(stocked().nodes(3)));
    let root = runtime.root();
    let group = create(&root, "q");
    let _kmem = hold(&group, &placed(&[(0, 5), (2, 7)]));
    runtime
        .start_flusher(std::time::Duration::from_millis(1))
        .expect("a period");
    let begin = std::time::Instant::now();
    loop {
        let now = root.numa_stat(StatKey::KERNEL, Freshness::Stale);
        if now.max_error() == 0 {
            assert_eq!(now.to_string(), "N0=5 N1=0 N2=7");
            break;
        }
        assert!(
            begin.elapsed().as_secs() < 120,
            "no thread unlists the cells of nodes"
        );
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    runtime.stop_flusher();
}

/// More than there may be, and none.
#[test]
fn machines_that_there_are_not() {
    for nodes in [0, 65, 1 << 16, (1 << 16) + 1, usize::MAX] {
        let found = bare().nodes(nodes).build();
        assert!(
            matches!(found, Err(BuildError::Topology(_))),
            "{nodes} nodes: {found:?}"
        );
    }
    assert!(
        bare().nodes(65).nodes(2).build().is_ok(),
        "the last one counts"
    );
}

/// The columns of the tree, and every other read, have what lies on all nodes.
#[test]
fn other_reads_have_all_nodes() {
    for runtime in runtimes(4) {
        let root = runtime.root();
        let group = create(&root, "q");
        let other = Other::spawn();
        let kmem = other.hold(&group, &scattered(&[(0, 1), (1, 20), (3, 300)], 4_000));
        let table = runtime.snapshot();
        assert!(
            table
                .rows()
                .iter()
                .all(|row| row.stats.get("kernel") == Some(&4_321)),
            "{table}"
        );
        let exact = group.read(Freshness::Exact);
        let within = group.read(Freshness::Within(0));
        assert_eq!(
            (
                exact.get(StatKey::KERNEL),
                exact.local(StatKey::KERNEL),
                exact.max_error()
            ),
            (4_321, 4_321, 0)
        );
        assert_eq!(
            (within.get(StatKey::KERNEL), within.max_error()),
            (4_321, 0)
        );
        assert_eq!(
            (
                root.read(Freshness::Exact).get(StatKey::KERNEL),
                root.read(Freshness::Exact).local(StatKey::KERNEL)
            ),
            (4_321, 0)
        );
        group.inspect().flush();
        assert_eq!(
            root.read(Freshness::Stale).get(StatKey::KERNEL),
            4_321,
            "published to the top"
        );
        // A batch for each node that a thread writes, at most.
        let read = group.read(Freshness::Threshold);
        assert!(
            4_321_u64.abs_diff(read.get(StatKey::KERNEL).cast_unsigned())
                <= read.max_error_of(StatKey::KERNEL)
        );
        other.run(move || drop(kmem));
        assert!(
            runtime
                .snapshot()
                .rows()
                .iter()
                .all(|row| !row.stats.contains_key("kernel"))
        );
    }
}
