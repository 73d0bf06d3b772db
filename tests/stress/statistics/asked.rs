//! What a read was asked for is what it says, however fast others write meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memcg::{Freshness, Group, Limits, Runtime, Stat};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{Done, ops};
use crate::support::turns::turn;

const STAT: Stat = Stat::WORKINGSET_REFAULT;
const WRITERS: u64 = 2;

/// Each writes as fast as it can and announces as often as that allows, so that a bound is another one as soon as it was
/// looked at.
#[test]
fn a_read_is_as_exact_as_was_asked() {
    let _turn = turn(module_path!());
    for batch in [64, 2, 0] {
        let runtime = Runtime::builder().stat_batch(batch).build().expect("a configuration");
        let group = runtime.root().create("q", Limits::new()).expect("a name");
        let (written, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let reads = ops() / 20;
        std::thread::scope(|scope| {
            for _ in 0..WRITERS {
                let (group, written, over): (&Group, _, _) = (&group, &written, &over);
                scope.spawn(move || {
                    let mut units = 0;
                    while !over.load(Ordering::Relaxed) {
                        (0..64).for_each(|_| group.stat_add(STAT, 1));
                        units += 64;
                    }
                    written.fetch_add(units, Ordering::Relaxed);
                });
            }
            let _over = Done(&over);
            let mut rng = SmallRng::seed_from_u64(batch);
            let mut stale = 0;
            // Longer where the writers are slow to come.
            for read in 0..1_000 * reads {
                if read >= reads && (stale > 0 || batch == 0) {
                    break;
                }
                let from = if rng.random_bool(0.5) { group.clone() } else { runtime.root() };
                let most = batch + rng.random_range(0..3 * batch + 10);
                let within = from.read(Freshness::Within(most)).max_error();
                assert!(within <= most, "an error of {within}, {most} were asked for");
                let read = from.read(Freshness::Threshold).max_error();
                assert!(read <= WRITERS * batch, "an error of {read} with {WRITERS} writers of {batch}");
                stale += u64::from(within > 0);
            }
            assert!(stale > 0 || batch == 0, "every read was flushed");
        });
        assert_eq!(group.read(Freshness::Exact).get(STAT) as u64, written.load(Ordering::Relaxed));
    }
}
