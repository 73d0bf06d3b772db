//! `stat/read…`: one iteration is one read of a root with so many groups below it, of which one has
//! been written.

#![cfg(not(loom))]

use std::cell::LazyCell;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use memcg::Freshness;

use super::{ITEM, TOUCHES, print_counts};
use crate::common::rows::Rows;
use crate::common::statistics::library::Library;
use crate::common::statistics::shape::Shape;
use crate::common::statistics::{ROOT, Statistics};
use crate::common::team::{Station, Team};

/// Flushes after which a group that no thread writes is not looked at any more: a few more than the
/// library says.
const IDLE: usize = 16;

pub(crate) fn rows(rows: &mut Rows) {
    for count in [1, 1_000, 50_000] {
        rows.wall(&format!("stat/read_stale/groups{count}"), || stale(count));
        exact(rows, "read_exact", count, false);
    }
    exact(rows, "read_exact_idle", 50_000, true);
    rows.wall("stat/read/below_threshold", below_threshold);
}

/// A flush whatever the threshold says, and the read: what an exact read is with them.
pub(crate) fn old_way<S: Statistics + 'static>(
    rows: &mut Rows,
    name: &str,
    make: impl Fn(Shape) -> S,
) {
    for count in [1, 1_000, 50_000] {
        rows.timed(&format!("stat/{name}/read/groups{count}"), || {
            after_a_write(
                Arc::new(make(Shape::fan(count))),
                count,
                false,
                |statistics| {
                    statistics.flush(ROOT);
                    statistics.read(ROOT, ITEM)
                },
            )
        });
    }
}

fn fan(count: usize) -> Library {
    Library::new(&Shape::fan(count), Freshness::Exact)
}

fn stale(count: usize) -> Team {
    let library = fan(count);
    Team::new(1, move |station| {
        let root = &library.groups[ROOT];
        let last = &library.groups[count];
        (0..TOUCHES).for_each(|_| last.stat_add(ITEM.stat(), 1));
        station.serve(|iters| {
            for _ in 0..iters {
                black_box(root.read(Freshness::Stale).get(black_box(ITEM.stat())));
            }
        });
    })
}

/// `idle`: all groups have been written once, and then flushed until they were taken for idle.
fn exact(rows: &mut Rows, name: &str, count: usize, idle: bool) {
    let id = format!("stat/{name}/groups{count}");
    let library = LazyCell::new(|| Arc::new(fan(count)));
    let start = Instant::now();
    rows.timed(&id, || {
        let library = Arc::clone(&library);
        after_a_write(library, count, idle, |library| {
            library.groups[ROOT].read(Freshness::Exact).get(ITEM.stat())
        })
    });
    if rows.ran(&id) {
        print_counts(
            &id,
            &Default::default(),
            &library.runtime.counts(),
            start.elapsed(),
        );
    }
}

/// One thread writes to one group, then the other reads the root, and gets what has been written.
/// The read is timed, with the two looks at the clock that this takes.
fn after_a_write<S: Statistics + 'static>(
    statistics: Arc<S>,
    group: usize,
    idle: bool,
    read: impl Fn(&S) -> i64 + Send + Sync + 'static,
) -> Team {
    let written = Arc::new(AtomicI64::new(0));
    Team::new(2, move |station| {
        if station.index == 0 {
            station.serve_timed(|iters| reader(&station, iters, &written, || read(&statistics)));
        } else {
            let write = |group| {
                statistics.add(group, ITEM, 1);
                written.fetch_add(1, Ordering::Relaxed);
            };
            if idle {
                (1..=group).for_each(write);
                (0..IDLE).for_each(|_| statistics.flush(ROOT));
            }
            station.serve_timed(|iters| {
                for _ in 0..iters {
                    write(group);
                    station.meet();
                    station.meet();
                }
                Duration::ZERO
            });
        }
    })
}

fn reader(station: &Station, iters: u64, written: &AtomicI64, read: impl Fn() -> i64) -> Duration {
    let mut timed = Duration::ZERO;
    for _ in 0..iters {
        station.meet();
        let start = Instant::now();
        let value = read();
        timed += start.elapsed();
        assert_eq!(
            value,
            written.load(Ordering::Relaxed),
            "all that was written before the read"
        );
        station.meet();
    }
    timed
}

/// A read below its threshold flushes all the same while it takes the writer for idle, and not any
/// more when it has found that: as `Group::read` says, within 140 reads, and 30 more with few
/// writers.
const IDLE_READS: u64 = 170;

/// The kernel's read of a group that has been written since its last flush, but not much.
fn below_threshold() -> Team {
    let library = Library::new(&Shape::chain(4), Freshness::Threshold);
    Team::new(1, move |station| {
        let group = &library.groups[3];
        (0..TOUCHES).for_each(|_| group.stat_add(ITEM.stat(), 1));
        group.inspect().flush();
        group.stat_add(ITEM.stat(), 1);
        let before = library.runtime.counts().flushes;
        station.serve(|iters| {
            for _ in 0..iters {
                black_box(group.read(Freshness::Threshold).get(black_box(ITEM.stat())));
            }
            let flushes = library.runtime.counts().flushes - before;
            assert!(
                flushes <= IDLE_READS,
                "one event is below any threshold, {flushes} flushes for {iters} reads"
            );
        });
    })
}
