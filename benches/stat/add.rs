//! `stat/add…`: one iteration is one add of one event, unless the row says otherwise.

#![cfg(not(loom))]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use memcg::{Freshness, Group, Runtime, StatKey, Unit};

use super::{ITEM, TOUCHES, print_counts};
use crate::common::rows::Rows;
use crate::common::statistics::Statistics;
use crate::common::statistics::library::Library;
use crate::common::statistics::rstat::{Policy, Rstat};
use crate::common::statistics::shape::Shape;
use crate::common::team::Team;

/// The group's depth where the row does not name it.
const DEPTH: usize = 4;

/// Between two reads.
const PERIOD: Duration = Duration::from_millis(1);

pub(crate) fn rows(rows: &mut Rows) {
    for threads in [1, 2] {
        rows.wall(&format!("stat/add/threads{threads}"), || {
            library(DEPTH, threads)
        });
        add_read(rows, threads);
    }
    for depth in [1, 4, 8] {
        rows.wall(&format!("stat/add/depth{depth}/threads1"), || {
            library(depth, 1)
        });
        rows.wall(&format!("stat/add_walk/depth{depth}"), || {
            old(
                Rstat::new(Policy::Subtree, Shape::chain(depth)),
                depth - 1,
                1,
            )
        });
    }
    rows.wall("stat/add_bytes/threads1", bytes);
    rows.wall("stat/add_registered/threads1", registered);
    rows.wall("stat/add_guard/threads1", guard);
}

pub(crate) fn old_way<S: Statistics + 'static>(
    rows: &mut Rows,
    name: &str,
    make: impl Fn(Shape) -> S,
) {
    for threads in [1, 2] {
        let id = format!("stat/{name}/add/threads{threads}");
        rows.wall(&id, || old(make(Shape::chain(DEPTH)), DEPTH - 1, threads));
    }
}

fn old<S: Statistics + 'static>(statistics: S, group: usize, threads: usize) -> Team {
    Team::new(threads, move |station| {
        let adds = |times| (0..times).for_each(|_| statistics.add(group, ITEM, black_box(1)));
        adds(TOUCHES);
        station.serve(adds);
    })
}

fn chain(depth: usize) -> Library {
    Library::new(&Shape::chain(depth), Freshness::Exact)
}

fn library(depth: usize, threads: usize) -> Team {
    adding(chain(depth), threads, |group| {
        group.stat_add(ITEM.stat(), black_box(1))
    })
}

/// Each thread has a handle of its own on the last group.
fn adding(library: Library, threads: usize, add: impl Fn(&Group) + Send + Sync + 'static) -> Team {
    Team::new(threads, move |station| {
        let group = last(&library);
        let adds = |times| (0..times).for_each(|_| add(&group));
        adds(TOUCHES);
        station.serve(adds);
    })
}

fn last(library: &Library) -> Group {
    library.groups[library.groups.len() - 1].clone()
}

/// Bytes are counted in grains of a page: less than one is one.
fn bytes() -> Team {
    adding(chain(DEPTH), 1, |group| {
        group.stat_add(StatKey::ANON, black_box(64))
    })
}

/// An item of the builder's, which the compiler does not know.
fn registered() -> Team {
    let mut builder = Runtime::builder();
    let stat = builder.stat("retries", Unit::Events);
    let library = Library::build(builder, &Shape::chain(DEPTH), Freshness::Exact);
    adding(library, 1, move |group| {
        group.stat_add(black_box(stat), black_box(1))
    })
}

/// Through the guard of a charge.
fn guard() -> Team {
    let library = chain(DEPTH);
    Team::new(1, move |station| {
        let charge = last(&library).force_charge(64);
        let adds = |times| (0..times).for_each(|_| charge.stat_add(ITEM.stat(), black_box(1)));
        adds(TOUCHES);
        station.serve(adds);
    })
}

/// The same while a thread beside reads the group exactly each millisecond.
fn add_read(rows: &mut Rows, threads: usize) {
    let id = format!("stat/add_read/threads{threads}");
    let library = Arc::new(chain(DEPTH));
    let before = library.runtime.counts();
    let start = Instant::now();
    rows.wall(&id, || {
        let reader = Reader::start(last(&library));
        let library = Arc::clone(&library);
        Team::new(threads, move |station| {
            let _reader = &reader;
            let group = last(&library);
            let adds = |times| (0..times).for_each(|_| group.stat_add(ITEM.stat(), black_box(1)));
            adds(TOUCHES);
            station.serve(adds);
        })
    });
    if rows.ran(&id) {
        print_counts(&id, &before, &library.runtime.counts(), start.elapsed());
    }
}

/// Reads until it is dropped.
struct Reader {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    fn start(group: Group) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let read = move || {
            let mut before = 0;
            while !stopped.load(Ordering::Relaxed) {
                let now = group.read(Freshness::Exact).get(ITEM.stat());
                assert!(now >= before, "{now} events after {before}");
                before = now;
                thread::sleep(PERIOD);
            }
        };
        Reader {
            stop,
            thread: Some(thread::spawn(read)),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("figures of events never fall");
        }
    }
}
