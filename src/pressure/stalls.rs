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
//! One lock of the tree holds all of it. A thread takes the lock when a charger stops and when it goes on, and reads the
//! clock under the lock. So the moments of a group are in order, and its total is exact. No hit and no walk looks at it.
//! Nothing is shared but under the lock, so there is no ordering to model.

use std::ptr;
use std::time::{Duration, Instant};

use crate::counter::object::Counter;
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::group_tree::{self, Stalls};
use crate::hierarchy::{events, service};
use crate::state::stalls::{AVERAGED_OVER, StallShare, StallTimes};
use crate::sync::lock::LockGuard;
use crate::sync::{TIME_PASSES, model_failed};

/// A charger of the group stands still, until the value is dropped.
#[must_use]
pub(crate) struct Stall {
    group: &'static Counter,
    /// The highest group that holds the charger up.
    level: &'static Counter,
}

/// A share of the time, as one reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StallFigures {
    /// In hundredths of a per cent.
    pub(crate) averages: [u32; AVERAGED_OVER.len()],
    /// In nanoseconds.
    pub(crate) total: u64,
}

impl Stalls {
    /// The moment by the tree's clock, in nanoseconds.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(super) fn at(&self, moment: u64) -> Instant {
        self.began + Duration::from_nanos(moment)
    }

    /// Works with the times of a group of this tree. `None`: it has none.
    #[allow(unsafe_code)]
    pub(super) fn with<R>(&mut self, group: &Counter, work: impl FnOnce(&mut StallTimes) -> R) -> Option<R> {
        let counts = events::counts(group)?;
        // SAFETY: `Stalls` is what the tree's lock holds, so the caller has the lock; `work` gets the only reference.
        Some(work(unsafe { counts.stalls.times() }))
    }
}

pub(super) fn lock(of: &Counter) -> LockGuard<'_, Stalls> {
    group_tree::of(of).stalls.lock()
}

impl Stall {
    /// A charger of the group stands still for a limit of `level`, which is the group or one above. The caller keeps the
    /// group for as long as it has the value. `None`: the system has no memory to count it.
    #[cold]
    pub(crate) fn begin(group: &'static Counter, level: &'static Counter) -> Option<Stall> {
        let (group, level) = (group.first(), level.first());
        if !TIME_PASSES || !events::make_all(group) {
            return None;
        }
        change(group, &[(level, true)]);
        Some(Stall { group, level })
    }

    /// From now on it is another level that holds the charger up.
    pub(crate) fn moves_to(&mut self, level: &'static Counter) {
        let level = level.first();
        if !ptr::eq(level, self.level) {
            let before = std::mem::replace(&mut self.level, level);
            change(self.group, &[(before, false), (level, true)]);
        }
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        if !model_failed() {
            change(self.group, &[(self.level, false)]);
        }
    }
}

/// A charger of the group stops for a limit of the level, or goes on.
fn change(group: &'static Counter, changes: &[(&'static Counter, bool)]) {
    // A bit for each level whose trigger wants a look; the last bit is for all levels from there on.
    let mut looks: u64 = 0;
    let bit = |depth: usize| 1 << depth.min(u64::BITS as usize - 1);
    let _path = SlowPath::enter();
    let mut stalls = lock(group);
    let now = stalls.now();
    for &(level, stops) in changes {
        let mut is_full = true;
        for (depth, at) in group.path_to_root().enumerate() {
            let wants_look = stalls.with(at, |times| {
                times.change(now, stops, is_full);
                times.wants_look()
            });
            looks |= if wants_look == Some(true) { bit(depth) } else { 0 };
            is_full &= !ptr::eq(at, level);
        }
    }
    drop(stalls);
    if looks != 0 {
        let looked_at = group.path_to_root().enumerate().filter(|&(depth, _)| looks & bit(depth) != 0);
        looked_at.for_each(|(_, level)| service::schedule(level));
    }
}

/// Some, and full, as of now.
pub(crate) fn read(group: &Counter) -> [StallFigures; 2] {
    let group = group.first();
    if events::counts(group).is_none() {
        return Default::default();
    }
    let _path = SlowPath::enter();
    let mut stalls = lock(group);
    let now = stalls.now();
    let read = stalls.with(group, |times| {
        times.advance(now);
        let figures = |share: &StallShare| StallFigures { averages: share.averages(), total: share.total() };
        [figures(times.some()), figures(times.full())]
    });
    read.unwrap_or_default()
}
