//! Pages of a slab move, groups go offline, and objects come and go meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use memcg::kmem::PageNode;
use memcg::{Freshness, Limits, StatKey};
use memcg_kmem::{KmemBox, KmemSlab};

use super::nodes::{Next, Nodes, assert_clean, local, node, on, runtime};

const STAT: StatKey = StatKey::SLAB;

#[test]
fn accounts_follow_their_pages() {
    let nodes = Nodes::new(Next::All(PageNode::On(node(0))));
    let runtime = runtime(3, &nodes);
    let root = runtime.root();
    let tenants = ["one", "other"].map(|name| root.create(name, Limits::new()).unwrap());
    let slab = KmemSlab::new_in(&root);
    let object = slab.object_bytes() as i64;
    // More pages than are looked at a time.
    let count = slab.objects_per_page() * 70;
    let objects: Vec<_> = (0..count)
        .map(|number| slab.insert(&tenants[number % 2], number).unwrap())
        .collect();
    let half = object * count as i64 / 2;
    assert_eq!(
        (local(&tenants[0], STAT), local(&tenants[1], STAT)),
        (vec![half, 0, 0], vec![half, 0, 0])
    );
    nodes.shift(0, 2);
    slab.relocate();
    assert_eq!(
        (local(&tenants[0], STAT), local(&tenants[1], STAT)),
        (vec![0, 0, half], vec![0, 0, half])
    );
    let calls = nodes.call_count();
    slab.relocate();
    assert_eq!(nodes.call_count() - calls, 2, "in batches");
    assert_eq!(on(&root, STAT), [0, 0, 2 * half]);
    drop(objects);
    assert_clean(&root, STAT);
}

#[test]
fn an_offline_group_gets_no_new_part() {
    let nodes = Nodes::new(Next::All(PageNode::On(node(0))));
    let runtime = runtime(4, &nodes);
    let root = runtime.root();
    let parent = root.create("parent", Limits::new()).unwrap();
    let tenant = parent.create("tenant", Limits::new()).unwrap();
    let slab = KmemSlab::new_in(&root);
    let object = slab.object_bytes() as i64;
    let held = slab.insert(&tenant, 1).unwrap();
    tenant.offline().unwrap();
    // It has a part on the node that the page leaves.
    nodes.shift(0, 1);
    slab.relocate();
    assert_eq!(
        (local(&tenant, STAT), on(&parent, STAT)),
        (vec![object, 0, 0, 0], vec![object, 0, 0, 0])
    );
    // It has none there, and none where the page comes to lie: the parent has.
    nodes.shift(1, 2);
    slab.relocate();
    assert_eq!(
        (local(&tenant, STAT), local(&parent, STAT)),
        (vec![0; 4], vec![0, 0, object, 0])
    );
    // On a node where it has an account it is accounted again.
    nodes.shift(2, 0);
    slab.relocate();
    assert_eq!(
        (local(&tenant, STAT), local(&parent, STAT)),
        (vec![object, 0, 0, 0], vec![0; 4])
    );
    assert_eq!(
        tenant.live(),
        slab.object_bytes(),
        "it is charged all the time"
    );
    drop(tenant);
    drop(held);
    assert_clean(&root, STAT);
}

#[test]
fn nothing_is_lost_while_everything_moves() {
    let nodes = Nodes::new(Next::Interleaved(4));
    let runtime = runtime(4, &nodes);
    let root = runtime.root();
    let slab = KmemSlab::<[u64; 6]>::new_in(&root);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..3_usize)
            .map(|worker| {
                let slab = &slab;
                let root = &root;
                scope.spawn(move || {
                    let mut objects: Vec<KmemBox<[u64; 6]>> = Vec::new();
                    for round in 0..40 {
                        let tenant = root
                            .create(&format!("tenant{worker}-{round}"), Limits::new())
                            .unwrap();
                        for number in 0..200_usize {
                            let value = [
                                worker as u64,
                                round,
                                number as u64,
                                0,
                                0,
                                worker as u64 ^ round,
                            ];
                            objects.push(slab.insert_on(&tenant, node(number % 4), value).unwrap());
                            if number % 3 == 0 {
                                let gone = objects.swap_remove(number * 31 % objects.len());
                                assert_eq!(
                                    (gone[0], gone[5]),
                                    (worker as u64, worker as u64 ^ gone[1])
                                );
                            }
                        }
                        // Half of what it has goes on without it.
                        tenant.offline().unwrap();
                        objects.truncate(300);
                    }
                    objects
                })
            })
            .collect();
        let mover = scope.spawn(|| {
            let mut round = 0;
            while !over.load(Ordering::Relaxed) {
                nodes.shift(round % 4, (round + 1) % 4);
                slab.relocate();
                round += 1;
            }
        });
        let left: Vec<_> = workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .collect();
        over.store(true, Ordering::Relaxed);
        mover.join().unwrap();
        let count: usize = left.iter().map(Vec::len).sum();
        let bytes = count as u64 * slab.object_bytes();
        assert_eq!(
            (root.live(), root.numa_stat(STAT, Freshness::Exact).sum()),
            (bytes, bytes as i64)
        );
        drop(left);
    });
    assert_clean(&root, STAT);
    assert!(slab.page_count() <= 4);
}
