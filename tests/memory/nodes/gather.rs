//! The nodes of a range of bytes: pages are looked up once each, in batches, and an object that
//! straddles them is split where one ends.

use memcg::Bytes;
use std::alloc::Layout;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use memcg::Runtime;
use memcg::kmem::{NodeId, NodeOf, OneNode, PageNode, Placement, PrechargeBound};

use super::{hold, node, on, placed, scattered};
use crate::support::trees::build;

const PAGE: usize = 4_096;

/// Pages by hand, and what was asked. Anything else is untouched.
#[derive(Clone)]
struct Table {
    page_size: usize,
    pages: Arc<HashMap<usize, PageNode>>,
    calls: Arc<AtomicUsize>,
    asked: Arc<Mutex<Vec<usize>>>,
}

impl Table {
    fn new(page_size: usize, pages: impl IntoIterator<Item = (usize, PageNode)>) -> Self {
        let pages = pages
            .into_iter()
            .map(|(number, found)| (number * page_size, found))
            .collect();
        Table {
            page_size,
            pages: Arc::new(pages),
            calls: Arc::default(),
            asked: Arc::default(),
        }
    }

    /// Calls, and the pages asked for, since the last time.
    fn asked(&self) -> (usize, Vec<usize>) {
        let asked = std::mem::take(&mut *self.asked.lock().expect("no thread panics"));
        (self.calls.swap(0, Ordering::Relaxed), asked)
    }
}

impl NodeOf for Table {
    fn page_size(&self) -> usize {
        self.page_size
    }

    fn look_up(&self, pages: &[usize], found: &mut [PageNode]) {
        assert_eq!(pages.len(), found.len());
        assert!(
            !pages.is_empty() && pages.iter().all(|page| page % self.page_size == 0),
            "{pages:x?}"
        );
        for (page, found) in pages.iter().zip(found) {
            *found = self.pages.get(page).copied().unwrap_or(PageNode::Untouched);
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.asked.lock().expect("no thread panics").extend(pages);
    }
}

fn of(range: std::ops::Range<usize>, node_of: &dyn NodeOf) -> Placement {
    let mut placement = Placement::new();
    placement.add_range(range, node_of);
    placement
}

/// Bytes on nodes 0, 1 and 2, and on none.
fn figures(placement: &Placement) -> [u64; 4] {
    let on = |number| placement.on_node(node(number));
    [on(0), on(1), on(2), placement.unplaced()]
}

fn lies_on(number: u16) -> PageNode {
    PageNode::On(node(number))
}

#[test]
fn an_object_that_straddles_is_split_at_the_border() {
    let table = Table::new(PAGE, [(10, lies_on(0)), (11, lies_on(1)), (12, lies_on(2))]);
    let border = 11 * PAGE;
    for (range, expected) in [
        (border - 1..border + 1, [1, 1, 0, 0]),
        (border - 100..border, [100, 0, 0, 0]),
        (border..border + 100, [0, 100, 0, 0]),
        (border - 100..border + 28, [100, 28, 0, 0]),
        (
            border - PAGE..border + PAGE,
            [PAGE as u64, PAGE as u64, 0, 0],
        ),
        // More than two pages, and beyond what is known.
        (border - 3..border + PAGE + 5, [3, PAGE as u64, 5, 0]),
        (border + 2 * PAGE - 7..border + 2 * PAGE + 9, [0, 0, 7, 9]),
        (border..border, [0, 0, 0, 0]),
    ] {
        let placement = of(range.clone(), &table);
        assert_eq!(figures(&placement), expected, "{range:x?}");
        assert_eq!(placement.bytes(), range.len() as u64);
    }
}

#[test]
fn each_page_is_looked_up_once() {
    let numbers = 100..400;
    let table = Table::new(
        PAGE,
        numbers
            .clone()
            .map(|number| (number, lies_on((number % 3) as u16))),
    );
    for (first, pages) in [
        (100, 1),
        (100, 63),
        (101, 64),
        (101, 65),
        (102, 128),
        (100, 200),
        (100, 300),
    ] {
        // From within the first page to within the last one.
        let range = first * PAGE + 17..(first + pages) * PAGE - 5;
        let placement = of(range.clone(), &table);
        let (calls, asked) = table.asked();
        let expected: Vec<usize> = (first..first + pages).map(|number| number * PAGE).collect();
        assert_eq!(asked, expected, "{pages} pages");
        assert!(
            calls <= pages.div_ceil(64),
            "{calls} calls for {pages} pages"
        );
        let mut bytes = [0_u64; 4];
        for number in first..first + pages {
            let start = range.start.max(number * PAGE);
            let end = range.end.min((number + 1) * PAGE);
            bytes[number % 3] += (end - start) as u64;
        }
        assert_eq!(figures(&placement), bytes, "{pages} pages");
        assert!(placement.nodes().count() <= 3, "gathered by node");
    }
}

#[test]
fn what_has_no_node_is_on_none() {
    let pages = [
        (7, PageNode::Untouched),
        (8, PageNode::Zero),
        (9, PageNode::Unmapped),
        (10, lies_on(1)),
    ];
    let placement = of(7 * PAGE..12 * PAGE, &Table::new(PAGE, pages));
    assert_eq!(figures(&placement), [0, PAGE as u64, 0, 4 * PAGE as u64]);
}

/// A look-up covers one page of whatever size; a huge one is looked up once.
#[test]
fn pages_are_as_large_as_they_are() {
    let huge = 2 << 20;
    let table = Table::new(huge, [(3, lies_on(0)), (4, lies_on(2))]);
    let placement = of(4 * huge - 4_096..4 * huge + 1, &table);
    assert_eq!(
        (figures(&placement), table.asked()),
        ([4_096, 0, 1, 0], (1, vec![3 * huge, 4 * huge]))
    );
    // Whatever a thread's page size is, it takes no time without end.
    for page_size in [0, 1, 3, usize::MAX] {
        struct Odd(usize);
        impl NodeOf for Odd {
            fn page_size(&self) -> usize {
                self.0
            }

            fn look_up(&self, _: &[usize], found: &mut [PageNode]) {
                found.fill(PageNode::On(NodeId::new(1)));
            }
        }
        assert_eq!(figures(&of(1_000..1_200, &Odd(page_size))), [0, 200, 0, 0]);
    }
}

/// Up to the last address, and backwards.
#[test]
fn ranges_at_the_end_of_the_world() {
    let table = Table::new(PAGE, []);
    let last = usize::MAX / PAGE * PAGE;
    assert_eq!(of(last - 1..usize::MAX, &table).unplaced(), PAGE as u64);
    assert_eq!(of(usize::MAX - 1..usize::MAX, &table).unplaced(), 1);
    #[expect(clippy::reversed_empty_ranges, reason = "what a thread may pass in")]
    let backwards = 5 * PAGE..3 * PAGE;
    assert_eq!(of(backwards, &table), Placement::new());
    assert_eq!(of(0..1, &table).bytes(), 1);
}

#[test]
fn ranges_add_up() {
    let table = Table::new(PAGE, [(1, lies_on(0)), (2, lies_on(1))]);
    let mut placement = Placement::on(node(1), 1);
    placement.add_range(PAGE..3 * PAGE, &table);
    placement.add_range(PAGE..PAGE + 10, &table);
    placement.add(Some(node(2)), 0);
    assert_eq!(
        figures(&placement),
        [PAGE as u64 + 10, PAGE as u64 + 1, 0, 0]
    );
    assert_eq!(placement.nodes().count(), 2, "nothing is on node 2");
}

/// The same bytes on the same nodes are the same placement, whichever was met first.
#[test]
fn the_order_does_not_matter() {
    assert_eq!(placed(&[(0, 1), (1, 2)]), placed(&[(1, 2), (0, 1)]));
    assert_ne!(placed(&[(0, 1), (1, 2)]), placed(&[(1, 1), (0, 2)]));
    assert_ne!(placed(&[(0, 1)]), scattered(&[(0, 1)], 1));
}

#[test]
fn no_more_than_all_the_bytes_there_are() {
    let mut placement = placed(&[(0, u64::MAX), (1, 1), (0, 5)]);
    placement.add(None, Bytes(u64::MAX));
    assert_eq!(
        (
            placement.bytes(),
            placement.on_node(node(0)),
            placement.unplaced()
        ),
        (u64::MAX, u64::MAX, u64::MAX)
    );
    assert_eq!(
        PrechargeBound::from(Bytes(u64::MAX))
            .with_metadata(1)
            .bytes(),
        u64::MAX
    );
    assert_eq!(
        Placement::bound(Layout::new::<[u8; 100]>())
            .with_metadata(8)
            .bytes(),
        108
    );
}

/// Real memory, as objects lie in it.
#[test]
fn a_slice_of_a_type() {
    let data = vec![[1_u64; 3]; 1_000];
    assert_eq!(
        Placement::of(data.as_ptr_range(), &OneNode::new(node(4))),
        placed(&[(4, 24_000)])
    );
    assert_eq!(
        Placement::of(data[..0].as_ptr_range(), &OneNode::new(node(4))),
        Placement::new()
    );
}

/// The nodes that a table names need not be the machine's: what lies there is on none.
#[test]
fn a_node_that_the_machine_does_not_have() {
    let table = Table::new(PAGE, [(1, lies_on(1)), (2, lies_on(60))]);
    let runtime = build(Runtime::builder().nodes(2).node_of(table));
    let kmem = hold(&runtime.root(), &of(PAGE..3 * PAGE, runtime.node_of()));
    assert_eq!(
        (kmem.bytes(), kmem.placement()),
        (2 * PAGE as u64, scattered(&[(1, PAGE as u64)], PAGE as u64))
    );
    assert_eq!(on(&runtime.root()), [0, PAGE as i64]);
}

/// However large the range: with one node there is no page to look at.
#[test]
fn one_node_looks_at_no_page() {
    let runtime = build(Runtime::builder());
    // Page by page it would take years.
    let placement = of(0..usize::MAX, runtime.node_of());
    assert_eq!(placement, placed(&[(0, usize::MAX as u64)]));
}

/// A `NodeOf` that says that there is one node is asked for no page, however it is handed on.
#[test]
fn a_node_of_that_knows_one_node_is_not_asked() {
    struct Only(Table);
    impl NodeOf for Only {
        fn page_size(&self) -> usize {
            self.0.page_size()
        }

        fn look_up(&self, pages: &[usize], found: &mut [PageNode]) {
            self.0.look_up(pages, found);
        }

        fn only_node(&self) -> Option<NodeId> {
            Some(node(6))
        }
    }
    let only = Only(Table::new(PAGE, [(1, lies_on(0))]));
    let asked = only.0.clone();
    let boxed: Box<dyn NodeOf> = Box::new(&only);
    let range = PAGE - 10..3 * PAGE;
    let expected = placed(&[(6, range.len() as u64)]);
    assert_eq!(
        (of(range.clone(), &only), of(range.clone(), &boxed)),
        (expected.clone(), expected.clone())
    );
    drop(boxed);
    let runtime = build(
        Runtime::builder()
            .topology(super::machine(&[6]))
            .node_of(only),
    );
    assert_eq!(of(range, runtime.node_of()), expected);
    assert_eq!(asked.asked(), (0, Vec::new()));
}
