//! Which level counts what when a group is stopped.

use std::time::Duration;

use memcg::{Bytes, Event, Group};

use super::{
    HASTY, KIB, all, block_on, build, charge, create, domain, kinds, left_empty, local, runtimes,
};

const OOM: [Event; 3] = [Event::Oom, Event::OomKill, Event::OomGroupKill];

fn locals(group: &Group) -> [u64; 3] {
    OOM.map(|event| local(group, event))
}

fn alls(group: &Group) -> [u64; 3] {
    OOM.map(|event| all(group, event))
}

/// However many it takes, it is one *oom*.
#[test]
fn one_oom_for_several_victims() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.oom_time(HASTY)));
        let (domain, victims) = domain(&runtime);
        let groups = ["a", "b", "c", "d"].map(|name| create(&domain, name));
        let _held = groups.each_ref().map(|group| charge(group, 25 * KIB));
        let _hooks = groups.each_ref().map(|group| victims.stubborn(group));
        for round in 1..=3 {
            assert!(domain.charge(Bytes(KIB)).is_err());
            assert_eq!(
                (alls(&domain), domain.refused_count()),
                ([round, 4 * round, 0], round)
            );
            assert_eq!(groups.each_ref().map(locals), [[0, round, 0]; 4]);
        }
    }
}

/// So it is for a future that cancels a group, and then waits in line in vain.
#[test]
fn one_oom_for_a_future_that_waits() {
    for runtime in runtimes() {
        let (domain, victims) = domain(&runtime);
        let [hog, other] = ["hog", "other"].map(|name| create(&domain, name));
        let _held = charge(&hog, 100 * KIB);
        let _hook = victims.stubborn(&hog);
        let ended = block_on(
            other
                .charge_async(Bytes(KIB))
                .timeout(Duration::from_secs(1)),
        );
        assert!(
            matches!(&ended, Err(error) if error.is_timeout()),
            "{ended:?}"
        );
        assert_eq!((alls(&domain), domain.refused_count()), ([1, 1, 0], 1));
    }
}

/// One that has no time leaves nothing to another thread, and is counted all the same.
#[test]
fn one_oom_for_a_future_without_time() {
    for runtime in runtimes() {
        let (domain, _victims) = domain(&runtime);
        let [hog, other] = ["hog", "other"].map(|name| create(&domain, name));
        let _held = charge(&hog, 100 * KIB);
        let ended = block_on(other.charge_async(Bytes(KIB)).timeout(Duration::ZERO));
        assert!(
            matches!(&ended, Err(error) if error.is_timeout()),
            "{ended:?}"
        );
        assert_eq!((alls(&domain), domain.refused_count()), ([1, 0, 0], 1));
    }
}

/// Listeners are notified, at the victim and above.
#[test]
fn listeners_are_notified() {
    for runtime in runtimes() {
        let (domain, victims) = domain(&runtime);
        let victim = create(&domain, "victim");
        let _hook = victims.obedient(&victim, 100 * KIB);
        let before = OOM.map(|_| domain.events());
        let notified = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let _subscription = {
            let notified = std::sync::Arc::clone(&notified);
            runtime.root().on_event(Event::OomKill, move |happened| {
                notified.fetch_add(happened.times(), std::sync::atomic::Ordering::SeqCst);
            })
        };
        drop(charge(&domain, 10 * KIB));
        let moved = OOM
            .iter()
            .zip(before)
            .map(|(&event, before)| before.wait(event, std::time::Duration::ZERO));
        assert_eq!(moved.collect::<Vec<_>>(), [true, true, false]);
        assert_eq!(notified.load(std::sync::atomic::Ordering::SeqCst), 1);
    }
}
