//! The bytes that a tree takes for itself: one figure, and the group that the figure can be charged to.
//!
//! The charge is forced, because the memory is in use already. A thread that has changed the figure by enough brings
//! the charge up to date, when it holds no lock and runs no slow path. One thread at a time does so. A thread that
//! comes meanwhile leaves the work to that one, which checks again.
//!
//! Edge: E38 (a thread that updates/a thread that comes meanwhile).

use std::ptr;

use crate::counter::below;
use crate::counter::central_word;
use crate::counter::cover;
use crate::counter::handle::Handle;
use crate::counter::object::Counter;
use crate::counter::object::tree::Tree;
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::group_tree;
use crate::reclaim::rings;
use crate::state::own_bytes::{Books, Home, Own};
use crate::sync::Ordering;
use crate::thread::directory::Header;
use crate::thread::slot::Consume;
use crate::thread::slow_path;

/// The charge follows the figure once they are so many bytes apart.
const STEP: u64 = 64 << 10;

/// Groups that are created or released between two checks of the figure: they hardly make a step.
const CALLS: u64 = 32;

/// Bytes that a [`Runtime`](crate::Runtime) takes for itself, as resident memory. Each runtime counts in full what
/// belongs to the process.
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
    /// Objects of pools: groups, those that went offline and still hold something included, with their headers and
    /// names; counts of events; published statistics. Free objects, too, which belong to the process and which the next
    /// groups take.
    pub pools: u64,
    /// Memory of threads, which belongs to the process: their blocks, and the slots in which they keep credit and find
    /// cells. The next threads take over the memory of ended ones.
    pub slots: u64,
    /// Statistics: what threads write, and the lists of groups written. The next groups take over the memory of
    /// released ones.
    pub cells: u64,
    /// Tables that find groups by name, open stocks, the turns of reclaim, and the records of covering charges.
    pub tables: u64,
}

impl OwnBytes {
    /// The sum of all four.
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

fn own(of: &Tree) -> &Own {
    &group_tree::shared(of).own
}

// === The figure ===

/// The bytes that the tree and its threads take. Takes the tree's lock, those of its shards and others in turn; visits
/// each thread's block once.
pub(crate) fn figure(tree: &Tree) -> OwnBytes {
    let _path = SlowPath::enter();
    let (groups, tables) = tree.hierarchy.sizes();
    OwnBytes {
        pools: pool_bytes(tree, groups),
        slots: tree.registry.bytes(),
        cells: group_tree::shared(tree).stats.bytes(),
        tables: tables
            + tree.stocks.lock().bytes()
            + tree.idle_visits.bytes()
            + rings::lock(tree).bytes()
            + cover::bytes(),
    }
}

fn pool_bytes(tree: &Tree, groups: u64) -> u64 {
    let shared = group_tree::shared(tree);
    let counters = shared.counters() as u64;
    let headers = (groups + tree.pool.free()) * counters * size_of::<Header>() as u64;
    let events = shared.events.bytes(shared.event_counts.load(Ordering::Relaxed));
    let names = shared.name_bytes.load(Ordering::Relaxed);
    let members = groups * shared.members.bytes() as u64;
    tree.pool.bytes(groups)
        + central_word::bytes()
        + headers
        + events
        + shared.stats.published_bytes()
        + names
        + members
}

// === The charge ===

/// Charge the figure to `group` from here on, or to no group.
pub(crate) fn charge_to(tree: &Tree, group: Option<&'static Counter>) {
    own(tree).on.store(group.is_some(), Ordering::Relaxed);
    let before = own(tree).books.lock().next.replace(group.map(Handle::pin));
    // Dropped without the lock: it may be the last handle.
    drop(before);
    update(tree);
}

/// Check the figure now and then: a group has been created or released.
#[inline]
pub(crate) fn may_have_changed(tree: &Tree) {
    let own = own(tree);
    if own.on.load(Ordering::Relaxed) && own.calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(CALLS) {
        update(tree);
    }
}

/// Bring the charge up to date where `group`, which went offline, may have it: its ancestor gets the charge at once.
#[inline]
pub(crate) fn group_went_offline(group: &Counter) {
    let tree = group.tree();
    // While a thread updates the charge, that thread has taken the entry out.
    let may_have_it = |own: &Own| own.books.lock().home.as_ref().is_none_or(|home| ptr::eq(&*home.group, group));
    if own(tree).on.load(Ordering::Relaxed) && may_have_it(own(tree)) {
        update(tree);
    } else {
        may_have_changed(tree);
    }
}

/// Bring the charge up to date: much may have changed, the group that has the charge among it.
#[inline]
pub(crate) fn has_changed(tree: &Tree) {
    if own(tree).on.load(Ordering::Relaxed) {
        update(tree);
    }
}

/// Bring the charge up to date, or leave that to the thread that is about to.
#[cold]
fn update(tree: &Tree) {
    let asked_for = &own(tree).asked;
    // An allocator may charge, or a listener run, inside a slow path: the caller outside of it updates the charge.
    // AcqRel (E38): pairs with itself and with the exchange below. A thread that is not the first leaves all before
    // this to the first one.
    if slow_path::is_running() || asked_for.fetch_add(1, Ordering::AcqRel) > 0 {
        return;
    }
    let mut asked = 1;
    loop {
        update_alone(tree);
        // AcqRel (E38): another thread has asked meanwhile: again. A thread that asks after this updates the charge
        // itself.
        // Mutation: e38-updater-does-not-look-again
        match asked_for.compare_exchange(asked, 0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(now) => asked = now,
        }
    }
}

/// The update itself, by one thread at a time, which holds no lock.
fn update_alone(tree: &Tree) {
    let Books { mut home, next } = std::mem::take(&mut *own(tree).books.lock());
    if let Some(next) = next {
        let bytes = home.take().map_or(0, |home| move_to(home, next.as_deref()));
        home = next.map(|group| Home { group, bytes });
    }
    let home = home.map(|home| follow_figure(tree, into_online(home)));
    let mut books = own(tree).books.lock();
    debug_assert!(books.home.is_none(), "one thread updates the charge at a time");
    books.home = home;
}

/// Charge or uncharge what the figure has moved by, where that is enough.
fn follow_figure(tree: &Tree, mut home: Home) -> Home {
    let now = figure(tree).total();
    let Home { group, bytes } = &mut home;
    if now >= bytes.saturating_add(STEP) || *bytes == 0 {
        *bytes += group.force_slow(now - *bytes, Consume::Miss);
    } else if *bytes >= now.saturating_add(STEP) {
        group.give_back(*bytes - now);
        *bytes = now;
    }
    home
}

/// Move the charge to another group: charge that group first. Returns the bytes charged.
fn move_to(home: Home, next: Option<&Counter>) -> u64 {
    let bytes = next.map_or(0, |group| group.force_slow(home.bytes, Consume::Miss));
    home.group.give_back(home.bytes);
    bytes
}

/// Move the charge of a group that went offline to its nearest live ancestor, which has been charged for it already.
/// The root keeps the charge.
fn into_online(home: Home) -> Home {
    let Home { group, bytes } = &home;
    let online = |level: &&'static Counter| !level.state().is_offline() || level.incarnation().parent.is_none();
    let above = group.counter().path_to_root().find(online);
    let Some(above) = above.filter(|above| !ptr::eq(*above, &**group)) else { return home };
    let online = Handle::pin(above);
    // No level lies between: this call only notes that the bytes are the ancestor's own from now on.
    let _ = below::charge_slow(above, *bytes, above);
    below::uncharge_slow(group, *bytes, above);
    Home { group: online, bytes: *bytes }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::hierarchy::stats;
    use crate::kmem::{NodeId, Placement};
    use crate::stat::published::StatScope;
    use crate::state::reclaim::NO_RING;
    use crate::{Event, Limits, Runtime, Stat};

    /// Which parts of a group exist, each made on first use: statistics, those on nodes, counts of events, a place in
    /// the rings.
    fn made(group: &crate::Group) -> [bool; 4] {
        let counter = group.first();
        [
            stats::published(counter, StatScope::Group).is_some(),
            [0, 1].iter().any(|&at| stats::published(counter, StatScope::On(at)).is_some()),
            crate::hierarchy::events::counts(counter).is_some(),
            rings::number(counter) != NO_RING,
        ]
    }

    #[test]
    fn what_few_groups_need_comes_with_its_first_use() {
        let runtime = Runtime::builder().nodes(2).build().unwrap();
        let root = runtime.root();
        assert_eq!(made(&root), [false, false, true, false], "the root counts events from the first on");
        let tenant = root.create("tenant", Limits::new().max(1 << 30)).unwrap();
        let query = tenant.create("query", Limits::new().max(1 << 20).low(10)).unwrap();
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
        let nodes = [0, 1].map(|node| stats::published(query.first(), StatScope::On(node)).is_some());
        assert_eq!(nodes, [false, true], "on the node where there is memory");
        drop(held);
        query.set_soft(0).unwrap();
        let _held = query.try_charge(1).unwrap();
        assert_eq!(made(&query), [true; 4]);
        assert_eq!(made(&tenant), [true; 4]);
    }

    #[test]
    fn counts_of_a_group_that_is_gone_are_the_next_ones_and_clean() {
        let runtime = Runtime::builder().build().unwrap();
        let refused = |name: &str| {
            let group = runtime.root().create(name, Limits::new().max(10)).unwrap();
            assert_eq!(group.events_local().get(Event::Max), 0);
            assert!(group.try_charge(11).is_err());
            assert_eq!(group.events_local().get(Event::Max), 1);
            group.offline().unwrap();
        };
        refused("first");
        refused("second");
        assert_eq!(runtime.root().events().get(Event::Max), 2);
        let with_counts = &group_tree::of(runtime.root().first()).event_counts;
        assert_eq!(with_counts.load(Ordering::Relaxed), 1, "the root alone has any");
    }
}
