//! Cells that are written just when they are taken off the lists because no thread wrote them.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memcg::barrier::BarrierMode;
use memcg::{Freshness, Group, Limits, Runtime, RuntimeBuilder, StatKey};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{Done, ops};
use crate::support::turns::turn;

const WRITERS: usize = 2;
const GROUPS: usize = 12;
const STAT: StatKey = StatKey::WORKINGSET_REFAULT;

/// Until nothing is listed any more: what was written last has been seen by then.
fn let_idle(runtime: &Runtime) {
    let begin = Instant::now();
    loop {
        let before = runtime.counts().flush_visits;
        std::thread::sleep(Duration::from_millis(2));
        runtime.root().inspect().flush();
        if runtime.counts().flush_visits == before {
            return;
        }
        assert!(
            begin.elapsed() < Duration::from_secs(120),
            "a thread is visited for ever: {:?}",
            runtime.counts()
        );
    }
}

/// Each writes one unit, waits about as long as it takes to be found idle, and writes again. What
/// it wrote is there when it reads, and at the end; and no thread counts as a writer any more.
#[test]
fn a_write_meets_its_unlisting() {
    let _turn = turn(module_path!());
    let plain = Runtime::builder;
    let kinds: [RuntimeBuilder; 3] = [
        plain().stat_batch(64),
        plain().barrier(BarrierMode::Fence).stat_batch(64),
        plain().stat_batch(2),
    ];
    for builder in kinds {
        let runtime = builder.build().expect("a configuration");
        let top = runtime.root().create("top", Limits::new()).expect("a name");
        let groups: Vec<Group> = (0..GROUPS)
            .map(|number| {
                top.create(&number.to_string(), Limits::new())
                    .expect("a name")
            })
            .collect();
        let truth: Vec<AtomicI64> = groups.iter().map(|_| AtomicI64::new(0)).collect();
        let writes = ops() / 500;
        let mut round = 0;
        // More rounds where the machine is busy, and fewer are found idle in one.
        while round < 3 || (runtime.counts().stat_unlists <= 100 && round < 300) {
            runtime
                .start_flusher(Duration::from_micros(1))
                .expect("a period");
            let left = AtomicU64::new(WRITERS as u64);
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let groups = &groups;
                let truth = &truth;
                let left = &left;
                let done = &done;
                for writer in 0..WRITERS {
                    scope.spawn(move || {
                        let _done = Done(done);
                        let mut rng = SmallRng::seed_from_u64(round * 10 + writer as u64);
                        for _ in 0..writes / WRITERS as u64 {
                            // Each has groups of its own, so that no other thread keeps the cells'
                            // group listed.
                            let at = writer + WRITERS * rng.random_range(0..GROUPS / WRITERS);
                            groups[at].stat_add(STAT, 1);
                            let now = truth[at].fetch_add(1, Ordering::Relaxed) + 1;
                            if rng.random_bool(0.1) {
                                let stale = groups[at].read(Freshness::Stale);
                                assert!(now.abs_diff(stale.get(STAT)) <= stale.max_error());
                            }
                            (0..rng.random_range(0..1_500)).for_each(|_| std::hint::spin_loop());
                            if rng.random_bool(0.3) {
                                // No thread has written it since.
                                assert_eq!(groups[at].read(Freshness::Exact).get(STAT), now);
                            }
                            if rng.random_bool(0.001) {
                                std::thread::sleep(Duration::from_micros(500));
                            }
                        }
                        left.fetch_sub(1, Ordering::SeqCst);
                    });
                }
                // More flushes than the periodic ones: idle is what several in a row have found
                // unchanged.
                while left.load(Ordering::SeqCst) > 0 && !done.load(Ordering::SeqCst) {
                    top.inspect().flush();
                }
            });
            let_idle(&runtime);
            let truth: Vec<i64> = truth
                .iter()
                .map(|truth| truth.load(Ordering::Relaxed))
                .collect();
            for (group, &truth) in groups.iter().zip(&truth) {
                let stale = group.read(Freshness::Stale);
                assert_eq!(
                    (stale.get(STAT), stale.max_error()),
                    (truth, 0),
                    "{group:?}"
                );
            }
            let stale = runtime.root().read(Freshness::Stale);
            assert_eq!(
                (stale.get(STAT), stale.max_error()),
                (truth.iter().sum(), 0)
            );
            runtime.stop_flusher();
            round += 1;
        }
        let counts = runtime.counts();
        // A thread that comes back between the two halves of an unlisting is listed once more, and
        // stays.
        println!(
            "{} listed, {} unlisted",
            counts.stat_lists, counts.stat_unlists
        );
        assert!(counts.stat_unlists > 100, "hardly any thread was idle");
    }
}
