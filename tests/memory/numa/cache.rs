//! What is remembered, for how long, and what is not.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use memcg::kmem::{NodeCache, NodeId, NodeOf, NodeTable, PageNode};

use super::{PAGE, ask, on};

const PAGES: usize = 16;

/// Where the arena lies.
const BASE: usize = 0x7f00_0000_0000;

fn page(number: usize) -> usize {
    BASE + number * PAGE
}

fn pages() -> Vec<usize> {
    (0..PAGES).map(page).collect()
}

/// All on one node.
fn table(node: u16) -> NodeTable {
    let table = NodeTable::new(PAGE);
    table.set(page(0)..page(PAGES), NodeId::new(node));
    table
}

#[test]
fn mapped_cached_unmapped_and_mapped_elsewhere() {
    let table = table(0);
    let cache = NodeCache::new(page(0)..page(PAGES), &table);
    assert_eq!(ask(&cache, &pages()), [on(0); PAGES]);
    assert_eq!((table.page_count(), cache.known_count()), (PAGES as u64, PAGES));
    for _ in 0..3 {
        assert_eq!(ask(&cache, &pages()), [on(0); PAGES]);
    }
    assert_eq!(table.page_count(), PAGES as u64, "no page was asked for again");

    table.remove(page(4)..page(8));
    cache.invalidate(page(4)..page(8));
    assert_eq!(cache.known_count(), PAGES - 4);
    assert_eq!(ask(&cache, &[page(4), page(8)]), [PageNode::Unmapped, on(0)]);
    assert_eq!(cache.known_count(), PAGES - 4, "what is not mapped is not remembered");

    table.set(page(4)..page(8), NodeId::new(1));
    let asked = table.page_count();
    let expected: Vec<_> = (0..PAGES).map(|number| on(u16::from((4..8).contains(&number)))).collect();
    assert_eq!(ask(&cache, &pages()), expected);
    assert_eq!(table.page_count() - asked, 4, "the others are known");
    assert_eq!(ask(&cache, &pages()), expected);
    assert_eq!(table.page_count() - asked, 4);
}

#[test]
fn what_has_no_node_is_asked_for_again() {
    let table = NodeTable::new(PAGE);
    let cache = NodeCache::new(page(0)..page(3), &table);
    table.set(page(0)..page(1), PageNode::Untouched);
    table.set(page(1)..page(2), PageNode::Zero);
    let three = [0, 1, 2].map(page);
    let expected = [PageNode::Untouched, PageNode::Zero, PageNode::Unmapped];
    for calls in 1..4 {
        assert_eq!(ask(&cache, &three), expected);
        assert_eq!((table.call_count(), cache.known_count()), (calls, 0));
    }
    // The page is touched. No call says so, and it is found.
    table.set(page(0)..page(3), NodeId::new(6));
    assert_eq!(ask(&cache, &three), [on(6); 3]);
    assert_eq!(cache.known_count(), 3);
}

#[test]
fn pages_outside_are_passed_on() {
    let table = NodeTable::new(PAGE);
    table.set(0..usize::MAX, NodeId::new(2));
    let cache = NodeCache::new(page(1)..page(3), &table);
    let around = [0, page(0), page(1), page(2), page(3), usize::MAX & !(PAGE - 1)];
    assert_eq!(ask(&cache, &around), [on(2); 6]);
    assert_eq!((table.page_count(), cache.known_count()), (6, 2));
    assert_eq!(ask(&cache, &around), [on(2); 6]);
    assert_eq!((table.page_count(), table.call_count()), (6 + 4, 2), "in one call");
    // Nothing of the cache's: nothing happens.
    for range in [0..page(1), page(3)..usize::MAX, page(2)..page(2), 0..0] {
        cache.invalidate(range);
        assert_eq!(cache.known_count(), 2);
    }
    cache.invalidate(0..page(1) + 1);
    assert_eq!(cache.known_count(), 1);
    cache.invalidate(page(3) - 1..usize::MAX);
    assert_eq!(cache.known_count(), 0);
}

#[test]
fn a_range_of_parts_of_pages_is_one_of_pages() {
    let cache = NodeCache::new(page(0) + 1..page(1) + 1, table(0));
    assert_eq!(ask(&cache, &[page(0), page(1), page(2)]), [on(0); 3]);
    assert_eq!(cache.known_count(), 2);
    cache.invalidate(page(0) + 7..page(0) + 8);
    assert_eq!(cache.known_count(), 1);
}

#[test]
fn huge_pages_have_a_word_each() {
    const HUGE: usize = 2 << 20;
    let table = NodeTable::new(HUGE);
    table.set(0..8 * HUGE, NodeId::new(1));
    let cache = NodeCache::new(0..8 * HUGE, &table);
    assert_eq!(cache.page_size(), HUGE);
    assert_eq!(ask(&cache, &[0, HUGE, 7 * HUGE]), [on(1); 3]);
    cache.invalidate(HUGE + PAGE..HUGE + 2 * PAGE);
    assert_eq!(cache.known_count(), 2);
}

#[test]
fn ranges_that_no_thread_can_remember() {
    let everywhere = NodeTable::new(PAGE);
    everywhere.set(0..usize::MAX, NodeId::new(3));
    let whole = NodeCache::new(0..usize::MAX, &everywhere);
    let ends = [0, PAGE, usize::MAX & !(PAGE - 1)];
    for asked in [3, 4, 5] {
        assert_eq!(ask(&whole, &ends), [on(3); 3]);
        assert_eq!(everywhere.page_count(), asked, "its first pages are remembered, its last is not");
    }
    whole.invalidate(usize::MAX - 1..usize::MAX);
    #[allow(clippy::reversed_empty_ranges)]
    for empty in [0..0, page(1)..page(1), page(2)..page(1)] {
        let cache = NodeCache::new(empty, table(0));
        assert_eq!((ask(&cache, &[page(0)]), cache.known_count()), (vec![on(0)], 0));
    }
}

#[test]
fn large_batches_with_gaps() {
    const MANY: usize = 1_000;
    let table = NodeTable::new(PAGE);
    for number in 0..MANY {
        table.set(page(number)..page(number + 1), NodeId::new((number % 8) as u16));
    }
    let cache = NodeCache::new(page(0)..page(MANY), &table);
    let every = |step| (0..MANY).step_by(step).map(page).collect::<Vec<_>>();
    let expected = |step| (0..MANY).step_by(step).map(|number| on((number % 8) as u16)).collect::<Vec<_>>();
    for step in [7, 3, 2, 1] {
        assert_eq!(ask(&cache, &every(step)), expected(step), "every {step}");
    }
    assert_eq!((table.page_count(), cache.known_count()), (MANY as u64, MANY), "each page was asked for once");
    // The same page twice in one batch.
    cache.invalidate(page(0)..page(MANY));
    assert_eq!(ask(&cache, &[page(5), page(5), page(5)]), [on(5); 3]);
    assert_eq!(cache.known_count(), 1);
}

/// Panics when it is told to, after half of its answers.
struct Panics<'a> {
    now: &'a AtomicBool,
    asked: AtomicUsize,
}

impl NodeOf for Panics<'_> {
    fn page_size(&self) -> usize {
        PAGE
    }

    fn look_up(&self, pages: &[usize], found: &mut [PageNode]) {
        self.asked.fetch_add(pages.len(), Ordering::Relaxed);
        let (now, later) = found.split_at_mut(pages.len() / 2);
        now.fill(on(9));
        assert!(!self.now.load(Ordering::Relaxed), "told to");
        later.fill(on(1));
        now.fill(on(1));
    }
}

#[test]
fn a_look_up_that_panics_leaves_nothing() {
    let now = AtomicBool::new(true);
    let cache = NodeCache::new(page(0)..page(PAGES), Panics { now: &now, asked: AtomicUsize::new(0) });
    assert!(catch_unwind(AssertUnwindSafe(|| ask(&cache, &pages()))).is_err());
    assert_eq!(cache.known_count(), 0);
    now.store(false, Ordering::Relaxed);
    assert_eq!(ask(&cache, &pages()), [on(1); PAGES]);
    assert_eq!((cache.known_count(), cache.inner().asked.load(Ordering::Relaxed)), (PAGES, 2 * PAGES));
}

/// Says nothing at all, and that its pages have no size.
struct Mute;

impl NodeOf for Mute {
    fn page_size(&self) -> usize {
        0
    }

    fn look_up(&self, _: &[usize], _: &mut [PageNode]) {}
}

#[test]
fn a_node_of_that_does_not_answer_has_said_nothing() {
    let cache = NodeCache::new(0..64, Mute);
    assert_eq!(cache.page_size(), 1);
    assert_eq!(ask(&cache, &[0, 7, 64]), [PageNode::Untouched; 3]);
    assert_eq!(cache.known_count(), 0);
}

/// Reads the table, and answers only when it is let go.
struct Late<'a> {
    table: &'a NodeTable,
    armed: AtomicBool,
    has_read: Barrier,
    may_answer: Barrier,
}

impl NodeOf for Late<'_> {
    fn page_size(&self) -> usize {
        PAGE
    }

    fn look_up(&self, pages: &[usize], found: &mut [PageNode]) {
        self.table.look_up(pages, found);
        if self.armed.swap(false, Ordering::Relaxed) {
            self.has_read.wait();
            self.may_answer.wait();
        }
    }
}

/// A look-up that has read where the first four pages were; what `meanwhile` does; and where they are said to be then.
fn overtaken(meanwhile: impl FnOnce(&NodeTable, &NodeCache<Late<'_>>)) -> (Vec<PageNode>, usize) {
    let table = table(0);
    let late =
        Late { table: &table, armed: AtomicBool::new(true), has_read: Barrier::new(2), may_answer: Barrier::new(2) };
    let cache = NodeCache::new(page(0)..page(PAGES), late);
    let four = [0, 1, 2, 3].map(page);
    thread::scope(|scope| {
        let asking = scope.spawn(|| ask(&cache, &four));
        cache.inner().has_read.wait();
        meanwhile(&table, &cache);
        cache.inner().may_answer.wait();
        let found = asking.join().expect("it answers");
        assert_eq!(found, [on(0); 4], "as it was when it was read");
    });
    let known = cache.known_count();
    (ask(&cache, &four), known)
}

#[test]
fn what_was_read_before_an_invalidation_is_not_remembered() {
    let (found, known) = overtaken(|_, _| {});
    assert_eq!((found, known), (vec![on(0); 4], 4));

    let (found, known) = overtaken(|table, cache| {
        table.set(page(1)..page(2), NodeId::new(5));
        cache.invalidate(page(1)..page(2));
    });
    assert_eq!((found, known), (vec![on(0), on(5), on(0), on(0)], 3));
}

#[test]
fn no_other_thread_fills_what_is_being_asked_for() {
    let (found, known) = overtaken(|table, cache| {
        for node in [5, 6] {
            table.set(page(0)..page(2), NodeId::new(node));
            cache.invalidate(page(0)..page(2));
            // Another one asks, finds the new node, and cannot store it.
            assert_eq!(ask(cache, &[page(0), page(2)]), [on(node), on(0)]);
            assert_eq!(cache.known_count(), 0);
        }
    });
    assert_eq!((found, known), (vec![on(6), on(6), on(0), on(0)], 2));
}
