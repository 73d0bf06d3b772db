//! Containers with many threads. Objects come and go while pages move, and groups go before their
//! objects.

use memcg::kmem::NodeId;
use memcg::{Freshness, Group, Limits, StatKey};

use super::common::{assert_adds_up, end, machine};
use super::shuttle::{Threads, check};
use crate::sync::Arc;
use crate::{KmemSlab, KmemStore};

fn sum(group: &Group, stat: StatKey) -> i64 {
    let stats = group.numa_stat(stat, Freshness::Exact);
    (0..2).map(|node| stats.get(NodeId::new(node))).sum()
}

/// Four threads with a group each make objects of one slab and end those of other threads, while
/// pages move to the other node.
#[test]
fn shuttle_objects_of_a_slab() {
    check(300, || {
        let (nodes, runtime) = machine();
        let root = runtime.root();
        let slab = Arc::new(KmemSlab::new_in(&root));
        let mut threads = Threads::new();
        for thread in 0..4_u64 {
            let slab = slab.clone();
            let group = root.create(&format!("q{thread}"), Limits::new()).unwrap();
            threads.add(slab.insert(&group, thread).unwrap(), move |early| {
                let late = slab.insert(&group, thread + 10).unwrap();
                assert_eq!((*early, *late), (thread, thread + 10));
                end(group);
                drop(early);
                assert_eq!(*late, thread + 10);
            });
        }
        threads.add(slab.clone(), move |moves| {
            nodes.lies_on(1);
            moves.relocate();
        });
        threads.join();
        assert_eq!((root.live(), sum(&root, StatKey::SLAB)), (0, 0));
        assert_eq!(runtime.dying_count(), 0);
        assert_adds_up(&runtime);
    });
}

/// Four threads store, read and remove strings while a fifth compacts.
#[test]
fn shuttle_strings_of_a_store() {
    check(300, || {
        let (nodes, runtime) = machine();
        let root = runtime.root();
        let store = Arc::new(KmemStore::new_in(&root));
        let mut threads = Threads::new();
        for thread in 0..4_u8 {
            let store = store.clone();
            let group = root.create(&format!("q{thread}"), Limits::new()).unwrap();
            threads.add((), move |()| {
                let keys = [8, 64].map(|len| store.insert(&group, &vec![thread; len]).unwrap());
                for (key, len) in keys.into_iter().zip([8, 64]) {
                    assert_eq!(store.get(key, <[u8]>::to_vec), Some(vec![thread; len]));
                    assert!(store.remove(key));
                    assert_eq!(store.get(key, <[u8]>::len), None);
                }
            });
        }
        threads.add(store.clone(), move |compacts| {
            nodes.lies_on(1);
            compacts.compact();
        });
        threads.join();
        assert_eq!(
            (store.len(), root.live(), sum(&root, StatKey::KERNEL)),
            (0, 0, 0)
        );
        assert_adds_up(&runtime);
    });
}
