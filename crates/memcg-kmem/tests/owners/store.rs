//! The store: what it keeps, and what that costs.

use std::panic::{AssertUnwindSafe, catch_unwind};

use memcg::kmem::PageNode;
use memcg::{Limit, Limits, Runtime, StatKey};
use memcg_kmem::{KmemError, KmemStore};

use super::nodes::{Next, Nodes, Panics, assert_clean, local, node, on, page, runtime};

const STAT: StatKey = StatKey::KERNEL;

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (seed * 31 + at * 7) as u8).collect()
}

#[test]
fn strings_of_any_length_come_back() {
    let runtime = Runtime::builder().build().unwrap();
    let root = runtime.root();
    let store = KmemStore::new_in(&root);
    let lens: Vec<usize> = (0..store.max_len())
        .step_by(13)
        .chain([store.max_len()])
        .collect();
    let keys: Vec<_> = lens
        .iter()
        .map(|&len| store.insert(&root, &bytes(len, len)).unwrap())
        .collect();
    let charged: u64 = lens.iter().map(|&len| KmemStore::object_bytes(len)).sum();
    assert_eq!(
        (root.live(), store.placement().bytes(), store.len()),
        (charged, charged, lens.len())
    );
    assert_eq!(on(&root, STAT), [charged as i64]);
    for (&len, &key) in lens.iter().zip(&keys) {
        assert_eq!(store.get(key, <[u8]>::to_vec), Some(bytes(len, len)));
    }
    for &key in &keys {
        assert!(store.remove(key));
        assert!(!store.remove(key) && store.get(key, |_| ()).is_none());
    }
    assert_clean(&root, STAT);
    assert_eq!(
        (store.len(), store.mapped()),
        (0, page()),
        "an empty page is kept"
    );
    store.compact();
    assert_eq!(store.mapped(), 0);
}

#[test]
fn a_key_of_what_is_gone_leads_nowhere() {
    let runtime = Runtime::builder().build().unwrap();
    let store = KmemStore::new_in(&runtime.root());
    let old = store.insert(&runtime.root(), b"old").unwrap();
    store.remove(old);
    let new = store.insert(&runtime.root(), b"new").unwrap();
    assert_ne!(old, new);
    assert_eq!((store.get(old, |_| ()), store.remove(old)), (None, false));
    assert_eq!(store.get(new, <[u8]>::to_vec).as_deref(), Some(&b"new"[..]));
}

#[test]
fn each_group_pays_on_the_node_of_the_page() {
    let nodes = Nodes::new(Next::All(PageNode::On(node(0))));
    let runtime = runtime(2, &nodes);
    let root = runtime.root();
    let tenants = ["one", "other"].map(|name| root.create(name, Limits::new()).unwrap());
    let store = KmemStore::new_in(&root);
    let object = KmemStore::object_bytes(100) as i64;
    for _ in 0..10 {
        store.insert_on(&tenants[0], node(0), &[1; 100]).unwrap();
        store.insert_on(&tenants[1], node(0), &[2; 100]).unwrap();
    }
    assert_eq!(
        store.mapped(),
        2 * page() * usize::from(page() < 20 * object as usize)
            + page() * usize::from(page() >= 20 * object as usize)
    );
    nodes.next_on(1);
    store.insert_on(&tenants[1], node(1), &[3; 100]).unwrap();
    assert_eq!(
        (local(&tenants[0], STAT), local(&tenants[1], STAT)),
        (vec![10 * object, 0], vec![10 * object, object])
    );
    assert_eq!(
        (tenants[0].live(), tenants[1].live()),
        (10 * object as u64, 11 * object as u64)
    );
    drop(store);
    assert_clean(&root, STAT);
}

#[test]
fn a_group_that_is_refused_has_stored_nothing() {
    let runtime = Runtime::builder().build().unwrap();
    let tenant = runtime.root().create("tenant", Limits::new()).unwrap();
    let store = KmemStore::new_in(&runtime.root());
    tenant
        .set_max(Limit::Bytes(KmemStore::object_bytes(10)))
        .unwrap();
    let key = store.insert(&tenant, &[1; 10]).unwrap();
    assert!(
        matches!(store.insert(&tenant, &[1; 10]), Err(KmemError::Charge(error)) if error.is_over_limit())
    );
    let too_long = store.insert(&tenant, &vec![0; page()]).unwrap_err();
    assert!(matches!(too_long, KmemError::Capacity { .. }), "{too_long}");
    let elsewhere = Runtime::builder().build().unwrap();
    assert!(
        matches!(store.insert(&elsewhere.root(), b""), Err(KmemError::Charge(error)) if error.is_other_runtime())
    );
    tenant.offline().unwrap();
    assert!(
        matches!(store.insert(&tenant, b""), Err(KmemError::Charge(error)) if error.is_offline())
    );
    assert_eq!(
        (store.len(), tenant.live()),
        (1, KmemStore::object_bytes(10))
    );
    assert!(store.remove(key));
    assert_clean(&runtime.root(), STAT);
}

#[test]
fn what_is_read_stays_until_it_was_read() {
    let runtime = Runtime::builder().build().unwrap();
    let root = runtime.root();
    let store = KmemStore::new_in(&root);
    let keys: Vec<_> = (0..200)
        .map(|seed| store.insert(&root, &bytes(seed, 300)).unwrap())
        .collect();
    // Nearly all of it goes while one is read, that one as well.
    let read = store.get(keys[77], |read| {
        for &key in &keys[10..] {
            assert!(store.remove(key));
        }
        store.compact();
        let others: Vec<_> = (0..100)
            .map(|seed| store.insert(&root, &bytes(seed, 250)).unwrap())
            .collect();
        assert_eq!(
            store.get(keys[77], |_| ()),
            None,
            "it is gone for every other group"
        );
        for key in others {
            store.remove(key);
        }
        store.compact();
        read.to_vec()
    });
    assert_eq!(read, Some(bytes(77, 300)));
    store.compact();
    assert_eq!(store.mapped(), page(), "ten fit into one");
    for (seed, &key) in keys[..10].iter().enumerate() {
        assert_eq!(store.get(key, <[u8]>::to_vec), Some(bytes(seed, 300)));
    }
    assert_eq!(root.live(), 10 * KmemStore::object_bytes(300));
}

#[test]
fn a_reader_that_panics_lets_go() {
    let runtime = Runtime::builder().build().unwrap();
    let store = KmemStore::new_in(&runtime.root());
    let key = store.insert(&runtime.root(), b"read").unwrap();
    assert!(
        catch_unwind(AssertUnwindSafe(
            || store.get(key, |_| panic!("as it was to"))
        ))
        .is_err()
    );
    store.remove(key);
    store.compact();
    assert_eq!(store.mapped(), 0);
}

#[test]
fn a_foreign_panic_leaves_nothing_behind() {
    let runtime = Runtime::builder().nodes(2).node_of(Panics).build().unwrap();
    let root = runtime.root();
    let store = KmemStore::new_in(&root);
    assert!(catch_unwind(AssertUnwindSafe(|| store.insert(&root, b"never"))).is_err());
    assert_eq!((store.len(), store.mapped()), (0, 0));
    assert_clean(&root, STAT);
}

#[test]
fn holes_are_used_again() {
    let runtime = Runtime::builder().build().unwrap();
    let root = runtime.root();
    let store = KmemStore::new_in(&root);
    let mut keys: Vec<_> = (0..64)
        .map(|seed| store.insert(&root, &bytes(seed, 900)).unwrap())
        .collect();
    let most = store.mapped();
    for round in 0..2_000 {
        let at = round * 13 % keys.len();
        store.remove(keys.swap_remove(at));
        // Never more than what went.
        keys.push(
            store
                .insert(&root, &bytes(round, 900 - round % 50))
                .unwrap(),
        );
        assert!(store.mapped() <= most);
    }
    assert_eq!(root.live(), store.placement().bytes());
}
