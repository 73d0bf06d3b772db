//! The store against one that does without pages: what is kept, for which group, and where that is
//! accounted.

use std::collections::HashMap;

use memcg::kmem::PageNode;
use memcg::{Freshness, Group, Limits, StatKey};
use memcg_kmem::{KmemStore, StoreKey};
use proptest::prelude::*;

use super::nodes::{Next, Nodes, assert_clean, node, on, runtime};

const STAT: StatKey = StatKey::KERNEL;
const NODES: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Insert {
        group: usize,
        node: usize,
        len: usize,
    },
    Remove(usize),
    /// So many of those that are kept, from the first.
    RemoveMany(usize),
    Compact,
    /// All pages of one node move to another.
    Shift(usize, usize),
    /// Pages that are made from here on come to lie there.
    Next(usize),
    Offline(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (0..4_usize, 0..NODES, prop_oneof![0..200_usize, 0..4_000_usize])
            .prop_map(|(group, node, len)| Step::Insert { group, node, len }),
        5 => any::<usize>().prop_map(Step::Remove),
        1 => any::<usize>().prop_map(Step::RemoveMany),
        2 => Just(Step::Compact),
        1 => (0..NODES, 0..NODES).prop_map(|(from, to)| Step::Shift(from, to)),
        1 => (0..NODES).prop_map(Step::Next),
        1 => (0..4_usize).prop_map(Step::Offline),
    ];
    prop::collection::vec(step, 1..300)
}

#[derive(Default)]
struct Model {
    kept: Vec<(StoreKey, usize, Vec<u8>)>,
    offline: bool,
}

fn check(store: &KmemStore, groups: &[Group], root: &Group, model: &Model) {
    let mut held: HashMap<usize, u64> = HashMap::new();
    for (key, group, bytes) in &model.kept {
        // Charged to those before it in the chain as well.
        for above in 0..=*group {
            *held.entry(above).or_default() += KmemStore::object_bytes(bytes.len());
        }
        assert_eq!(store.get(*key, |kept| kept == bytes), Some(true));
    }
    for (number, group) in groups.iter().enumerate() {
        assert_eq!(group.live(), held.get(&number).copied().unwrap_or(0));
    }
    let placement = store.placement();
    assert_eq!(
        (store.len(), placement.bytes()),
        (model.kept.len(), root.live())
    );
    assert_eq!(
        root.numa_stat(STAT, Freshness::Exact).sum() as u64,
        root.live()
    );
    if !model.offline {
        let pages: Vec<i64> = (0..NODES)
            .map(|number| placement.on_node(node(number)) as i64)
            .collect();
        assert_eq!(on(root, STAT), pages);
        for group in groups {
            assert_eq!(
                group.numa_stat(STAT, Freshness::Exact).sum() as u64,
                group.live()
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_store_keeps_what_a_table_would(steps in steps()) {
        let nodes = Nodes::new(Next::All(PageNode::On(node(0))));
        let runtime = runtime(NODES, &nodes);
        let root = runtime.root();
        let mut groups: Vec<Group> = Vec::new();
        for number in 0..4 {
            // A chain: each is the parent of the next.
            let above = groups.last().unwrap_or(&root);
            groups.push(above.create(&format!("tenant{number}"), Limits::new()).unwrap());
        }
        let store = KmemStore::new_in(&root);
        let mut model = Model::default();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Insert { group, node: on, len } => {
                    let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + number) as u8).collect();
                    match store.insert_on(&groups[group], node(on), &bytes) {
                        Ok(key) => model.kept.push((key, group, bytes)),
                        Err(error) => prop_assert!(groups[group].is_offline(), "{error}"),
                    }
                }
                Step::Remove(at) if !model.kept.is_empty() => {
                    let (key, ..) = model.kept.swap_remove(at % model.kept.len());
                    prop_assert!(store.remove(key) && !store.remove(key));
                }
                Step::RemoveMany(count) if !model.kept.is_empty() => {
                    for (key, ..) in model.kept.drain(..count % model.kept.len()) {
                        prop_assert!(store.remove(key));
                    }
                }
                Step::Remove(_) | Step::RemoveMany(_) => {}
                Step::Compact => {
                    let before = store.mapped();
                    let done = store.compact();
                    prop_assert_eq!(store.mapped() + done.freed, before);
                    // Each makes full pages fuller: that comes to an end.
                    let ended = (0..200).any(|_| store.compact().moved == 0);
                    prop_assert!(ended && store.mapped() <= before);
                }
                Step::Shift(from, to) => {
                    nodes.shift(from, to);
                    store.relocate();
                }
                Step::Next(number) => nodes.next_on(number),
                Step::Offline(number) => {
                    groups[number].offline_tree();
                    model.offline = true;
                }
            }
            if number % 16 == 0 {
                check(&store, &groups, &root, &model);
            }
        }
        check(&store, &groups, &root, &model);
        drop(groups);
        drop(store);
        assert_clean(&root, STAT);
    }
}
