//! A group's statistics: where the group has them, how its threads write them and how they are
//! read.
//!
//! The statistics of a group are those of its first counter. The coordinator of the tree gathers
//! them (`crate::stat`).

use crate::counter::object::Counter;
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::{group_object, group_tree};
use crate::stat::coordinator::Coordinator;
use crate::stat::published::{ErrorBound, PublishedPlace, PublishedStats, StatScope};
use crate::stat::reading::Freshness;
use crate::stat::visits::{FlushVisits, UnlistPolicy};
use crate::stat::{StatKey, Stats};
use crate::sync::barrier::BarrierState;
use crate::thread::block::Block;
use crate::thread::cells::{CellsPlace, CellsRow, StatAdded, ThreadStats};
use crate::thread::local;
use crate::thread::slow_path::{self, Outermost};

/// The coordinator of the group's tree. `None` for a counter that is no group's: it has no
/// statistics.
#[inline]
pub(super) fn coordinator_of(group: &Counter) -> Option<&Coordinator> {
    group_tree::if_groups(group.tree()).map(|groups| &groups.stats)
}

#[inline]
pub(crate) fn coordinator(group: &Counter) -> &Coordinator {
    coordinator_of(group).expect("a tree of groups has statistics")
}

fn place(group: &Counter, scope: StatScope) -> Option<&PublishedPlace> {
    let group = group_object::of(group);
    match scope {
        StatScope::Group => Some(&group.stats),
        StatScope::On(node) => group.node_places().get(usize::from(node)),
    }
}

/// The places for the group's own published statistics, and for those of its memory on nodes.
#[inline]
fn places(group: &Counter) -> impl Iterator<Item = &PublishedPlace> {
    let group = group_object::of(group);
    std::iter::once(&group.stats).chain(group.node_places())
}

/// The group's published statistics, once it or a group below has been written.
#[inline]
pub(crate) fn published(group: &Counter, scope: StatScope) -> Option<&PublishedStats> {
    place(group, scope)?.get()
}

/// The group's own published statistics, and those of its memory on nodes.
#[inline]
fn all_published(group: &Counter) -> impl Iterator<Item = &PublishedStats> {
    places(group).filter_map(PublishedPlace::get)
}

/// The published statistics of a scope, made together with those of the ancestors where there are
/// none. `None` where the system has no memory for some of them.
pub(crate) fn published_or_make<'a>(
    group: &'a Counter,
    stats: &Coordinator,
    scope: StatScope,
) -> Option<&'a PublishedStats> {
    if published(group, scope).is_none() {
        let without: Vec<&Counter> = group
            .path_to_root()
            .take_while(|level| published(level, scope).is_none())
            .collect();
        let make = |level: &&Counter| {
            let above = level.parent().and_then(|above| published(above, scope));
            place(level, scope).is_some_and(|place| stats.publish_at(place, scope, above))
        };
        // From the highest down, for each points to those above it. Where memory is lacking for one,
        // none below it is made, and the caller finds nothing published here.
        let _ = without.iter().rev().all(make);
    }
    published(group, scope)
}

fn cells(group: &Counter, block: &Block, scope: StatScope) -> Option<ThreadStats> {
    match scope {
        StatScope::Group => block.cells.get(group.index)?.cells(),
        StatScope::On(node) => block
            .row(group.index)?
            .places()?
            .get(usize::from(node))?
            .cells(),
    }
}

/// Makes cells for a thread that writes this group for the first time. `None` where there is no
/// place for them.
fn new_cells<'a>(
    group: &'a Counter,
    stats: &Coordinator,
    outermost: &Outermost,
    scope: StatScope,
) -> Option<(ThreadStats, &'a PublishedStats)> {
    let block = outermost.block()?;
    let place = match scope {
        StatScope::Group => block.cells.get_or_make(group.index, CellsPlace::default)?,
        StatScope::On(node) => block
            .row_or_make(group.index, stats.nodes)?
            .get(usize::from(node))?,
    };
    let published = published_or_make(group, stats, scope)?;
    let cells = stats.new_cells(published);
    place.set(Some(cells));
    Some((cells, published))
}

// === The write path ===

/// One addition to a statistic, by a thread that has no cells for it.
#[derive(Clone, Copy)]
pub(super) struct StatAddition {
    pub(super) scope: StatScope,
    pub(super) stat: StatKey,
    pub(super) delta: i64,
}

/// Makes an addition where this thread has no cells at hand. Returns whether it is counted: it is
/// not where the thread is inside another slow path and nothing of the scope is published yet.
pub(super) fn add_without_cells(group: &Counter, stats: &Coordinator, what: StatAddition) -> bool {
    let path = SlowPath::enter();
    let counted = add_in_slow_path(group, stats, (path.block(), path.outermost()), what);
    // A flush takes the coordinator's lock, which only an outermost slow path may: inside this one
    // it would do nothing.
    drop(path);
    if counted == Some(true) {
        flush_root(group, what.scope);
    }
    counted.is_some()
}

/// Returns whether so much is announced that the writer has to flush. `None`: nothing is counted.
fn add_in_slow_path(
    group: &Counter,
    stats: &Coordinator,
    (block, outermost): (Option<&Block>, Option<&Outermost>),
    StatAddition { scope, stat, delta }: StatAddition,
) -> Option<bool> {
    let fenced = group.incarnation().fenced;
    let found = block
        .and_then(|block| cells(group, block, scope))
        .zip(published(group, scope));
    // To make cells takes memory and the coordinator's lock, so it needs the proof that no other
    // slow path of this thread is under way.
    if let Some((cells, published)) = found.or_else(|| new_cells(group, stats, outermost?, scope)) {
        let is_due = stat.add_known_to(cells, delta, fenced) == StatAdded::Due;
        return Some(is_due && stats.list_and_announce(published, cells));
    }
    // To make published statistics takes a lock that a nested thread may hold.
    let found = match outermost {
        None => published(group, scope),
        // If there is no memory for those, it takes those of the nearest group above that has some.
        Some(_) => published_or_make(group, stats, scope).or_else(|| {
            group
                .path_to_root()
                .find_map(|level| published(level, scope))
        }),
    };
    // Straight into the figures that all threads share: dearer than cells, and nothing of it is
    // left to announce or to flush.
    found?.publish_one(stat, delta);
    Some(false)
}

/// Lists the cells and announces what they hold, after an addition that made this due; and flushes
/// where so much is announced that the writer has to.
pub(super) fn list_and_announce(group: &Counter, stats: &Coordinator, scope: StatScope) {
    if list_and_announce_only(group, stats, scope) {
        flush_root(group, scope);
    }
}

/// Lists the cells and announces what they hold. It takes no lock and allocates nothing, so it may
/// run inside another slow path, and while the caller holds a lock of its own. True where so much
/// is announced that a writer has to flush. This stays true for the next one that announces.
pub(super) fn list_and_announce_only(
    group: &Counter,
    stats: &Coordinator,
    scope: StatScope,
) -> bool {
    let cells = local::with_block(|block| block.and_then(|block| cells(group, block, scope)));
    published(group, scope)
        .zip(cells)
        .is_some_and(|(published, cells)| stats.list_and_announce(published, cells))
}

#[cold]
fn flush_root(group: &Counter, scope: StatScope) {
    if let Some(root) = group
        .path_to_root()
        .filter_map(|level| published(level, scope))
        .last()
    {
        flush_published(group, root, UnlistPolicy::Never);
    }
}

/// Counts an event of a charge, on the group of this counter. The thread is not in transit and
/// holds no lock. This may allocate, and a charge that is refused may find no memory. So such a
/// charge counts nothing here.
pub(crate) fn count(counter: &Counter, outermost: &Outermost, stat: StatKey) {
    if let Some(stats) = coordinator_of(counter) {
        let one = StatAddition {
            scope: StatScope::Group,
            stat,
            delta: 1,
        };
        // One event at a time never announces so much that the writer has to flush.
        add_in_slow_path(
            counter.first(),
            stats,
            (outermost.block(), Some(outermost)),
            one,
        );
    }
}

// === The readers ===

#[inline]
pub(crate) fn read(group: &Counter, freshness: Freshness) -> Stats {
    let mut stats = Stats::new();
    let figures = || stats.add_published(&coordinator(group).items, all_published(group));
    let ((), max_error) = read_fresh(group, freshness, figures);
    stats.max_error = max_error;
    stats
}

/// Reads published figures, as fresh as `freshness`. Returns with them the grains by which each may
/// be off.
///
/// A flush reads the cells one after the other, and their threads write on meanwhile. So the figure
/// of an item that rises and falls may be one that the item never had. An exact read therefore
/// flushes a second time, after the figures, and what that flush finds is the error. Take the
/// instant before the second flush. What was written before it is in the figures or is found; what
/// is in the figures was begun before it.
#[inline]
pub(super) fn read_fresh<T>(
    group: &Counter,
    freshness: Freshness,
    figures: impl FnOnce() -> T,
) -> (T, u64) {
    let missing = freshen(group, freshness);
    if freshness != Freshness::Exact {
        return (figures(), missing);
    }
    // Acquire (E41): the figures contain what the first count counts, so the second count counts
    // what they lack; pairs with `PublishedStats::publish`.
    let counted = || {
        all_published(group).fold(0, |sum: u64, published| {
            sum.wrapping_add(published.counted())
        })
    };
    let before = counted();
    let figures = figures();
    // Mutation: exact-read-does-not-look-again
    let looked = flush(group, UnlistPolicy::Never);
    let error = if looked.is_some() {
        counted().wrapping_sub(before)
    } else {
        missing
    };
    (figures, error)
}

/// Flushes where more may be missing than `freshness` allows. Returns the grains that may be
/// missing from what is read after this.
fn freshen(group: &Counter, freshness: Freshness) -> u64 {
    // The bound is read first, and once. What a flush publishes later comes off too late, never too
    // early.
    let bound = error_bound(group);
    let due = match freshness {
        Freshness::Stale => false,
        Freshness::Threshold => bound.grains > bound.threshold,
        Freshness::Within(most) => bound.grains > most,
        Freshness::Exact => true,
    };
    // Nothing was ever written here or below, so there is nothing to flush.
    let Some(first) = all_published(group).next() else {
        return bound.grains;
    };
    // Now and then a thresholded read flushes though its bound allows it not to. Writers that have
    // stopped are in the bound until flushes have found them idle. Without barriers a flush unlists
    // no cells, so it would be useless.
    let unlists = || group.tree().barrier.state() != BarrierState::Degraded;
    let is_extra = || {
        freshness == Freshness::Threshold
            && bound.grains > 0
            && first.cadence.is_flush_due()
            && unlists()
    };
    if !due && !is_extra() {
        return bound.grains;
    }
    let Some(visits) = flush(group, UnlistPolicy::Many) else {
        return bound.grains;
    };
    if due {
        first.cadence.note_due_flush();
    } else {
        first.cadence.note_extra_flush(visits);
    }
    0
}

fn error_bound(group: &Counter) -> ErrorBound {
    // Mutation: a-bound-leaves-nodes-out
    let bounds =
        all_published(group).map(|published| published.error_bound(coordinator(group).quantum));
    bounds.fold(ErrorBound::NOTHING, ErrorBound::plus)
}

/// Publishes what was written to the group and below it. `None` inside another slow path of this
/// thread, which may hold the lock.
pub(crate) fn flush(group: &Counter, unlist: UnlistPolicy) -> Option<FlushVisits> {
    // Noted first: meanwhile no other call finds the periodic flush late.
    if group.parent().is_none() && !slow_path::is_running() {
        coordinator(group).note_root_flush();
    }
    let mut visits = FlushVisits::default();
    // Mutation: flush-leaves-nodes-out
    for published in all_published(group) {
        visits.add(flush_published(group, published, unlist)?);
    }
    Some(visits)
}

fn flush_published(
    group: &Counter,
    published: &PublishedStats,
    unlist: UnlistPolicy,
) -> Option<FlushVisits> {
    let path = SlowPath::enter();
    path.outermost().map(|outermost| {
        coordinator(group).flush(published, &group.tree().barrier, unlist, outermost)
    })
}

/// Flushes where the periodic flush is late and enough is missing. Returns whether it flushed.
pub(crate) fn flush_ratelimited(group: &Counter) -> bool {
    let is_too_far_off = |bound: ErrorBound| bound.grains > bound.threshold;
    coordinator(group).is_late()
        && is_too_far_off(error_bound(group))
        && flush(group, UnlistPolicy::Many).is_some()
}

/// Flushes everything, whatever the threshold says, and unlists idle cells.
pub(crate) fn flush_periodic(root: &Counter) {
    flush(root, UnlistPolicy::Always);
}

/// Releases the statistics of a group that is gone. What its threads have written goes to its
/// ancestors.
pub(crate) fn end(group: &Counter) {
    if all_published(group).next().is_none() {
        return;
    }
    let has_nodes = !group_object::of(group).node_places().is_empty();
    for block in group.tree().registry.blocks() {
        // As with the slots (E12): every use of the group came before this.
        if let Some(own) = block.cells.get(group.index) {
            // Mutation: stats-cells-of-a-released-group-are-found
            own.set(None);
        }
        let row = block.row(group.index).filter(|_| has_nodes);
        for on_node in row.and_then(CellsRow::places).unwrap_or_default() {
            // Mutation: release-leaves-the-row
            on_node.set(None);
        }
    }
    // Mutation: one-place-of-statistics-is-released
    for place in places(group) {
        if let Some(published) = place.get() {
            coordinator(group).end(published);
            place.clear();
        }
    }
}
