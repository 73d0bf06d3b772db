//! Which reclaimers can be asked, group by group: lists by ring, under a lock of their own.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::counter::object::Counter;
use crate::counter::object::tree::Tree;
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::{events, group_tree};
use crate::reclaim::rings;
use crate::state::events::Event;
use crate::state::key::Key;
use crate::state::reclaim::{NO_RING, RegisteredReclaimers, RingReason};
use crate::state::reclaimer::{ReclaimPriority, Reclaimer};
use crate::sync::lock::LockGuard;
use crate::sync::{Arc, Ordering};

fn lists(tree: &Tree) -> LockGuard<'_, RegisteredReclaimers> {
    group_tree::shared(tree).reclaimers.lock()
}

/// Returns the reclaimers of the group with that ring, lowest priority first. Copies, so that the
/// caller calls them without the lock: foreign code may register, charge and wait.
pub(crate) fn listed(tree: &Tree, ring: u32) -> SmallVec<[Arc<Reclaimer>; 2]> {
    let _path = SlowPath::enter();
    let registered = lists(tree);
    let list = registered.lists.get(ring as usize);
    list.into_iter()
        .flat_map(BTreeMap::values)
        .cloned()
        .collect()
}

/// Gives a listed reclaimer up. Where its registration was dropped meanwhile, the caller has the
/// last of it, and drops it. Returns whether that panicked.
pub(crate) fn drop_last(group: &Counter, reclaimer: Arc<Reclaimer>) -> bool {
    let panicked = Arc::into_inner(reclaimer).is_some_and(|reclaimer| reclaimer.end().is_err());
    if panicked {
        events::count(group, Event::Panic);
    }
    panicked
}

/// True if there is a reclaimer in this subtree.
pub(crate) fn any_below(group: &Counter) -> bool {
    let ring = rings::number(group);
    ring != NO_RING && {
        let _path = SlowPath::enter();
        rings::lock(group.tree())
            .counts(ring, RingReason::Reclaimers)
            .any()
    }
}

/// Registers a reclaimer: from here on rounds may ask it, for `group`; where that is offline, for
/// the nearest above that is not.
pub(crate) fn register(group: &Counter, reclaimer: &Arc<Reclaimer>) {
    let _path = SlowPath::enter();
    rings::make_in_any_case(group);
    // Mutation: e47-registered-without-a-fence
    rings::announce(group);
    let tree = group.tree();
    let mut lists = lists(tree);
    // Under the lock: a group that goes offline hands on what it finds here afterwards. E47: the
    // ring is announced, then comes the look. So either the thread that takes the group offline
    // finds the ring, waits for this lock and hands this reclaimer on, too; or this thread finds
    // the group offline, and goes further up.
    // Mutation: two-reclaimers-of-one-number
    lists.numbers += 1;
    reclaimer.number.store(lists.numbers, Ordering::Relaxed);
    let online = |level: &&Counter| !level.state().is_offline() || level.parent().is_none();
    // Mutation: registration-is-left-behind
    if let Some(group) = group.path_to_root().find(online) {
        add(
            tree,
            &mut lists,
            rings::number(group),
            Arc::clone(reclaimer),
        );
    }
}

fn place(reclaimer: &Reclaimer) -> (ReclaimPriority, Key) {
    (
        reclaimer.priority,
        Key(reclaimer.number.load(Ordering::Relaxed)),
    )
}

fn add(tree: &Tree, registered: &mut RegisteredReclaimers, ring: u32, reclaimer: Arc<Reclaimer>) {
    let lists = &mut registered.lists;
    if lists.len() <= ring as usize {
        lists.resize_with(ring as usize + 1, BTreeMap::new);
    }
    reclaimer.ring.store(ring, Ordering::Relaxed);
    lists[ring as usize].insert(place(&reclaimer), reclaimer);
    rings::lock(tree).set_own(ring, RingReason::Reclaimers, true);
}

/// Takes a reclaimer off its list, so that no round finds it any more. The caller drops what is
/// returned without a lock, for its drop is foreign code. `None`: it was gone already.
pub(crate) fn unregister(tree: &Tree, reclaimer: &Arc<Reclaimer>) -> Option<Arc<Reclaimer>> {
    let _path = SlowPath::enter();
    let mut lists = lists(tree);
    let ring = reclaimer.ring.load(Ordering::Relaxed);
    let list = lists.lists.get_mut(ring as usize)?;
    let gone = list.remove(&place(reclaimer))?;
    // The last one of the group: the rings leave the group out from here on.
    // Mutation: one-registration-ends-for-all
    if list.is_empty() {
        rings::lock(tree).set_own(ring, RingReason::Reclaimers, false);
    }
    Some(gone)
}

/// Hands the reclaimers of a group that has gone offline to its parent, in whose usage the group's
/// charges stay. The root has no parent, and keeps its own.
pub(crate) fn hand_to_parent(group: &Counter) {
    let Some(parent) = group.parent() else { return };
    let tree = group.tree();
    // E47: offline, then the look for a ring. A thread that registers here now has made one, or
    // finds the group offline. Pairs with `rings::announce`.
    let ring = rings::number(group);
    if ring == NO_RING {
        return;
    }
    let mut lists = lists(tree);
    let reclaimers = lists
        .lists
        .get_mut(ring as usize)
        .map(std::mem::take)
        .unwrap_or_default();
    // Mutation: one-reclaimer-is-handed-on
    for reclaimer in reclaimers.into_values() {
        add(tree, &mut lists, rings::number(parent), reclaimer);
    }
    rings::lock(tree).set_own(ring, RingReason::Reclaimers, false);
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::{any_below, listed, rings};
    use crate::sync::Arc;
    use crate::sync::takes_n_log_n;
    use crate::{Limits, Reclaim, ReclaimContext, ReclaimPriority, Runtime};

    struct Nothing;

    impl Reclaim for Nothing {
        fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
            0
        }
    }

    /// Registrations of one group are found by their places, whichever is dropped first, and also
    /// once the group has handed them to its parent.
    #[test]
    #[cfg_attr(miri, ignore = "Miri: thousands of registrations take minutes")]
    fn registrations_are_found_by_place() {
        const MANY: usize = 4_096;
        let runtime = Runtime::builder().build().unwrap();
        let root = runtime.root();
        for (name, goes_offline) in [("stays", false), ("goes", true)] {
            let group = root.create(name, Limits::new()).unwrap();
            let register = |_| group.register_reclaimer(Arc::new(Nothing), ReclaimPriority::NORMAL);
            let mut registered: Vec<_> = (0..MANY).map(register).collect();
            let other = registered.split_off(MANY / 2);
            if goes_offline {
                takes_n_log_n(MANY, || group.offline().unwrap());
            }
            takes_n_log_n(MANY / 2, || registered.into_iter().for_each(drop));
            assert_eq!(
                listed(root.first().tree(), rings::number(root.first())).len(),
                if goes_offline { MANY / 2 } else { 0 }
            );
            takes_n_log_n(MANY / 2, || other.into_iter().rev().for_each(drop));
            assert!(!any_below(root.first()));
        }
    }
}
