//! `group/align/…`: groups at whole cache lines, and packed. What the patch series asserts of
//! alignment, measured.
//!
//! Neighbours in memory belong to different threads, which charge them at the same time. Those of
//! one thread are in a runtime of its own: nothing but the place in memory is common to two
//! threads, no line of a parent hides what that does.
//!
//! * `group/align/{line,packed}`: without stock, so that each charge and uncharge writes the usage
//!   of its group;
//! * `…/hit/…`: the same from the stock, as groups are charged nearly always;
//! * `…/many/…`: without stock, over so many groups that they do not fit into the nearer caches;
//! * `…/create_destroy/…`: two threads that create and destroy in one runtime, as
//!   `group/create_destroy` does.
//!
//! All on a machine of two nodes by table: on one node a group's object is as large as four lines,
//! the same both ways.

#![cfg(not(loom))]

use std::sync::Arc;

use memcg::footprint::PoolAlign;
use memcg::kmem::{NodeId, Topology};
use memcg::{Bytes, Group, Limits, Runtime, RuntimeBuilder};

use super::{pair, team as lives};
use crate::common::rows::Rows;
use crate::common::team::Team;
use crate::common::turns::Turns;

/// Groups of each thread: few enough for the nearest cache, and too many for all but the last.
const FEW: usize = 16;
const MANY: usize = 20_000;

/// Groups that keep the root of one runtime from that of the next, and from all that is charged.
const APART: usize = 8;

/// Rounds over all groups before the clock starts.
const ROUNDS: u64 = 3;

/// A call on groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Walk,
    Hit,
    Many,
    CreateDestroy,
}

impl What {
    pub(crate) const ALL: [What; 4] = [What::Walk, What::Hit, What::Many, What::CreateDestroy];

    pub(crate) fn id(self, align: PoolAlign, threads: usize) -> String {
        let what = match self {
            What::Walk => "",
            What::Hit => "hit/",
            What::Many => "many/",
            What::CreateDestroy => "create_destroy/",
        };
        format!("group/align/{what}{}/threads{threads}", name(align))
    }

    pub(crate) fn says(self) -> String {
        match self {
            What::Walk => format!("a charge up the tree, {FEW} groups of each thread"),
            What::Hit => format!("a charge from the stock, {FEW} groups of each thread"),
            What::Many => format!("a charge up the tree, {MANY} groups of each thread"),
            What::CreateDestroy => "create to release".to_owned(),
        }
    }
}

pub(crate) fn name(align: PoolAlign) -> &'static str {
    match align {
        PoolAlign::Packed => "packed",
        _ => "line",
    }
}

pub(crate) fn rows(rows: &mut Rows) {
    for what in What::ALL {
        for align in [PoolAlign::CacheLine, PoolAlign::Packed] {
            for threads in [1, 2] {
                rows.wall(&what.id(align, threads), || team(what, align, threads));
            }
        }
    }
}

pub(crate) fn team(what: What, align: PoolAlign, threads: usize) -> Team {
    match what {
        What::CreateDestroy => lives(
            &Arc::new(builder(align).build().expect("memory for a root")),
            threads,
        ),
        What::Hit => charges(Neighbours::new(align, true, FEW), threads),
        What::Walk => charges(Neighbours::new(align, false, FEW), threads),
        What::Many => charges(Neighbours::new(align, false, MANY), threads),
    }
}

fn builder(align: PoolAlign) -> RuntimeBuilder {
    let nodes = Topology::fixed([0, 1].map(|node| (NodeId::new(node), [usize::from(node)])));
    Runtime::builder()
        .topology(nodes.expect("each processor once"))
        .pool_align(align)
}

/// The bytes of a group's object.
pub(crate) fn given(align: PoolAlign) -> usize {
    let runtime = builder(align).build().expect("memory for a root");
    runtime.pools().rows()[0].given
}

/// Groups of two runtimes, each beside one of the other.
pub(crate) struct Neighbours {
    pub(crate) groups: [Vec<Group>; 2],
    _runtimes: [Runtime; 2],
}

impl Neighbours {
    pub(crate) fn new(align: PoolAlign, stock: bool, count: usize) -> Self {
        let runtimes = [0, 1].map(|_| {
            let builder = if stock {
                builder(align)
            } else {
                builder(align).batch(Bytes(0))
            };
            let runtime = builder.build().expect("memory for a root");
            (0..APART).for_each(|number| drop(create(&runtime, "apart", number)));
            runtime
        });
        let mut groups = [Vec::with_capacity(count), Vec::with_capacity(count)];
        // The pool gives objects side by side, so every second one is the other's.
        for number in 0..count {
            for (runtime, groups) in runtimes.iter().zip(&mut groups) {
                groups.push(create(runtime, "neighbour", number));
            }
        }
        Neighbours {
            groups,
            _runtimes: runtimes,
        }
    }

    /// The share of groups that have an object of the other runtime on both sides, in per cent.
    pub(crate) fn beside(&self) -> f64 {
        let mut all: Vec<(memcg::GroupId, usize)> = Vec::new();
        for (of, groups) in self.groups.iter().enumerate() {
            all.extend(groups.iter().map(|group| (group.id(), of)));
        }
        // Ids are in the order of objects.
        all.sort_unstable();
        let between = all
            .windows(3)
            .filter(|three| three[0].1 != three[1].1 && three[1].1 != three[2].1);
        between.count() as f64 / (all.len() - 2) as f64 * 100.0
    }
}

fn create(runtime: &Runtime, what: &str, number: usize) -> Group {
    runtime
        .root()
        .create(&format!("{what}-{number}"), Limits::new())
        .expect("a new name")
}

/// One thread has the groups of the first runtime alone; the second those of the other.
fn charges(neighbours: Neighbours, threads: usize) -> Team {
    Team::new(threads, move |station| {
        // Groups go offline with their runtime.
        let neighbours = &neighbours;
        let groups = neighbours.groups[station.index].clone();
        let mut turns = Turns::new(groups.len(), 0, 1);
        turns.run(ROUNDS * groups.len() as u64, |index| pair(&groups[index]));
        station.serve(|iters| turns.run(iters, |index| pair(&groups[index])));
    })
}
