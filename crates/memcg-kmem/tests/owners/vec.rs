//! The vector.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memcg::kmem::{PageNode, Placement};
use memcg::{Freshness, Limit, Limits, Runtime, StatKey};
use memcg_kmem::{KmemBox, KmemError, KmemSlab, KmemStore, KmemVec};

use super::nodes::{Next, Nodes, Panics, assert_clean, local, node, on, page, runtime};

const STAT: StatKey = StatKey::KERNEL;

/// The nodes of the pages of a vector's elements, whole pages.
fn lies<T>(vec: &KmemVec<T>, nodes: &Nodes) -> Placement {
    let start = vec.as_ptr().addr();
    let end = (start + size_of_val(vec.as_slice())).next_multiple_of(page());
    let mut placement = Placement::new();
    placement.add_range(start..end, nodes);
    placement
}

fn by_node(placement: &Placement, nodes: usize) -> Vec<i64> {
    (0..nodes)
        .map(|number| placement.on_node(node(number)) as i64)
        .collect()
}

#[test]
fn pages_are_accounted_where_they_lie_once_they_are_touched() {
    let nodes = Nodes::new(Next::Interleaved(3));
    let runtime = runtime(3, &nodes);
    let root = runtime.root();
    let capacity = 300 * page() / 8;
    let mut vec = KmemVec::with_capacity_in(capacity, &root).unwrap();
    assert_eq!(
        (vec.capacity(), root.live()),
        (capacity, (capacity * 8) as u64)
    );
    assert_eq!(
        (nodes.call_count(), vec.placement().unplaced()),
        (0, root.live())
    );
    let touched = 200 * page() / 8;
    for value in 0..touched as u64 {
        vec.push(value).unwrap();
    }
    // In batches, those behind the last element only.
    assert!(
        (2..=4).contains(&nodes.call_count()),
        "{} look-ups",
        nodes.call_count()
    );
    let before = vec.placement();
    assert!(before.bytes() - before.unplaced() >= (128 * page()) as u64);
    vec.settle();
    assert_eq!(
        nodes.looked_up.load(Ordering::Relaxed),
        200,
        "each page once"
    );
    assert_eq!(
        by_node(&vec.placement(), 3),
        by_node(&lies(&vec, &nodes), 3)
    );
    assert_eq!(on(&root, STAT), by_node(&lies(&vec, &nodes), 3));
    assert_eq!(
        root.numa_stat(STAT, Freshness::Exact).unplaced(),
        (100 * page()) as i64
    );
    assert!((&vec).into_iter().copied().eq(0..touched as u64));
    let calls = nodes.call_count();
    vec.settle();
    assert_eq!(nodes.call_count(), calls, "nothing is left to look at");
    drop(vec);
    assert_clean(&root, STAT);
}

#[test]
fn accounts_of_pages_stay_when_the_vector_grows() {
    let nodes = Nodes::new(Next::Interleaved(4));
    let runtime = runtime(4, &nodes);
    let root = runtime.root();
    let mut vec = KmemVec::new_in(&root);
    let mut largest = 0;
    for value in 0..(70 * page()) as u64 {
        vec.push(value).unwrap();
        if vec.capacity() != largest {
            largest = vec.capacity();
            assert_eq!(root.live(), (largest * 8) as u64);
            assert_eq!(
                root.numa_stat(STAT, Freshness::Exact).sum(),
                root.live() as i64,
                "all of it is accounted somewhere"
            );
        }
    }
    assert!(vec.iter().copied().eq(0..(70 * page()) as u64));
    vec.settle();
    assert_eq!(vec.placement().bytes(), root.live());
    // In this world a page lies where its address says, so those that were moved have moved.
    vec.relocate();
    assert_eq!(
        by_node(&vec.placement(), 4),
        by_node(&lies(&vec, &nodes), 4)
    );
    assert_eq!(on(&root, STAT), by_node(&lies(&vec, &nodes), 4));
    drop(vec);
    assert_clean(&root, STAT);
}

#[test]
fn one_node_is_not_looked_for() {
    let nodes = Nodes::new(Next::All(PageNode::Untouched));
    let runtime = runtime(1, &nodes);
    let root = runtime.root();
    let mut vec = KmemVec::with_capacity_in(10 * page(), &root).unwrap();
    assert_eq!(on(&root, STAT), [(10 * page()) as i64], "touched or not");
    vec.extend_from_slice(&vec![7_u8; 300 * page()]).unwrap();
    vec.settle();
    vec.relocate();
    vec.truncate(1);
    vec.shrink_to_fit();
    assert_eq!(
        (nodes.call_count(), on(&root, STAT)),
        (0, vec![page() as i64])
    );
    drop(vec);
    assert_clean(&root, STAT);
}

#[test]
fn pages_without_a_node_wait_for_one() {
    let nodes = Nodes::new(Next::All(PageNode::Untouched));
    let runtime = runtime(2, &nodes);
    let root = runtime.root();
    let mut vec = KmemVec::with_capacity_in(100 * page(), &root).unwrap();
    vec.extend_from_slice(&vec![1_u8; 80 * page()]).unwrap();
    vec.settle();
    assert_eq!(vec.placement().unplaced(), root.live());
    nodes.set_all(PageNode::On(node(1)));
    vec.settle();
    assert_eq!(on(&root, STAT), [0, (80 * page()) as i64]);
    drop(vec);
    assert_clean(&root, STAT);
}

#[test]
fn moved_pages_take_their_account_along() {
    let nodes = Nodes::new(Next::All(PageNode::On(node(0))));
    let runtime = runtime(3, &nodes);
    let root = runtime.root();
    let mut vec = KmemVec::with_capacity_in(10 * page(), &root).unwrap();
    vec.extend_from_slice(&vec![1_u8; 10 * page()]).unwrap();
    vec.settle();
    let bytes = |pages: usize| (pages * page()) as i64;
    assert_eq!(vec.migrated(node(0), node(2), 4), 4);
    assert_eq!(on(&root, STAT), [bytes(6), 0, bytes(4)]);
    assert_eq!(
        vec.migrated(node(1), node(2), 4),
        0,
        "none was accounted there"
    );
    nodes.shift(0, 1);
    vec.relocate();
    assert_eq!(on(&root, STAT), [0, bytes(10), 0]);
    // No group says that they have been moved: what goes back is what is accounted.
    nodes.shift(1, 2);
    drop(vec);
    assert_clean(&root, STAT);
}

/// On Linux a vector that shrinks keeps its pages and their account. Elsewhere it copies them, and
/// does not look where the new ones lie.
fn look_again(vec: &mut KmemVec<u8>) {
    if cfg!(not(target_os = "linux")) {
        vec.settle();
    }
}

#[test]
fn what_is_shrunk_goes_back_to_the_byte() {
    let nodes = Nodes::new(Next::Interleaved(2));
    let runtime = runtime(2, &nodes);
    let root = runtime.root();
    let mut vec = KmemVec::with_capacity_in(20 * page(), &root).unwrap();
    vec.extend_from_slice(&vec![1_u8; 16 * page()]).unwrap();
    vec.settle();
    vec.truncate(5 * page() + 1);
    assert_eq!(root.live(), (20 * page()) as u64, "the capacity is charged");
    vec.shrink_to_fit();
    assert_eq!(
        (vec.capacity(), root.live()),
        (6 * page(), (6 * page()) as u64)
    );
    look_again(&mut vec);
    assert_eq!(on(&root, STAT), by_node(&lies(&vec, &nodes), 2));
    // The pages have moved meanwhile, and no call has said so.
    nodes.shift(0, 1);
    vec.truncate(page());
    vec.shrink_to_fit();
    look_again(&mut vec);
    assert_eq!(on(&root, STAT), [0, page() as i64]);
    vec.clear();
    vec.shrink_to_fit();
    assert_eq!((vec.capacity(), root.live()), (0, 0));
    assert_clean(&root, STAT);
    vec.push(1).unwrap();
    assert_eq!(root.live(), page() as u64);
    drop(vec);
    assert_clean(&root, STAT);
}

#[test]
fn pages_that_no_group_touched_go_back_unseen() {
    let nodes = Nodes::new(Next::Interleaved(2));
    let runtime = runtime(2, &nodes);
    let mut vec = KmemVec::with_capacity_in(1_000 * page(), &runtime.root()).unwrap();
    vec.push(1_u8).unwrap();
    vec.shrink_to_fit();
    assert_eq!(
        (nodes.call_count(), runtime.root().live()),
        (0, page() as u64)
    );
}

#[test]
fn a_vec_that_is_refused_has_what_it_had() {
    let runtime = Runtime::builder().build().unwrap();
    let group = runtime
        .root()
        .create(
            "tenant",
            Limits::new().max(Limit::Bytes((3 * page()) as u64)),
        )
        .unwrap();
    let mut vec = KmemVec::new_in(&group);
    let most = 3 * page() / size_of::<String>();
    for number in 0..most {
        vec.push(number.to_string()).unwrap();
    }
    // Doubled it would not have fit: no group was asked for that.
    assert_eq!((group.refused_count(), vec.capacity()), (0, most));
    let refused = vec.push("one more".to_owned()).unwrap_err();
    assert!(matches!(refused.error(), KmemError::Charge(_)));
    assert_eq!(refused.into_value(), "one more");
    assert!(vec.reserve(1).is_err() && vec.extend_from_slice(&[String::new()]).is_err());
    assert_eq!((vec.len(), group.live()), (most, (3 * page()) as u64));
    assert!(
        vec.iter()
            .enumerate()
            .all(|(number, text)| *text == number.to_string())
    );
    drop(vec);
    assert_clean(&group, STAT);
}

#[test]
fn what_the_system_refuses_is_charged_to_no_group() {
    let runtime = Runtime::builder().build().unwrap();
    let root = runtime.root();
    let error = KmemVec::<u64>::with_capacity_in(1 << 58, &root).unwrap_err();
    assert!(matches!(error, KmemError::System { .. }), "{error}");
    assert!(
        std::error::Error::source(&error).is_some(),
        "the error of the system"
    );
    let mut vec = KmemVec::new_in(&root);
    vec.push(7_u64).unwrap();
    assert!(matches!(
        vec.reserve(1 << 58),
        Err(KmemError::System { .. })
    ));
    for more in [usize::MAX, usize::MAX / 8, isize::MAX as usize / 8] {
        let error = vec.reserve(more).unwrap_err();
        assert!(
            matches!(error, KmemError::Capacity { .. } | KmemError::System { .. }),
            "{error}"
        );
    }
    assert_eq!((vec.as_slice(), root.live()), (&[7][..], page() as u64));
    drop(vec);
    assert_clean(&root, STAT);
}

#[test]
fn an_offline_group_keeps_what_it_has() {
    let nodes = Nodes::new(Next::All(PageNode::On(node(1))));
    let runtime = runtime(2, &nodes);
    let group = runtime.root().create("tenant", Limits::new()).unwrap();
    let mut vec = KmemVec::with_capacity_in(2 * page(), &group).unwrap();
    vec.extend_from_slice(&vec![1_u8; page()]).unwrap();
    vec.settle();
    group.offline().unwrap();
    assert!(matches!(vec.reserve(2 * page()), Err(KmemError::Charge(error)) if error.is_offline()));
    // On a node where it has a part it is accounted still; on another its parent is.
    vec.extend_from_slice(&vec![1_u8; page()]).unwrap();
    vec.settle();
    assert_eq!(local(&group, STAT), [0, (2 * page()) as i64]);
    nodes.shift(1, 0);
    vec.relocate();
    assert_eq!(
        (local(&group, STAT), local(&runtime.root(), STAT)),
        (vec![0, 0], vec![(2 * page()) as i64, 0])
    );
    drop(group);
    std::thread::spawn(move || drop(vec)).join().unwrap();
    assert_clean(&runtime.root(), STAT);
}

#[test]
fn tiers_hold_what_may_come_to_lie_on_them() {
    let nodes = Nodes::new(Next::All(PageNode::On(node(1))));
    let mut builder = Runtime::builder().nodes(2).node_of(Arc::clone(&nodes));
    let fast = builder.tier("fast", [node(0)]);
    let runtime = builder.build().unwrap();
    let root = runtime.root();
    let tier = || root.counter(fast).unwrap().live();
    root.counter(fast)
        .unwrap()
        .set_max(Limit::Bytes((4 * page()) as u64))
        .unwrap();
    let mut vec = KmemVec::with_capacity_in(4 * page(), &root).unwrap();
    assert_eq!(tier(), (4 * page()) as u64, "it may all come to lie there");
    assert!(matches!(vec.reserve(5 * page()), Err(KmemError::Charge(_))));
    vec.extend_from_slice(&vec![1_u8; 3 * page()]).unwrap();
    vec.settle();
    assert_eq!((tier(), root.live()), (page() as u64, (4 * page()) as u64));
    vec.migrated(node(1), node(0), 2);
    assert_eq!(tier(), (3 * page()) as u64, "two lie there, one may");
    drop(vec);
    assert_eq!((tier(), root.live()), (0, 0));
}

// === Elements ===

/// Counts its ends; panics at the end of one.
struct Element {
    ends: Arc<AtomicU64>,
    panics: bool,
}

impl Drop for Element {
    fn drop(&mut self) {
        self.ends.fetch_add(1, Ordering::Relaxed);
        assert!(!self.panics, "as it was to");
    }
}

#[test]
fn elements_end_once_each_also_where_one_panics() {
    let nodes = Nodes::new(Next::Interleaved(2));
    let runtime = runtime(2, &nodes);
    let root = runtime.root();
    let ends = Arc::new(AtomicU64::new(0));
    let full = |panics: usize| {
        let mut vec = KmemVec::new_in(&root);
        for number in 0..1_000 {
            vec.push(Element {
                ends: Arc::clone(&ends),
                panics: number == panics,
            })
            .unwrap();
        }
        vec
    };
    let mut vec = full(600);
    assert!(catch_unwind(AssertUnwindSafe(|| vec.truncate(500))).is_err());
    assert_eq!((vec.len(), ends.load(Ordering::Relaxed)), (500, 500));
    drop(vec.pop());
    assert_eq!((vec.len(), ends.load(Ordering::Relaxed)), (499, 501));
    drop(vec);
    assert_eq!(ends.swap(0, Ordering::Relaxed), 1_000);
    let vec = full(100);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(vec))).is_err());
    assert_eq!(ends.load(Ordering::Relaxed), 1_000);
    assert_clean(&root, STAT);
}

#[test]
fn a_clone_that_panics_leaves_those_before_it() {
    #[derive(Debug, PartialEq)]
    struct Third(u32);
    impl Clone for Third {
        fn clone(&self) -> Self {
            assert!(self.0 != 3, "as it was to");
            Third(self.0)
        }
    }
    let runtime = Runtime::builder().build().unwrap();
    let mut vec = KmemVec::new_in(&runtime.root());
    let values = [Third(1), Third(2), Third(3), Third(4)];
    assert!(catch_unwind(AssertUnwindSafe(|| vec.extend_from_slice(&values))).is_err());
    assert_eq!(*vec, [Third(1), Third(2)]);
}

#[test]
fn owners_go_from_thread_to_thread_as_their_elements_do() {
    fn goes<T: Send + Sync>() {}
    goes::<KmemVec<String>>();
    goes::<KmemSlab<String>>();
    goes::<KmemBox<String>>();
    goes::<KmemStore>();
    fn is_sent<T: Send>() {}
    is_sent::<KmemSlab<std::cell::Cell<u8>>>();
    is_sent::<KmemBox<std::cell::Cell<u8>>>();
    is_sent::<KmemVec<std::cell::Cell<u8>>>();
}

#[test]
fn elements_of_no_size_take_no_page() {
    let nodes = Nodes::new(Next::Interleaved(2));
    let runtime = runtime(2, &nodes);
    static ENDS: AtomicU64 = AtomicU64::new(0);
    struct Nothing;
    impl Drop for Nothing {
        fn drop(&mut self) {
            ENDS.fetch_add(1, Ordering::Relaxed);
        }
    }
    let mut vec = KmemVec::with_capacity_in(usize::MAX, &runtime.root()).unwrap();
    for _ in 0..1_000 {
        vec.push(Nothing).unwrap();
    }
    vec.settle();
    vec.shrink_to_fit();
    assert_eq!(
        (vec.len(), vec.capacity(), runtime.root().live()),
        (1_000, usize::MAX, 0)
    );
    assert!(vec.reserve(usize::MAX).is_err());
    drop(vec.pop());
    drop(vec);
    assert_eq!(ENDS.load(Ordering::Relaxed), 1_000);
}

#[test]
fn a_foreign_panic_leaves_the_element_and_the_account() {
    let runtime = Runtime::builder().nodes(2).node_of(Panics).build().unwrap();
    let mut vec = KmemVec::new_in(&runtime.root());
    vec.push(1).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| vec.settle())).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| vec.relocate())).is_err());
    assert_eq!(
        (vec.as_slice(), vec.placement().unplaced()),
        (&[1][..], page() as u64)
    );
    drop(vec);
    assert_clean(&runtime.root(), STAT);
}

#[test]
fn large_pages_are_looked_up_once_each() {
    struct Huge(AtomicU64);
    impl memcg::kmem::NodeOf for Huge {
        fn page_size(&self) -> usize {
            2 << 20
        }
        fn look_up(&self, pages: &[usize], found: &mut [PageNode]) {
            self.0.fetch_add(pages.len() as u64, Ordering::Relaxed);
            for (page, found) in pages.iter().zip(found) {
                assert_eq!(page % (2 << 20), 0);
                *found = PageNode::On(node(1));
            }
        }
    }
    let looked_up = Arc::new(Huge(AtomicU64::new(0)));
    let runtime = Runtime::builder()
        .nodes(2)
        .node_of(Arc::clone(&looked_up))
        .build()
        .unwrap();
    let mut vec = KmemVec::with_capacity_in(4 << 20, &runtime.root()).unwrap();
    vec.extend_from_slice(&vec![1_u8; 4 << 20]).unwrap();
    vec.settle();
    assert!((2..=3).contains(&looked_up.0.load(Ordering::Relaxed)));
    assert_eq!(on(&runtime.root(), STAT), [0, 4 << 20]);
}
