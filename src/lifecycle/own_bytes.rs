//! What a tree takes itself: one figure, and the group that it can be charged to.
//!
//! The figure is charged by force, for the memory is there. Whoever has changed it by enough brings the charge up to date,
//! outside of everything: no lock is held and no slow path of the thread is under way. One thread at a time does so; who
//! comes meanwhile leaves it to that one, which looks again.
//!
//! Edge: E38 (who looks/who comes meanwhile).

use crate::counter::object::Counter;
use crate::counter::slow_path::slow_path;
use crate::counter::tree::Tree;
use crate::reclaim::rings;
use crate::stat::coordinator::Coordinator;
use crate::sync::lock::{Lock, Rank};
use crate::sync::stat_atomic::{AtomicBool, AtomicU64 as StatU64};
use crate::sync::{AtomicU64, Ordering};
use crate::thread::directory::Header;
use crate::thread::slot::Consume;
use crate::thread::{context, slow_path};

/// The charge follows the figure once they are so far apart.
const STEP: u64 = 64 << 10;

/// Groups that come or go between two looks at the figure: they hardly make a step.
const CALLS: u64 = 32;

/// Bytes that a [`Runtime`](crate::Runtime) takes itself, as resident memory. What belongs to the process is counted in
/// full by each of its runtimes.
///
/// ```
/// let runtime = memcg::Runtime::builder().build()?;
/// let _held = runtime.root().try_charge(10)?;
/// let own = runtime.own_bytes();
/// assert_eq!(own.total(), own.pools + own.slots + own.cells + own.tables);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct OwnBytes {
    /// Objects of pools: groups, those that went offline and still hold something included, with their headers and names;
    /// counts of events; what is published of statistics. And free ones, the process's, which the next groups take.
    pub pools: u64,
    /// Of threads, the process's: their blocks, and the slots in which they keep credit and find cells. Those of ended
    /// threads are the next ones'.
    pub slots: u64,
    /// Statistics: what threads write, and who is listed. Those of groups that are gone are the next ones'.
    pub cells: u64,
    /// Where groups are found by name, whose stock is open, whose turn it is in reclaim.
    pub tables: u64,
}

impl OwnBytes {
    /// All of it.
    ///
    /// ```
    /// # let runtime = memcg::Runtime::builder().build()?;
    /// assert!(runtime.own_bytes().total() > 0);
    /// # Ok::<(), memcg::BuildError>(())
    /// ```
    pub fn total(&self) -> u64 {
        let OwnBytes { pools, slots, cells, tables } = *self;
        pools + slots + cells + tables
    }
}

/// Whom a tree's own bytes are charged to.
pub(crate) struct Own {
    /// Anybody.
    on: AtomicBool,
    /// Looks asked for since somebody began to look; 0: nobody does.
    asked: AtomicU64,
    /// Groups that have come or gone.
    calls: StatU64,
    books: Lock<Books>,
}

impl Own {
    pub(crate) fn new() -> Own {
        Own {
            on: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            calls: StatU64::new(0),
            books: Lock::new(Rank::Bookkeeping, Books::default()),
        }
    }
}

impl Own {
    /// Not while somebody looks, who has taken the books' entry out: nobody knows.
    fn may_be_with(&self, group: &Counter) -> bool {
        self.books.lock().home.as_ref().is_none_or(|home| std::ptr::eq(home.group.0, group))
    }
}

#[derive(Default)]
struct Books {
    /// Who has the charge, and how much. Taken out by who looks.
    home: Option<Home>,
    /// Who is to have it from now on: somebody, or nobody.
    next: Option<Option<Pinned>>,
}

struct Home {
    group: Pinned,
    bytes: u64,
}

/// A group, with a handle on it.
struct Pinned(&'static Counter);

impl Pinned {
    fn new(group: &'static Counter) -> Pinned {
        group.state().pin();
        Pinned(group)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.0.release();
    }
}

// === impl Tree: the figure ===

impl Tree {
    /// What the tree and its threads take. Takes the tree's lock, those of its shards and others in turn; one visit to each
    /// thread's block.
    pub(crate) fn own_bytes(&self) -> OwnBytes {
        slow_path(|_, _| {
            let (groups, tables) = self.hierarchy.sizes();
            OwnBytes {
                pools: self.pool_bytes(groups),
                slots: self.registry.bytes(),
                cells: self.stats.as_ref().map_or(0, Coordinator::bytes),
                tables: tables + self.stocks.lock().bytes() + rings::lock(self).bytes(),
            }
        })
    }

    fn pool_bytes(&self, groups: u64) -> u64 {
        let headers = (groups + self.pool.free()) * (1 + self.further.len() as u64) * size_of::<Header>() as u64;
        let with_events = self.counts.event_counts.load(Ordering::Relaxed);
        let events = self.events.as_ref().map_or(0, |cache| cache.bytes(with_events));
        let parts = self.stats.as_ref().map_or(0, Coordinator::published_bytes);
        self.pool.bytes(groups) + headers + events + parts + self.counts.name_bytes.load(Ordering::Relaxed)
    }
}

// === impl Tree: the charge ===

impl Tree {
    /// From here on the figure is charged to `group`, or to nobody.
    pub(crate) fn charge_own(&self, group: Option<&'static Counter>) {
        self.own.on.store(group.is_some(), Ordering::Relaxed);
        let before = self.own.books.lock().next.replace(group.map(Pinned::new));
        // Without the lock: it may be the last handle.
        drop(before);
        self.look();
    }

    /// A group has come or gone.
    #[inline]
    pub(crate) fn own_may_have_changed(&self) {
        if self.own.on.load(Ordering::Relaxed) && self.own.calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(CALLS) {
            self.look();
        }
    }

    /// A group has gone offline. Where it has the charge, its ancestor gets it at once.
    #[inline]
    pub(crate) fn own_has_gone_offline(&self, group: &Counter) {
        if self.own.on.load(Ordering::Relaxed) && self.own.may_be_with(group) {
            self.look();
        } else {
            self.own_may_have_changed();
        }
    }

    /// Much may have come or gone, groups that have the charge among it.
    #[inline]
    pub(crate) fn own_has_changed(&self) {
        if self.own.on.load(Ordering::Relaxed) {
            self.look();
        }
    }

    /// Bring the charge up to date, or leave that to who is about to.
    #[cold]
    fn look(&self) {
        // An allocator that charges, or a listener inside a walk: whoever is outside of it looks. AcqRel (E38): pairs with
        // itself and with the exchange below. Who is not the first leaves what came before this to who is.
        if slow_path::is_running() || self.own.asked.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let mut asked = 1;
        loop {
            self.bring_up_to_date();
            // AcqRel (E38): where somebody has asked meanwhile, again; who asks after this looks himself.
            match self.own.asked.compare_exchange(asked, 0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => asked = now,
            }
        }
    }

    /// By one thread at a time, which holds nothing.
    fn bring_up_to_date(&self) {
        let Books { home, next } = std::mem::take(&mut *self.own.books.lock());
        let mut home = home;
        if let Some(next) = next {
            let bytes = home.take().map_or(0, |home| home.move_to(next.as_ref()));
            home = next.map(|group| Home { group, bytes });
        }
        let home = home.map(|home| self.follow_own(home.into_online()));
        let mut books = self.own.books.lock();
        debug_assert!(books.home.is_none(), "one thread looks at a time");
        books.home = home;
    }

    /// Charge or uncharge what the figure has moved by, where that is enough.
    fn follow_own(&self, home: Home) -> Home {
        let Home { group: Pinned(node), bytes } = home;
        let now = self.own_bytes().total();
        let bytes = if now >= bytes.saturating_add(STEP) || bytes == 0 {
            bytes + node.force_own(now - bytes)
        } else if bytes >= now.saturating_add(STEP) {
            node.give_back(bytes - now);
            now
        } else {
            bytes
        };
        Home { bytes, ..home }
    }
}

impl Home {
    /// Another has it from now on: charged there first. Returns how much.
    fn move_to(self, next: Option<&Pinned>) -> u64 {
        let bytes = next.map_or(0, |Pinned(node)| node.force_own(self.bytes));
        self.group.0.give_back(self.bytes);
        bytes
    }

    /// Where the group has gone offline: with the nearest above that has not, which has been charged for it already. The
    /// root keeps it.
    fn into_online(self) -> Home {
        let Home { group: Pinned(node), bytes } = self;
        let online = |level: &&'static Counter| !level.state().is_offline() || level.incarnation().parent.is_none();
        let Some(above) = std::iter::successors(Some(node), |level| level.incarnation().parent).find(online) else {
            return self;
        };
        if std::ptr::eq(above, node) {
            return self;
        }
        let group = Pinned::new(above);
        // No level lies between: it is told that the bytes are its own from now on.
        let _ = above.charge_below_slow(bytes, above);
        node.uncharge_below_slow(bytes, above);
        Home { group, bytes }
    }
}

impl Counter {
    /// A charge that nobody is delayed for. Returns what was charged.
    fn force_own(&self, bytes: u64) -> u64 {
        let charged = self.force_slow(bytes, Consume::Miss);
        context::take_over_high();
        charged
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::hierarchy::stats;
    use crate::reclaim::turns::NO_RING;
    use crate::stat::published::StatScope;
    use crate::{Event, Limit, Limits, NodeId, Placement, Runtime, Stat};

    /// What of a group is made on first use: its statistics, those on nodes, counts of events, a place in the rings.
    fn made(group: &crate::Group) -> [bool; 4] {
        let node = group.node();
        [
            stats::published(node, StatScope::Group).is_some(),
            [0, 1].iter().any(|&at| stats::published(node, StatScope::On(at)).is_some()),
            crate::hierarchy::events::counts(node).is_some(),
            rings::number(node) != NO_RING,
        ]
    }

    #[test]
    fn what_few_groups_need_comes_with_its_first_use() {
        let runtime = Runtime::builder().nodes(2).build().unwrap();
        let root = runtime.root();
        assert_eq!(made(&root), [false, false, true, false], "the root counts events from the first on");
        let tenant = root.create("tenant", Limits::new().max(Limit::Bytes(1 << 30))).unwrap();
        let query = tenant.create("query", Limits::new().max(Limit::Bytes(1 << 20)).low(Limit::Bytes(10))).unwrap();
        let before = runtime.own_bytes();
        for _ in 0..2 {
            drop(query.try_charge(64).unwrap());
        }
        let now = runtime.own_bytes();
        assert_eq!((made(&tenant), made(&query)), ([false; 4], [false; 4]));
        assert_eq!(
            (now.cells, now.tables),
            (before.cells, before.tables),
            "a charge that does not refill counts nothing"
        );

        query.stat_add(Stat::ANON, 1);
        assert_eq!((made(&tenant), made(&query)), ([true, false, false, false], [true, false, false, false]));
        assert!(query.try_charge(2 << 20).is_err());
        assert_eq!(made(&query), [true, false, true, false]);
        assert_eq!(query.events_local().get(Event::Max), 1);
        let held = query.precharge(100).unwrap().account(&Placement::on(NodeId::new(1), 100));
        assert_eq!(made(&query), [true, true, true, false]);
        let nodes = [0, 1].map(|node| stats::published(query.node(), StatScope::On(node)).is_some());
        assert_eq!(nodes, [false, true], "on the node where there is memory");
        drop(held);
        query.set_soft(Limit::Bytes(0)).unwrap();
        let _held = query.try_charge(1).unwrap();
        assert_eq!(made(&query), [true; 4]);
        assert_eq!(made(&tenant), [true; 4]);
    }

    #[test]
    fn counts_of_a_group_that_is_gone_are_the_next_ones_and_clean() {
        let runtime = Runtime::builder().build().unwrap();
        let refused = |name: &str| {
            let group = runtime.root().create(name, Limits::new().max(Limit::Bytes(10))).unwrap();
            assert_eq!(group.events_local().get(Event::Max), 0);
            assert!(group.try_charge(11).is_err());
            assert_eq!(group.events_local().get(Event::Max), 1);
            group.offline().unwrap();
        };
        refused("first");
        refused("second");
        assert_eq!(runtime.root().events().get(Event::Max), 2);
        let with_counts = &runtime.root().node().tree().counts.event_counts;
        assert_eq!(with_counts.load(Ordering::Relaxed), 1, "the root alone has any");
    }
}
