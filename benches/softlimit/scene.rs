//! The two groups of a run, and what came of it.

#![cfg(not(loom))]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use memcg::{Group, Limit, Limits, Reclaim, ReclaimPriority, Registration, Runtime};

use super::cache::{Cache, Counts};
use super::device::Waiters;
use super::policy::{Asked, Dispatcher, Own, Variant};

/// One of the groups.
pub(crate) struct Member {
    /// Its soft limit in bytes; `u64::MAX` for none.
    pub(crate) soft: u64,
    pub(crate) blocks: usize,
    pub(crate) dirty: bool,
}

/// Groups under one budget, reclaimed by one variant's rules.
pub(crate) struct Scene {
    pub(crate) runtime: Runtime,
    pub(crate) caches: Vec<Arc<Cache>>,
    pub(crate) asked: Arc<Asked>,
    _registrations: Vec<Registration>,
}

/// The result of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) system: f64,
    pub(crate) elapsed: f64,
    pub(crate) hits: f64,
    pub(crate) refaults: f64,
    /// Pages evicted, and pages that reclaimers were asked for.
    pub(crate) evicted: f64,
    pub(crate) asked: f64,
    /// Times that one was asked.
    pub(crate) asks: f64,
    pub(crate) refused: f64,
}

impl Scene {
    pub(crate) fn new(
        variant: Variant,
        budget: u64,
        members: &[Member],
        waiters: &Waiters,
    ) -> Self {
        let runtime = Runtime::builder()
            .max(Limit::Bytes(budget))
            .build()
            .expect("memory for a few groups");
        let root = runtime.root();
        let tree = variant.tree(members.len());
        let caches: Vec<_> = (members.iter().enumerate())
            .map(|(number, member)| {
                let group = create(&root, variant, number, member.soft);
                let tree = tree.as_ref().map(|tree| (Arc::clone(tree), number));
                Arc::new(Cache::new(group, member, tree))
            })
            .collect();
        let asked = Arc::new(Asked::default());
        let registrations = if variant == Variant::Reworkoptim {
            let own = |cache: &Arc<Cache>| {
                let own = Own {
                    cache: Arc::clone(cache),
                    asked: Arc::clone(&asked),
                    waiters: waiters.clone(),
                };
                cache
                    .group
                    .register_reclaimer(Arc::new(own) as Arc<dyn Reclaim>, ReclaimPriority::NORMAL)
            };
            caches.iter().map(own).collect()
        } else {
            let dispatcher = Dispatcher {
                variant,
                caches: caches.clone(),
                tree,
                asked: Arc::clone(&asked),
                waiters: waiters.clone(),
                turn: AtomicUsize::new(0),
            };
            vec![root.register_reclaimer(Arc::new(dispatcher), ReclaimPriority::NORMAL)]
        };
        Scene {
            runtime,
            caches,
            asked,
            _registrations: registrations,
        }
    }

    /// Reclaimers stay registered until the scene is dropped.
    pub(crate) fn run(&self, system: Duration, elapsed: Duration) -> Run {
        let sum = |of: fn(&Counts) -> u64| {
            self.caches
                .iter()
                .map(|cache| of(&cache.counts))
                .sum::<u64>() as f64
        };
        Run {
            system: system.as_secs_f64(),
            elapsed: elapsed.as_secs_f64(),
            hits: sum(|counts| counts.hits.load(Ordering::Relaxed)),
            refaults: sum(|counts| counts.refaults.load(Ordering::Relaxed)),
            evicted: sum(|counts| counts.evicted.load(Ordering::Relaxed)),
            asked: self.asked.pages(),
            asks: self.asked.times.load(Ordering::Relaxed) as f64,
            refused: sum(|counts| counts.refused.load(Ordering::Relaxed)),
        }
    }
}

/// The library knows of soft limits only where it is to act on them: the dispatchers go by what the
/// caches say.
fn create(root: &Group, variant: Variant, number: usize, soft: u64) -> Group {
    let limits = match soft {
        soft if soft < u64::MAX && variant == Variant::Reworkoptim => {
            Limits::new().soft(Limit::Bytes(soft))
        }
        _ => Limits::new(),
    };
    root.create(&format!("group-{number}"), limits)
        .expect("a free name in a group that is")
}
