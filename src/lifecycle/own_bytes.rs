//! The bytes that a tree takes for itself.

use crate::counter::central_word;
use crate::counter::object::tree::Tree;
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::group_tree;
use crate::reclaim::rings;
use crate::sync::Ordering;
use crate::thread::directory::Header;

/// The resident memory that a [`Runtime`](crate::Runtime) takes for itself, in bytes. What belongs
/// to the process is counted in full by each of its runtimes.
///
/// ```
/// let runtime = memcg::Runtime::builder().build()?;
/// let _held = runtime.root().charge(10)?;
/// let own = runtime.own_bytes();
/// assert_eq!(own.total(), own.pools + own.slots + own.cells + own.tables);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct OwnBytes {
    /// Objects of pools: groups, those that went offline and still hold something included, with
    /// their headers and names; counts of events; published statistics. Free objects, too, which
    /// belong to the process and which the next groups take.
    pub pools: u64,
    /// Memory of threads, which belongs to the process: their blocks, and the slots in which they
    /// keep credit and find cells. The next threads take over the memory of ended ones.
    pub slots: u64,
    /// Statistics: what threads write, and the lists of groups written. The next groups take over
    /// the memory of released ones.
    pub cells: u64,
    /// Tables that find groups by name, open stocks, and the turns of reclaim.
    pub tables: u64,
}

impl OwnBytes {
    /// Returns the sum of all four.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// assert!(runtime.own_bytes().total() > 0);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn total(&self) -> u64 {
        let OwnBytes {
            pools,
            slots,
            cells,
            tables,
        } = *self;
        pools + slots + cells + tables
    }
}

/// Adds up the bytes that the tree and its threads take. Takes the tree's lock, those of its shards
/// and others in turn; visits each thread's block once.
pub(crate) fn figure(tree: &Tree) -> OwnBytes {
    let path = SlowPath::enter();
    // Each lock in turn and none beside another one: the figures are of slightly different moments,
    // which a figure of memory may be.
    let (groups, tables) = tree.hierarchy.sizes();
    OwnBytes {
        pools: pool_bytes(tree, groups),
        slots: tree.registry.bytes(),
        cells: group_tree::shared(tree).stats.bytes(),
        tables: tables
            + tree.lock(&path).bytes()
            + tree.idle_visits.bytes()
            + rings::lock(tree).bytes(),
    }
}

fn pool_bytes(tree: &Tree, groups: u64) -> u64 {
    let shared = group_tree::shared(tree);
    // A header belongs to a counter of a group for as long as the object exists, and free objects
    // keep theirs: so these count as well.
    let headers = |counters: usize, groups: u64| (counters * size_of::<Header>()) as u64 * groups;
    let objects = match tree.pool_below.get() {
        Some(below) => {
            // The root has places for counters that may be declared. The other groups came later,
            // and their objects have places for those that were.
            let below_root = groups.saturating_sub(1);
            headers(shared.counters_of_root(), 1 + tree.pool.free())
                + headers(shared.counters_below(), below_root + below.free())
                + tree.pool.bytes(1)
                + below.bytes(below_root)
        }
        // No counter was declared: the root's objects and all others are of one shape, in one pool.
        None => {
            headers(shared.counters_of_root(), groups + tree.pool.free()) + tree.pool.bytes(groups)
        }
    };
    let events = shared
        .events
        .bytes(shared.event_counts.load(Ordering::Relaxed));
    let names = shared.name_bytes.load(Ordering::Relaxed);
    objects + central_word::bytes() + events + shared.stats.published_bytes() + names
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::hierarchy::stats;
    use crate::kmem::{NodeId, Placement};
    use crate::stat::published::StatScope;
    use crate::state::reclaim::NO_RING;
    use crate::{Event, Limits, Runtime, StatKey};

    /// Which parts of a group exist, each made on first use: statistics, those on nodes, counts of
    /// events, a place in the rings.
    fn made(group: &crate::Group) -> [bool; 4] {
        let counter = group.first();
        [
            stats::published(counter, StatScope::Group).is_some(),
            [0, 1]
                .iter()
                .any(|&at| stats::published(counter, StatScope::On(at)).is_some()),
            crate::hierarchy::events::counts(counter).is_some(),
            rings::number(counter) != NO_RING,
        ]
    }

    #[test]
    fn what_few_groups_need_comes_with_its_first_use() {
        let runtime = Runtime::builder().nodes(2).build().unwrap();
        let root = runtime.root();
        assert_eq!(
            made(&root),
            [false, false, true, false],
            "the root counts events from the first on"
        );
        let tenant = root.create("tenant", Limits::new().max(1 << 30)).unwrap();
        let query = tenant
            .create("query", Limits::new().max(1 << 20).low(10))
            .unwrap();
        let before = runtime.own_bytes();
        for _ in 0..2 {
            drop(query.charge(64).unwrap());
        }
        let now = runtime.own_bytes();
        assert_eq!((made(&tenant), made(&query)), ([false; 4], [false; 4]));
        assert_eq!(
            (now.cells, now.tables),
            (before.cells, before.tables),
            "a charge that does not refill counts nothing"
        );

        query.stat_add(StatKey::ANON, 1);
        assert_eq!(
            (made(&tenant), made(&query)),
            ([true, false, false, false], [true, false, false, false])
        );
        assert!(query.charge(2 << 20).is_err());
        assert_eq!(made(&query), [true, false, true, false]);
        assert_eq!(query.events().local().get(Event::Max), 1);
        let held = query
            .precharge(100)
            .unwrap()
            .account(&Placement::on(NodeId::new(1), 100));
        assert_eq!(made(&query), [true, true, true, false]);
        let nodes =
            [0, 1].map(|node| stats::published(query.first(), StatScope::On(node)).is_some());
        assert_eq!(nodes, [false, true], "on the node where there is memory");
        drop(held);
        query.set_limits(Limits::new().soft(0)).unwrap();
        let _held = query.charge(1).unwrap();
        assert_eq!(made(&query), [true; 4]);
        assert_eq!(made(&tenant), [true; 4]);
    }

    #[test]
    fn counts_of_a_group_that_is_gone_are_the_next_ones_and_clean() {
        let runtime = Runtime::builder().build().unwrap();
        let refused = |name: &str| {
            let group = runtime.root().create(name, Limits::new().max(10)).unwrap();
            assert_eq!(group.events().local().get(Event::Max), 0);
            assert!(group.charge(11).is_err());
            assert_eq!(group.events().local().get(Event::Max), 1);
            group.offline().unwrap();
        };
        refused("first");
        refused("second");
        assert_eq!(runtime.root().events().get(Event::Max), 2);
        let root = runtime.root();
        let with_counts = &group_tree::of(root.first()).event_counts;
        assert_eq!(
            with_counts.load(Ordering::Relaxed),
            1,
            "the root alone has any"
        );
    }
}
