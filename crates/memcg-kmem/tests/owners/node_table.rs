//! The table of nodes against a naive one.

use std::collections::HashMap;

use memcg::kmem::{NodeId, NodeOf, PageNode};
use memcg_kmem::NodeTable;
use proptest::prelude::*;

/// Of the machines that are made up here.
const PAGE: usize = 4_096;

fn on(node: u16) -> PageNode {
    PageNode::On(NodeId::new(node))
}

/// Answers for these pages. A page without an answer stays `Zero`.
fn ask(node_of: &dyn NodeOf, pages: &[usize]) -> Vec<PageNode> {
    let mut found = vec![PageNode::Zero; pages.len()];
    node_of.look_up(pages, &mut found);
    found
}

#[test]
fn ranges_stand_for_whole_pages() {
    let table = NodeTable::new(PAGE);
    table.set(PAGE + 1..2 * PAGE + 1, NodeId::new(3));
    assert_eq!(
        ask(&table, &[0, PAGE, 2 * PAGE, 3 * PAGE]),
        [PageNode::Unmapped, on(3), on(3), PageNode::Unmapped]
    );
    table.set(5..5, NodeId::new(1));
    #[allow(clippy::reversed_empty_ranges)]
    table.set(3 * PAGE..PAGE, NodeId::new(1));
    assert_eq!(
        ask(&table, &[0, PAGE, 2 * PAGE]),
        [PageNode::Unmapped, on(3), on(3)]
    );
}

#[test]
fn the_ends_of_what_can_be_addressed() {
    for page_size in [0, 1, 3, PAGE, 1 << (usize::BITS - 1), usize::MAX] {
        let table = NodeTable::new(page_size);
        table.set(0..usize::MAX, NodeId::new(1));
        table.set(usize::MAX - 1..usize::MAX, NodeId::new(2));
        table.remove(0..1);
        let last = (usize::MAX - 1) & !(table.page_size() - 1);
        let expected = if last == 0 {
            [PageNode::Unmapped; 2]
        } else {
            [PageNode::Unmapped, on(2)]
        };
        assert_eq!(ask(&table, &[0, last]), expected, "{page_size}");
    }
}

proptest! {
    #[test]
    fn the_table_is_what_was_written_last(writes in prop::collection::vec((0..40_usize, 0..12_usize, 0..6_u16), 0..40)) {
        let table = NodeTable::new(PAGE);
        let mut naive = HashMap::new();
        for (first, count, answer) in writes {
            let range = first * PAGE..(first + count) * PAGE;
            let found = match answer {
                0 => PageNode::Unmapped,
                1 => PageNode::Untouched,
                2 => PageNode::Zero,
                node => on(node),
            };
            table.set(range, found);
            naive.extend((first..first + count).map(|page| (page, found)));
            let pages: Vec<usize> = (0..60).map(|page| page * PAGE).collect();
            let expected: Vec<_> = (0..60).map(|page| *naive.get(&page).unwrap_or(&PageNode::Unmapped)).collect();
            prop_assert_eq!(ask(&table, &pages), expected);
        }
    }
}

#[test]
fn changes_beside_look_ups() {
    let table = NodeTable::new(PAGE);
    table.set(0..64 * PAGE, NodeId::new(0));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let table = &table;
            scope.spawn(move || {
                for round in 0..2_000_usize {
                    let page = (round * 7 + thread) % 64 * PAGE;
                    table.set(page..page + PAGE, NodeId::new((round % 3) as u16));
                }
            });
        }
        scope.spawn(|| {
            let pages: Vec<usize> = (0..64).map(|page| page * PAGE).collect();
            for _ in 0..500 {
                assert!(
                    ask(&table, &pages)
                        .iter()
                        .all(|found| found.node().is_some_and(|node| node.get() < 3))
                );
            }
        });
    });
}

#[test]
fn a_look_up_answers_what_is_asked() {
    let table = NodeTable::new(PAGE);
    table.set(0..PAGE, NodeId::new(0));
    let mut found = [PageNode::Zero; 3];
    table.look_up(&[0], &mut found);
    assert_eq!(found[1..], [PageNode::Zero; 2]);
    table.look_up(&[0; 9], &mut found[..2]);
    assert_eq!(found, [on(0), on(0), PageNode::Zero]);
    assert_eq!(
        (table.call_count(), table.page_count(), table.only_node()),
        (2, 3, None)
    );
}
