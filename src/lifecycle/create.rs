//! A group is created: an object, its settings, its name and its place below its parent. At its end
//! all this is released again.

use crate::counter::config::CounterConfig;
use crate::counter::creation::{self, CounterInit};
use crate::counter::handle::Handle;
use crate::counter::links::NameHash;
use crate::counter::object::tree::{Shard, Tree};
use crate::counter::object::{Counter, Incarnation};
use crate::counter::slow_path::SlowPath;
use crate::counter::{make, retire, thresholds};
use crate::hierarchy::group_tree::{self, GroupConfig, GroupTree};
use crate::hierarchy::limits::{self, NoLimitedAncestor};
use crate::hierarchy::{events, group_object, names, stats};
use crate::lifecycle::offline;
use crate::pool::NoMemory;
use crate::pressure::observe;
use crate::reclaim::{rings, shares};
use crate::state::limits::LimitKind;
use crate::state::name::{GroupName, Name};
use crate::sync::Ordering;
use crate::units::Limit;

/// Why no group was created. Nothing of it is left then.
#[derive(Debug)]
pub(crate) enum NotCreated {
    Offline,
    /// The parent has a child of that name.
    Taken,
    /// As many groups exist as the configuration allows.
    Full(u32),
    /// A limit does not hold.
    Limit(LimitKind, NoLimitedAncestor),
    /// The system gives no memory: so many bytes were asked for.
    Memory(usize),
}

impl From<NoMemory> for NotCreated {
    fn from(refused: NoMemory) -> Self {
        NotCreated::Memory(refused.bytes)
    }
}

/// Creates the root group of a new tree: one counter for each configuration, of which the first
/// one, that of memory, may cover. The tree behaves as the first configuration says.
pub(crate) fn root_group(
    groups: GroupConfig,
    configs: &[CounterConfig],
    covers: bool,
) -> Result<Handle, NoMemory> {
    let align = groups.settings.pool_align;
    let groups = GroupTree::new(groups);
    let pool = group_object::group_cache(groups.counters_of_root(), groups.stats.nodes, align);
    let tree = &Tree::new(configs[0].clone(), pool, Some(Box::new(groups)));
    let groups = group_tree::shared(tree);
    let inits = configs
        .iter()
        .enumerate()
        .map(|(number, config)| CounterInit {
            covers: covers && number == 0,
            ..CounterInit::root(tree, config)
        });
    let group = start_group(tree, groups, true, Name::NONE, inits)?;
    // The root counts the events for which other groups have no memory.
    group
        .group()
        .for_each(|counter| _ = events::make_all(counter));
    groups.groups.fetch_add(1, Ordering::Relaxed);
    tree.hierarchy
        .lock_for(&group, NameHash::of_unnamed(&group))
        .link(&group, false);
    creation::finish_join(tree, &group, false);
    Ok(group)
}

/// The settings that a group has from its link on: no other thread ever sees it without them.
pub(crate) struct NewGroup<'a> {
    /// In their order.
    pub(crate) wanted: &'a [(LimitKind, Option<Limit>)],
    /// Its reserved bytes pay for those that are allocated.
    pub(crate) covers: bool,
    /// 0: none.
    pub(crate) share: u32,
    /// It changes its pressure, which events count.
    pub(crate) has_pressure: bool,
    /// Sets all else, before another thread sees the group.
    pub(crate) set_rest: &'a dyn Fn(&Counter),
}

/// Creates a group below `parent`. Most of it happens before any other thread can find the group;
/// what may be refused comes before the link or with it, so that a group which is not made was
/// never seen.
pub(crate) fn create(
    parent: &Counter,
    name: GroupName<'_>,
    settings: &NewGroup<'_>,
) -> Result<Handle, NotCreated> {
    let path = SlowPath::enter();
    let tree = parent.tree();
    let groups = group_tree::shared(tree);
    // First of all, since this prefetches the place of the name: among many groups it is in no
    // cache, and would be waited for under the lock of the shard.
    let hash = names::hash(&tree.hierarchy, parent.first(), name);
    let init = |above: &Counter| {
        let mut init = CounterInit::below(above);
        init.covers |= settings.covers && above.is_memory();
        init
    };
    // Which counters groups have is settled with the first group.
    end_declarations(tree, groups);
    let inits = parent.group().map(init);
    let group = start_group(tree, groups, false, Name::new(name)?, inits)?;
    if settings.has_pressure {
        events::make_all(&group);
    }
    // Percentages follow the maxes above. Under the tree's lock, a thread that moves a max finds
    // the group linked, or this thread finds the max moved. Other groups need no lock of the tree
    // here.
    let percents = settings
        .wanted
        .iter()
        .any(|(_, limit)| matches!(limit, Some(Limit::Percent(_))));
    let stocks = percents.then(|| tree.lock(&path));
    let hash = hash.unwrap_or_else(|| NameHash::of_unnamed(&group));
    let linked = link(
        groups,
        &mut tree.hierarchy.lock_for(&group, hash),
        &group,
        settings,
    );
    if let Some(mut stocks) = stocks {
        stocks.percents |= linked.is_ok();
    }
    match linked {
        Ok(first) => {
            count_name(groups, &group, u64::wrapping_add);
            creation::finish_join(tree, &group, first);
            // Mutation: a-new-group-is-marked-after-its-link
            Ok(group)
        }
        Err(refused) => {
            // What the steps before have made goes back. The group was not linked, so nobody else
            // has it.
            // Mutation: a-group-that-is-not-made-keeps-its-ring
            rings::end(&group);
            // Mutation: a-group-that-is-not-made-keeps-its-events
            events::forget(&group);
            // Mutation: a-group-that-is-not-made-keeps-its-name
            group_object::of(&group).end();
            make::recycle_unused(tree, group.into_raw());
            // A parent that goes offline is the reason, whatever else there is.
            if !parent.child_count().is_barred() {
                return Err(refused);
            }
            // The thread that barred the parent may not be done: a caller that gets `Offline` must
            // find the parent offline.
            let _ = offline::offline(tree, parent);
            Err(NotCreated::Offline)
        }
    }
}

/// Links a group into the tree, with its settings, under the lock of its shard. What may be refused
/// comes first, and the refusal of a parent that goes offline last of all. Returns whether it is
/// its parent's first child.
fn link(
    groups: &GroupTree,
    shard: &mut Shard,
    group: &Counter,
    settings: &NewGroup<'_>,
) -> Result<bool, NotCreated> {
    // Mutation: two-of-one-name
    if names::is_taken(shard, group) {
        return Err(NotCreated::Taken);
    }
    shard.reserve(group.tree().hierarchy.hint_of(group))?;
    // The parent may have changed since the group began. Under the lock, a thread that observes a
    // subtree or changes its batch finds the group linked, or this thread finds the parent's new
    // values.
    for counter in group.group() {
        if let Some(parent) = counter.parent() {
            counter.batch.store(parent.batch(), Ordering::Relaxed);
        }
    }
    // Mutation: a-percentage-of-nothing-is-counted
    for &(kind, limit) in settings.wanted {
        if let Some(limit) = limit {
            limits::set_unlinked(group, kind, limit)
                .map_err(|none| NotCreated::Limit(kind, none))?;
        }
    }
    // Mutation: a-group-below-an-observed-one-acts
    observe::follow_unlinked(group);
    if thresholds::soft(group) < u64::MAX || settings.share > 0 {
        rings::make(group)?;
    }
    if !admit_group(groups) {
        return Err(NotCreated::Full(groups.settings.groups_max));
    }
    (settings.set_rest)(group);
    let linked = shard.link(group, names::is_named(group)).ok_or_else(|| {
        // Mutation: a-group-that-is-not-made-is-counted
        dismiss_group(groups);
        NotCreated::Offline
    })?;
    // Only a linked group has siblings to share with. No other thread finds the group, or sets its
    // share, before this one gives up the lock of the shard.
    if settings.share > 0 {
        shares::put_linked(group, settings.share);
    }
    Ok(linked)
}

/// Counts one more group, unless the tree has as many as it may. Where there is no such limit
/// nothing is counted, and threads that create groups do not share the word.
fn admit_group(tree: &GroupTree) -> bool {
    let more = |groups: u32| (groups < tree.settings.groups_max).then_some(groups + 1);
    tree.settings.groups_max == u32::MAX
        || tree
            .groups
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
}

fn dismiss_group(tree: &GroupTree) {
    if tree.settings.groups_max < u32::MAX {
        tree.groups.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts the bytes of a name that takes memory of its own.
fn count_name(tree: &GroupTree, group: &Counter, change: fn(u64, u64) -> u64) {
    let bytes = group_object::of(group).name().bytes_outside();
    if bytes > 0 {
        let _ = tree
            .name_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |all| {
                Some(change(all, bytes))
            });
    }
}

/// Ends the time in which counters may be declared. From here on each group has places for those
/// that were, where the root has places for more.
fn end_declarations(tree: &Tree, groups: &GroupTree) {
    if tree.pool_below.get().is_none()
        && let Some(further) = groups.further.end()
    {
        let align = groups.settings.pool_align;
        let cache = || group_object::group_cache(1 + further, groups.stats.nodes, align);
        tree.pool_below.get_or_init(cache);
    }
}

/// Takes an object and starts an incarnation of each of its counters.
fn start_group(
    tree: &Tree,
    groups: &GroupTree,
    is_root: bool,
    name: Name,
    inits: impl Iterator<Item = CounterInit>,
) -> Result<Handle, NoMemory> {
    let group = group_object::take(tree, groups, is_root)?;
    for (counter, init) in group.objects().zip(inits) {
        creation::start(tree, counter, init);
    }
    let group = Handle::adopt(group);
    group_object::of(&group).begin(name);
    Ok(group)
}

/// Releases a group object, which the caller has claimed (E15): nobody uses it any more. All that
/// belongs to the incarnation goes, and the object goes back to the pool.
pub(crate) fn release_object(
    tree: &Tree,
    groups: &GroupTree,
    group: &Counter,
) -> Option<Incarnation> {
    // Acquire (E36): where no stock is counted as open, no thread accesses one any more, and the
    // tree's lock is not needed. Else a stock waits for a barrier still; it holds no credit, for
    // usage is zero. Pairs with `Tree::uncount` and `central::uncount`.
    if group.group().any(|counter| counter.is_open()) {
        let path = SlowPath::enter();
        retire::forget_open(tree, &mut tree.lock(&path), group);
    }
    tree.hierarchy.lock_of(group).unlink_dying(group);
    // Mutation: a-released-group-is-counted
    dismiss_group(groups);
    // The next group with the object finds no slot that is active.
    for counter in group.group() {
        // Mutation: e12-object-reused-with-its-slots
        retire::vacate(tree, counter);
    }
    // Mutation: a-name-keeps-its-bytes
    count_name(groups, group, u64::wrapping_sub);
    // Mutation: a-released-group-keeps-its-ring
    rings::end(group);
    stats::end(group);
    // Mutation: a-released-group-keeps-its-events
    group.group().for_each(events::forget);
    group_object::of(group).end();
    make::recycle(tree, group.object())
}
