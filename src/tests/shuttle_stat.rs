//! Statistics of many writers: no addition is lost or counted twice while other threads list,
//! flush, unlist or release.

use super::common::end;
use super::{Threads, assert_adds_up, check};
use crate::hierarchy::stats;
use crate::kmem::{NodeId, Placement};
use crate::{Bytes, Freshness, Group, Limits, Runtime, StatKey};

/// Counted one by one.
const EVENT: StatKey = StatKey::WORKINGSET_REFAULT;

fn runtime(nodes: usize) -> Runtime {
    Runtime::builder()
        .batch(Bytes(0))
        .stat_batch(4)
        .nodes(nodes)
        .build()
        .unwrap()
}

fn exact(group: &Group) -> i64 {
    group.read(Freshness::Exact).get(EVENT)
}

/// Each thread writes to its group and reads exactly: it finds what it has written itself. Another
/// thread flushes as the flusher does, which unlists.
#[test]
fn shuttle_readers_find_what_they_have_written() {
    check(600, || {
        let runtime = runtime(1);
        let tenants =
            ["acme", "blue"].map(|name| runtime.root().create(name, Limits::new()).unwrap());
        let mut threads = Threads::new();
        for thread in 0..3 {
            let query = tenants[thread % 2]
                .create(&format!("q{thread}"), Limits::new())
                .unwrap();
            threads.add(tenants[thread % 2].clone(), move |tenant| {
                for written in 1..=2 {
                    query.stat_add(EVENT, 1);
                    assert_eq!(exact(&query), written, "what this thread has written");
                    assert!(exact(&tenant) >= written, "and what is above it");
                }
            });
        }
        threads.add(runtime.root(), move |root| {
            stats::flush_periodic(root.first());
            stats::flush_periodic(root.first());
        });
        threads.join();
        assert_eq!(
            [
                exact(&runtime.root()),
                exact(&tenants[0]),
                exact(&tenants[1])
            ],
            [6, 4, 2]
        );
        assert_adds_up(&runtime, &[]);
    });
}

/// Groups go while other threads write to their siblings and read the parent: what a group has
/// counted stays in its ancestors.
#[test]
fn shuttle_figures_outlive_their_groups() {
    check(400, || {
        let runtime = runtime(1);
        let tenant = runtime.root().create("tenant", Limits::new()).unwrap();
        let mut threads = Threads::new();
        for thread in 0..3 {
            threads.add(tenant.clone(), move |tenant| {
                for round in 0..2 {
                    let query = tenant
                        .create(&format!("q{thread}-{round}"), Limits::new())
                        .unwrap();
                    let charge = query.charge(1).unwrap();
                    query.stat_add(EVENT, 1);
                    query.offline().unwrap();
                    query.stat_add(EVENT, 1);
                    drop(query);
                    drop(charge);
                }
            });
        }
        threads.add(tenant.clone(), move |reads| {
            let mut before = 0;
            for _ in 0..4 {
                let now = exact(&reads);
                assert!((before..=12).contains(&now), "{now} after {before}");
                before = now;
            }
        });
        threads.add(runtime.root(), move |root| {
            stats::flush_periodic(root.first())
        });
        threads.join();
        assert_eq!([exact(&runtime.root()), exact(&tenant)], [12, 12]);
        assert_eq!((runtime.group_count(), runtime.dying_count()), (2, 0));
        assert_adds_up(&runtime, &[]);
    });
}

/// One thread accounts memory on two nodes and another takes it off, beside reads and flushes.
#[test]
fn shuttle_accounts_on_nodes_add_up() {
    check(400, || {
        let runtime = runtime(2);
        let tenant = runtime.root().create("tenant", Limits::new()).unwrap();
        let [near, far] = [0, 1].map(NodeId::new);
        let account = |node| {
            tenant
                .precharge(4_096)
                .unwrap()
                .account(&Placement::on(node, 4_096))
        };
        let held = [account(near), account(far)];
        let kept = account(far);
        let mut threads = Threads::new();
        for kmem in held {
            threads.add(kmem, drop);
        }
        for thread in 0..2 {
            threads.add(
                tenant.create(&format!("q{thread}"), Limits::new()).unwrap(),
                move |query| {
                    let kmem = query
                        .precharge(8_192)
                        .unwrap()
                        .account(&Placement::on(near, 8_192));
                    end(query);
                    drop(kmem);
                },
            );
        }
        threads.add(runtime.root(), move |root| {
            for _ in 0..2 {
                let read = root.numa_stat(StatKey::KERNEL, Freshness::Exact);
                assert!(
                    (4_096..=8_192).contains(&read.get(far)),
                    "{}",
                    read.get(far)
                );
                assert!((0..=20_480).contains(&read.get(near)), "{}", read.get(near));
            }
            stats::flush_periodic(root.first());
        });
        threads.join();
        for group in [&tenant, &runtime.root()] {
            let read = group.numa_stat(StatKey::KERNEL, Freshness::Exact);
            assert_eq!([read.get(near), read.get(far)], [0, 4_096]);
        }
        assert_adds_up(&runtime, &[(&tenant, 4_096)]);
        drop(kept);
        assert_adds_up(&runtime, &[]);
    });
}
