//! Objects of the store move, and their accounts with them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use memcg::kmem::PageNode;
use memcg::{Freshness, Group, Limits, Runtime, StatKey};
use memcg_kmem::{KmemStore, StoreKey};

use super::nodes::{Next, Nodes, assert_clean, local, node, on, page, runtime};

const STAT: StatKey = StatKey::KERNEL;

/// Fills the rest of a page that was asked for on a node.
fn fill(store: &KmemStore, group: &Group, number: usize, len: usize) -> StoreKey {
    store
        .insert_on(group, node(number), &vec![number as u8; len])
        .unwrap()
}

/// One page on each of two nodes: the second nearly full, the first with one small object of the
/// tenant. To compact moves that from node 0 to node 1.
fn two_pages(
    store: &KmemStore,
    nodes: &Nodes,
    root: &Group,
    tenant: &Group,
) -> (StoreKey, StoreKey) {
    nodes.next_on(0);
    let small = fill(store, tenant, 0, 100);
    nodes.next_on(1);
    (small, fill(store, root, 1, page() / 2))
}

/// Those two pages, in a store of their own: the tenant, the store, the small object.
fn one_of_two_pages(runtime: &Runtime, nodes: &Nodes) -> (Group, KmemStore, StoreKey) {
    let root = runtime.root();
    let tenant = root.create("tenant", Limits::new()).unwrap();
    let store = KmemStore::new_in(&root);
    let (small, _) = two_pages(&store, nodes, &root, &tenant);
    (tenant, store, small)
}

#[test]
fn the_node_of_the_new_page_is_charged() {
    let nodes = Nodes::new(Next::All(PageNode::Untouched));
    let runtime = runtime(2, &nodes);
    let (tenant, store, small) = one_of_two_pages(&runtime, &nodes);
    let object = KmemStore::object_bytes(100) as i64;
    assert_eq!(local(&tenant, STAT), [object, 0]);
    let done = store.compact();
    assert_eq!((done.moved, done.moved_nodes, done.freed), (1, 1, page()));
    assert_eq!(local(&tenant, STAT), [0, object]);
    assert_eq!(store.get(small, <[u8]>::to_vec), Some(vec![0; 100]));
    assert!(store.remove(small));
    assert_eq!((tenant.live(), local(&tenant, STAT)), (0, vec![0, 0]));
}

#[test]
fn of_an_offline_group_the_page_that_it_leaves_is_charged() {
    let nodes = Nodes::new(Next::All(PageNode::Untouched));
    let runtime = runtime(2, &nodes);
    let (tenant, store, small) = one_of_two_pages(&runtime, &nodes);
    let object = KmemStore::object_bytes(100) as i64;
    tenant.offline().unwrap();
    assert_eq!(store.compact().moved_nodes, 1);
    assert_eq!(
        (local(&tenant, STAT), tenant.live()),
        (vec![object, 0], object as u64)
    );
    assert!(store.remove(small));
    assert_eq!((tenant.live(), local(&tenant, STAT)), (0, vec![0, 0]));
}

#[test]
fn an_offline_group_with_a_part_there_is_charged_there() {
    let nodes = Nodes::new(Next::All(PageNode::Untouched));
    let runtime = runtime(2, &nodes);
    let (tenant, store, small) = one_of_two_pages(&runtime, &nodes);
    let object = KmemStore::object_bytes(100) as i64;
    let other = fill(&store, &tenant, 1, 10);
    assert!(store.remove(other));
    tenant.offline().unwrap();
    store.compact();
    assert_eq!(
        local(&tenant, STAT),
        [0, object],
        "its part there has no bytes, and is there"
    );
    assert!(store.remove(small));
    drop(store);
    assert_clean(&runtime.root(), STAT);
}

#[test]
fn where_an_offline_group_has_neither_its_parent_is_charged() {
    let nodes = Nodes::new(Next::All(PageNode::Untouched));
    let runtime = runtime(3, &nodes);
    let root = runtime.root();
    let parent = root.create("parent", Limits::new()).unwrap();
    let tenant = parent.create("tenant", Limits::new()).unwrap();
    let store = KmemStore::new_in(&root);
    let object = KmemStore::object_bytes(100) as i64;
    let (small, large) = two_pages(&store, &nodes, &root, &tenant);
    tenant.offline().unwrap();
    store.compact();
    assert_eq!(
        local(&tenant, STAT),
        [object, 0, 0],
        "the page that it left was on node 0"
    );
    // Now it leaves a page on node 1, where it has no part, for one on node 2.
    store.remove(large);
    // The address of the page that was given back may be the next one's.
    nodes.forget();
    nodes.next_on(2);
    let large = fill(&store, &root, 2, page() / 2);
    assert_eq!(store.compact().moved_nodes, 1);
    assert_eq!(
        (local(&tenant, STAT), local(&parent, STAT)),
        (vec![0; 3], vec![0, 0, object])
    );
    assert_eq!(tenant.live(), object as u64);
    assert_eq!(store.get(small, <[u8]>::to_vec), Some(vec![0; 100]));
    // Also when its parent is offline: it has a part by now.
    parent.offline_tree();
    drop((tenant, parent));
    assert!(store.remove(small) && store.remove(large));
    assert_clean(&root, STAT);
}

#[test]
fn objects_stay_on_their_node_where_they_can() {
    let nodes = Nodes::new(Next::All(PageNode::Untouched));
    let runtime = runtime(2, &nodes);
    let root = runtime.root();
    let store = KmemStore::new_in(&root);
    let mut keys = Vec::new();
    for number in [0, 1] {
        nodes.next_on(number);
        keys.extend((0..200).map(|_| fill(&store, &root, number, 200)));
    }
    let kept: Vec<_> = keys.iter().copied().skip(3).step_by(4).collect();
    for key in keys.into_iter().filter(|key| !kept.contains(key)) {
        store.remove(key);
    }
    let before = store.mapped();
    let done = store.compact();
    assert!(
        done.moved > 0 && done.moved_nodes <= page() / 200,
        "{done:?}"
    );
    assert!(done.freed >= before / 2 && store.mapped() == before - done.freed);
    assert_eq!(on(&root, STAT).iter().sum::<i64>() as u64, root.live());
    assert!((0..2).all(|number| on(&root, STAT)[number] as u64 == store.placement().on_node(node(number))));
    assert!(
        kept.iter()
            .all(|&key| store.get(key, |bytes| bytes.len()) == Some(200))
    );
}

#[test]
fn a_page_that_has_become_emptier_goes_on_into_one_that_was_no_fuller() {
    let runtime = Runtime::builder().build().unwrap();
    let store = KmemStore::new_in(&runtime.root());
    let put = |len: usize| store.insert(&runtime.root(), &vec![1; len]).unwrap();
    let taken = |len: usize| KmemStore::object_bytes(len) as usize;
    let filler = page() * 3 / 4;
    // Two pages with nearly as much room, of which the one with a little less is emptied; and one with
    // room for its first object alone.
    let (few, many) = (page() / 32, page() / 8);
    let fillers = [filler, few, many, filler].map(put);
    put(taken(few) + taken(many) - taken(0) - 8);
    put(page() * 15 / 16);
    assert_eq!(store.mapped(), 3 * page());
    assert!(store.remove(fillers[3]) && store.remove(fillers[0]));
    let done = store.compact();
    assert_eq!((done.moved, done.freed), (2, page()), "{done:?}");
    assert_eq!(store.compact().moved, 0, "one call does all");
}

#[test]
fn a_page_with_holes_takes_a_whole_page_of_another_node() {
    let nodes = Nodes::new(Next::All(PageNode::Untouched));
    let runtime = runtime(2, &nodes);
    let root = runtime.root();
    let store = KmemStore::new_in(&root);
    nodes.next_on(1);
    let hole = fill(&store, &root, 1, page() / 4);
    fill(&store, &root, 1, page() / 2);
    store.remove(hole);
    // Behind the last object there is room for the first of these, and for both once the hole is closed.
    nodes.next_on(0);
    for len in [page() / 32, page() / 4] {
        fill(&store, &root, 0, len);
    }
    let done = store.compact();
    assert_eq!((done.moved, done.moved_nodes, done.freed), (2, 2, page()));
}

#[test]
fn pages_that_are_moved_take_the_accounts_along() {
    let nodes = Nodes::new(Next::Interleaved(2));
    let runtime = runtime(4, &nodes);
    let root = runtime.root();
    let tenant = root.create("tenant", Limits::new()).unwrap();
    let store = KmemStore::new_in(&root);
    let keys: Vec<_> = (0..2_000)
        .map(|_| store.insert(&tenant, &[5; 500]).unwrap())
        .collect();
    let charged = tenant.live() as i64;
    nodes.shift(0, 2);
    nodes.shift(1, 3);
    store.relocate();
    let now = local(&tenant, STAT);
    assert_eq!((now[0] + now[1], now[2] + now[3]), (0, charged));
    tenant.offline().unwrap();
    nodes.shift(2, 1);
    store.relocate();
    // A part on node 1 may be there or not, by where the first pages came to lie.
    assert_eq!(local(&tenant, STAT).iter().sum::<i64>(), charged);
    assert_eq!(tenant.live() as i64, charged);
    assert!(keys.iter().all(|&key| store.remove(key)));
    assert_clean(&root, STAT);
}

#[test]
fn tiers_follow() {
    let nodes = Nodes::new(Next::All(PageNode::Untouched));
    let mut builder = memcg::Runtime::builder()
        .nodes(2)
        .node_of(std::sync::Arc::clone(&nodes));
    let fast = builder.tier("fast", [node(1)]);
    let runtime = builder.build().unwrap();
    let root = runtime.root();
    let store = KmemStore::new_in(&root);
    let (small, large) = two_pages(&store, &nodes, &root, &root);
    let tier = || root.counter(fast).unwrap().live();
    assert_eq!(tier(), KmemStore::object_bytes(page() / 2));
    store.compact();
    assert_eq!(
        tier(),
        KmemStore::object_bytes(page() / 2) + KmemStore::object_bytes(100)
    );
    store.remove(large);
    assert_eq!(tier(), KmemStore::object_bytes(100));
    store.remove(small);
    assert_eq!((tier(), root.live()), (0, 0));
}

#[test]
fn nothing_is_lost_while_everything_moves() {
    let nodes = Nodes::new(Next::Interleaved(3));
    let runtime = runtime(3, &nodes);
    let root = runtime.root();
    let store = KmemStore::new_in(&root);
    let over = AtomicBool::new(false);
    let string = |seed: usize| vec![seed as u8; seed * 37 % 900];
    let work = |worker: usize| {
        let mut kept: Vec<(usize, StoreKey)> = Vec::new();
        for round in 0..30 {
            let tenant = root
                .create(&format!("tenant{worker}-{round}"), Limits::new())
                .unwrap();
            for number in 0..150_usize {
                let seed = worker * 1_000_000 + round * 1_000 + number;
                kept.push((
                    seed,
                    store
                        .insert_on(&tenant, node(number % 3), &string(seed))
                        .unwrap(),
                ));
                let (seed, key) = kept[number * 17 % kept.len()];
                assert_eq!(store.get(key, |bytes| bytes == string(seed)), Some(true));
                if number % 2 == 0 {
                    let (seed, key) = kept.swap_remove(number * 31 % kept.len());
                    assert_eq!(store.get(key, |bytes| bytes == string(seed)), Some(true));
                    assert!(store.remove(key));
                    assert!(store.get(key, |_| ()).is_none());
                }
            }
            tenant.offline().unwrap();
            for (_, key) in kept.drain(kept.len().min(200)..) {
                assert!(store.remove(key));
            }
        }
        kept
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|worker| scope.spawn(move || work(worker)))
            .collect();
        let movers: Vec<_> = (0..2)
            .map(|mover| {
                let over = &over;
                let nodes = &nodes;
                let store = &store;
                scope.spawn(move || {
                    for round in mover.. {
                        if over.load(Ordering::Relaxed) {
                            break;
                        }
                        if round % 5 == 0 {
                            nodes.shift(round % 3, (round + 1) % 3);
                            store.relocate();
                        }
                        store.compact();
                    }
                })
            })
            .collect();
        let kept: Vec<_> = workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap())
            .collect();
        over.store(true, Ordering::Relaxed);
        movers.into_iter().for_each(|mover| mover.join().unwrap());
        let charged: u64 = kept
            .iter()
            .map(|&(seed, _)| KmemStore::object_bytes(string(seed).len()))
            .sum();
        assert_eq!(
            (store.len(), root.live(), store.placement().bytes()),
            (kept.len(), charged, charged)
        );
        assert_eq!(root.numa_stat(STAT, Freshness::Exact).sum() as u64, charged);
        for (seed, key) in kept {
            assert_eq!(store.get(key, |bytes| bytes == string(seed)), Some(true));
            assert!(store.remove(key));
        }
    });
    assert_clean(&root, STAT);
}
