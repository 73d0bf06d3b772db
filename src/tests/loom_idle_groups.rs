//! Idle credit of groups that end: while a visit or a thread gives it back, it keeps its group, and
//! no longer.

use super::common::end;
use super::loom_lifecycle::{assert_released_once, stocked};
use super::{beside, model, race, with_group};

/// E2, E36. A visit claims credit of a group that goes offline and has nothing else: the group is
/// released once.
#[test]
fn loom_visit_vs_offline() {
    model(|| {
        let (runtime, gone) = with_group(stocked(), "gone");
        drop(gone.charge(1).unwrap());
        (0..2).for_each(|_| _ = runtime.release_idle_credit());
        race(gone, end, || runtime.release_idle_credit());
        runtime.settle();
        assert_released_once(&runtime);
    });
}

/// E2, E15. A thread without a handle gives its own credit back while another takes the group
/// offline and drains.
#[test]
fn loom_own_release_vs_offline() {
    model(|| {
        let (runtime, gone) = with_group(stocked(), "gone");
        drop(gone.charge(1).unwrap());
        let closer = beside((runtime.clone(), gone), |(runtime, gone)| {
            end(gone);
            runtime.settle();
        });
        runtime.release_thread_credit();
        closer.join().unwrap();
        runtime.settle();
        assert_released_once(&runtime);
    });
}
