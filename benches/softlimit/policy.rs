//! The ways to choose the groups to reclaim.

#![cfg(not(loom))]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use clap::ValueEnum;
use memcg::{Reclaim, ReclaimContext};

use super::cache::Cache;
use super::device::Waiters;
use super::lru::PAGE;
use super::tree::SoftTree;

/// SWAP_CLUSTER_MAX: pages that are taken from a list at a time.
pub(crate) const CLUSTER: usize = 32;

/// DEF_PRIORITY: a scan begins with a 4,096th of the pages.
const PRIORITY: u32 = 12;

/// MEM_CGROUP_MAX_RECLAIM_LOOPS, MEM_CGROUP_MAX_SOFT_LIMIT_RECLAIM_LOOPS.
const ROUNDS_MAX: usize = 100;
const TRIES_MAX: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Variant {
    /// The largest excess, whole
    Base,
    /// The same, but a visit ends after 32 pages, as the code of the time had it: until a quarter
    /// of the excess is freed, or after 100 rounds
    BaseQuarter,
    Rework,
    Reworkoptim,
}

impl Variant {
    pub(crate) fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The tree that its groups are in.
    pub(crate) fn tree(self, groups: usize) -> Option<Arc<SoftTree>> {
        matches!(self, Variant::Base | Variant::BaseQuarter)
            .then(|| Arc::new(SoftTree::new(groups)))
    }
}

/// The bytes that reclaimers were asked for, and the number of requests.
#[derive(Default)]
pub(crate) struct Asked {
    bytes: AtomicU64,
    pub(crate) times: AtomicU64,
}

impl Asked {
    pub(crate) fn pages(&self) -> f64 {
        self.bytes.load(Ordering::Relaxed) as f64 / PAGE as f64
    }

    fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.times.fetch_add(1, Ordering::Relaxed);
    }
}

/// The reclaimer of one cache, for the library to choose.
pub(crate) struct Own {
    pub(crate) cache: Arc<Cache>,
    pub(crate) asked: Arc<Asked>,
    pub(crate) waiters: Waiters,
}

impl Reclaim for Own {
    fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
        self.asked.add(want);
        let freed = self.cache.shrink(in_pages(want)) as u64 * PAGE;
        if freed < want && self.cache.owes() {
            self.waiters.wait(context.promise(), want - freed);
        }
        freed
    }

    fn reclaimable(&self) -> u64 {
        self.cache.len() as u64 * PAGE
    }
}

/// The one reclaimer at the root, which chooses by itself.
pub(crate) struct Dispatcher {
    pub(crate) variant: Variant,
    pub(crate) caches: Vec<Arc<Cache>>,
    pub(crate) tree: Option<Arc<SoftTree>>,
    pub(crate) asked: Arc<Asked>,
    pub(crate) waiters: Waiters,
    /// The group where the last walk began.
    pub(crate) turn: AtomicUsize,
}

impl Reclaim for Dispatcher {
    fn reclaim(&self, want: u64, context: &ReclaimContext<'_>) -> u64 {
        self.asked.add(want);
        let mut round = Round {
            want: in_pages(want),
            freed: 0,
        };
        for priority in (0..=PRIORITY).rev() {
            match &self.tree {
                Some(tree) => {
                    self.soft_reclaim(tree, &mut round);
                    if round.freed < round.want {
                        self.shrink_zone(priority, &mut round, |_| true);
                    }
                }
                None => {
                    // The second pass comes at the same priority, and only where the first has
                    // scanned nothing.
                    if self.shrink_zone(priority, &mut round, |cache| cache.excess() > 0) == 0 {
                        self.shrink_zone(priority, &mut round, |_| true);
                    }
                }
            }
            if round.freed >= round.want {
                break;
            }
        }
        // Reclaim waits for a device only where it has come to too little.
        let freed = round.freed as u64 * PAGE;
        if freed < want && self.caches.iter().any(|cache| cache.owes()) {
            self.waiters.wait(context.promise(), want - freed);
        }
        freed
    }
}

/// One call of the dispatcher, in pages.
struct Round {
    want: usize,
    freed: usize,
}

impl Dispatcher {
    /// `mem_cgroup_soft_limit_reclaim`.
    fn soft_reclaim(&self, tree: &SoftTree, round: &mut Round) {
        let mut next = tree.pop_largest();
        let mut tries = 0;
        while let Some(group) = next {
            let freed = self.soft_reclaim_group(group);
            round.freed += freed;
            next = if freed == 0 { tree.pop_largest() } else { None };
            tree.update(group, self.caches[group].excess());
            tries += 1;
            if freed == 0 && tries > TRIES_MAX {
                if let Some(taken) = next {
                    tree.update(taken, self.caches[taken].excess());
                }
                break;
            }
        }
    }

    /// `mem_cgroup_soft_reclaim`: rounds over the hierarchy below the group, which here is itself,
    /// at priority 0.
    fn soft_reclaim_group(&self, group: usize) -> usize {
        let cache = &self.caches[group];
        let excess = in_pages(cache.excess());
        let mut total = 0;
        let mut rounds = 0;
        loop {
            let whole = cache.len();
            let visit = if self.variant == Variant::Base {
                whole
            } else {
                whole.min(CLUSTER)
            };
            total += cache.shrink(visit);
            if cache.excess() == 0 {
                break;
            }
            rounds += 1;
            if rounds >= 2 && (total == 0 || total >= excess / 4 || rounds > ROUNDS_MAX) {
                break;
            }
        }
        total
    }

    /// `shrink_zone`: every group that is eligible, each by its share at this priority. Returns
    /// pages scanned.
    fn shrink_zone(
        &self,
        priority: u32,
        round: &mut Round,
        is_eligible: impl Fn(&Cache) -> bool,
    ) -> usize {
        let start = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut scanned = 0;
        for step in 0..self.caches.len() {
            let group = (start + step) % self.caches.len();
            let cache = &self.caches[group];
            if !is_eligible(cache) {
                continue;
            }
            let mut left = cache.scannable() >> priority;
            let mut freed = 0;
            // `shrink_lruvec`: below the first priority a group has done enough when it has given
            // what is wanted.
            while left > 0 && (freed < round.want || priority == PRIORITY) {
                let pages = left.min(CLUSTER);
                freed += cache.shrink(pages);
                scanned += pages;
                left -= pages;
            }
            round.freed += freed;
        }
        scanned
    }
}

fn in_pages(bytes: u64) -> usize {
    bytes.div_ceil(PAGE) as usize
}
