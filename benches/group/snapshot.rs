//! `group/snapshot/…`: one iteration is a snapshot of so many groups, ten to a million, each
//! charged once. `group/create_destroy/snapshots`: groups come and go on one thread, while another
//! takes snapshots of ten thousand groups all the time. `group/charge/alone` and
//! `group/charge/snapshots`: one iteration is a charge from the stock that is given back; alone,
//! and while another thread takes snapshots of the ten thousand groups around it, one after the
//! other.

#![cfg(not(loom))]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use memcg::{Bytes, Charge, Limits, Runtime};

use super::names::Names;
use super::{create, pair, runtime};
use crate::common::rows::Rows;
use crate::common::team::Team;

const GROUPS: [u64; 3] = [10, 10_000, 1_000_000];

pub(crate) const CHARGE_ALONE: &str = "group/charge/alone";
pub(crate) const CHARGE_BESIDE: &str = "group/charge/snapshots";

/// A thread that takes snapshots, one after the other, until the value is dropped.
pub(super) struct Watcher {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
}

impl Watcher {
    pub(super) fn start(runtime: &Arc<Runtime>) -> Watcher {
        let stop = Arc::new(AtomicBool::new(false));
        let runtime = Arc::clone(runtime);
        let stopped = Arc::clone(&stop);
        let watch = move || {
            let mut taken = 0;
            while !stopped.load(Ordering::Relaxed) {
                drop(black_box(runtime.snapshot()));
                taken += 1;
            }
            taken
        };
        Watcher {
            stop,
            thread: Some(thread::spawn(watch)),
        }
    }

    /// Ends it. Returns how many snapshots it has taken.
    pub(super) fn stop(mut self) -> u64 {
        self.end()
    }

    fn end(&mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().map(JoinHandle::join);
        thread.and_then(Result::ok).unwrap_or_default()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.end();
    }
}

pub(crate) fn rows(rows: &mut Rows) {
    for count in GROUPS {
        rows.wall(&format!("group/snapshot/groups{count}"), || {
            let (runtime, held) = charged(count);
            Team::new(1, move |station| {
                black_box(&held);
                station.serve(|times| (0..times).for_each(|_| drop(black_box(runtime.snapshot()))));
            })
        });
    }
    for (id, is_watched) in [(CHARGE_ALONE, false), (CHARGE_BESIDE, true)] {
        rows.wall(id, || {
            let (runtime, held) = charged(10_000);
            let watcher = is_watched.then(|| Watcher::start(&runtime));
            Team::new(1, move |station| {
                black_box((&held, &watcher));
                let group = runtime
                    .root()
                    .create("charged", Limits::new())
                    .expect("a free name");
                station.serve(|times| (0..times).for_each(|_| pair(&group)));
            })
        });
    }
    rows.wall("group/create_destroy/snapshots", || {
        let (runtime, held) = charged(10_000);
        // One iteration is a create and a release. The other thread takes a snapshot for so many of
        // them.
        const EACH: u64 = 10_000;
        Team::new(2, move |station| {
            black_box(&held);
            let root = runtime.root();
            let mut names = Names::new(station.index);
            station.serve(|times| {
                if station.index == 0 {
                    for _ in 0..times {
                        let group = create(&root, &mut names);
                        pair(&group);
                        group.offline().expect("no child is online");
                    }
                } else {
                    (0..times.div_ceil(EACH)).for_each(|_| drop(black_box(runtime.snapshot())));
                }
            });
        })
    });
}

pub(super) fn charged(count: u64) -> (Arc<Runtime>, Arc<Vec<Charge>>) {
    let runtime = runtime();
    let root = runtime.root();
    let charge = |number: u64| {
        let group = root
            .create(number, Limits::new())
            .expect("a new name in a group that is online");
        group.charge(Bytes(64)).expect("no limit is set")
    };
    let held = (0..count).map(charge).collect();
    (Arc::new(runtime), Arc::new(held))
}
