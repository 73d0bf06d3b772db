//! Pressure levels of groups: thresholds are set, marks corrected, and changes counted as events.
//!
//! A mark says what usage says, and usage has credit in it: that of slots, of central stocks, of
//! threads that have ended. A charge that is given back into a stock tells no one. So a mark that
//! is raised is not believed. Each reader, and each walk that looks at the level, compares the mark
//! with usage less the bound on credit: some loads, and none while no stock is open below. Where
//! that would lower the mark, it counts the credit, and where that would lower it, too, drains it.
//! The walks of the drain correct the mark and count the event, as all walks do. Nothing is drained
//! while live bytes alone keep the mark up.
//!
//! A count reads one slot for each thread and open stock under the tree's lock. Where these are
//! many, the next count of the level comes after a pause in proportion, so that a service which
//! reads the level at each request leaves the lock to others.

use crate::counter::credit::{self, CreditBelow};
use crate::counter::object::Counter;
use crate::counter::pressure_mark;
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::{events, group_tree};
use crate::state::events::Event;
use crate::sync::Ordering;
use crate::sync::clock;
use crate::thread::context;

/// Stalls of some chargers from which the pressure is elevated, and of all from which it is
/// critical: averages over 10 seconds, in hundredths of a per cent. It falls below half of that.
const SOME_FROM: u32 = 1_000;
const FULL_FROM: u32 = 4_000;

/// A count of credit that reads more slots than this is followed by a pause, in nanoseconds for
/// each slot: ten times what it takes to read one.
const SLOTS_WITHOUT_PAUSE: usize = 64;
const PAUSE_FOR_SLOT: u64 = 100;

/// Sets the thresholds that are named. The caller holds no lock.
pub(crate) fn set(group: &Counter, wanted: [Option<u8>; 2]) {
    let path = SlowPath::enter();
    // A change is counted under locks, where nothing is made.
    events::make_all(group);
    group_tree::of(group)
        .any_pressure
        .store(true, Ordering::Relaxed);
    let _stocks = group.tree().lock(&path);
    if pressure_mark::set_thresholds(group, wanted) {
        // Mutation: e43-thresholds-move-without-a-look
        correct(group);
    } else {
        pressure_mark::forget(group, || events::count_made(group, Event::PressureLevel));
    }
}

/// Sets the thresholds of a group that is not linked yet: no thread charges it.
pub(crate) fn set_unlinked(group: &Counter, wanted: [Option<u8>; 2]) {
    group_tree::of(group)
        .any_pressure
        .store(true, Ordering::Relaxed);
    pressure_mark::set_thresholds(group, wanted);
}

/// Corrects the mark of a group, and counts its changes. The caller is in a slow path, keeps the
/// counter, and may hold locks.
pub(crate) fn correct(counter: &Counter) {
    pressure_mark::correct(counter, || {
        events::count_made(counter, Event::PressureLevel)
    });
}

/// Sets the part of the pressure that stalls have, by averages over 10 seconds. Returns whether
/// there is any.
pub(crate) fn set_by_stalls(counter: &Counter, some: u32, full: u32) -> bool {
    let pressure = by_stalls(pressure_mark::by_stalls(counter), some, full);
    pressure_mark::set_by_stalls(counter, pressure, || {
        events::count_made(counter, Event::PressureLevel)
    });
    pressure > 0
}

// === What credit alone keeps up ===

/// The pressure that a group shows, 0 to 2: one load while the group has thresholds and usage is
/// below them. The caller may hold locks of its own, so no listener is called on this thread.
#[inline]
pub(crate) fn shown(group: &Counter) -> u64 {
    let bits = group.limits.watched.bits_for_figures();
    if pressure_mark::is_normal(bits) {
        0
    } else {
        shown_slow(group)
    }
}

/// Something has raised the level, or a group above has the thresholds.
#[cold]
#[inline(never)]
fn shown_slow(group: &Counter) -> u64 {
    match pressure_mark::shown_by(group) {
        None => 0,
        Some((_, bits)) if !pressure_mark::is_by_usage(bits) => pressure_mark::shown(bits),
        Some((level, _)) => shown_with_usage(level),
    }
}

fn shown_with_usage(level: &Counter) -> u64 {
    if pressure_mark::may_be_credit(level) && !is_in_pause(level) {
        context::without_foreign(|| {
            let path = SlowPath::enter();
            // Inside another slow path the reader is an allocator.
            if path.outermost().is_some() {
                // Mutation: a-read-gives-no-credit-back
                release_credit(level);
            }
        });
    }
    pressure_mark::shown(level.limits.watched.bits())
}

/// Gives credit back that nobody uses, where it is all that keeps the pressure of a level up. The
/// caller is in a slow path, and holds no lock.
pub(crate) fn release_credit(level: &Counter) {
    // The level may have been served late: another thread has counted since, or usage has moved.
    if !pressure_mark::may_be_credit(level) || is_in_pause(level) {
        return;
    }
    let CreditBelow { credit, slots, .. } = credit::count(level);
    // Mutation: e43-credit-keeps-the-pressure-up
    if pressure_mark::is_up_by(level, credit) {
        level.tree().drain(level);
    } else if slots > SLOTS_WITHOUT_PAUSE
        && let Some(counts) = events::counts(level)
    {
        let until = now(level).saturating_add(slots as u64 * PAUSE_FOR_SLOT);
        counts.credit_pause.store(until, Ordering::Relaxed);
    }
}

/// A count of this level's credit was long, and the next one is not due yet.
pub(crate) fn is_in_pause(level: &Counter) -> bool {
    let until =
        events::counts(level).map_or(0, |counts| counts.credit_pause.load(Ordering::Relaxed));
    until > 0 && now(level) < until
}

/// Nanoseconds since the tree was made.
fn now(level: &Counter) -> u64 {
    let since = clock::now().saturating_duration_since(group_tree::of(level).made);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn by_stalls(now: u64, some: u32, full: u32) -> u64 {
    let is_from = |pressure: u64, average: u32, from: u32| {
        average >= if now >= pressure { from / 2 } else { from }
    };
    if is_from(2, full, FULL_FROM) {
        2
    } else {
        u64::from(is_from(1, some, SOME_FROM))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;
    use crate::{Bytes, Group, GroupName, Limit, Limits, PressureLevel, Runtime};

    fn group() -> (Runtime, Group) {
        let runtime = Runtime::builder().audit(true).build().unwrap();
        let limits = Limits::new().max(1_000).pressure_levels(80, 95);
        let group = runtime.root().create("q", limits).unwrap();
        (runtime, group)
    }

    fn changes(group: &Group) -> u64 {
        group.events().local().get(Event::PressureLevel)
    }

    /// Up at a threshold, down a sixteenth below it, and one event for each change, however usage
    /// goes in between.
    #[test]
    fn it_follows_usage_with_slack() {
        let (_runtime, group) = group();
        let mut held = group.charge(1).unwrap();
        let mut seen = Vec::new();
        for usage in [
            799, 800, 949, 760, 949, 950, 1_000, 900, 891, 890, 751, 749, 799, 0,
        ] {
            let now = held.bytes() as usize;
            if usage > now {
                held.grow(usage - now).unwrap();
            } else {
                held.shrink(now - usage);
            }
            seen.push((usage, group.pressure_level().name(), changes(&group)));
        }
        let expected = [
            (799, "normal", 0),
            (800, "elevated", 1),
            (949, "elevated", 1),
            (760, "elevated", 1),
            (949, "elevated", 1),
            (950, "critical", 2),
            (1_000, "critical", 2),
            (900, "critical", 2),
            (891, "critical", 2),
            (890, "elevated", 3),
            (751, "elevated", 3),
            (749, "normal", 4),
            (799, "normal", 4),
            (0, "normal", 4),
        ];
        assert_eq!(seen, expected);
    }

    /// Of 199 bytes 50 % are 99: a part of a byte is cut off.
    #[test]
    fn a_threshold_is_a_share_of_any_max() {
        let runtime = Runtime::builder().batch(0).build().unwrap();
        for (max, percent, from) in [(199, 50, 99), (101, 99, 99), (1, 80, 1), (350, 95, 332)] {
            let limits = Limits::new().max(max).pressure_levels(percent, 100);
            let group = runtime.root().scope(GroupName::Unnamed, limits).unwrap();
            let below = group.charge(from - 1).unwrap();
            assert_eq!(group.pressure_level().name(), "normal", "{max}");
            let _one_more = group.charge(1).unwrap();
            assert_ne!(group.pressure_level().name(), "normal", "{max}");
            drop(below);
        }
    }

    /// A forced charge, a max that moves, thresholds that move, an offline group, and the object's
    /// next group.
    #[test]
    fn it_follows_limits_and_the_groups_end() {
        let (runtime, group) = group();
        let held = group.force_charge(900);
        assert_eq!(group.pressure_level(), PressureLevel::Elevated);
        group.set_max(900).unwrap();
        assert_eq!(group.pressure_level(), PressureLevel::Critical);
        group.set_max(Limit::Unlimited).unwrap();
        assert_eq!(
            group.pressure_level(),
            PressureLevel::Normal,
            "no max is no pressure by usage"
        );
        group
            .set_limits(Limits::new().max(1_000).pressure_levels(10, 90))
            .unwrap();
        assert_eq!(
            (group.pressure_level(), changes(&group)),
            (PressureLevel::Critical, 5)
        );
        let mut only_critical = Limits::new();
        only_critical.critical = crate::Percent::new(95);
        group.set_limits(only_critical).unwrap();
        let limits = group.limits();
        assert_eq!(
            [limits.elevated, limits.critical].map(|at| at.unwrap().get()),
            [10, 95]
        );
        assert_eq!(
            group.pressure_level(),
            PressureLevel::Critical,
            "900 is less than a sixteenth below 950"
        );
        group.offline().unwrap();
        assert_eq!(group.pressure_level(), PressureLevel::Normal);
        drop((held, group));
        runtime.settle();
        let next = runtime
            .root()
            .create("next", Limits::new().max(1_000))
            .unwrap();
        let _held = next.charge(1_000).unwrap();
        assert_eq!(
            (next.pressure_level(), next.limits().elevated),
            (PressureLevel::Normal, None)
        );
    }

    /// A group without thresholds has the pressure of the nearest above; listeners above are
    /// notified of a change below.
    #[test]
    fn groups_below_read_it_and_listeners_above_are_notified() {
        let (runtime, tenant) = group();
        let query = tenant
            .create("17", Limits::new().max(500))
            .unwrap()
            .create("sort", Limits::new())
            .unwrap();
        let notified = Arc::new(AtomicU64::new(0));
        let _listener = runtime.root().on_event(Event::PressureLevel, {
            let notified = Arc::clone(&notified);
            move |happened| {
                notified.fetch_add(happened.times(), Relaxed);
            }
        });
        let held = [query.charge(500).unwrap(), tenant.charge(450).unwrap()];
        assert_eq!(query.pressure_level(), PressureLevel::Critical);
        assert_eq!(runtime.root().pressure_level(), PressureLevel::Normal);
        assert_eq!(
            runtime
                .snapshot()
                .rows()
                .iter()
                .map(|row| row.pressure_level as u8)
                .collect::<Vec<_>>(),
            [0, 2, 2, 2]
        );
        drop(held);
        assert_eq!(
            (query.pressure_level(), notified.load(Relaxed)),
            (PressureLevel::Normal, changes(&tenant))
        );
        assert!(changes(&tenant) >= 2);
    }

    /// A threshold of 0 is none, and two of them leave the group with the pressure of the groups
    /// above.
    #[test]
    fn thresholds_are_taken_away() {
        let (runtime, group) = group();
        runtime
            .root()
            .set_limits(Limits::new().max(1_200).pressure_levels(80, 0))
            .unwrap();
        let held = group.charge(1_000).unwrap();
        assert_eq!(group.pressure_level(), PressureLevel::Critical);
        assert_eq!(
            runtime.root().pressure_level(),
            PressureLevel::Elevated,
            "it is never critical"
        );
        group
            .set_limits(Limits::new().pressure_levels(0, 95))
            .unwrap();
        assert_eq!(group.limits().elevated, None);
        group
            .set_limits(Limits::new().pressure_levels(0, 0))
            .unwrap();
        assert_eq!(
            (group.pressure_level(), changes(&group)),
            (PressureLevel::Elevated, 2),
            "that of the root"
        );
        drop(held);
        assert_eq!(group.pressure_level(), PressureLevel::Normal);
        group
            .set_limits(Limits::new().max(1).pressure_levels(80, 0))
            .unwrap();
        assert_eq!(
            group.pressure_level(),
            PressureLevel::Normal,
            "80 % of 1 byte is not less than 1"
        );
    }

    /// Credit in many slots: a count that finds the level right is followed by a pause, and after
    /// it a read finds the level down.
    #[test]
    fn a_count_of_many_slots_is_followed_by_a_pause() {
        let runtime = Runtime::builder()
            .adaptive(false)
            .batch(Bytes(1_000))
            .build()
            .unwrap();
        // Down below 375,000.
        let limits = Limits::new().max(1_000_000).pressure_levels(40, 0);
        let tenant = runtime.root().create("tenant", limits).unwrap();
        let pause = || {
            let counts = events::counts(tenant.first()).expect("it has thresholds");
            &counts.credit_pause
        };
        let queries: Vec<_> = (0..SLOTS_WITHOUT_PAUSE as u64 + 36)
            .map(|number| tenant.create(number, Limits::new()).unwrap())
            .collect();
        let held: Vec<_> = queries
            .iter()
            .map(|query| query.charge(900).unwrap())
            .collect();
        let _most = tenant.charge(300_000).unwrap();
        assert_eq!(
            (tenant.pressure_level(), changes(&tenant)),
            (PressureLevel::Elevated, 1)
        );
        assert!(tenant.live() < tenant.usage(), "there is credit to count");
        assert_ne!(pause().load(Ordering::Relaxed), 0, "100 slots");
        drop(held);
        pause().store(u64::MAX, Ordering::Relaxed);
        assert_eq!(
            tenant.pressure_level(),
            PressureLevel::Elevated,
            "not counted again yet"
        );
        pause().store(0, Ordering::Relaxed);
        assert_eq!(
            (tenant.pressure_level(), changes(&tenant)),
            (PressureLevel::Normal, 2)
        );
    }

    #[test]
    fn a_pressure_level_of_stalls_has_slack() {
        let steps = [
            (999, 0, 0),
            (1_000, 0, 1),
            (500, 0, 1),
            (499, 0, 0),
            (9_000, 4_000, 2),
            (9_000, 2_000, 2),
        ];
        let mut now = 0;
        for (some, full, expected) in steps {
            now = by_stalls(now, some, full);
            assert_eq!(now, expected, "{some} {full}");
        }
        assert_eq!(by_stalls(2, 9_000, 1_999), 1);
    }
}
