//! `reclaim/{soft_pass,no_excess}/idle…`: one group that holds memory, beside idle ones; and the
//! baseline that looks at each of them.

#![cfg(not(loom))]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memcg::{
    Bytes, Group, Limit, Limits, Reclaim, ReclaimContext, ReclaimPriority, Registration, Runtime,
};

use super::WANT;
use super::cache::Cache;
use crate::common::rows::Rows;
use crate::common::team::Team;

const PAGE: u64 = 4_096;

/// The bytes of the one group: so many that none of them is missed.
const BYTES: u64 = 64 << 20;

/// Groups beside the idle ones, with room to spare.
const SPARE: u32 = 64;

const TOUCHES: u64 = 1_000;

/// The groups below the root beside the one that holds memory.
#[derive(Clone, Copy, PartialEq)]
enum Idle {
    Bare,
    /// With a soft limit, and a reclaimer that has nothing.
    Registered,
}

/// The way in which a row asks for memory.
#[derive(Clone, Copy, PartialEq)]
enum Ask {
    Reclaim,
    /// A charge at the root's max that is as large.
    Charge,
    /// A charge of a page, as a stream makes them one after the other: one of 32 needs reclaim.
    Page,
}

#[derive(Clone, Copy)]
struct Row {
    excess: bool,
    idle: usize,
    kind: Idle,
    ask: Ask,
    /// One reclaimer at the root that looks at every group, as the series' first three patches did.
    skip: bool,
    /// Groups count for how long their chargers stand still.
    stalls: bool,
}

/// Groups visited, by id of the row.
pub(crate) type Visited = BTreeMap<String, PerReclaim>;

/// Means of one row.
pub(crate) struct PerReclaim {
    pub(crate) all: f64,
    /// Because they, or groups above them, are in excess.
    pub(crate) soft: f64,
}

#[derive(Default)]
struct Tally {
    reclaims: AtomicU64,
    visited: AtomicU64,
    soft_visited: AtomicU64,
}

pub(crate) fn rows(rows: &mut Rows) -> Visited {
    let mut visited = Visited::new();
    let basic = Row {
        excess: true,
        idle: 0,
        kind: Idle::Bare,
        ask: Ask::Reclaim,
        skip: true,
        stalls: true,
    };
    let mut run = |name: &str, row: Row| {
        let id = format!("reclaim/{name}/idle{}", row.idle);
        let tally = Arc::new(Tally::default());
        rows.wall(&id, || team(row, &tally));
        if rows.ran(&id)
            && let Some(mean) = tally.mean()
        {
            println!(
                "{id}: {:.3} groups visited a reclaim, {:.3} of them for excess\n",
                mean.all, mean.soft
            );
            visited.insert(id, mean);
        }
    };
    for idle in [0, 512, 2_048, 8_192] {
        run("soft_pass", Row { idle, ..basic });
    }
    for idle in [0, 512, 2_048, 8_192] {
        run(
            "soft_pass_registered",
            Row {
                idle,
                kind: Idle::Registered,
                ..basic
            },
        );
    }
    for idle in [0, 8_192] {
        run(
            "no_excess",
            Row {
                idle,
                excess: false,
                ..basic
            },
        );
    }
    for idle in [0, 8_192] {
        run(
            "no_excess_registered",
            Row {
                idle,
                excess: false,
                kind: Idle::Registered,
                ..basic
            },
        );
    }
    for idle in [0, 8_192] {
        run(
            "walk_without_skipping",
            Row {
                idle,
                skip: false,
                ..basic
            },
        );
    }
    for (name, ask) in [("charge_at_max", Ask::Charge), ("stream", Ask::Page)] {
        for idle in [0, 8_192] {
            run(name, Row { idle, ask, ..basic });
        }
    }
    for (name, ask) in [
        ("charge_at_max_uncounted", Ask::Charge),
        ("stream_uncounted", Ask::Page),
    ] {
        run(
            name,
            Row {
                ask,
                stalls: false,
                ..basic
            },
        );
    }
    visited
}

impl Tally {
    fn add(&self, reclaims: u64, visited: u64, soft_visited: u64) {
        self.reclaims.fetch_add(reclaims, Ordering::Relaxed);
        self.visited.fetch_add(visited, Ordering::Relaxed);
        self.soft_visited.fetch_add(soft_visited, Ordering::Relaxed);
    }

    /// `None` where nothing was counted: a charge does not report how many groups it visited.
    fn mean(&self) -> Option<PerReclaim> {
        let reclaims = self.reclaims.load(Ordering::Relaxed);
        let per = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64 / reclaims as f64;
        (reclaims > 0).then(|| PerReclaim {
            all: per(&self.visited),
            soft: per(&self.soft_visited),
        })
    }
}

/// The scene of a row, for as long as it runs.
struct Scene {
    runtime: Runtime,
    cache: Arc<Cache>,
    active: Group,
    /// Groups stay without handles, but the walk has to find them, and their reclaimers have to
    /// stay.
    _idle: Vec<Registration>,
    _registration: Registration,
}

fn team(row: Row, tally: &Arc<Tally>) -> Team {
    let tally = Arc::clone(tally);
    Team::new(1, move |station| {
        let scene = Scene::new(row, &tally);
        scene.asks(row, TOUCHES, None);
        station.serve(|iters| scene.asks(row, iters, row.skip.then_some(&tally)));
    })
}

impl Scene {
    fn new(row: Row, tally: &Arc<Tally>) -> Self {
        let most = u32::try_from(row.idle).expect("thousands") + SPARE;
        let max = if row.ask == Ask::Reclaim {
            Limit::Unlimited
        } else {
            Limit::Bytes(BYTES)
        };
        let runtime = Runtime::builder()
            .max(max)
            .groups_max(most)
            .count_stalls(row.stalls)
            .build()
            .expect("memory for so many");
        let root = runtime.root();
        let mut idle = Vec::new();
        let mut groups = vec![root.clone()];
        for number in 0..row.idle {
            let limits = match row.kind {
                Idle::Bare => Limits::new(),
                Idle::Registered => Limits::new().soft(Limit::Bytes(BYTES)),
            };
            let group = root
                .create(&format!("idle-{number}"), limits)
                .expect("a free name in a group that is");
            if row.kind == Idle::Registered {
                idle.push(group.register_reclaimer(Arc::new(Nothing), ReclaimPriority::NORMAL));
            }
            groups.push(group);
        }
        let soft = if row.excess {
            Limit::Bytes(BYTES / 2)
        } else {
            Limit::Unlimited
        };
        let active = root
            .create("active", Limits::new().soft(soft))
            .expect("a free name in a group that is");
        groups.push(active.clone());
        let cache = Arc::new(Cache::new(&active, BYTES));
        let registration = if row.skip {
            active.register_reclaimer(
                Arc::clone(&cache) as Arc<dyn Reclaim>,
                ReclaimPriority::NORMAL,
            )
        } else {
            let walk = Walk {
                groups,
                active: active.clone(),
                cache: Arc::clone(&cache),
                tally: Arc::clone(tally),
            };
            root.register_reclaimer(Arc::new(walk), ReclaimPriority::NORMAL)
        };
        Scene {
            runtime,
            cache,
            active,
            _idle: idle,
            _registration: registration,
        }
    }

    fn asks(&self, row: Row, times: u64, tally: Option<&Tally>) {
        let root = self.runtime.root();
        let mut visited = 0;
        let mut soft_visited = 0;
        for _ in 0..times {
            match row.ask {
                Ask::Reclaim => {
                    let mut left = black_box(WANT);
                    while left > 0 {
                        let report = root
                            .reclaim(Bytes(left))
                            .expect("no group is inside a reclaimer");
                        assert!(
                            report.freed > 0 || report.timed_out,
                            "the cache has it: {report:?}"
                        );
                        left = left.saturating_sub(report.freed);
                        visited += report.visited;
                        soft_visited += report.soft_visited;
                    }
                    self.cache.refill();
                }
                Ask::Charge | Ask::Page => {
                    let bytes = if row.ask == Ask::Page { PAGE } else { WANT };
                    let charge = self
                        .active
                        .charge(Bytes(black_box(bytes)))
                        .expect("the cache makes room");
                    self.cache.put(charge);
                }
            }
        }
        if let Some(tally) = tally
            && row.ask == Ask::Reclaim
        {
            tally.add(times, visited, soft_visited);
        }
    }
}

/// The reclaimer of an idle group.
struct Nothing;

impl Reclaim for Nothing {
    fn reclaim(&self, _want: u64, _context: &ReclaimContext<'_>) -> u64 {
        0
    }

    fn reclaimable(&self) -> u64 {
        0
    }
}

/// A pass over all groups for those in excess. That the list is at hand, and no group has to be
/// kept from going, is for nothing.
struct Walk {
    groups: Vec<Group>,
    active: Group,
    cache: Arc<Cache>,
    tally: Arc<Tally>,
}

impl Reclaim for Walk {
    fn reclaim(&self, want: u64, _context: &ReclaimContext<'_>) -> u64 {
        let mut freed = 0;
        for group in &self.groups {
            if group.inspect().is_in_excess() && *group == self.active {
                freed += self.cache.evict(want);
            }
        }
        let visited = self.groups.len() as u64;
        self.tally.add(1, visited, visited);
        freed
    }

    fn reclaimable(&self) -> u64 {
        self.cache.bytes()
    }
}
