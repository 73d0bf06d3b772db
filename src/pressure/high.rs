//! Levels above their high, and how long that delays a charge.

use std::time::Duration;

use crate::counter::object::Counter;
use crate::counter::watch::HIGH;
use crate::counter::{credit, thresholds};
use crate::hierarchy::group_tree;
use crate::reclaim::repeat::may_call_out;

/// Bytes that the formula is for: the kernel's MEMCG_CHARGE_BATCH, 64 pages of 4 KiB.
pub(crate) const BATCH: u64 = 64 * 4096;

/// Digits behind the point of the overage: MEMCG_DELAY_PRECISION_SHIFT.
const PRECISION_SHIFT: u32 = 20;

/// Milliseconds of an overage of 1, squared, as a shift: MEMCG_DELAY_SCALING_SHIFT.
const SCALING_SHIFT: u32 = 14;

/// Shorter ones are not worth the trouble.
pub(crate) const DELAY_MIN: Duration = Duration::from_millis(10);

pub(crate) fn above(level: &Counter) -> u64 {
    if level.limits.watched.is_for(HIGH) {
        // The bit says that there is a high at all, and is in a word that walks load anyway.
        level.usage().saturating_sub(thresholds::high(level))
    } else {
        0
    }
}

/// Period in which a thread that is delayed looks whether there is still reason for it.
pub(crate) const LOOK: Duration = Duration::from_millis(10);

/// True if a charge that took `bytes` up the tree finds a level above its high. While no group of
/// the tree is above a limit, it loads one word.
#[inline]
pub(crate) fn is_any_above(group: &Counter, bytes: u64) -> bool {
    // E44: a walk that has left a level above its high has set or found a mark; pairs with
    // `exceeded_mark::correct`.
    bytes > 0 && group.tree().alerts.any() && levels_above(group).next().is_some()
}

/// Levels above their high, the group first.
pub(crate) fn levels_above(group: &Counter) -> impl Iterator<Item = &Counter> {
    group.path_to_root().filter(|level| above(level) > 0)
}

pub(crate) fn levels_that_delay(group: &Counter) -> impl Iterator<Item = &Counter> {
    levels_above(group).filter(|level| !level.is_observed())
}

/// A level above is still above high.
pub(crate) fn is_delayed(group: &Counter) -> bool {
    // Mutation: an-observed-level-delays
    !group.state().is_offline() && levels_that_delay(group).next().is_some()
}

/// True if credit may be all that is above a high of the path.
pub(crate) fn is_delayed_by_credit(group: &Counter) -> bool {
    levels_that_delay(group).any(|level| above(level) <= level.bound())
}

/// Bytes that came back while a charge was delayed may have gone into a stock. The caller holds no
/// lock.
pub(crate) fn drain_credit(group: &Counter) {
    levels_that_delay(group).for_each(drain_excess);
}

/// Credit is no group's excess: it goes back where it may be all that is above high. What is above
/// high after that is live.
pub(crate) fn drain_excess(level: &Counter) {
    // Where more is above than all credit there may be, a drain would not end the excess, and costs
    // a barrier.
    if (1..=level.bound()).contains(&above(level)) {
        level.tree().close_below(level);
    }
}

/// The delay of a charge of `bytes`: that of the level which is furthest above its high. Credit is
/// no group's excess, so it is counted out, which takes the tree's lock: not where a charge would
/// not be delayed even with it, nor where the thread may not wait.
pub(crate) fn delay_of(group: &Counter, bytes: u64) -> Duration {
    // Mutation: the-least-delay-of-a-path-holds
    let longest = |used: fn(&Counter) -> u64| {
        levels_that_delay(group)
            .map(|level| delay(used(level), thresholds::high(level), bytes))
            .max()
            .unwrap_or_default()
    };
    let by_usage = longest(|level| level.usage());
    // Credit only shortens a delay. So where the delay by all of usage is too short to matter,
    // nothing has to be counted.
    let delay = if by_usage > DELAY_MIN && may_call_out() {
        longest(credit::live)
    } else {
        by_usage
    };
    // Mutation: no-delay-is-the-longest
    delay.min(group_tree::of(group).settings.delay_max)
}

/// The delay of a charge of `bytes` at a level that uses so much and has that high: it grows with
/// the square of the part by which usage is above, so that a little is hardly felt and much is a
/// wall. Not bounded.
///
/// Source: `calculate_high_delay` in `mm/memcontrol.c`, with nanoseconds in the place of jiffies.
pub(crate) fn delay(usage: u64, high: u64, bytes: u64) -> Duration {
    // In 128 bits, for usage and high are of any size: the kernel's formula is for pages of one
    // machine.
    let over = u128::from(usage.saturating_sub(high));
    let overage = (over << PRECISION_SHIFT) / u128::from(high.max(1));
    // A product of three numbers of 84, 84 and 30 bits: what does not fit is above any bound.
    let milliseconds = overage
        .checked_mul(overage)
        .map(|squared| squared >> PRECISION_SHIFT);
    let nanoseconds = milliseconds
        .and_then(|scaled| scaled.checked_mul(1_000_000_000))
        .map(|scaled| scaled >> SCALING_SHIFT)
        .and_then(|whole| whole.checked_mul(u128::from(bytes)))
        .map(|scaled| scaled / u128::from(BATCH));
    Duration::from_nanos(
        nanoseconds.map_or(u64::MAX, |whole| u64::try_from(whole).unwrap_or(u64::MAX)),
    )
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::hierarchy::group_tree::GroupSettings;

    const DELAY_MAX: Duration = GroupSettings::DEFAULT.delay_max;

    /// The table of the kernel's comment, in milliseconds for one batch at a high of 100 MiB.
    #[test]
    fn the_kernels_table() {
        let at = |mib: u64| delay(mib << 20, 100 << 20, BATCH).as_millis();
        let table = [
            (100, 0),
            (101, 6),
            (102, 25),
            (103, 57),
            (104, 102),
            (105, 159),
            (107, 313),
            (110, 639),
            (115, 1439),
        ];
        for (mib, milliseconds) in table {
            assert!(
                at(mib).abs_diff(milliseconds) <= 1,
                "{mib} MiB: {} for {milliseconds}",
                at(mib)
            );
        }
        assert!(at(118) >= DELAY_MAX.as_millis());
    }

    #[test]
    fn extremes_do_not_wrap() {
        assert_eq!(delay(u64::MAX, 0, u64::MAX), Duration::from_nanos(u64::MAX));
        assert_eq!(delay(0, 0, u64::MAX), Duration::ZERO);
        assert!(delay(i64::MAX as u64, 1, 1) > DELAY_MAX);
        assert_eq!(delay(200, 100, 0), Duration::ZERO);
    }
}
