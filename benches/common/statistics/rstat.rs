//! The kernel's rstat in user space, with the ways of flushing that it has had.
//!
//! A thread adds to cells of its own and puts the group on its tree of updated groups. A flush goes
//! over all threads under one lock and folds the cells of what it finds on their trees into the
//! groups, children first, each forwarding to its parent what it got.

#![cfg(not(loom))]

mod updated;

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread;

use parking_lot::{Condvar, Mutex};

use self::updated::{Cells, Updated};
use super::shape::Shape;
use super::threads::Threads;
use super::{BATCH, Events, Item, ROOT, Statistics};

/// Which thread flushes what, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Policy {
    /// Before the patch series: a flush is one of the whole tree, by one thread at a time. A thread
    /// that finds one under way returns at once. One count of changes decides whether to.
    UnifiedSkip,
    /// The same, but a thread that finds one under way waits until it is done.
    UnifiedWait,
    /// The subtree that is asked for, by each thread that asks; still with one count of changes for
    /// all.
    GlobalThreshold,
    /// After the patch series: the subtree that is asked for, with a count for each group, for
    /// which every change goes up the tree.
    Subtree,
}

/// The step that a flush has reached when its hook is called.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stage {
    /// Nothing has been read yet.
    Begun,
    /// Everything has been read, and the flush is still under way.
    Gathered,
}

/// Called in the middle of every flush, so that a test can hold it there.
pub(crate) type Hook = Box<dyn Fn(Stage) + Send + Sync>;

/// One group's figures.
struct Figures {
    /// With all below.
    total: [AtomicI64; Item::COUNT],
    /// From children that were flushed, not yet in `total`; under the global lock.
    pending: [AtomicI64; Item::COUNT],
    /// Grains since the last flush, as far as threads have told.
    updates: AtomicU64,
}

/// The flush that is under way, where they are unified and waited for.
#[derive(Default)]
struct UnderWay {
    running: bool,
    finished: u64,
}

pub(crate) struct Rstat {
    policy: Policy,
    shape: Shape,
    /// The kernel's number of processors: what its thresholds are multiples of.
    processors: u64,
    threads: Threads<Updated>,
    figures: Box<[Figures]>,
    /// Batches since the last flush of the whole tree.
    batches: AtomicU64,
    /// `stats_flush_ongoing`.
    ongoing: AtomicBool,
    under_way: Mutex<UnderWay>,
    done: Condvar,
    /// The global lock; what it holds is scratch.
    lock: Mutex<Vec<u32>>,
    hook: Option<Hook>,
    flushes: AtomicU64,
    visits: AtomicU64,
    skipped: AtomicU64,
    waited: AtomicU64,
}

impl Rstat {
    pub(crate) fn new(policy: Policy, shape: Shape) -> Self {
        let figures = || Figures {
            total: Default::default(),
            pending: Default::default(),
            updates: AtomicU64::new(0),
        };
        Rstat {
            policy,
            processors: thread::available_parallelism().map_or(1, |count| count.get() as u64),
            threads: Threads::new(),
            figures: (0..shape.len()).map(|_| figures()).collect(),
            shape,
            batches: AtomicU64::new(0),
            ongoing: AtomicBool::new(false),
            under_way: Mutex::default(),
            done: Condvar::new(),
            lock: Mutex::default(),
            hook: None,
            flushes: AtomicU64::new(0),
            visits: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            waited: AtomicU64::new(0),
        }
    }

    /// As on a machine of so many processors. With none, a read flushes after the first batch of
    /// changes.
    pub(crate) fn processors(mut self, processors: u64) -> Self {
        self.processors = processors;
        self
    }

    pub(crate) fn hook(mut self, hook: Hook) -> Self {
        self.hook = Some(hook);
        self
    }

    #[inline(always)]
    fn mine(&self) -> &Updated {
        self.threads.mine(|| Updated::new(self.shape.len()))
    }

    /// `memcg_rstat_updated` with one count for all: batches, and no more of them than make readers
    /// flush.
    #[inline(always)]
    fn count_globally(&self, mine: &Updated, grains: u32) {
        let updates = mine.updates.load(Ordering::Relaxed) + grains;
        if u64::from(updates) <= BATCH {
            return mine.updates.store(updates, Ordering::Relaxed);
        }
        if self.batches.load(Ordering::Relaxed) <= self.processors {
            self.batches
                .fetch_add(u64::from(updates) / BATCH, Ordering::Relaxed);
        }
        mine.updates.store(0, Ordering::Relaxed);
    }

    /// The same with a count for each group: up the tree, through counts of the thread's own.
    #[inline(always)]
    fn count_up_the_tree(&self, mine: &Updated, group: usize, grains: u32) {
        for group in self.shape.path(group) {
            let pending = &mine.cells(group).updates;
            let updates = pending.load(Ordering::Relaxed) + grains;
            if u64::from(updates) < BATCH {
                pending.store(updates, Ordering::Relaxed);
                continue;
            }
            if !self.is_flushable(group) {
                self.figures[group]
                    .updates
                    .fetch_add(updates.into(), Ordering::Relaxed);
            }
            pending.store(0, Ordering::Relaxed);
        }
    }

    /// The group's own threshold has been passed.
    #[inline(always)]
    fn is_flushable(&self, group: usize) -> bool {
        self.figures[group].updates.load(Ordering::Relaxed) > BATCH * self.processors
    }

    fn should_flush(&self, group: usize) -> bool {
        match self.policy {
            Policy::Subtree => self.is_flushable(group),
            _ => self.batches.load(Ordering::Relaxed) > self.processors,
        }
    }

    /// `cgroup_rstat_flush`, with the lock held throughout: the kernel drops it between processors
    /// for latency, which costs it time.
    fn flush_tree(&self, top: usize) {
        let mut list = self.lock.lock();
        self.call_hook(Stage::Begun);
        let mut visits = 0;
        for updated in self.threads.all() {
            updated.pop(&self.shape, top, &mut list);
            for &group in &*list {
                self.fold(group as usize, updated.cells(group as usize));
            }
            visits += list.len();
        }
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.visits.fetch_add(visits as u64, Ordering::Relaxed);
        self.call_hook(Stage::Gathered);
        if top == ROOT {
            // As the kernel did: what came while it was flushing is forgotten.
            self.batches.store(0, Ordering::Relaxed);
        }
    }

    /// `mem_cgroup_css_rstat_flush`.
    fn fold(&self, group: usize, cells: &Cells) {
        let figures = &self.figures[group];
        for item in 0..Item::COUNT {
            let delta = figures.pending[item]
                .load(Ordering::Relaxed)
                .wrapping_add(cells.take(item));
            if delta == 0 {
                continue;
            }
            figures.pending[item].store(0, Ordering::Relaxed);
            let total = figures.total[item]
                .load(Ordering::Relaxed)
                .wrapping_add(delta);
            figures.total[item].store(total, Ordering::Release);
            if let Some(parent) = self.shape.parent(group) {
                let pending = &self.figures[parent].pending[item];
                pending.store(
                    pending.load(Ordering::Relaxed).wrapping_add(delta),
                    Ordering::Relaxed,
                );
            }
        }
        if self.policy == Policy::Subtree {
            cells.updates.store(0, Ordering::Relaxed);
            if figures.updates.load(Ordering::Relaxed) != 0 {
                figures.updates.store(0, Ordering::Relaxed);
            }
        }
    }

    fn call_hook(&self, stage: Stage) {
        if let Some(hook) = &self.hook {
            hook(stage);
        }
    }

    fn skip_or_flush(&self) {
        if self.ongoing.load(Ordering::Relaxed) || self.ongoing.swap(true, Ordering::Acquire) {
            self.skipped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.flush_tree(ROOT);
        self.ongoing.store(false, Ordering::Release);
    }

    fn wait_or_flush(&self) {
        let mut under_way = self.under_way.lock();
        if under_way.running {
            self.waited.fetch_add(1, Ordering::Relaxed);
            let finished = under_way.finished;
            while under_way.finished == finished {
                self.done.wait(&mut under_way);
            }
            return;
        }
        under_way.running = true;
        drop(under_way);
        self.flush_tree(ROOT);
        let mut under_way = self.under_way.lock();
        under_way.running = false;
        under_way.finished += 1;
        self.done.notify_all();
    }
}

impl Statistics for Rstat {
    #[inline(always)]
    fn add(&self, group: usize, item: Item, delta: i64) {
        let mine = self.mine();
        mine.cells(group).add(item, delta);
        let grains = item.grains(delta).min(u64::from(u32::MAX / 2)) as u32;
        if grains == 0 {
            return;
        }
        mine.updated(&self.shape, group);
        match self.policy {
            Policy::Subtree => self.count_up_the_tree(mine, group, grains),
            _ => self.count_globally(mine, grains),
        }
    }

    /// `memory.stat`: flush where the threshold has been passed, then read.
    fn read(&self, group: usize, item: Item) -> i64 {
        if self.should_flush(group) {
            self.flush(group);
        }
        self.figures[group].total[item as usize].load(Ordering::Acquire)
    }

    fn flush(&self, group: usize) {
        match self.policy {
            Policy::UnifiedSkip => self.skip_or_flush(),
            Policy::UnifiedWait => self.wait_or_flush(),
            Policy::GlobalThreshold | Policy::Subtree => self.flush_tree(group),
        }
    }

    fn events(&self) -> Events {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Events {
            flushes: read(&self.flushes),
            visits: read(&self.visits),
            skipped: read(&self.skipped),
            waited: read(&self.waited),
        }
    }
}
