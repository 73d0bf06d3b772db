//! Configurations of a runtime that do not hold, and the largest one.

use memcg::kmem::NodeId;
use memcg::{BuildError, Bytes, Limit, Limits, Runtime, RuntimeBuilder, Unit};

use super::assert_says;

fn with_tier(nodes: &[u16]) -> RuntimeBuilder {
    let mut builder = Runtime::builder().nodes(2);
    builder.tier("toptier", nodes.iter().map(|&node| NodeId::new(node)));
    builder
}

#[test]
fn configurations_that_do_not_hold() {
    let with = |names: &[&str]| {
        let mut builder = Runtime::builder();
        for name in names {
            builder.counter(name, memcg::Unit::Bytes);
        }
        builder
    };
    let with_most = |most: usize| {
        let mut builder = Runtime::builder();
        for number in 0..most {
            let name = format!("c{number}");
            builder.counter(&name, memcg::Unit::Bytes);
        }
        builder
    };
    let with_stats = |names: &[&str]| {
        let mut builder = Runtime::builder();
        for name in names {
            builder.stat(name, Unit::Events);
        }
        builder
    };
    let too_many: Vec<String> = (0..54).map(|number| format!("item{number}")).collect();
    let too_many: Vec<&str> = too_many.iter().map(String::as_str).collect();
    let percent: Limit = "50%".parse().expect("a percentage");
    let tebi = 1_u64 << 40;
    for (builder, error, text) in [
        (
            Runtime::builder().max(percent),
            BuildError::PercentOfNothing,
            "the root's max is a percentage, and nothing is above the root: give it bytes",
        ),
        (
            Runtime::builder().limits(Limits::new().low(10).max(percent)),
            BuildError::PercentOfNothing,
            "the root's max is a percentage, and nothing is above the root: give it bytes",
        ),
        (
            Runtime::builder().batch(Bytes(tebi + 1)),
            BuildError::BatchTooLarge(Bytes(tebi + 1)),
            "a batch of 1 TiB is above the largest, 1 TiB",
        ),
        (
            Runtime::builder().batch(Bytes(u64::MAX)),
            BuildError::BatchTooLarge(Bytes(u64::MAX)),
            "a batch of 16 EiB is above the largest, 1 TiB",
        ),
        (
            Runtime::builder().max(100).budget(Bytes(101)),
            BuildError::BudgetAboveMax {
                budget: Bytes(101),
                max: Bytes(100),
            },
            "a budget of 101 B for credit of threads is above the root's max, 100 B",
        ),
        (
            Runtime::builder().groups_max(0),
            BuildError::NoGroups,
            "groups_max is 0, and the root is a group already",
        ),
        (
            with(&[""]),
            BuildError::CounterName(String::new()),
            "\"\" is no name for a further counter: empty, taken, or that of memory",
        ),
        (
            with(&["memory"]),
            BuildError::CounterName("memory".into()),
            "\"memory\" is no name for a further counter: empty, taken, or that of memory",
        ),
        (
            with(&["a", "b", "a"]),
            BuildError::CounterName("a".into()),
            "\"a\" is no name for a further counter: empty, taken, or that of memory",
        ),
        (
            with_most(1_024),
            BuildError::TooManyCounters {
                counters: 1_025,
                most: 1_024,
            },
            "1025 counters for each group, memory included; at most 1024",
        ),
        (
            with_stats(&["rows", ""]),
            BuildError::StatName(String::new()),
            "\"\" is no name for an item of the statistics: empty or taken",
        ),
        (
            with_stats(&["anon"]),
            BuildError::StatName("anon".into()),
            "\"anon\" is no name for an item of the statistics: empty or taken",
        ),
        (
            with_stats(&["rows", "bytes", "rows"]),
            BuildError::StatName("rows".into()),
            "\"rows\" is no name for an item of the statistics: empty or taken",
        ),
        (
            with_stats(&too_many),
            BuildError::TooManyStats {
                items: 65,
                most: 64,
            },
            "65 items of the statistics, those built in included; at most 64",
        ),
        (
            Runtime::builder().stat_batch(u64::MAX),
            BuildError::StatBatchTooLarge(u64::MAX),
            "a batch of 18446744073709551615 grains is above the largest, 1099511627776",
        ),
        (
            with_tier(&[]),
            BuildError::Tier {
                name: "toptier".into(),
                node: None,
            },
            "tier \"toptier\" is of no node of the topology",
        ),
        (
            with_tier(&[0, 7]),
            BuildError::Tier {
                name: "toptier".into(),
                node: Some(NodeId::new(7)),
            },
            "tier \"toptier\" is of no node of the topology: there is no node 7",
        ),
    ] {
        let found = builder.build().expect_err(text);
        assert_eq!(found, error);
        assert_says(&found, text);
    }
}

#[test]
fn limits_of_the_root_that_do_not_hold() {
    let part = Limit::percent(10);
    for (limits, text) in [
        (
            Limits::new().max(100).low(part),
            "cannot set low 10% for /: no group above has a max; set one, or bytes here",
        ),
        (
            Limits::new().reclaim_above(part),
            "cannot set reclaim_above 10% for /: no group above has a max; set one, or bytes here",
        ),
        (
            Limits::new().setting(""),
            "cannot name a setting for /: a name is not empty",
        ),
    ] {
        let error = Runtime::builder().limits(limits).build().expect_err(text);
        assert!(matches!(error, BuildError::Limits(_)), "{error}");
        assert_says(&error, text);
    }
}

#[test]
fn the_largest_configuration() {
    let largest = Runtime::builder()
        .max(Limit::Bytes(u64::MAX))
        .batch(Bytes(1 << 40))
        .budget(Bytes(u64::MAX))
        .groups_max(u32::MAX)
        .audit(true);
    for adaptive in [false, true] {
        let runtime = largest
            .clone()
            .adaptive(adaptive)
            .build()
            .expect("at the edge");
        let root = runtime.root();
        let held = [
            root.charge(5).expect("room"),
            root.charge(1 << 41).expect("room"),
        ];
        assert_eq!(root.live(), (1 << 41) + 5);
        assert!(runtime.verify().is_ok());
        drop(held);
        root.memory().drain();
        assert_eq!(root.usage(), 0);
        assert!(runtime.verify().is_ok());
    }
}
