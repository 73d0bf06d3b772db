//! The one writer of the runs with many groups.

#![cfg(not(loom))]

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;
use std::time::{Duration, Instant};

use memcg::Group;

use super::{rate, spawn};
use crate::common::clock::thread_time;
use crate::common::statistics::Item;

/// Goes over all groups and counts one event in each, round and round, when it is told to: one
/// thread, which stays.
pub(crate) struct Writer<'a> {
    groups: &'a [Group],
    rounds: AtomicI64,
    stop: AtomicBool,
}

/// The number of its writes, and the time that it ran for them.
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
        Writer {
            groups,
            rounds: AtomicI64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    /// Rounds that have been finished: each group has so many events, or one more.
    pub(crate) fn rounds(&self) -> i64 {
        self.rounds.load(Ordering::Acquire)
    }

    /// Start the thread. It goes when the orders are dropped.
    pub(crate) fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) -> Orders<'scope> {
        let (begin, orders) = channel::<()>();
        let (report, reports) = channel();
        spawn(scope, move || {
            while orders.recv().is_ok() && report.send(self.write()).is_ok() {}
        });
        Orders {
            begin,
            reports,
            stop: &self.stop,
        }
    }

    /// At full speed, in whole rounds.
    fn write(&self) -> Written {
        let start = Instant::now();
        let before = thread_time();
        let first = self.rounds();
        while !self.stop.load(Ordering::Relaxed) {
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

/// To the writer's thread.
pub(crate) struct Orders<'a> {
    begin: Sender<()>,
    reports: Receiver<Written>,
    stop: &'a AtomicBool,
}

impl Orders<'_> {
    pub(crate) fn begin(&self) {
        self.stop.store(false, Ordering::Relaxed);
        self.begin.send(()).expect("the writer is there");
    }

    pub(crate) fn stop(&self) -> Written {
        self.stop.store(true, Ordering::Relaxed);
        self.reports.recv().expect("the writer is there")
    }
}
