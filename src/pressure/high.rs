//! Levels above their high, and how long that delays a charge.

use crate::counter::marks;
use std::time::Duration;

use crate::counter::object::Counter;
use crate::counter::watch::HIGH;
use crate::hierarchy::group_tree;
use crate::pressure::delay::delay;

/// Usage above high.
pub(crate) fn above(level: &Counter) -> u64 {
    if level.limits.watched.is_for(HIGH) { level.usage().saturating_sub(marks::high(level)) } else { 0 }
}

/// Levels above their high, the group first.
pub(crate) fn levels_above(group: &'static Counter) -> impl Iterator<Item = &'static Counter> {
    group.path_to_root().filter(|level| above(level) > 0)
}

/// Those of them that delay charges.
pub(crate) fn levels_that_delay(group: &'static Counter) -> impl Iterator<Item = &'static Counter> {
    levels_above(group).filter(|level| !level.is_observed())
}

/// The delay of a charge of `bytes`: that of the level which is furthest above its high.
pub(crate) fn delay_of(group: &'static Counter, bytes: u64) -> Duration {
    let delays = levels_that_delay(group).map(|level| delay(level.usage(), marks::high(level), bytes));
    delays.max().unwrap_or_default().min(group_tree::of(group).pressure.delay_max)
}
