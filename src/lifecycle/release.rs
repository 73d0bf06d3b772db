//! A group object is released: no thread can charge, uncharge or name the group any more.

use crate::counter::make;
use crate::counter::object::tree::Tree;
use crate::counter::object::{Counter, Incarnation};
use crate::counter::retire;
use crate::hierarchy::group_object;
use crate::hierarchy::group_tree::GroupTree;
use crate::hierarchy::{events, stats};
use crate::lifecycle::create;
use crate::reclaim::rings;

/// Release a group object, which the caller has claimed (E15).
pub(crate) fn release(tree: &Tree, groups: &GroupTree, group: &'static Counter) -> Option<Incarnation> {
    // Acquire (E36): where no stock is counted as open, no thread accesses one any more.
    if group.group().any(Counter::is_open) {
        retire::forget_open(tree, &mut tree.stocks.lock(), group);
    }
    tree.hierarchy.lock_of(group).release(group);
    create::dismiss_group(groups);
    for counter in group.group() {
        retire::vacate(tree, counter);
    }
    create::count_name(groups, group, u64::wrapping_sub);
    rings::release(group);
    stats::release(group);
    group.group().for_each(events::forget);
    group_object::of(group).end();
    make::recycle(tree, group)
}
