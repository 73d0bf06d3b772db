//! Pressure: for how long chargers of a group, or of groups below, stood still for memory.
//!
//! A charger is a thread or a future that charges. It stands still while it waits for reclaimers,
//! for victims or in line, and while it is delayed above a high. A [`Stall`] stands for that. The
//! group, and each group above, counts the chargers that stand still and adds up the time in which
//! there are any.
//!
//! *Full* is the part of that time in which a limit of the group itself, or of a group above it,
//! held a charger up. Each charger of the group meets that limit, too. So none of them gets more
//! memory than the limit leaves. Whether others run meanwhile, and need no memory, the crate does
//! not know.
//!
//! One lock of the tree holds all of it. A thread takes the lock when a charger stops and when it
//! goes on. A charger that stops brings an instant that its charge has read anyway, shortly before.
//! Where another moment of the tree has come since, it stops at that one. A charger that goes on
//! reads the clock under the lock. So moments are in order.
//!
//! Most stalls are short, and no thread looks meanwhile. So one stall of a tree is *deferred*: the
//! groups count it when it ends, all of it at once, or when a thread next looks at any figure of
//! the tree. No hit and no walk looks at any of it. Nothing is shared but under the lock, so there
//! is no ordering to model.

use std::mem::ManuallyDrop;
use std::ptr;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use crate::counter::handle::{Handle, WeakCounter};
use crate::counter::object::{Counter, CounterRef};
use crate::counter::slow_path::SlowPath;
use crate::counter::watch::{PRESSURE_KNOWN, STALLS_LOOKED_AT};
use crate::hierarchy::events;
use crate::hierarchy::group_tree::{self, DeferredStall, Stalls};
use crate::pressure::delays::{self, Alarm};
use crate::pressure::pressure_levels;
use crate::state::stalls::{PERIOD, StallShare, StallTimes};
use crate::sync::clock;
use crate::sync::lock::LockGuard;
use crate::sync::{Arc, Ordering, TIME_PASSES, model_failed};
use crate::thread::context;
use crate::thread::slow_path::Entered;

/// Nanoseconds of a second.
const NANOS: u64 = 1_000_000_000;

/// A charger of the group stands still, until the value is dropped.
#[must_use]
pub(crate) struct Stall {
    group: CounterRef,
    /// The highest group that holds the charger up.
    level: CounterRef,
    /// The number under which it was deferred; 0 where it was not.
    number: u64,
}

/// The group of a charger that stands still, or a level of its path, as long as it does.
#[allow(unsafe_code)]
fn kept_by_charger(counter: &Counter) -> CounterRef {
    // SAFETY: the caller of `Stall::begin` keeps the group for as long as it has the value.
    unsafe { CounterRef::new(counter) }
}

impl Stalls {
    /// The moment by the tree's clock, in nanoseconds.
    fn now(&mut self) -> u64 {
        self.moment(clock::now())
    }

    /// The moment of an instant that this thread has read; the latest moment, where that is later.
    fn moment(&mut self, instant: Instant) -> u64 {
        let since = instant.saturating_duration_since(self.began);
        let nanos = since
            .as_secs()
            .saturating_mul(NANOS)
            .saturating_add(since.subsec_nanos().into());
        self.latest = self.latest.max(nanos);
        self.latest
    }

    /// Works with the times of a group of this tree. `None`: it has none.
    #[allow(unsafe_code)]
    fn with<R>(&mut self, group: &Counter, work: impl FnOnce(&mut StallTimes) -> R) -> Option<R> {
        let counts = events::counts(group)?;
        // SAFETY: `Stalls` is what the tree's lock holds, so the caller has the lock; `work` gets
        // the only reference.
        Some(work(unsafe { counts.stalls.times() }))
    }
}

/// The lock, with all figures as they are: each stall is counted.
fn lock(of: &Counter) -> LockGuard<'_, Stalls> {
    let mut stalls = group_tree::of(of).stalls.lock();
    if let Some(deferred) = stalls.deferred.take() {
        let from = stalls.moment(deferred.since);
        change(&mut stalls, from, &deferred.group, &deferred.level, true);
    }
    stalls
}

impl Stall {
    /// A charger of the group stands still for a limit of `level`, which is the group or one above:
    /// since an instant that this thread has read just before. The caller keeps the group for as
    /// long as it has the value. `None`: the runtime counts no stalls, or the system has no memory
    /// to count it.
    #[cold]
    pub(crate) fn begin(group: &Counter, level: &Counter, since: Instant) -> Option<Stall> {
        let group = group.first();
        let level = level.first();
        if !TIME_PASSES || !group_tree::of(group).settings.counts_stalls || !events::make_all(group)
        {
            return None;
        }
        // The first of the tree goes into the one place, which costs a lock and no look at the
        // path. The next ones count at once: a thread that counts takes the deferred one along, so
        // moments stay in order.
        let deferred = defer(group, level, since);
        if deferred.is_none() {
            let _path = SlowPath::enter();
            let mut stalls = lock(group);
            let from = stalls.moment(since);
            change(&mut stalls, from, group, level, true);
        }
        // After the stall is counted, or is in its place: a look that is planned finds it.
        look_later(group);
        Some(Stall {
            group: kept_by_charger(group),
            level: kept_by_charger(level),
            number: deferred.unwrap_or(0),
        })
    }

    /// From now on it is another level that holds the charger up.
    pub(crate) fn moves_to(&mut self, level: &Counter) {
        let level = level.first();
        // The charger stands still without a gap: it goes on at the one level and stops at the
        // other in the same moment. So the group's own time goes on, and only what is *full* moves.
        if !ptr::eq(level, &*self.level) {
            let before = std::mem::replace(&mut self.level, kept_by_charger(level));
            let _path = SlowPath::enter();
            let mut stalls = lock(&self.group);
            let now = stalls.now();
            // Mutation: a-stall-that-moves-stays-where-it-was
            change(&mut stalls, now, &self.group, &before, false);
            change(&mut stalls, now, &self.group, level, true);
        }
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        let Stall {
            group,
            level,
            number,
        } = &*self;
        // Deferred still: nobody has looked in between, so the whole stall is counted at once, with
        // its two moments.
        if *number > 0 && end_deferred(group, *number) {
            return;
        }
        let _path = SlowPath::enter();
        let mut stalls = lock(group);
        let now = stalls.now();
        change(&mut stalls, now, group, level, false);
    }
}

// === The pressure that stalls make ===

/// One look at the stalls of a group that has thresholds of pressure. The thread of delays wakes
/// it. It keeps no group.
struct StallLook {
    group: WeakCounter,
    /// The time that chargers had stood still, as of the look before.
    total: u64,
}

/// Has a thread look at the stalls of each group of the path that has thresholds, unless one is
/// about to. The stall has begun. A look takes its mark away before it reads the figures under
/// their lock: it finds this stall, or this thread finds no mark.
fn look_later(group: &Counter) {
    if group_tree::of(group).any_pressure.load(Ordering::Relaxed) {
        group
            .path_to_root()
            .filter(|level| level.limits.watched.is_for(PRESSURE_KNOWN))
            .for_each(|level| {
                StallLook {
                    group: WeakCounter::new(level),
                    total: 0,
                }
                .plan(level);
            });
    }
}

/// The group has got thresholds: a charger that has stopped before that plans no look. One that has
/// stopped in this very instant has lost no time yet, so it is not time that tells.
pub(crate) fn look_if_stalled(group: &Counter) {
    // Times lie beside the counts of events: without them it has had no stall.
    if TIME_PASSES && events::counts(group.first()).is_some() {
        StallLook {
            group: WeakCounter::new(group),
            total: 0,
        }
        .plan(group);
    }
}

impl StallLook {
    /// Plans the look, unless there is one. Without a thread for it stalls make no pressure.
    fn plan(self, group: &Counter) {
        let watched = &group.limits.watched;
        // A charger that stands still comes here often: it writes the word only where the mark is
        // away.
        if watched.is_for(STALLS_LOOKED_AT) || watched.set(STALLS_LOOKED_AT) & STALLS_LOOKED_AT != 0
        {
            delays::start_after_fork();
            return;
        }
        // A period of the averages: an earlier look would find the figures of before.
        let until = clock::now() + Duration::from_nanos(PERIOD);
        let waker = {
            // Memory of the crate, and of no group.
            let _path = SlowPath::enter();
            Waker::from(Arc::new(self))
        };
        // The alarm stays in the table until then.
        // An alarm that is dropped leaves the table. This one has nobody to hold it, and leaves
        // when it is woken.
        let alarm = Alarm::set(None, until, &waker).map(ManuallyDrop::new);
        if alarm.is_none() {
            let _path = SlowPath::enter();
            // No thread would take the pressure down again, so there is none.
            group.limits.watched.clear(STALLS_LOOKED_AT);
            pressure_levels::set_by_stalls(group, 0, 0);
        }
    }

    /// Looks as of `now`. Returns the next look with its group, while there is pressure or more
    /// time was lost.
    fn look(&self, now: Instant) -> Option<(StallLook, Handle)> {
        let &StallLook { group, total } = self;
        let handle = group.try_pin()?;
        let path = SlowPath::enter();
        // Before the figures are read, under their lock: a charger that stops after this finds no
        // mark, and plans the next look.
        handle.limits.watched.clear(STALLS_LOOKED_AT);
        let [some, full] = read_at(&handle, now);
        let is_under =
            pressure_levels::set_by_stalls(&handle, some.averages()[0], full.averages()[0]);
        // An average falls for a while after the last stall has ended, and somebody has to see it
        // fall. Once there is no pressure and nobody has stood still since the last look, the next
        // stall plans the next look.
        let goes_on = (is_under || some.total() != total) && !handle.state().is_offline();
        drop(path);
        goes_on.then_some((
            StallLook {
                group,
                total: some.total(),
            },
            handle,
        ))
    }
}

impl Wake for StallLook {
    fn wake(self: Arc<Self>) {
        // No listener holds up the thread of delays.
        context::leaving_listeners(|| {
            // The handle is dropped last: the mark belongs to the group that the look is of.
            if let Some((next, kept)) = self.look(clock::now()) {
                next.plan(&kept);
            }
        });
    }
}

// === The deferred stall ===

/// Leaves a stall in the place of the tree, where there is none. Returns its number.
fn defer(group: &Counter, level: &Counter, since: Instant) -> Option<u64> {
    // Nothing is scheduled, so there is nothing to do at the end of the path.
    let _entered = Entered::enter();
    let mut stalls = group_tree::of(group).stalls.lock();
    // There is one place, because there is mostly one stall: a second one shows that stalls
    // overlap, and then the count by moments is what is right.
    if stalls.deferred.is_some() {
        return None;
    }
    stalls.numbers += 1;
    let number = stalls.numbers;
    let group = kept_by_charger(group);
    let level = kept_by_charger(level);
    stalls.deferred = Some(DeferredStall {
        number,
        group,
        level,
        since,
    });
    Some(number)
}

/// Counts a stall that is deferred still, from its begin to now. False: it is not.
fn end_deferred(group: &Counter, number: u64) -> bool {
    // As in `defer`.
    let _entered = Entered::enter();
    let mut stalls = group_tree::of(group).stalls.lock();
    // Mutation: a-stall-that-ends-takes-that-of-another
    let Some(deferred) = stalls
        .deferred
        .take_if(|deferred| deferred.number == number)
    else {
        return false;
    };
    // No moment has come since: a thread that brings one counts the deferred stall first.
    let from = stalls.moment(deferred.since);
    let now = stalls.now();
    for_path(group, &deferred.level, |at, is_full| {
        stalls.with(at, |times| times.stood(from, now, is_full));
    });
    true
}

/// A charger of the group stops for a limit of the level, or goes on.
fn change(stalls: &mut Stalls, now: u64, group: &Counter, level: &Counter, stops: bool) {
    for_path(group, level, |at, is_full| {
        stalls.with(at, |times| times.change(now, stops, is_full));
    });
}

/// Each group from this one up to the root, and whether a limit of the level holds up all its
/// chargers.
fn for_path(group: &Counter, level: &Counter, mut work: impl FnMut(&Counter, bool)) {
    let mut is_full = true;
    for at in group.path_to_root() {
        work(at, is_full);
        // Above the level that holds the charger up, other chargers go on: for those groups it is
        // *some*, and no longer *full*.
        is_full &= !ptr::eq(at, level);
    }
}

/// Some, and full, as of an instant that this thread has read, or of the latest moment of the tree,
/// where that is later.
pub(crate) fn read_at(group: &Counter, instant: Instant) -> [StallShare; 2] {
    let group = group.first();
    // Times lie beside the counts of events. A group without any has had no stall, and gets no
    // memory for being read.
    if events::counts(group).is_none() {
        return Default::default();
    }
    let _path = SlowPath::enter();
    let mut stalls = lock(group);
    let now = stalls.moment(instant);
    let read = stalls.with(group, |times| {
        times.advance(now);
        [times.some().clone(), times.full().clone()]
    });
    read.unwrap_or_default()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::Context;

    use super::*;
    use crate::{ChargeFuture, Group, Limits, PressureLevel, Runtime};

    /// A group whose own usage makes no pressure, below a root that is full.
    fn full() -> (Runtime, Group, crate::Charge) {
        let runtime = Runtime::builder().max(100).build().unwrap();
        let group = runtime
            .root()
            .create("q", Limits::new().pressure_levels(80, 95))
            .unwrap();
        let held = runtime.root().charge(100).unwrap();
        (runtime, group, held)
    }

    fn waits(charge: Pin<&mut ChargeFuture>) {
        assert!(
            std::future::Future::poll(charge, &mut Context::from_waker(Waker::noop())).is_pending()
        );
    }

    /// Thresholds come in the instant in which a charger stops, so that no time is lost yet.
    #[test]
    fn a_stall_that_has_lost_no_time_is_looked_at() {
        let runtime = Runtime::builder().max(100).build().unwrap();
        let group = runtime.root().create("q", Limits::new()).unwrap();
        let later = Instant::now() + Duration::from_secs(60);
        let _stall = Stall::begin(group.first(), runtime.root().first(), later).unwrap();
        let is_planned = || group.first().limits.watched.is_for(STALLS_LOOKED_AT);
        assert!(!is_planned(), "nobody has set thresholds");
        group
            .set_limits(Limits::new().pressure_levels(80, 95))
            .unwrap();
        assert!(is_planned());
    }

    /// Each look corrects the pressure, and there are looks until it is gone.
    #[test]
    fn looks_follow_stalls_and_end() {
        let (_runtime, group, _held) = full();
        let begun = Instant::now();
        let mut charge = Box::pin(group.charge_async(1));
        waits(charge.as_mut());
        assert!(
            group.first().limits.watched.is_for(STALLS_LOOKED_AT),
            "planned with the stall"
        );
        let mut look = StallLook {
            group: WeakCounter::new(group.first()),
            total: 0,
        };
        let mut seen = Vec::new();
        for seconds in [3, 5, 15] {
            look = look
                .look(begun + Duration::from_secs(seconds))
                .expect("a charger stands still")
                .0;
            seen.push(group.pressure_level());
        }
        assert_eq!(
            seen,
            [
                PressureLevel::Elevated,
                PressureLevel::Elevated,
                PressureLevel::Critical
            ]
        );
        drop(charge);
        look = look
            .look(begun + Duration::from_secs(35))
            .expect("there is pressure")
            .0;
        assert_eq!(group.pressure_level(), PressureLevel::Elevated);
        assert!(look.look(begun + Duration::from_secs(70)).is_none());
        assert_eq!(group.pressure_level(), PressureLevel::Normal);
    }

    /// No thread charges or reads a figure: a thread of the crate raises the pressure, and takes it
    /// down again.
    #[test]
    fn pressure_comes_and_goes_by_itself() {
        let (_runtime, group, _held) = full();
        let becomes = |is: fn(PressureLevel) -> bool| {
            let end = Instant::now() + Duration::from_secs(120);
            while !is(group.pressure_level()) {
                assert!(Instant::now() < end);
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        {
            let mut charge = pin!(group.charge_async(1));
            waits(charge.as_mut());
            becomes(|pressure| pressure > PressureLevel::Normal);
        }
        becomes(|pressure| pressure == PressureLevel::Normal);
        assert_eq!(
            group.events().local().get(crate::Event::PressureLevel) % 2,
            0
        );
    }

    /// A charge that moves to the line of a level above stands still for that level from then on.
    #[test]
    fn a_stall_moves_with_its_charge() {
        let runtime = Runtime::builder().batch(0).max(100).build().unwrap();
        let top = runtime.root().create("top", Limits::new().max(50)).unwrap();
        let held = top.charge(50).unwrap();
        let mut charge = Box::pin(top.charge_async(10));
        let full = |group: &Group| group.pressure().full.total;
        waits(charge.as_mut());
        std::thread::sleep(Duration::from_millis(1));
        assert!(full(&top) > Duration::ZERO);
        let _above = runtime.root().force_charge(100);
        drop(held);
        assert_eq!(
            full(&runtime.root()),
            Duration::ZERO,
            "the max of top held it up"
        );
        waits(charge.as_mut());
        std::thread::sleep(Duration::from_millis(1));
        assert!(full(&runtime.root()) > Duration::ZERO);
    }

    /// The child of a fork has the mark and no thread: the next charger that stands still starts
    /// one there.
    #[test]
    fn a_look_of_another_process_has_a_thread_again() {
        let (_runtime, group, _held) = full();
        let mut charge = Box::pin(group.charge_async(1));
        waits(charge.as_mut());
        delays::Delays::in_another_process();
        let mut second = Box::pin(group.charge_async(1));
        waits(second.as_mut());
        assert!(delays::Delays::has_thread());
    }

    /// Thresholds that come while a charger stands still have a look planned.
    #[test]
    fn thresholds_come_after_a_stall() {
        let (runtime, _group, _held) = full();
        let late = runtime.root().create("late", Limits::new()).unwrap();
        let is_planned = || late.first().limits.watched.is_for(STALLS_LOOKED_AT);
        let mut charge = Box::pin(late.charge_async(1));
        waits(charge.as_mut());
        assert!(!is_planned());
        late.set_limits(Limits::new().pressure_levels(80, 95))
            .unwrap();
        assert!(is_planned());
    }

    /// Between a look and the next one the group may go, and its object be another group's.
    #[test]
    fn the_next_look_is_planned_for_the_group_it_is_of() {
        let (runtime, group, held) = full();
        let mut charge = Box::pin(group.charge_async(1));
        waits(charge.as_mut());
        let look = StallLook {
            group: WeakCounter::new(group.first()),
            total: 0,
        };
        let object = std::ptr::from_ref(group.first());
        let (next, kept) = look
            .look(Instant::now() + Duration::from_secs(3))
            .expect("a charger stands still");
        drop((charge, held));
        group.offline().unwrap();
        drop(group);
        runtime.settle();
        let other = runtime.root().create("other", Limits::new()).unwrap();
        assert!(
            !std::ptr::eq(other.first(), object),
            "the look keeps its group"
        );
        next.plan(&kept);
        drop((kept, other));
        runtime.settle();
        let reused = runtime
            .root()
            .create("reused", Limits::new().pressure_levels(80, 95))
            .unwrap();
        assert!(!reused.first().limits.watched.is_for(STALLS_LOOKED_AT));
    }

    /// A look keeps no group, and finds that its group is gone.
    #[test]
    fn a_look_keeps_no_group() {
        let (runtime, group, _held) = full();
        let look = StallLook {
            group: WeakCounter::new(group.first()),
            total: 7,
        };
        group.offline().unwrap();
        assert!(look.look(Instant::now()).is_none(), "offline");
        drop(group);
        runtime.settle();
        assert!(look.look(Instant::now()).is_none(), "gone");
    }
}
