//! Counters alone with nodes, statistics and names: what their configuration declares, and what it
//! does not.

use memcg::kmem::{NodeId, Placement, Topology};
use memcg::{CounterConfig, Freshness, PageCounter, StatKey, Unit};

const NEAR: NodeId = NodeId::new(0);
const FAR: NodeId = NodeId::new(1);

fn declared() -> CounterConfig {
    CounterConfig::new()
        .batch(64)
        .adaptive(false)
        .audit(true)
        .nodes(2)
}

fn on_node(counter: &PageCounter, node: NodeId) -> i64 {
    counter
        .numa_stat(StatKey::KERNEL, Freshness::Exact)
        .get(node)
}

#[test]
fn statistics_of_a_tree_are_sums_over_its_counters() {
    let mut config = CounterConfig::new();
    let rows = config.stat("rows", Unit::Events);
    let machine = PageCounter::root(config);
    let [web, import] = [machine.child(), machine.child()];
    std::thread::scope(|scope| {
        for job in [&web, &import, &web] {
            scope.spawn(|| (0..1_000).for_each(|_| job.stat_add(rows, 1)));
        }
    });
    let figures = |of: &PageCounter| {
        (
            of.read(Freshness::Exact).get(rows),
            of.read(Freshness::Exact).local(rows),
        )
    };
    assert_eq!(
        (figures(&web), figures(&import), figures(&machine)),
        ((2_000, 2_000), (1_000, 1_000), (3_000, 0))
    );
    let stale = machine.read(Freshness::Stale);
    let near = machine.read(Freshness::Within(0));
    assert!(stale.get(rows).abs_diff(3_000) <= stale.max_error() && near.get(rows) == 3_000);
    drop(web);
    assert_eq!(
        figures(&machine),
        (3_000, 0),
        "what a counter that is gone had counted stays with its ancestors"
    );
    assert!(
        machine
            .items()
            .any(|item| item.stat == rows && item.name == "rows" && item.unit == Unit::Events)
    );
}

#[test]
fn a_counter_that_declares_nothing_counts_nothing() {
    let counter = PageCounter::root(CounterConfig::new());
    counter.stat_add(StatKey::ANON, 4_096);
    counter.flush();
    assert_eq!(counter.read(Freshness::Exact).get(StatKey::ANON), 0);
    assert_eq!(
        (
            counter.items().count(),
            counter
                .numa_stat(StatKey::ANON, Freshness::Exact)
                .iter()
                .count()
        ),
        (0, 0)
    );
    assert!(!counter.flush_ratelimited() && counter.topology().is_one_node());
    let held = counter
        .precharge(10)
        .expect("no limit")
        .account(&Placement::on(NEAR, 7));
    assert_eq!(
        (held.units(), counter.live(), held.placement()),
        (7, 7, Placement::new())
    );
    drop(held);
    assert_eq!(counter.live(), 0);
}

#[test]
fn a_clone_of_a_configuration_knows_what_was_declared_before() {
    let mut ours = CounterConfig::new();
    let rows = ours.stat("rows", Unit::Events);
    let mut theirs = ours.clone();
    let pages = ours.stat("pages", Unit::Events);
    let bytes = theirs.stat("bytes", Unit::Bytes);
    let trees = [ours, theirs].map(PageCounter::root);
    let read = |tree: &PageCounter| {
        [rows, pages, bytes]
            .into_iter()
            .for_each(|stat| tree.stat_add(stat, 5));
        let now = tree.read(Freshness::Exact);
        [rows, pages, bytes].map(|stat| now.get(stat))
    };
    assert_eq!(trees.each_ref().map(read), [[5, 5, 0], [5, 0, 5]]);
}

#[test]
fn the_sixty_fifth_item_is_no_trees() {
    let mut config = CounterConfig::new();
    let declared: Vec<_> = (0..64)
        .map(|number| config.stat(&format!("item {number}"), Unit::Events))
        .collect();
    let counter = PageCounter::root(config);
    assert_eq!(counter.items().count(), 64);
    declared.iter().for_each(|&stat| counter.stat_add(stat, 1));
    assert_eq!(counter.counts().foreign_stats, 11, "the last ones");
    let now = counter.read(Freshness::Exact);
    let counted = declared.iter().filter(|&&stat| now.get(stat) == 1).count();
    let built_in = PageCounter::root(CounterConfig::new().statistics())
        .items()
        .count();
    assert_eq!(counted, 64 - built_in);
}

// === Accounts by node ===

#[test]
fn an_account_moves_with_its_memory_and_ends_before_its_charge() {
    let machine = PageCounter::root(declared().max(1_000));
    let job = machine.child();
    let refused = job.precharge(1_001).map(drop).unwrap_err();
    assert_eq!((refused.level, machine.usage()), (machine.id(), 0));
    let mut placement = Placement::on(NEAR, 60);
    placement.add(None, 20);
    placement.add(Some(NodeId::new(7)), 5); // a node that the topology does not have
    let mut held = job.precharge(100).expect("room").account(&placement);
    assert_eq!(
        (held.units(), job.live(), held.counter() == &job),
        (85, 85, true),
        "the rest has gone back"
    );
    assert_eq!(
        (
            on_node(&machine, NEAR),
            machine
                .numa_stat(StatKey::KERNEL, Freshness::Exact)
                .unplaced()
        ),
        (60, 25)
    );
    assert_eq!(held.migrated(None, Some(FAR), 1_000), 25);
    assert_eq!(held.migrated(Some(NEAR), Some(FAR), 10), 10);
    assert_eq!([NEAR, FAR].map(|node| on_node(&machine, node)), [50, 35]);
    assert_eq!(held.placement().on_node(FAR), 35);
    // A second account takes the place of the first.
    let held = held.account_as(StatKey::SLAB, &Placement::on(FAR, 200));
    assert_eq!(
        (held.units(), job.live(), on_node(&job, FAR)),
        (200, 200, 0)
    );
    assert_eq!(job.numa_stat(StatKey::SLAB, Freshness::Exact).get(FAR), 200);
    std::thread::spawn(move || drop(held))
        .join()
        .expect("dropped");
    assert_eq!(
        (
            job.live(),
            machine.read(Freshness::Exact).get(StatKey::SLAB)
        ),
        (0, 0)
    );
    assert!(machine.verify().is_ok());
}

#[test]
fn a_placement_beyond_its_charge_is_forced() {
    let machine = PageCounter::root(CounterConfig::bytes().max(100).nodes(2));
    let held = machine
        .precharge(100)
        .expect("room")
        .account(&Placement::on(FAR, 130));
    assert_eq!(
        (machine.usage(), machine.forced(), on_node(&machine, FAR)),
        (130, 30, 130)
    );
    drop(held);
    assert_eq!((machine.live(), machine.forced()), (0, 0));
}

#[test]
fn an_account_keeps_its_counter() {
    let machine = PageCounter::root(declared());
    let job = machine.named_child("job");
    let held = job
        .precharge(100)
        .expect("no limit")
        .account(&Placement::on(FAR, 100));
    drop(job);
    assert_eq!(
        (
            machine.live(),
            on_node(&machine, FAR),
            held.counter().name()
        ),
        (100, 100, "job")
    );
    drop(held);
    assert_eq!(
        (machine.drain(), machine.usage(), on_node(&machine, FAR)),
        (0, 0, 0)
    );
}

// === The end of a counter ===

#[test]
fn what_a_counter_still_holds_leaves_its_ancestors() {
    let machine = PageCounter::root(declared());
    for _ in 0..3 {
        let job = machine.child();
        let below = job.child();
        std::thread::scope(|scope| {
            scope.spawn(|| below.force_charge(30));
            scope.spawn(|| below.force_charge(200));
        });
        below.force_charge(1);
        assert_eq!(machine.live(), 231);
        drop(job);
        assert_eq!(machine.live(), 231, "a child keeps its parent");
        drop(below);
        assert_eq!((machine.usage(), machine.stocked_bound()), (0, 0));
        let verdict = machine.verify();
        assert!(verdict.is_ok() && verdict.counter_count() == 1, "{verdict}");
    }
}

#[test]
fn a_pressure_hook_serves_a_counter_with_statistics() {
    let mut config = CounterConfig::new().max(100);
    let asked = config.stat("asked", Unit::Events);
    let (send, freed) = std::sync::mpsc::channel();
    let machine = PageCounter::root(config.on_pressure(move |pressure| {
        send.send(pressure.want()).expect("the test waits");
        0
    }));
    machine.force_charge(90);
    machine.stat_add(asked, 1);
    assert!(machine.charge(30).is_err());
    assert_eq!((freed.recv(), machine.refused_count()), (Ok(20), 1));
}

// === Names ===

#[test]
fn a_refusal_leads_to_the_name_of_its_level() {
    for config in [CounterConfig::new(), CounterConfig::new().statistics()] {
        let machine = PageCounter::root(config.name("machine").max(100));
        let job = machine.named_child("tenant").named_child("job");
        let refused = job.charge(101).unwrap_err();
        assert_eq!(
            job.level(refused.level)
                .map(|level| level.name().to_string())
                .as_deref(),
            Some("machine")
        );
        assert_eq!(job.level(refused.requester), Some(job.clone()));
        assert_eq!(
            (machine.level(job.id()), machine.child().name()),
            (None, ""),
            "an ancestor, or itself"
        );
        assert!(format!("{job:?}").contains("job"));
    }
}

#[test]
fn a_configuration_has_the_kernels_batch_or_that_of_bytes() {
    let of = |config: CounterConfig| PageCounter::root(config).batch();
    assert_eq!(
        (of(CounterConfig::new()), of(CounterConfig::bytes())),
        (64, 64 * 4_096)
    );
    let topology =
        PageCounter::root(CounterConfig::new().topology(Topology::one_node())).topology();
    assert!(topology.is_one_node());
    assert_eq!(
        PageCounter::root(CounterConfig::new().nodes(0))
            .topology()
            .nodes()
            .len(),
        1,
        "0 counts as 1"
    );
}
