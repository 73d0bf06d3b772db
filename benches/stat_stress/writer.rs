//! The one writer of the runs with many groups.

#![cfg(not(loom))]

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use memcg::Group;

use super::clock::thread_time;
use super::rate;
use crate::common::statistics::Item;

/// Goes over all groups and counts one event in each, round and round.
pub(crate) struct Writer<'a> {
    groups: &'a [Group],
    rounds: AtomicI64,
}

/// What it has done, and how long it ran for that.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    pub(crate) adds: u64,
    /// On a processor; wall time where the system does not say.
    pub(crate) time: Duration,
}

impl Written {
    /// Adds in a second of its own.
    pub(crate) fn rate(self) -> f64 {
        rate(self.adds, self.time)
    }
}

impl<'a> Writer<'a> {
    pub(crate) fn new(groups: &'a [Group]) -> Self {
        Writer { groups, rounds: AtomicI64::new(0) }
    }

    /// Rounds that have been finished: each group has so many events, or one more.
    pub(crate) fn rounds(&self) -> i64 {
        self.rounds.load(Ordering::Acquire)
    }

    /// At full speed, in whole rounds.
    pub(crate) fn write(&self, stop: &AtomicBool) -> Written {
        let (start, before) = (Instant::now(), thread_time());
        let first = self.rounds();
        while !stop.load(Ordering::Relaxed) {
            for group in self.groups {
                group.stat_add(Item::Refault.stat(), 1);
            }
            self.rounds.fetch_add(1, Ordering::Release);
        }
        let ran = thread_time().zip(before).map(|(now, before)| now - before);
        Written {
            adds: (self.rounds() - first) as u64 * self.groups.len() as u64,
            time: ran.unwrap_or_else(|| start.elapsed()),
        }
    }
}
