//! Three stories of "mm: memcg: restore subtree stats flushing" (Yosry Ahmed, linux-mm, 2023):
//! which readers are misled when every read flushes the whole tree and gives up where another
//! thread is at it.
//!
//! Each story is written once, over [`Statistics`], and runs twice: over this library, where it
//! ends well, and from [`UnifiedSkip`], the kernel's way before, where it ends as the series says.
//! What decides is a flush of the root that is under way while the reader reads; for `UnifiedSkip`
//! it is held in the middle, so that the story ends the same way each time.

mod unified;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use memcg::{Freshness, Group, Limits, Runtime, StatKey};
use unified::UnifiedSkip;

/// One item of the groups of a tree, by their numbers; 0 is the root.
trait Statistics: Sync {
    /// Adds bytes, on the calling thread.
    fn add(&self, group: usize, bytes: i64);

    /// As `memory.stat` is read: as fresh as it gets.
    fn read(&self, group: usize) -> i64;

    /// A flush of the root that is under way until what is returned is dropped.
    fn flush_under_way(&self) -> Box<dyn Any>;

    /// Adds bytes on a thread of its own, which is over by the return.
    fn add_elsewhere(&self, group: usize, bytes: i64) {
        std::thread::scope(|scope| scope.spawn(|| self.add(group, bytes)).join())
            .expect("no panic");
    }
}

// === impl Library ===

/// This library; how it is read is the test's choice.
struct Library {
    groups: Vec<Group>,
    freshness: Freshness,
    _runtime: Runtime,
}

impl Library {
    /// `parents` are those of the groups after the root.
    fn new(parents: &[usize], freshness: Freshness) -> Self {
        let runtime = Runtime::builder().build().expect("defaults hold");
        let mut groups = vec![runtime.root()];
        for &parent in parents {
            groups.push(
                groups[parent]
                    .create(&groups.len().to_string(), Limits::new())
                    .expect("a name"),
            );
        }
        Self {
            groups,
            freshness,
            _runtime: runtime,
        }
    }
}

/// Flushes the root again and again, so that one is under way at any time.
struct Flushing {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Flushing {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("no panic");
        }
    }
}

impl Statistics for Library {
    fn add(&self, group: usize, bytes: i64) {
        self.groups[group].stat_add(StatKey::ANON, bytes);
    }

    fn read(&self, group: usize) -> i64 {
        self.groups[group].read(self.freshness).get(StatKey::ANON)
    }

    fn flush_under_way(&self) -> Box<dyn Any> {
        let root = self.groups[0].clone();
        let stop = Arc::new(AtomicBool::new(false));
        let (begun, begins) = sync_channel(0);
        let flushing = Flushing {
            stop: Arc::clone(&stop),
            thread: Some(std::thread::spawn(move || {
                begun.send(()).expect("a thread waits for the first");
                while !stop.load(Ordering::Relaxed) {
                    root.inspect().flush();
                }
            })),
        };
        begins.recv().expect("the thread begins");
        Box::new(flushing)
    }
}

// === The stories ===

const MIB: i64 = 1 << 20;

/// Memory is short because one tenant has grown: the handler kills the one that holds most. Returns
/// its number, and what it thinks that frees.
fn oom_handler_picks_a_victim(stats: &dyn Statistics) -> (usize, i64) {
    for (tenant, bytes) in [(1, 100 * MIB), (2, 300 * MIB), (3, 200 * MIB)] {
        stats.add_elsewhere(tenant, bytes);
    }
    assert_eq!(
        stats.read(0),
        600 * MIB,
        "all is quiet, and every thread knows"
    );
    let _flush = stats.flush_under_way();
    stats.add_elsewhere(1, 1_000 * MIB);
    [1, 2, 3]
        .map(|tenant| (tenant, stats.read(tenant)))
        .into_iter()
        .max_by_key(|&(_, bytes)| bytes)
        .expect("three")
}

/// "A userspace OOM handler may look at the stats of different memcgs to select a victim. Reading
/// stale stats from before the usage spike in this case may cause a wrongful OOM kill."
#[test]
fn story_oom_handler_picks_the_spike() {
    const TENANTS: [usize; 3] = [0; 3];
    for freshness in [Freshness::Threshold, Freshness::Exact] {
        assert_eq!(
            oom_handler_picks_a_victim(&Library::new(&TENANTS, freshness)),
            (1, 1_100 * MIB)
        );
    }
    // The wrong one is killed, and memory stays as short as it was.
    assert_eq!(
        oom_handler_picks_a_victim(&UnifiedSkip::new(&TENANTS)),
        (2, 300 * MIB)
    );
}

/// Reclaims in steps until a tenant is down to its goal. Returns how many steps that took, and what
/// was taken.
fn reclaimer_works_towards_its_goal(stats: &dyn Statistics) -> (u32, i64) {
    const STEP: i64 = 64 * MIB;
    stats.add_elsewhere(1, 1_000 * MIB);
    let goal = stats.read(1) - STEP;
    assert_eq!(goal, 936 * MIB);
    let _flush = stats.flush_under_way();
    let mut steps = 0;
    while steps < 10 {
        stats.add_elsewhere(1, -STEP);
        steps += 1;
        if stats.read(1) <= goal {
            break;
        }
    }
    (steps, i64::from(steps) * STEP)
}

/// "A proactive reclaimer may read the stats after writing to memory.reclaim to measure the success
/// of the reclaim operation. Stale stats from before reclaim may give a false negative."
#[test]
fn story_proactive_reclaimer_sees_its_success() {
    for freshness in [Freshness::Threshold, Freshness::Exact] {
        assert_eq!(
            reclaimer_works_towards_its_goal(&Library::new(&[0], freshness)),
            (1, 64 * MIB)
        );
    }
    // It never sees what it has done, and goes on until it gives up.
    assert_eq!(
        reclaimer_works_towards_its_goal(&UnifiedSkip::new(&[0])),
        (10, 640 * MIB)
    );
}

/// A parent's figure includes its child's. Returns the parent's figure and then the child's, while
/// nothing changes.
fn a_thread_reads_parent_and_child(stats: &dyn Statistics) -> (i64, i64) {
    stats.add_elsewhere(1, 5 * MIB);
    stats.add_elsewhere(2, 10 * MIB);
    assert_eq!(stats.read(1), 15 * MIB);
    let flush = stats.flush_under_way();
    stats.add_elsewhere(2, 100 * MIB);
    let parent = stats.read(1);
    drop(flush);
    (parent, stats.read(2))
}

/// "Reading the stats of a parent and a child memcg may be inconsistent (child larger than parent),
/// if the flush doesn't happen when the parent is read, but happens when the child is read."
#[test]
fn story_parent_never_below_child() {
    const PARENT_AND_CHILD: [usize; 2] = [0, 1];
    for freshness in [Freshness::Threshold, Freshness::Exact] {
        assert_eq!(
            a_thread_reads_parent_and_child(&Library::new(&PARENT_AND_CHILD, freshness)),
            (115 * MIB, 110 * MIB)
        );
    }
    assert_eq!(
        a_thread_reads_parent_and_child(&UnifiedSkip::new(&PARENT_AND_CHILD)),
        (15 * MIB, 110 * MIB)
    );
}
