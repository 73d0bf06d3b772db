//! The cache of pages' nodes: it does not remember after an invalidation what a look-up has read before.

use super::{beside, model_without_pair};
use crate::sync::{Arc, AtomicU32, Ordering};
use crate::{NodeCache, NodeId, NodeOf, PageNode};

/// Where the only page lies. The word has no order of its own, so a look-up sees what the cache's word orders.
struct OnePage(AtomicU32);

impl NodeOf for OnePage {
    fn page_size(&self) -> usize {
        4_096
    }

    fn look_up(&self, pages: &[usize], found: &mut [PageNode]) {
        for found in found.iter_mut().take(pages.len()) {
            *found = PageNode::On(NodeId::new(self.0.load(Ordering::Relaxed) as u16));
        }
    }
}

type Pages = Arc<NodeCache<OnePage>>;

fn cache() -> Pages {
    Arc::new(NodeCache::new(0..4_096, OnePage(AtomicU32::new(0))))
}

fn ask(cache: &Pages) -> u16 {
    let mut found = [PageNode::Unmapped];
    cache.look_up(&[0], &mut found);
    found[0].node().expect("on a node").get()
}

/// The page moves, and then its owner invalidates it.
fn migrate(cache: &Pages, node: u32) {
    cache.inner().0.store(node, Ordering::Relaxed);
    cache.invalidate(0..4_096);
}

/// E28. A look-up beside a migration. The mover, and each later thread, finds the page where it is.
#[test]
fn loom_cache_fill_vs_invalidate() {
    model_without_pair(|| {
        let cache = cache();
        let asking = beside(cache.clone(), |cache| ask(&cache));
        migrate(&cache, 1);
        assert_eq!(ask(&cache), 1, "the old node was stored after the invalidation");
        assert!(asking.join().unwrap() <= 1);
        assert_eq!(ask(&cache), 1, "the old node was stored after the invalidation");
    });
}

/// E28. Two threads fill beside two migrations. Neither an invalidation of a claimed word nor a claim in between stores
/// an old node.
#[test]
fn loom_cache_two_fills_vs_two_invalidates() {
    model_without_pair(|| {
        let cache = cache();
        let first = beside(cache.clone(), |cache| ask(&cache));
        let second = beside(cache.clone(), |cache| ask(&cache));
        migrate(&cache, 1);
        migrate(&cache, 2);
        first.join().unwrap();
        second.join().unwrap();
        assert_eq!(ask(&cache), 2);
        assert_eq!((ask(&cache), cache.known()), (2, 1), "and it is remembered");
    });
}

/// E28. A claim holds until its owner ends it. What one thread has read before an invalidation does not land on the
/// claim of a thread that asks after it. A thread that knows of the move finds the page where it is.
#[test]
fn loom_cache_fill_vs_second_fill() {
    model_without_pair(|| {
        let cache = cache();
        let moved = Arc::new(AtomicU32::new(0));
        let mover = beside(cache.clone(), {
            let moved = Arc::clone(&moved);
            move |cache| {
                migrate(&cache, 1);
                moved.store(1, Ordering::Release);
                ask(&cache)
            }
        });
        ask(&cache);
        if moved.load(Ordering::Acquire) == 1 {
            assert_eq!(ask(&cache), 1, "what was read before the move is remembered after it");
        }
        assert_eq!(mover.join().unwrap(), 1);
        assert_eq!(ask(&cache), 1);
    });
}
