//! Groups that went offline: what they counted stays in the figures of those above, exactly, and is
//! no other thread's.

use memcg::{Freshness, StatKey};

use super::{Other, assert_exact, assert_honest, build, charge, create, kinds};

const STAT: StatKey = StatKey::SLAB;

/// Every thread that has a handle writes a last time and drops it. No thread flushes meanwhile.
#[test]
fn what_the_last_holder_wrote_is_with_the_parent() {
    for builder in kinds() {
        let runtime = build(builder);
        let root = runtime.root();
        let others = [Other::spawn(), Other::spawn()];
        let acme = create(&root, "acme");
        acme.stat_add(STAT, 1_000_000);
        let mut sum = 0;
        for round in 1..200_i64 {
            let group = create(&acme, "q");
            let held = charge(&group, 10);
            group.stat_add(STAT, round);
            others[0].add(&group, STAT, 2 * round);
            group.offline().expect("no children");
            group.stat_add(STAT, -round);
            others[1].add(&group, STAT, 5 * round);
            if round % 3 == 0 {
                assert_exact(&group, STAT, 7 * round, 7 * round);
            }
            let writer = &others[round as usize % 2];
            if round % 2 == 0 {
                // The last to hold it is a handle, on a thread of its own.
                drop(held);
                writer.run(move || {
                    group.stat_add(STAT, 100);
                    drop(group);
                });
            } else {
                // The last is a charge.
                drop(group);
                writer.run(move || {
                    held.stat_add(STAT, 100);
                    drop(held);
                });
            }
            runtime.settle();
            assert_eq!(runtime.dying_count(), 0, "round {round}");
            sum += 7 * round + 100;
            assert_honest(&acme.read(Freshness::Stale), STAT, sum + 1_000_000);
            assert_honest(&root.read(Freshness::Stale), STAT, sum + 1_000_000);
            if round % 5 == 0 {
                assert_exact(&root, STAT, sum + 1_000_000, 0);
                assert_exact(&acme, STAT, sum + 1_000_000, 1_000_000);
            }
        }
        assert_exact(&acme, STAT, sum + 1_000_000, 1_000_000);
    }
}
