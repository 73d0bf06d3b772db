//! Containers outlive the handles of their group, its time online, their runtime, and the threads
//! that made them.

use std::sync::mpsc;
use std::thread;

use memcg::kmem::{NodeId, OneNode};
use memcg::{Freshness, Group, Limits, Runtime, StatKey};
use memcg_kmem::{KmemBox, KmemSlab, KmemStore, KmemVec, PerCpu, StoreKey};

struct Held {
    group: Group,
    root: Group,
    vec: KmemVec<u64>,
    object: KmemBox<[u64; 4]>,
    store: KmemStore,
    key: StoreKey,
    copies: PerCpu<u64>,
}

/// The memory of a thread in a runtime that is gone with the thread's last handle on it.
fn hold(nodes: usize) -> Held {
    let node_of = OneNode::new(NodeId::new(nodes as u16 - 1));
    let runtime = Runtime::builder()
        .nodes(nodes)
        .node_of(node_of)
        .build()
        .expect("some nodes");
    let root = runtime.root();
    let group = runtime.root().create("q17", Limits::new()).expect("a name");
    let mut vec = KmemVec::with_capacity_in(10, &group).expect("no limit");
    vec.push(7).expect("room");
    let slab = KmemSlab::new_in(&root);
    let store = KmemStore::new_in(&root);
    let object = slab.insert(&group, [7; 4]).expect("no limit");
    let key = store.insert(&group, b"compressed").expect("no limit");
    let copies = PerCpu::new_with_in(&group, |_| 7).expect("no limit");
    group.offline().expect("no child");
    Held {
        group,
        root,
        vec,
        object,
        store,
        key,
        copies,
    }
}

#[test]
fn what_is_held_goes_back_after_its_group_runtime_and_thread() {
    let (gives, takes) = mpsc::channel();
    for nodes in [1, 2].into_iter().cycle().take(20) {
        let gives = gives.clone();
        thread::spawn(move || gives.send(hold(nodes)).expect("the other end"))
            .join()
            .expect("no panic");
    }
    drop(gives);
    for Held {
        group,
        root,
        mut vec,
        object,
        store,
        key,
        copies,
    } in takes
    {
        assert!(group.is_offline() && root.is_offline());
        assert!(vec.push(8).is_ok(), "there is room already");
        vec.settle();
        assert_eq!(
            (vec.pop(), *object, *copies.current()),
            (Some(8), [7; 4], 7)
        );
        assert_eq!(
            store.get(key, <[u8]>::to_vec).as_deref(),
            Some(&b"compressed"[..])
        );
        assert!(
            vec.reserve(1 << 20).is_err(),
            "an offline group admits nothing"
        );
        let charged =
            copies.bytes().charged() + vec.capacity() as u64 * 8 + KmemStore::object_bytes(10);
        assert!(group.live() > charged);
        drop((vec, object, copies));
        assert!(store.remove(key));
        drop(store);
        assert_eq!((group.live(), root.live()), (0, 0));
        drop(group);
        let left = root.read(Freshness::Exact);
        assert_eq!(
            [StatKey::SLAB, StatKey::KERNEL, StatKey::PERCPU].map(|stat| left.get(stat)),
            [0; 3]
        );
    }
}
