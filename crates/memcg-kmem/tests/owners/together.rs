//! All three at once: groups that go offline in the middle, and the system's own answers.

use std::thread;

use memcg::{Freshness, Limits, Runtime, StatKey};
use memcg_kmem::{KmemBox, KmemError, KmemSlab, KmemStore, KmemVec, StoreKey};

use super::nodes::{Next, Nodes, assert_clean, node, page, runtime};

/// Of one group: objects of the slab, of the store, and a vector.
type Held = (Vec<KmemBox<usize>>, Vec<StoreKey>, KmemVec<u8>);

/// Offline comes between any two steps of a group that allocates: between admission and account as
/// well.
#[test]
fn a_group_goes_offline_while_it_allocates() {
    let nodes = Nodes::new(Next::Interleaved(3));
    let runtime = runtime(3, &nodes);
    let root = runtime.root();
    let slab = KmemSlab::new_in(&root);
    let store = KmemStore::new_in(&root);
    let mut kept: Vec<Held> = Vec::new();
    for round in 0..100 {
        let parent = root
            .create(&format!("parent{round}"), Limits::new())
            .unwrap();
        let tenant = parent.create("tenant", Limits::new()).unwrap();
        let held = thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let mut objects = Vec::new();
                let mut keys = Vec::new();
                let mut vec = KmemVec::new_in(&tenant);
                let refused = (0..).find_map(|number| {
                    // To a node where it has no part yet, more often than not.
                    let on = node(number / 8 % 3);
                    let inserted = slab
                        .insert_on(&tenant, on, number)
                        .map_err(|refused| refused.into_parts().1);
                    let stored = store.insert_on(&tenant, on, &[number as u8; 700]);
                    let pushed = vec.extend_from_slice(&[number as u8; 100]);
                    let errors = [
                        inserted.map(|object| objects.push(object)),
                        stored.map(|key| keys.push(key)),
                        pushed,
                    ];
                    errors.into_iter().find_map(Result::err)
                });
                vec.settle();
                assert!(
                    matches!(&refused, Some(KmemError::Charge(error)) if error.is_offline()),
                    "{refused:?}"
                );
                (objects, keys, vec)
            });
            if round % 2 == 0 {
                thread::yield_now();
            }
            if round % 3 == 0 {
                parent.offline_tree()
            } else {
                tenant.offline().unwrap()
            }
            worker.join().unwrap()
        });
        let (objects, keys, vec) = &held;
        let charged = objects.len() as u64 * slab.object_bytes()
            + keys.len() as u64 * KmemStore::object_bytes(700)
            + vec.capacity() as u64;
        assert_eq!(tenant.live(), charged);
        let accounted = parent.numa_stat(StatKey::SLAB, Freshness::Exact).sum()
            + parent.numa_stat(StatKey::KERNEL, Freshness::Exact).sum();
        // With the parent offline as well some may be accounted above it.
        let holds = if round % 3 == 0 {
            accounted <= charged as i64
        } else {
            accounted == charged as i64
        };
        assert!(holds);
        kept.push(held);
        if round % 10 == 9 {
            nodes.shift(round / 10 % 3, (round / 10 + 1) % 3);
            slab.relocate();
            store.relocate();
            store.compact();
            kept.truncate(5);
        }
    }
    for (objects, keys, vec) in kept {
        drop((objects, vec));
        keys.into_iter().for_each(|key| assert!(store.remove(key)));
    }
    // Strings of which no thread has the keys.
    drop((slab, store));
    for stat in [StatKey::SLAB, StatKey::KERNEL] {
        assert_clean(&root, stat);
    }
}

/// The system alone is asked: what it says is accounted, and what it does not say is on no node.
#[test]
fn real_pages_lie_somewhere() {
    let runtime = Runtime::builder().nodes(64).build().unwrap();
    let root = runtime.root();
    let mut vec = KmemVec::with_capacity_in(300 * page(), &root).unwrap();
    vec.extend_from_slice(&vec![1_u8; 200 * page()]).unwrap();
    vec.settle();
    let untouched = vec.placement().unplaced();
    let slab = KmemSlab::new_in(&root);
    let objects: Vec<_> = (0..1_000)
        .map(|number| slab.insert(&root, number).unwrap())
        .collect();
    let store = KmemStore::new_in(&root);
    let keys: Vec<_> = (0..1_000)
        .map(|number| store.insert(&root, &vec![1; number]).unwrap())
        .collect();
    if untouched == (300 * page()) as u64 {
        println!("skipped: the system does not say where pages lie");
    } else {
        assert_eq!(
            untouched,
            (100 * page()) as u64,
            "only what is touched lies somewhere"
        );
        assert_eq!(
            root.numa_stat(StatKey::SLAB, Freshness::Exact).unplaced(),
            0
        );
        assert_eq!(store.placement().unplaced(), 0);
    }
    slab.relocate();
    store.relocate();
    vec.relocate();
    assert_eq!(
        root.numa_stat(StatKey::SLAB, Freshness::Exact).sum()
            + root.numa_stat(StatKey::KERNEL, Freshness::Exact).sum(),
        root.live() as i64
    );
    drop((vec, objects, keys, store));
    for stat in [StatKey::SLAB, StatKey::KERNEL] {
        assert_clean(&root, stat);
    }
}
