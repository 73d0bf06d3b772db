//! `charge/current/…`: what it costs to be in a group. One iteration is one poll, one closure, one
//! guard or one checkpoint; `raw_pair` and `bare_poll` are there to compare with.

#![cfg(not(loom))]

use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use memcg::{Bytes, Group, InGroup, Limit, Limits, Runtime};

use super::group::{SIZE, TOUCHES, runtime};
use crate::common::rows::Rows;
use crate::common::team::Team;

pub(crate) fn rows(rows: &mut Rows) {
    let id = |name: &str| format!("charge/current/{name}/threads1");
    rows.wall(&id("raw_pair"), || {
        in_turns(|group, _| {
            group
                .raw()
                .charge(Bytes(black_box(SIZE)))
                .expect("no limit is set");
            group.raw().uncharge(Bytes(black_box(SIZE)));
        })
    });
    rows.wall(&id("bare_poll"), || polls(|_| Box::pin(never())));
    rows.wall(&id("poll_in_group"), || {
        polls(|group| Box::pin(never().in_group(group)))
    });
    rows.wall(&id("run"), || {
        in_turns(|group, _| group.run(|| black_box(())))
    });
    rows.wall(&id("enter"), || {
        in_turns(|group, _| drop(black_box(group.enter())))
    });
    rows.wall(&id("checkpoint"), || checkpoints(None));
    // Another group of the tree is above its max, and each checkpoint looks at its own.
    rows.wall(&id("checkpoint_beside_excess"), || {
        checkpoints(Some("other"))
    });
}

/// Two groups in turn, as two tasks of one thread.
fn in_turns(work: impl Fn(&Group, &Runtime) + Copy + Send + Sync + 'static) -> Team {
    Team::new(1, move |station| {
        let runtime = runtime(true);
        let groups = two(&runtime);
        let times =
            |times| (0..times).for_each(|turn: u64| work(&groups[turn as usize % 2], &runtime));
        times(TOUCHES);
        station.serve(times);
    })
}

fn two(runtime: &Runtime) -> [Group; 2] {
    ["a", "b"].map(|name| {
        runtime
            .root()
            .create(name, Limits::new())
            .expect("a name that is free")
    })
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A task that has nothing to do, so that the row has the poll alone.
fn never() -> impl Future<Output = ()> {
    poll_fn(|_| black_box(Poll::Pending))
}

fn polls(task: impl Fn(&Group) -> Task + Copy + Send + Sync + 'static) -> Team {
    Team::new(1, move |station| {
        let runtime = runtime(true);
        let mut tasks = two(&runtime).map(|group| task(&group));
        let context = &mut Context::from_waker(Waker::noop());
        station.serve(|times| {
            for turn in 0..times {
                let task = &mut tasks[turn as usize % 2];
                assert!(task.as_mut().poll(context).is_pending());
            }
        });
    })
}

fn checkpoints(above: Option<&'static str>) -> Team {
    Team::new(1, move |station| {
        let runtime = runtime(true);
        let [group, _] = two(&runtime);
        let _excess = above.map(|name| {
            let limits = Limits::new().max(Limit::Bytes(0));
            runtime
                .root()
                .create(name, limits)
                .expect("a name that is free")
                .force_charge(Bytes(SIZE))
        });
        group.run(|| {
            station.serve(|times| {
                (0..times).for_each(|_| Group::checkpoint().expect("it is within its max"))
            })
        });
    })
}
