//! Reclaim as a program that embeds it meets it: which group is asked, in which order, for how
//! much, and what a reclaimer may do.
//!
//! * `registration`: registered, gone, inherited; `priority`: which reclaimer is first in a group;
//! * `callback`: what a reclaimer may do while it is asked, and what it may not;
//! * `order`: soft limits first, protection last; `boundary`: what lies above the level under
//!   pressure is none of it;
//! * `share`: to each in proportion; `neighbour`: below low, too, and by small requests; `surplus`:
//!   where a parent's protection is shared; `weight`: by a figure that a reclaimer reads;
//! * `fruitless`, `lies`, `panics`: reclaimers that free nothing, say what is not so, or panic;
//! * `later`: answers that come afterwards; `time`: none that is asked after the time is over;
//! * `stuck`: one that does not return, as under a lock of its own thread;
//! * `contended`: several threads at one level;
//! * `verbs`: what may be refused asks first; `max`: a max below usage; `asked`: `Group::reclaim`;
//! * `events`: which group counts what;
//! * `excess`: which groups are counted as above a soft limit.

mod asked;
mod boundary;
mod callback;
mod contended;
mod events;
mod excess;
mod fruitless;
mod later;
mod lies;
mod max;
mod neighbour;
mod order;
mod panics;
mod priority;
mod registration;
mod share;
#[cfg(debug_assertions)]
mod stuck;
mod surplus;
mod time;
mod verbs;
mod weight;

use std::time::Duration;

use memcg::barrier::BarrierMode;
use memcg::{Bytes, Charge, Group, Limit, Limits, Runtime, RuntimeBuilder};

pub(crate) use crate::support::reclaimers::{Cache, Crowded, KIB, Log, MIB, call, call_of, lock};
pub(crate) use crate::support::trees::{LeftEmpty, build, create};

/// Long enough for a machine that stands still now and then: no test is over because time is.
const UNTIMED: Duration = Duration::from_secs(600);

/// No stock: usage is what is live, and what is asked for is what is missing.
pub(crate) fn bare() -> RuntimeBuilder {
    Runtime::builder()
        .audit(true)
        .batch(Bytes(0))
        .reclaim_time(UNTIMED)
}

/// Every kind of stock, on the hit path and beside it.
pub(crate) fn kinds() -> [RuntimeBuilder; 6] {
    let hits = Runtime::builder()
        .batch(Bytes(4 * KIB))
        .reclaim_time(UNTIMED);
    let audited = hits.clone().audit(true);
    [
        bare(),
        audited.clone().adaptive(false),
        audited.clone().adaptive(false).barrier(BarrierMode::Fence),
        audited,
        hits.clone(),
        hits.adaptive(false),
    ]
}

#[track_caller]
pub(crate) fn create_with(parent: &Group, name: &str, limits: Limits) -> Group {
    parent
        .create(name, limits)
        .expect("a name that is free, limits that hold")
}

#[track_caller]
pub(crate) fn charge(group: &Group, bytes: u64) -> Charge {
    group
        .charge(Bytes(bytes))
        .expect("room, or something to reclaim")
}

pub(crate) fn soft(bytes: u64) -> Limits {
    Limits::new().soft(Limit::Bytes(bytes))
}

/// `got` is `expected`, give or take so many hundredths of it.
#[track_caller]
pub(crate) fn assert_within(got: u64, expected: u64, percent: u64) {
    let off = got.abs_diff(expected);
    assert!(
        off * 100 <= expected * percent,
        "{got}, expected {expected} within {percent} %"
    );
}

/// Usage is within max at every level, and the whole tree adds up, the groups in excess included.
#[track_caller]
pub(crate) fn assert_sound(runtime: &Runtime) {
    let verdict = runtime.verify();
    assert!(verdict.is_ok(), "{verdict}");
    for group in runtime
        .root()
        .inspect()
        .descendants()
        .chain([runtime.root()])
    {
        let usage = group.usage();
        let forced = group.forced();
        let max = group.max();
        assert!(
            usage - forced <= max,
            "{}: usage {usage}, forced {forced}, max {max}",
            group.path()
        );
        let below = group
            .inspect()
            .descendants()
            .filter(|group| group.inspect().is_in_excess())
            .count() as u64;
        assert_eq!(
            group.inspect().descendants_in_excess(),
            below,
            "{}",
            group.path()
        );
    }
}

/// All has been given back and no group has a handle: nothing is left.
#[track_caller]
pub(crate) fn assert_empty(runtime: &Runtime) {
    runtime
        .root()
        .children()
        .iter()
        .for_each(Group::offline_tree);
    // A thread of the crate keeps a group until it is through with what a charge has left to it.
    crate::support::waiters::until("no thread keeps a group", || {
        runtime.settle();
        runtime.dying_count() == 0
    });
    assert_sound(runtime);
    let root = runtime.root();
    root.memory().drain();
    assert_eq!(
        (
            root.usage(),
            root.forced(),
            root.inspect().descendants_in_excess(),
            runtime.dying_count()
        ),
        (0, 0, 0, 0)
    );
    assert_sound(runtime);
}

pub(crate) fn left_empty(runtime: Runtime) -> LeftEmpty {
    LeftEmpty::by(assert_empty, runtime)
}

/// One after the other, a runtime of each kind.
pub(crate) fn runtimes() -> impl Iterator<Item = LeftEmpty> {
    kinds()
        .into_iter()
        .map(|builder| left_empty(build(builder)))
}
