//! The rows, and the goals.

#![cfg(not(loom))]

mod align;
mod churn;
mod figures;
mod map;
mod names;
mod siblings;
mod snapshot;
mod unrelated;

use std::hint::black_box;
use std::sync::Arc;

use memcg::{Bytes, Group, Limits, Runtime};
use memcg_bench_rows::{Bench, Goals, parse_rows};

use self::names::Names;
use crate::common::rows::{self, Rows};
use crate::common::team::{Station, Team};

/// Bytes of the one charge.
pub(crate) const SIZE: u64 = 64;

/// Groups that come and go before the clock starts: the pools have found their size.
const TOUCHES: u64 = 1_000;

const BENCH: Bench = Bench {
    name: "group",
    about: "Groups that come and go.\n\
            One iteration creates a group, charges it once, takes it offline and drops the handle, unless the row says\n\
            otherwise. `figures` prints every figure of idle groups, with the machine.",
};

/// From create to release, to the same of a count in a map behind a mutex.
pub(crate) const CREATE_DESTROY_MAX: f64 = 8.0;
/// Slowest to fastest, from one sibling to the most.
pub(crate) const SIBLINGS_FLAT: f64 = 1.25;
/// Create to release by two threads side by side, to one by one.
pub(crate) const TWO_THREADS_MAX: f64 = 1.0;
/// The gain of two threads in one runtime, as a part of their gain in two.
pub(crate) const SCALING_MIN: f64 = 0.75;
/// Barriers, for so many releases.
pub(crate) const BARRIERS_MAX: f64 = 1.0;
pub(crate) const RELEASES: f64 = 64.0;

pub(crate) fn main() {
    if figures::is_alone() {
        return;
    }
    let options: figures::Options = parse_rows(&BENCH);
    let mut churns = Vec::new();
    let mut define = |rows: &mut Rows| {
        rows.wall("group/create_destroy", || team(&Arc::new(runtime()), 1));
        rows.wall(map::ID, map::team);
        unrelated::rows(rows);
        siblings::rows(rows);
        snapshot::rows(rows);
        align::rows(rows);
        churns = churn::rows(rows);
    };
    if figures::run(&options, rows::all_ids(&options.rows, &mut define)) {
        return;
    }
    let measured = rows::run_with(&BENCH, &options.rows, define);
    let mut goals = Goals::new(&measured);
    goals.ratio("group/create_destroy", map::ID, CREATE_DESTROY_MAX);
    for threads in [1, 2] {
        let ids: Vec<String> = siblings::counts()
            .into_iter()
            .map(|count| siblings::id(count, threads))
            .collect();
        let what = format!("group/create_destroy/siblings*/threads{threads}: slowest / fastest");
        goals.flat(&what, &ids, SIBLINGS_FLAT);
    }
    for count in siblings::counts() {
        // Each of two threads may take twice as long: together they are as fast as one.
        goals.ratio(
            &siblings::id(count, 2),
            &siblings::id(count, 1),
            2.0 * TWO_THREADS_MAX,
        );
    }
    for count in siblings::counts() {
        // Two threads in one runtime gain this much of what they gain in two.
        let gain =
            |of: &dyn Fn(usize) -> String| Some(goals.median(&of(1))? / goals.median(&of(2))?);
        if let Some((one, two)) =
            gain(&|threads| siblings::id(count, threads)).zip(gain(&unrelated::id))
        {
            goals.at_most(
                format!("gain of two threads, unrelated / siblings{count}"),
                two / one,
                "x",
                1.0 / SCALING_MIN,
            );
        }
    }
    for churn in churns {
        goals.at_most(churn.what, churn.barriers_per_64, "barriers", BARRIERS_MAX);
    }
    goals.print();
}

pub(crate) fn runtime() -> Runtime {
    Runtime::builder()
        .build()
        .expect("nothing is asked for that cannot be had")
}

/// Each thread has a handle of its own on the root, and names of its own.
pub(crate) fn team(runtime: &Arc<Runtime>, threads: usize) -> Team {
    let runtime = Arc::clone(runtime);
    Team::new(threads, move |station| serve(&runtime, &station))
}

pub(crate) fn serve(runtime: &Runtime, station: &Station) {
    let root = runtime.root();
    let mut names = Names::new(station.index);
    let mut lives = |times| {
        for _ in 0..times {
            let group = create(&root, &mut names);
            pair(&group);
            group.offline().expect("no child is online");
        }
    };
    lives(TOUCHES);
    station.serve(lives);
}

pub(crate) fn create(root: &Group, names: &mut Names) -> Group {
    root.create(black_box(names.next()), Limits::new())
        .expect("a new name in a group that is online")
}

#[inline(always)]
pub(crate) fn pair(group: &Group) {
    drop(
        group
            .charge(Bytes(black_box(SIZE)))
            .expect("no limit is set"),
    );
}
