//! Pressure: for how long chargers of a group, or of groups below, stood still for memory.
//!
//! A charger is a thread or a future that charges. It stands still while it waits for reclaimers, for victims or in line,
//! and while it is delayed above a high. A [`Stall`] stands for that. The group, and each group above, counts the
//! chargers that stand still and adds up the time in which there are any.
//!
//! *Full* is the part of that time in which a limit of the group itself, or of a group above it, held a charger up. Each
//! charger of the group meets that limit, too. So none of them gets more memory than the limit leaves. Whether others
//! run meanwhile, and need no memory, the crate does not know.
//!
//! One lock of the tree holds all of it. A thread takes the lock when a charger stops and when it goes on. A charger that
//! stops brings an instant that its charge has read anyway, shortly before. Where another moment of the tree has come
//! since, it stops at that one. A charger that goes on reads the clock under the lock. So moments are in order.
//!
//! Most stalls are short, and no thread looks meanwhile. So one stall of a tree is *deferred*: the groups count it when it
//! ends, all of it at once, or when a thread next looks at any figure of the tree. No hit and no walk looks at any of it.
//! Nothing is shared but under the lock, so there is no ordering to model.

use std::ptr;
use std::time::Instant;

use crate::counter::object::Counter;
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::events;
use crate::hierarchy::group_tree::{self, DeferredStall, Stalls};
use crate::state::stalls::{StallShare, StallTimes};
use crate::sync::lock::LockGuard;
use crate::sync::{TIME_PASSES, model_failed};
use crate::thread::slow_path::Entered;

/// Nanoseconds of a second.
const NANOS: u64 = 1_000_000_000;

/// A charger of the group stands still, until the value is dropped.
#[must_use]
pub(crate) struct Stall {
    group: &'static Counter,
    /// The highest group that holds the charger up.
    level: &'static Counter,
    /// The number under which it was deferred; 0 where it was not.
    number: u64,
}

impl Stalls {
    /// The moment by the tree's clock, in nanoseconds.
    fn now(&mut self) -> u64 {
        self.moment(Instant::now())
    }

    /// The moment of an instant that this thread has read; the latest moment, where that is later.
    fn moment(&mut self, instant: Instant) -> u64 {
        let since = instant.saturating_duration_since(self.began);
        let nanos = since.as_secs().saturating_mul(NANOS).saturating_add(since.subsec_nanos().into());
        self.latest = self.latest.max(nanos);
        self.latest
    }

    /// Works with the times of a group of this tree. `None`: it has none.
    #[allow(unsafe_code)]
    fn with<R>(&mut self, group: &Counter, work: impl FnOnce(&mut StallTimes) -> R) -> Option<R> {
        let counts = events::counts(group)?;
        // SAFETY: `Stalls` is what the tree's lock holds, so the caller has the lock; `work` gets the only reference.
        Some(work(unsafe { counts.stalls.times() }))
    }
}

/// The lock, with all figures as they are: each stall is counted.
fn lock(of: &Counter) -> LockGuard<'_, Stalls> {
    let mut stalls = group_tree::of(of).stalls.lock();
    if let Some(deferred) = stalls.deferred.take() {
        let from = stalls.moment(deferred.since);
        change(&mut stalls, from, deferred.group, deferred.level, true);
    }
    stalls
}

impl Stall {
    /// A charger of the group stands still for a limit of `level`, which is the group or one above: since an instant that
    /// this thread has read just before. The caller keeps the group for as long as it has the value. `None`: the runtime
    /// counts no stalls, or the system has no memory to count it.
    #[cold]
    pub(crate) fn begin(group: &'static Counter, level: &'static Counter, since: Instant) -> Option<Stall> {
        let (group, level) = (group.first(), level.first());
        if !TIME_PASSES || !group_tree::of(group).settings.counts_stalls || !events::make_all(group) {
            return None;
        }
        if let Some(number) = defer(group, level, since) {
            return Some(Stall { group, level, number });
        }
        let _path = SlowPath::enter();
        let mut stalls = lock(group);
        let from = stalls.moment(since);
        change(&mut stalls, from, group, level, true);
        Some(Stall { group, level, number: 0 })
    }

    /// From now on it is another level that holds the charger up.
    pub(crate) fn moves_to(&mut self, level: &'static Counter) {
        let level = level.first();
        if !ptr::eq(level, self.level) {
            let before = std::mem::replace(&mut self.level, level);
            let _path = SlowPath::enter();
            let mut stalls = lock(self.group);
            let now = stalls.now();
            change(&mut stalls, now, self.group, before, false);
            change(&mut stalls, now, self.group, level, true);
        }
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        if model_failed() {
            return;
        }
        let &mut Stall { group, level, number } = self;
        if number > 0 && end_deferred(group, number) {
            return;
        }
        let _path = SlowPath::enter();
        let mut stalls = lock(group);
        let now = stalls.now();
        change(&mut stalls, now, group, level, false);
    }
}

/// Leaves a stall in the place of the tree, where there is none. Returns its number.
fn defer(group: &'static Counter, level: &'static Counter, since: Instant) -> Option<u64> {
    // Nothing is scheduled, so there is nothing to do at the end of the path.
    let _entered = Entered::enter();
    let mut stalls = group_tree::of(group).stalls.lock();
    if stalls.deferred.is_some() {
        return None;
    }
    stalls.numbers += 1;
    let number = stalls.numbers;
    stalls.deferred = Some(DeferredStall { number, group, level, since });
    Some(number)
}

/// Counts a stall that is deferred still, from its begin to now. False: it is not.
fn end_deferred(group: &'static Counter, number: u64) -> bool {
    // As in `defer`.
    let _entered = Entered::enter();
    let mut stalls = group_tree::of(group).stalls.lock();
    let Some(deferred) = stalls.deferred.take_if(|deferred| deferred.number == number) else { return false };
    // No moment has come since: a thread that brings one counts the deferred stall first.
    let from = stalls.moment(deferred.since);
    let now = stalls.now();
    for_path(group, deferred.level, |at, is_full| {
        stalls.with(at, |times| times.stood(from, now, is_full));
    });
    true
}

/// A charger of the group stops for a limit of the level, or goes on.
fn change(stalls: &mut Stalls, now: u64, group: &'static Counter, level: &'static Counter, stops: bool) {
    for_path(group, level, |at, is_full| {
        stalls.with(at, |times| times.change(now, stops, is_full));
    });
}

/// Each group from this one up to the root, and whether a limit of the level holds up all its chargers.
fn for_path(group: &'static Counter, level: &'static Counter, mut work: impl FnMut(&'static Counter, bool)) {
    let mut is_full = true;
    for at in group.path_to_root() {
        work(at, is_full);
        is_full &= !ptr::eq(at, level);
    }
}

/// Some, and full, as of an instant that this thread has read, or of the latest moment of the tree, where that is later.
pub(crate) fn read_at(group: &Counter, instant: Instant) -> [StallShare; 2] {
    let group = group.first();
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
