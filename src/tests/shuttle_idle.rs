//! Visits take idle credit back beside all else: no charge that fits is refused, and no unit is
//! lost or given back twice.

use super::common::end;
use super::{Threads, assert_adds_up, check};
use crate::{Bytes, Limits, Runtime};

/// Visits, threads that give back their own credit, charges up to the limit, groups that end, and
/// blocks that go from thread to thread.
#[test]
fn shuttle_idle_credit_goes_home_beside_charges() {
    check(600, || {
        let runtime = Runtime::builder()
            .batch(Bytes(4))
            .budget(Bytes(200))
            .adaptive(false)
            .audit(true)
            .build()
            .unwrap();
        // Room for all that is ever charged at once, and not for credit beside it.
        let tenant = runtime
            .root()
            .create("tenant", Limits::new().max(9))
            .unwrap();
        let groups = ["a", "b"].map(|name| tenant.create(name, Limits::new()).unwrap());
        let mut threads = Threads::new();
        for thread in 0..3 {
            threads.add(
                (runtime.clone(), groups.clone()),
                move |(runtime, groups)| {
                    for round in 0..3 {
                        let held = groups[(thread + round) % 2]
                            .charge(3)
                            .expect("three threads, three bytes each");
                        if (thread + round) % 3 == 0 {
                            runtime.release_thread_credit();
                        }
                        drop(held);
                    }
                },
            );
        }
        threads.add(runtime.clone(), |runtime| {
            (0..4).for_each(|_| _ = runtime.release_idle_credit())
        });
        threads.add((runtime.clone(), tenant.clone()), |(runtime, tenant)| {
            let group = tenant.create("c", Limits::new()).unwrap();
            group.memory().drain();
            end(group);
            runtime.release_idle_credit();
        });
        threads.join();
        // All threads have ended: their credit goes at once.
        runtime.release_idle_credit();
        runtime.settle();
        assert_eq!(
            (runtime.root().usage(), runtime.counts().underflows),
            (0, 0)
        );
        assert_adds_up(&runtime, &[]);
    });
}
