//! The rows, and the goals.

#![cfg(not(loom))]

mod churn;
mod names;
mod siblings;

use std::hint::black_box;
use std::sync::Arc;

use memcg::{Group, Limits, Runtime};

use self::names::Names;
use crate::common::goals::Goals;
use crate::common::rows::Rows;
use crate::common::team::Team;

/// Bytes of the one charge.
const SIZE: u64 = 64;

/// Groups that come and go before the clock starts: the pools have found their size.
const TOUCHES: u64 = 1_000;

const CREATE_DESTROY_NANOS_MAX: f64 = 1_500.0;
const BARRIERS_MAX: f64 = 1.0;

pub(crate) fn main() {
    let mut rows = Rows::from_args();
    rows.wall("group/create_destroy", || team(&Arc::new(runtime()), 1));
    siblings::rows(&mut rows);
    let churns = churn::rows(&mut rows);

    let medians = rows.finish();
    let mut goals = Goals::new(&medians);
    goals.nanos("group/create_destroy", CREATE_DESTROY_NANOS_MAX);
    for churn in churns {
        goals.at_most(churn.what, churn.barriers_per_64, "barriers", BARRIERS_MAX);
    }
    goals.print();
}

fn runtime() -> Runtime {
    Runtime::builder().build().expect("nothing is asked for that cannot be had")
}

/// Each thread has a handle of its own on the root, and names of its own.
fn team(runtime: &Arc<Runtime>, threads: usize) -> Team {
    let runtime = Arc::clone(runtime);
    Team::new(threads, move |station| {
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
    })
}

fn create(root: &Group, names: &mut Names) -> Group {
    root.create(black_box(names.next()), Limits::new()).expect("a new name in a group that is online")
}

fn pair(group: &Group) {
    drop(group.try_charge(black_box(SIZE)).expect("no limit is set"));
}
