//! A max that chooses victims: the victim learns it at its next checkpoint, and its neighbours wait
//! for its memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use memcg::{Bytes, Group, OomPolicy, RuntimeBuilder};

use super::{KIB, MIB, WATCHDOG, assert_empty, build, charge, create, join, kinds, limited, until};

fn choosing(builder: RuntimeBuilder, patience: Duration) -> (memcg::Runtime, Group) {
    let runtime = build(builder.oom_time(patience));
    let domain = limited(&runtime.root(), "domain", MIB);
    domain.set_oom_policy(OomPolicy::Choose);
    (runtime, domain)
}

/// The hog allocates without a charge. A neighbour's checkpoint chooses it and waits; the hog's own
/// tells it.
#[test]
fn the_victim_is_told_and_its_neighbour_goes_on() {
    for builder in kinds() {
        let (runtime, domain) = choosing(builder, WATCHDOG);
        let [hog, part, query] = [
            create(&domain, "hog"),
            create(&domain, "query"),
            create(&domain, "other"),
        ];
        let inner = create(&hog, "inner");
        let _hooks = [&hog, &part, &query].map(|group| group.on_cancel(|_| {}));
        let small = charge(&query, 10 * KIB);
        let held = inner.force_charge(Bytes(2 * MIB));
        let neighbour = thread::spawn({
            let query = query.clone();
            move || query.run(Group::checkpoint)
        });
        until("the hog is chosen", || {
            !hog.events().get(memcg::Event::OomKill).eq(&0)
        });
        assert!(!neighbour.is_finished(), "it waits");
        for group in [&hog, &inner] {
            let error = group.run(Group::checkpoint).unwrap_err();
            assert!(
                error.is_cancelled() && error.requested() == 0 && error.group() == group,
                "{error}"
            );
            let line = format!(
                "{} is cancelled to make room: a checkpoint refused; release what it holds",
                group.path()
            );
            assert_eq!(error.to_string(), line);
        }
        drop(held);
        join(neighbour).expect("the hog has given its memory back");
        assert!(
            [&hog, &inner, &query, &domain]
                .iter()
                .all(|group| group.run(Group::checkpoint).is_ok()),
            "it is over"
        );
        drop((small, inner, hog, part, query, domain, _hooks));
        assert_empty(&runtime);
    }
}

/// The hog asks first: it is chosen by its own checkpoint.
#[test]
fn the_hog_asks_first() {
    for builder in kinds() {
        let (runtime, domain) = choosing(builder, WATCHDOG);
        let [hog, query] = ["hog", "query"].map(|name| create(&domain, name));
        let hooks = [&hog, &query].map(|group| group.on_cancel(|_| {}));
        let small = charge(&query, 10 * KIB);
        let held = hog.force_charge(Bytes(2 * MIB));
        let error = hog.run(Group::checkpoint).unwrap_err();
        assert!(error.is_cancelled() && *error.group() == hog, "{error}");
        drop(held);
        assert!(hog.run(Group::checkpoint).is_ok() && query.run(Group::checkpoint).is_ok());
        drop((error, small, hooks, hog, query, domain));
        assert_empty(&runtime);
    }
}

/// A charge chooses the victim; the victim is within every max, and is told all the same.
#[test]
fn chosen_for_a_charge() {
    for builder in kinds() {
        let (runtime, domain) = choosing(builder, WATCHDOG);
        let [hog, query] = ["hog", "query"].map(|name| create(&domain, name));
        let hook = hog.on_cancel(|_| {});
        let held = charge(&hog, MIB - 10 * KIB);
        let charger = thread::spawn({
            let query = query.clone();
            move || query.charge(Bytes(100 * KIB)).map(drop)
        });
        until("it is cancelled", || hog.run(Group::checkpoint).is_err());
        assert!(
            query.run(Group::checkpoint).is_ok() && domain.run(Group::checkpoint).is_ok(),
            "only the victim"
        );
        drop(held);
        join(charger).expect("room");
        assert!(hog.run(Group::checkpoint).is_ok());
        drop((hook, hog, query, domain));
        assert_empty(&runtime);
    }
}

/// A victim that gives nothing back in time: its neighbour is refused, and later it is no victim
/// any more.
#[test]
fn a_victim_that_gives_nothing() {
    for builder in kinds() {
        let (runtime, domain) = choosing(builder, Duration::from_millis(20));
        let [hog, query] = ["hog", "query"].map(|name| create(&domain, name));
        let told = std::sync::Arc::new(AtomicBool::new(false));
        let hook = hog.on_cancel({
            let told = std::sync::Arc::clone(&told);
            move |_| told.store(true, Ordering::SeqCst)
        });
        let held = hog.force_charge(Bytes(2 * MIB));
        assert!(
            matches!(query.run(Group::checkpoint), Err(error) if error.over_limit().is_some_and(|refusal| refusal.group() == &domain))
        );
        assert!(told.load(Ordering::SeqCst));
        domain.set_max(Bytes(4 * MIB)).unwrap();
        until("the victim is forgotten", || {
            hog.run(Group::checkpoint).is_ok()
        });
        drop((held, hook, hog, query, domain));
        assert_empty(&runtime);
    }
}
