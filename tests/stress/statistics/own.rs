//! Values that a flush shows to a thread that reads meanwhile, and values that threads read while
//! they end.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use memcg::{Freshness, Group, Limits, Runtime, StatKey, Unit};

use super::{Done, ops};
use crate::support::turns::turn;

const THREADS: usize = 4;

// === What a reader may see in between ===

/// R{A{B{C...}}}, written at the bottom and flushed there: a thread that reads from the bottom up,
/// without a flush, sees no less above than below.
#[test]
fn a_flush_shows_nothing_below_before_it_shows_above() {
    let _turn = turn(module_path!());
    const DEPTH: usize = 100;
    let runtime = Runtime::builder().build().expect("defaults hold");
    let mut levels = vec![runtime.root()];
    for depth in 0..DEPTH {
        levels.push(
            levels[depth]
                .create("below", Limits::new())
                .expect("a name"),
        );
    }
    let stat = StatKey::WORKINGSET_REFAULT;
    let writes = ops() / 50;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let levels = &levels;
        let done = &done;
        scope.spawn(move || {
            let _done = Done(done);
            for _ in 0..writes {
                levels[DEPTH].stat_add(stat, 1);
                levels[DEPTH].inspect().flush();
            }
        });
        let mut looks = 0;
        let mut last = 0;
        while !done.load(Ordering::SeqCst) {
            let mut below = 0;
            for level in [DEPTH, DEPTH - 1, DEPTH / 2, 1, 0] {
                let now = levels[level].read(Freshness::Stale).get(stat);
                assert!(now >= below, "level {level}: {now}, and {below} below");
                below = now;
            }
            assert!(below >= last);
            last = below;
            looks += 1;
        }
        println!("{looks} looks at {writes} flushes");
    });
    assert_eq!(levels[0].read(Freshness::Stale).get(stat), writes as i64);
}

// === Threads past their end ===

/// A group that is wide, so that a flush of it is more than one slice of work, below the root.
struct Tree {
    _runtime: Runtime,
    groups: Vec<Group>,
    /// One for each thread.
    stats: Vec<StatKey>,
}

impl Tree {
    fn new(wide: usize) -> Self {
        let mut builder = Runtime::builder();
        let stats = (0..THREADS)
            .map(|thread| builder.stat(&format!("thread{thread}"), Unit::Events))
            .collect();
        let runtime = builder.build().expect("a configuration");
        let create = |parent: &Group, name: usize| {
            parent.create(name as u64, Limits::new()).expect("a name")
        };
        let crowd = create(&runtime.root(), 0);
        let mut groups = vec![runtime.root(), crowd.clone()];
        groups.extend((1..=wide).map(|number| create(&crowd, number)));
        Self {
            _runtime: runtime,
            groups,
            stats,
        }
    }
}

/// Counts when its thread ends, for one group after the other, together with the others that end.
struct AtExit {
    tree: Arc<Tree>,
    thread: usize,
    meet: Arc<Barrier>,
}

impl Drop for AtExit {
    fn drop(&mut self) {
        let stat = self.tree.stats[self.thread];
        let root = &self.tree.groups[0];
        let before = root.read(Freshness::Exact).get(stat);
        for (number, group) in (1..).zip(&self.tree.groups[1..]) {
            self.meet.wait();
            group.stat_add(stat, 1_000);
            let exact = if number % 2 == 0 {
                root.read(Freshness::Exact).get(stat) - before
            } else {
                1_000 * number
            };
            let own = group.read(Freshness::Exact);
            assert_eq!(exact, 1_000 * number, "group {number}");
            assert!(
                own.get(stat) >= 1_000,
                "group {number}: {} of its own",
                own.get(stat)
            );
        }
    }
}

thread_local! {
    static EARLIER: RefCell<Option<AtExit>> = const { RefCell::new(None) };
    static LATER: RefCell<Option<AtExit>> = const { RefCell::new(None) };
}

/// All of them write to the same group for the first time at the same time, when they have no cells
/// of their own any more: each finds what it wrote.
#[test]
fn threads_past_their_end_read_what_they_wrote() {
    let _turn = turn(module_path!());
    for _ in 0..ops() / 100_000 {
        let tree = Arc::new(Tree::new(300));
        // Whatever the order of destructors: half of them run when the thread has nothing any more.
        let meets: [_; 2] = std::array::from_fn(|_| Arc::new(Barrier::new(THREADS)));
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let [earlier, later] = meets.clone().map(|meet| AtExit {
                    tree: Arc::clone(&tree),
                    thread,
                    meet,
                });
                std::thread::spawn(move || {
                    EARLIER.set(Some(earlier));
                    later.tree.groups[0].stat_add(StatKey::ANON, 1);
                    LATER.set(Some(later));
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
        let exact = tree.groups[0].read(Freshness::Exact);
        for &stat in &tree.stats {
            assert_eq!(exact.get(stat), 2 * 1_000 * (tree.groups.len() as i64 - 1));
        }
        assert_eq!(exact.get(StatKey::ANON), THREADS as i64);
    }
}
