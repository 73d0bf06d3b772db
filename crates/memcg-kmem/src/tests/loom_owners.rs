//! Owners of memory on nodes: pages and objects move while threads store and remove objects. One
//! thread moves an account, with no lock held. A thread that publishes or removes the object
//! meanwhile neither loses the account nor takes it twice.

use memcg::kmem::NodeId;
use memcg::{Freshness, Group, StatKey};

use super::common::{Everything, machine};
use super::schedules::{beside, model, race, yield_now};
use crate::sync::Arc;
use crate::{KmemSlab, KmemStore, StoreKey};

/// A store with a page on each node. To compact moves the small string of the first, which this key
/// names, to the second.
fn two_pages(nodes: &Everything, root: &Group) -> (Arc<KmemStore>, StoreKey) {
    let store = Arc::new(KmemStore::new_in(root));
    let key = store.insert_on(root, NodeId::new(0), &[1; 8]).unwrap();
    nodes.lies_on(1);
    store.insert_on(root, NodeId::new(1), &[2; 64]).unwrap();
    (store, key)
}

fn on(group: &Group, stat: StatKey) -> [i64; 2] {
    let stats = group.numa_stat(stat, Freshness::Exact);
    [0, 1].map(|node| stats.get(NodeId::new(node)))
}

/// An object ends while another thread moves its account: the account ends once.
#[test]
fn loom_slab_move_vs_drop() {
    model(|| {
        let (nodes, runtime) = machine();
        let root = runtime.root();
        let slab = KmemSlab::new_in(&root);
        let object = slab.insert(&root, 7_u64).unwrap();
        nodes.lies_on(1);
        race(object, drop, || slab.relocate());
        assert_eq!((root.live(), on(&root, StatKey::SLAB)), (0, [0, 0]));
        let next = slab.insert(&root, 8).unwrap();
        assert_eq!(
            on(&root, StatKey::SLAB),
            [0, slab.object_bytes() as i64],
            "its slot is free"
        );
        drop(next);
    });
}

/// An object comes while another thread finds its page on another node: the account is where the
/// page is.
#[test]
fn loom_slab_move_vs_insert() {
    model(|| {
        let (nodes, runtime) = machine();
        let root = runtime.root();
        let slab = Arc::new(KmemSlab::new_in(&root));
        let first = slab.insert(&root, 7_u64).unwrap();
        nodes.lies_on(1);
        let second = race(
            (Arc::clone(&slab), root.clone()),
            |(slab, root)| slab.insert(&root, 8).unwrap(),
            || slab.relocate(),
        )
        .0;
        assert_eq!(
            on(&root, StatKey::SLAB),
            [0, 2 * slab.object_bytes() as i64]
        );
        drop((first, second));
        assert_eq!((root.live(), on(&root, StatKey::SLAB)), (0, [0, 0]));
    });
}

/// One thread removes a string while another moves it to a page on another node: its account ends
/// once.
#[test]
fn loom_store_compact_vs_remove() {
    model(|| {
        let (nodes, runtime) = machine();
        let root = runtime.root();
        let (store, key) = two_pages(&nodes, &root);
        race(
            (Arc::clone(&store), key),
            |(store, key)| assert!(store.remove(key)),
            || store.compact(),
        );
        let left = KmemStore::object_bytes(64);
        assert_eq!(
            (store.len(), root.live(), on(&root, StatKey::KERNEL)),
            (1, left, [0, left as i64])
        );
    });
}

/// One thread reads a string while another compacts and then needs room: the string stays in place,
/// and whole.
#[test]
fn loom_store_compact_vs_read() {
    model(|| {
        let (nodes, runtime) = machine();
        let root = runtime.root();
        let (store, key) = two_pages(&nodes, &root);
        let reads = beside((Arc::clone(&store), key), |(store, key)| {
            store.get(key, |bytes| {
                let far = || store.placement().on_node(NodeId::new(1));
                let moved = far() > KmemStore::object_bytes(64);
                yield_now();
                assert_eq!(bytes, [1; 8]);
                assert!(
                    moved || far() == KmemStore::object_bytes(64),
                    "a page that is read is left out"
                );
            })
        });
        store.compact();
        store.insert_on(&root, NodeId::new(0), &[3; 8]).unwrap();
        assert_eq!(reads.join().unwrap(), Some(()));
        assert_eq!(store.get(key, <[u8]>::to_vec), Some(vec![1; 8]));
        assert_eq!(
            on(&root, StatKey::KERNEL).iter().sum::<i64>() as u64,
            root.live()
        );
    });
}

/// One thread reads a string while another needs room that its page has only behind a hole: no
/// string moves up in this page.
#[test]
fn loom_store_room_vs_read() {
    model(|| {
        let (_nodes, runtime) = machine();
        let root = runtime.root();
        let store = Arc::new(KmemStore::new_in(&root));
        let insert = |byte: u8, len: usize| store.insert(&root, &vec![byte; len]).unwrap();
        let hole = insert(0, 80);
        let key = insert(1, 8);
        // Most of the rest of the page: less is left than the thread below asks for.
        let rest =
            store.max_len() - (KmemStore::object_bytes(80) + KmemStore::object_bytes(8)) as usize;
        insert(2, rest - 64);
        let before = store.mapped();
        assert!(store.remove(hole));
        let reads = beside((Arc::clone(&store), key), |(store, key)| {
            store.get(key, |bytes| {
                yield_now();
                assert_eq!(bytes, [1; 8]);
            })
        });
        insert(3, 72);
        assert_eq!(reads.join().unwrap(), Some(()));
        assert!(
            store.mapped() <= 2 * before,
            "in this page, or in another one"
        );
        assert_eq!(store.get(key, <[u8]>::to_vec), Some(vec![1; 8]));
    });
}
