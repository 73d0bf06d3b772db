//! The file cache of one group.

#![cfg(not(loom))]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use memcg::{Bytes, Charge, Group};
use parking_lot::Mutex;

use super::lru::{Lru, PAGE, Page};
use super::policy::CLUSTER;
use super::scene::Member;
use super::system::timed;
use super::tree::SoftTree;

/// Charges for one page that a job makes before it gives up.
const TRIES_MAX: usize = 1_000;

/// The counts of its jobs, and of the bytes that were taken.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) refaults: AtomicU64,
    /// Pages.
    pub(crate) evicted: AtomicU64,
    /// Charges that were refused for good, and made again.
    pub(crate) refused: AtomicU64,
}

/// Under one lock. A stream uses each page once, so the oldest is the first to be written, too.
struct Pages {
    pages: Lru,
    /// Of a stream's pages, the oldest, which have been written.
    clean: usize,
    /// Those after them that reclaim has taken, to be freed when they have been written. There are
    /// none of these while there are clean ones.
    doomed: usize,
}

pub(crate) struct Cache {
    pub(crate) group: Group,
    /// Bytes from which on the group is in excess.
    soft: u64,
    /// A stream's: its pages are written before they are freed.
    dirty: bool,
    lru: Mutex<Pages>,
    /// Pages, and those of them that have been taken: to be read without the lock.
    len: AtomicUsize,
    doomed: AtomicUsize,
    /// The tree that gets its events, and the group's number there.
    tree: Option<(Arc<SoftTree>, usize)>,
    pub(crate) counts: Counts,
}

impl Cache {
    pub(crate) fn new(group: Group, member: &Member, tree: Option<(Arc<SoftTree>, usize)>) -> Self {
        Cache {
            group,
            soft: member.soft,
            dirty: member.dirty,
            lru: Mutex::new(Pages {
                pages: Lru::new(member.blocks),
                clean: 0,
                doomed: 0,
            }),
            len: AtomicUsize::new(0),
            doomed: AtomicUsize::new(0),
            tree,
            counts: Counts::default(),
        }
    }

    /// Reads a block through the cache; returns the processor time that its charge took.
    pub(crate) fn serve(&self, block: u32, rounds: u32) -> Duration {
        let seen = {
            let mut lru = self.lru.lock();
            if lru.pages.hit(block) {
                drop(lru);
                self.counts.hits.fetch_add(1, Ordering::Relaxed);
                return Duration::ZERO;
            }
            lru.pages.seen(block)
        };
        self.counts.misses.fetch_add(1, Ordering::Relaxed);
        self.counts
            .refaults
            .fetch_add(seen.into(), Ordering::Relaxed);
        let (charge, time) = timed(|| {
            let charge = self.charge();
            self.event(1);
            charge
        });
        let page = Page::read(block, rounds, charge);
        let late = {
            let mut lru = self.lru.lock();
            let late = lru.pages.insert(block, page);
            self.publish(&lru);
            late
        };
        // Another job has read the same block meanwhile.
        drop(late);
        time
    }

    /// As an allocation that may not fail: until it succeeds.
    fn charge(&self) -> Charge {
        for _ in 0..TRIES_MAX {
            if let Ok(charge) = self.group.charge(Bytes(PAGE)) {
                return charge;
            }
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
            thread::yield_now();
        }
        panic!("{}: no room after {TRIES_MAX} charges", self.group.path());
    }

    /// Takes so many of the pages that were used longest ago; returns how many are free now. Of a
    /// stream's pages only those are that have been written; the others are as soon as they have
    /// been.
    pub(crate) fn shrink(&self, pages: usize) -> usize {
        let mut left = pages;
        let mut freed = 0;
        while left > 0 {
            let cluster: Vec<Page> = {
                let mut lru = self.lru.lock();
                let free = if self.dirty {
                    lru.clean
                } else {
                    lru.pages.len()
                };
                let cluster = lru.pages.pop_many(left.min(CLUSTER).min(free));
                if self.dirty {
                    lru.clean -= cluster.len();
                    if cluster.is_empty() {
                        lru.doomed = (lru.doomed + left).min(lru.pages.len());
                    }
                }
                self.publish(&lru);
                cluster
            };
            if cluster.is_empty() {
                break;
            }
            left -= cluster.len();
            freed += cluster.len();
            self.free(cluster);
        }
        freed
    }

    /// The oldest pages that had not been written have been. Returns how many of them were waited
    /// for, and are free.
    pub(crate) fn written(&self, pages: usize) -> usize {
        let waited_for = {
            let mut lru = self.lru.lock();
            let doomed = lru.doomed;
            let waited_for = lru.pages.pop_many(pages.min(doomed));
            lru.doomed -= waited_for.len();
            lru.clean += pages - waited_for.len();
            self.publish(&lru);
            waited_for
        };
        let freed = waited_for.len();
        self.free(waited_for);
        freed
    }

    /// Pages that are still to be written.
    pub(crate) fn unwritten(&self) -> usize {
        let lru = self.lru.lock();
        if self.dirty {
            lru.pages.len() - lru.clean
        } else {
            0
        }
    }

    fn publish(&self, lru: &Pages) {
        self.len.store(lru.pages.len(), Ordering::Relaxed);
        self.doomed.store(lru.doomed, Ordering::Relaxed);
    }

    fn free(&self, pages: Vec<Page>) {
        let count = pages.len();
        drop(pages);
        if count > 0 {
            self.counts
                .evicted
                .fetch_add(count as u64, Ordering::Relaxed);
            self.event(count);
        }
    }

    /// Pages came or went.
    fn event(&self, pages: usize) {
        if let Some((tree, number)) = &self.tree {
            tree.event(*number, pages as u64, || self.excess());
        }
    }

    /// Bytes above the soft limit.
    pub(crate) fn excess(&self) -> u64 {
        if self.soft == u64::MAX {
            0
        } else {
            self.group.usage().saturating_sub(self.soft)
        }
    }

    /// Pages that can be taken.
    pub(crate) fn len(&self) -> usize {
        self.scannable() - self.doomed.load(Ordering::Relaxed).min(self.scannable())
    }

    /// Pages that a scan comes upon: those that have been taken and not written yet, too.
    pub(crate) fn scannable(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Some will be free when they have been written.
    pub(crate) fn owes(&self) -> bool {
        self.doomed.load(Ordering::Relaxed) > 0
    }
}
