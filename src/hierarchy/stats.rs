//! A group's statistics: where the group has them, how its threads write them and how they are read.
//!
//! The statistics of a group belong to its first counter. The coordinator of the tree gathers them
//! (`crate::stat`).

use crate::counter::object::Counter;
use crate::counter::slow_path::slow_path;
use crate::stat::coordinator::Coordinator;
use crate::stat::published::{ErrorBound, PublishedPlace, PublishedStats, StatScope};
use crate::stat::reading::Freshness;
use crate::stat::visits::{Unlist, Visits};
use crate::stat::{Stat, Stats};
use crate::sync::Ordering;
use crate::sync::barrier::BarrierState;
use crate::thread::block::Block;
use crate::thread::cells::{Added, CellsRow, ThreadStats};
use crate::thread::directory::Header;
use crate::thread::local;
use crate::thread::local::{Local, with_local};

// === Where they are ===

/// The coordinator of the group's tree. `None`: a counter alone, which has no statistics.
pub(super) fn coordinator_of(group: &Counter) -> Option<&Coordinator> {
    group.tree().stats.as_ref()
}

/// The same, of a group.
pub(crate) fn coordinator(group: &Counter) -> &Coordinator {
    coordinator_of(group).expect("a tree of groups has statistics")
}

/// Where the group's own published statistics are found.
fn own_place(group: &Counter) -> &PublishedPlace {
    &group.stats
}

/// Where those of its memory on each node are found; nowhere in a tree with one node.
fn node_places(group: &Counter) -> &[PublishedPlace] {
    group.parts()
}

fn place(group: &Counter, scope: StatScope) -> Option<&PublishedPlace> {
    match scope {
        StatScope::Group => Some(own_place(group)),
        StatScope::On(node) => node_places(group).get(usize::from(node)),
    }
}

/// The group's published statistics, once it or a group below has been written.
#[inline]
pub(crate) fn published(group: &Counter, scope: StatScope) -> Option<&PublishedStats> {
    place(group, scope)?.get()
}

/// The group's own published statistics, and those of its memory on nodes.
#[inline]
fn all_published(group: &Counter) -> impl Iterator<Item = &PublishedStats> {
    std::iter::once(own_place(group)).chain(node_places(group)).filter_map(PublishedPlace::get)
}

/// The published statistics of a scope, made together with those of the ancestors where there are none. `None` where
/// the system has no memory for some of them.
pub(crate) fn published_or_make<'a>(
    group: &'a Counter,
    stats: &Coordinator,
    scope: StatScope,
) -> Option<&'a PublishedStats> {
    if published(group, scope).is_none() {
        let without: Vec<&Counter> =
            group.path_to_root().take_while(|level| published(level, scope).is_none()).collect();
        let make = |level: &&Counter| {
            let above = level.incarnation().parent.and_then(|above| published(above, scope));
            // The coordinator knows the root's own statistics by their number, the first that it gives out.
            let first = above.is_some()
                || scope == StatScope::Group
                || stats.publish_at(own_place(level), StatScope::Group, None);
            first && place(level, scope).is_some_and(|place| stats.publish_at(place, scope, above))
        };
        let _ = without.iter().rev().all(make);
    }
    published(group, scope)
}

/// The same, or those of the nearest group above that there is memory for.
fn published_here_or_above<'a>(
    group: &'a Counter,
    stats: &Coordinator,
    scope: StatScope,
) -> Option<&'a PublishedStats> {
    let found = published_or_make(group, stats, scope);
    found.or_else(|| group.path_to_root().find_map(|level| published(level, scope)))
}

/// This thread's cells.
fn cells(group: &Counter, block: &Block, scope: StatScope) -> Option<ThreadStats> {
    match scope {
        StatScope::Group => block.cells(group.index)?.cells(),
        StatScope::On(node) => block.row(group.index)?.places()?.get(usize::from(node))?.cells(),
    }
}

/// Cells for a thread that writes this group for the first time. `None` where there is no place for them.
fn new_cells<'a>(
    group: &'a Counter,
    stats: &Coordinator,
    block: &Block,
    scope: StatScope,
) -> Option<(ThreadStats, &'a PublishedStats)> {
    let place = match scope {
        StatScope::Group => block.cells_or_page(group.index)?,
        StatScope::On(node) => block.row_or_make(group.index, stats.nodes)?.get(usize::from(node))?,
    };
    let published = published_or_make(group, stats, scope)?;
    let cells = stats.new_cells(published);
    place.set(Some(cells));
    Some((cells, published))
}

// === The write path ===

/// Add to an item of the group that has this header: a load and a store in this thread's own cells.
#[inline(always)]
pub(crate) fn add(header: &Header, stat: Stat, delta: i64) {
    let find = |local: &Local| local.fast_block().and_then(|block| block.cells_behind(header));
    let added = with_local(find).map_or(Added::Nowhere, |cells| stat.add_to(cells, delta));
    if added != Added::Done {
        add_slow(header, stat, delta, added);
    }
}

#[cold]
#[inline(never)]
fn add_slow(header: &Header, stat: Stat, delta: i64, added: Added) {
    let group = header.node().first();
    let Some(stats) = coordinator_of(group) else { return };
    if added == Added::Due {
        // Zero leaves nothing to be read, so it makes no writer. What was due before was announced then.
        if delta != 0 {
            list_and_announce(group, stats, StatScope::Group);
        }
    } else if stats.items.knows(stat) {
        // Zero needs no cells either.
        if delta != 0 && !add_without_cells(group, stats, Addition { scope: StatScope::Group, stat, delta }) {
            stats.counts.nested.fetch_add(1, Ordering::Relaxed);
        }
    } else {
        stats.counts.foreign.fetch_add(1, Ordering::Relaxed);
    }
}

/// What is added to which item.
#[derive(Clone, Copy)]
pub(super) struct Addition {
    pub(super) scope: StatScope,
    pub(super) stat: Stat,
    pub(super) delta: i64,
}

/// What a slow path has done with an addition.
enum Counted {
    /// Not counted: the thread is inside another slow path, and nothing of the scope is published yet.
    Nowhere,
    Kept,
    /// Counted, and so much is announced that the writer has to flush.
    MustFlush,
}

/// An addition for which this thread has no cells at hand, to an item of this runtime. Returns whether it is counted:
/// it is not where the thread is inside another slow path and nothing of the scope is published yet.
pub(super) fn add_without_cells(group: &Counter, stats: &Coordinator, what: Addition) -> bool {
    match slow_path(|block, nested| add_in_slow_path(group, stats, (block, nested), what)) {
        Counted::Nowhere => return false,
        Counted::Kept => {}
        Counted::MustFlush => flush_root(group, what.scope),
    }
    true
}

fn add_in_slow_path(
    group: &Counter,
    stats: &Coordinator,
    (block, nested): (Option<&Block>, bool),
    Addition { scope, stat, delta }: Addition,
) -> Counted {
    let fenced = group.incarnation().fenced;
    let found = block.and_then(|block| cells(group, block, scope)).zip(published(group, scope));
    if found.is_none() && nested {
        // To make them takes a lock that this thread may hold.
        let Some(published) = published(group, scope) else { return Counted::Nowhere };
        published.publish_one(stat, delta);
        return Counted::Kept;
    }
    let must_flush = match found.or_else(|| new_cells(group, stats, block?, scope)) {
        Some((cells, published)) => {
            stat.add_known_to(cells, delta, fenced) == Added::Due && stats.list_and_announce(published, cells)
        }
        None => match published_here_or_above(group, stats, scope) {
            Some(published) => stats.add_shared(published, stat, delta),
            None => return Counted::Nowhere,
        },
    };
    if must_flush { Counted::MustFlush } else { Counted::Kept }
}

/// After an addition that was due: list the cells, announce what they hold. Takes no lock and allocates nothing: no
/// slow path of the kind that must not nest.
pub(super) fn list_and_announce(group: &Counter, stats: &Coordinator, scope: StatScope) {
    let cells = local::with_block(|block| block.and_then(|block| cells(group, block, scope)));
    if let (Some(published), Some(cells)) = (published(group, scope), cells)
        && stats.list_and_announce(published, cells)
    {
        flush_root(group, scope);
    }
}

#[cold]
fn flush_root(group: &Counter, scope: StatScope) {
    if let Some(root) = group.path_to_root().filter_map(|level| published(level, scope)).last() {
        flush_published(group, root, Unlist::Never);
    }
}

/// Count one more of what charges themselves count, on the group of this counter. Not in transit, with no lock held, and
/// not inside another slow path: those leave the stock alone. It may allocate, so a charge that is refused counts nothing
/// here: there may be no memory for it.
pub(crate) fn count(counter: &Counter, block: &Block, stat: Stat) {
    if let Some(stats) = coordinator_of(counter) {
        let one = Addition { scope: StatScope::Group, stat, delta: 1 };
        // One event at a time never announces so much that the writer has to flush.
        add_in_slow_path(counter.first(), stats, (Some(block), false), one);
    }
}

// === The readers ===

#[inline]
pub(crate) fn read(group: &Counter, freshness: Freshness) -> Stats {
    let figures = || Stats::read(&coordinator(group).items, all_published(group));
    let (figures, max_error) = read_fresh(group, freshness, figures);
    figures.with_error(max_error)
}

/// Read published figures, as fresh as that. Returns with them the grains by which each may be off.
///
/// A flush reads the cells one after the other, and their threads write on meanwhile. So the figure of an item that rises
/// and falls may be one that the item never had. An exact read therefore flushes a second time, after the figures, and
/// what that flush finds is the error. Take the instant before the second flush. What was written before it is in the
/// figures or is found; what is in the figures was begun before it.
#[inline]
pub(super) fn read_fresh<T>(group: &Counter, freshness: Freshness, figures: impl FnOnce() -> T) -> (T, u64) {
    let missing = freshen(group, freshness);
    if freshness != Freshness::Exact {
        return (figures(), missing);
    }
    // Acquire (E41): the figures contain what the first count counts, so the second counts what they lack.
    let counted = || all_published(group).fold(0, |sum: u64, published| sum.wrapping_add(published.counted()));
    let before = counted();
    let figures = figures();
    let looked = flush(group, Unlist::Never);
    (figures, if looked.is_some() { counted().wrapping_sub(before) } else { missing })
}

/// Flush where less may be missing. Returns the grains that may be missing from what is read after this.
fn freshen(group: &Counter, freshness: Freshness) -> u64 {
    // The bound is read first, and once: what a flush publishes after this comes off it too late, never too early.
    let bound = error_bound(group);
    let due = freshness == Freshness::Exact || bound.grains > freshness.may_miss(bound);
    let Some(first) = all_published(group).next() else { return bound.grains };
    // One of a few thresholded reads flushes though its bound allows it not to: writers that have stopped are in the bound
    // until flushes have found them idle. Without barriers no cells are unlisted, and such a flush would be in vain.
    let unlists = || group.tree().barrier.state() != BarrierState::Degraded;
    let is_extra =
        || freshness == Freshness::Threshold && bound.grains > 0 && first.cadence.is_flush_due() && unlists();
    if !due && !is_extra() {
        return bound.grains;
    }
    let Some(visits) = flush(group, Unlist::Many) else { return bound.grains };
    if due {
        first.cadence.note_due_flush();
    } else {
        first.cadence.note_extra_flush(visits);
    }
    0
}

/// What may be missing from all figures of the group together.
fn error_bound(group: &Counter) -> ErrorBound {
    let bounds = all_published(group).map(|published| coordinator(group).error_bound(published));
    bounds.fold(ErrorBound::NOTHING, ErrorBound::plus)
}

/// Publish what was written to the group and below it. `None` inside another slow path of this thread, which may hold
/// the lock.
pub(crate) fn flush(group: &Counter, unlist: Unlist) -> Option<Visits> {
    let mut visits = Visits::default();
    for published in all_published(group) {
        visits.add(flush_published(group, published, unlist)?);
    }
    Some(visits)
}

fn flush_published(group: &Counter, published: &PublishedStats, unlist: Unlist) -> Option<Visits> {
    let tree = group.tree();
    slow_path(|_, nested| (!nested).then(|| coordinator(group).flush(published, &tree.barrier, unlist)))
}

/// Flush where the periodic flush is late and enough is missing. Returns whether this flushed.
pub(crate) fn flush_ratelimited(group: &Counter) -> bool {
    let is_too_far_off = |bound: ErrorBound| bound.grains > bound.threshold;
    coordinator(group).is_late() && is_too_far_off(error_bound(group)) && flush(group, Unlist::Many).is_some()
}

/// What the flusher does: flush everything, whatever the threshold says, and unlist what is idle.
pub(crate) fn flush_periodic(root: &Counter) {
    // Nothing may be published of the root yet, which is flushed all the same.
    coordinator(root).note_root_flush();
    flush(root, Unlist::Always);
}

// === The end ===

/// Release the statistics of a group that no thread has any more: what its threads have written goes to its ancestors,
/// on each node and in all.
pub(crate) fn release(group: &Counter) {
    if all_published(group).next().is_none() {
        return;
    }
    let on_nodes = node_places(group);
    for block in group.tree().registry.blocks() {
        // As with the slots (E12): every use of the group came before this.
        if let Some(own) = block.cells(group.index) {
            own.set(None);
        }
        let row = block.row(group.index).filter(|_| !on_nodes.is_empty());
        for on_node in row.and_then(CellsRow::places).unwrap_or_default() {
            on_node.set(None);
        }
    }
    for place in on_nodes.iter().chain([own_place(group)]) {
        if let Some(published) = place.get() {
            coordinator(group).release(published);
            place.clear();
        }
    }
}
