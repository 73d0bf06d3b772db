//! Above a max by force: what is drained and reclaimed first, who is refused, and who is not.

use std::sync::{Arc, Mutex};
use std::thread;

use memcg::{Bytes, ChargeError, Event, Group, Reclaim, ReclaimContext, ReclaimPriority};

use super::{
    Cache, KIB, Log, MIB, assert_sound, build, charge, create, limited, refused_by, runtimes,
};

/// The group whose max it is and all below it, and no other; until enough is given back.
#[test]
fn below_the_group_that_is_above_its_max() {
    for runtime in runtimes() {
        let acme = limited(&runtime.root(), "acme", MIB);
        let [hog, query, other] = [
            create(&acme, "hog"),
            create(&acme, "query"),
            create(&runtime.root(), "other"),
        ];
        let all = [&runtime.root(), &acme, &hog, &query, &other];
        assert!(all.iter().all(|group| group.run(Group::checkpoint).is_ok()));
        let mut held = hog.force_charge(Bytes(MIB + KIB));
        assert!(
            [&acme, &hog, &query]
                .iter()
                .all(|group| refused_by(group) == "/acme")
        );
        assert!(
            [&runtime.root(), &other]
                .iter()
                .all(|group| group.run(Group::checkpoint).is_ok())
        );
        assert!(other.run(|| (0..100).all(|_| Group::checkpoint().is_ok())));
        held.shrink(Bytes(KIB));
        assert!(
            all.iter().all(|group| group.run(Group::checkpoint).is_ok()),
            "max is what a group may use"
        );
    }
}

/// Outside of any group, in one of another runtime, and in a group that has no max of its own and
/// none above.
#[test]
fn where_nothing_is_wrong() {
    let [full, runtime] = [0, 1].map(|_| build(memcg::Runtime::builder()));
    let _over = limited(&full.root(), "over", 0).force_charge(Bytes(10));
    assert!(Group::checkpoint().is_ok());
    let free = create(&runtime.root(), "free");
    let _held = free.force_charge(Bytes(MIB));
    assert!(free.run(Group::checkpoint).is_ok());
}

/// A refused checkpoint counts as a refused charge does.
#[test]
fn a_refused_checkpoint_is_counted() {
    for runtime in runtimes() {
        let query = limited(&runtime.root(), "query", KIB);
        let _held = query.force_charge(Bytes(2 * KIB));
        for times in 1..=3 {
            assert_eq!(query.run(Group::checkpoint).unwrap_err().group(), &query);
            assert_eq!(
                (query.refused_count(), query.events().get(Event::Oom)),
                (times, times)
            );
        }
        assert_eq!(
            (query.usage(), query.peak()),
            (2 * KIB, 2 * KIB),
            "it charges nothing"
        );
    }
}

/// A checkpoint drains the credit of threads first: credit above max refuses no task.
#[test]
fn credit_is_drained_first() {
    for runtime in runtimes() {
        let acme = create(&runtime.root(), "acme");
        let [idle, query] = ["idle", "query"].map(|name| create(&acme, name));
        // Leaves credit in the stock of `idle`, where that has one.
        drop(charge(&idle, 100));
        let _held = query.force_charge(Bytes(64 * KIB));
        acme.set_max(Bytes(64 * KIB)).unwrap();
        assert!(query.run(Group::checkpoint).is_ok(), "{}", acme.usage());
        assert_eq!(acme.usage(), 64 * KIB);
    }
}

/// A cache below the group that is above gives what is missing, and the task goes on.
#[test]
fn reclaimers_are_asked_first() {
    for runtime in runtimes() {
        let acme = limited(&runtime.root(), "acme", 100 * KIB);
        let [cached, query] = ["cached", "query"].map(|name| create(&acme, name));
        let log = Log::default();
        let (_cache, _registration) = Cache::of(&cached, 60 * KIB, &log);
        let _held = query.force_charge(Bytes(90 * KIB));
        assert!(
            acme.forced() > 0 && log.is_empty(),
            "a forced charge asks no reclaimer"
        );
        assert!(query.run(Group::checkpoint).is_ok());
        assert!(log.freed("/acme/cached") >= 50 * KIB, "{log:?}");
        assert_eq!(acme.forced(), 0);
        // With 90 of 100 KiB and nothing to give, it is refused.
        let _more = query.force_charge(Bytes(80 * KIB));
        assert_eq!(refused_by(&query), "/acme");
    }
}

/// A reclaimer may ask, too: it is refused at once, for reclaim does not nest.
#[test]
fn a_checkpoint_inside_reclaim() {
    struct Asks(Group, Mutex<Vec<bool>>);
    impl Reclaim for Asks {
        fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
            let inside = self.0.run(Group::checkpoint);
            self.1
                .lock()
                .unwrap()
                .push(matches!(&inside, Err(error) if error.is_in_reclaim()));
            0
        }
    }
    let runtime = build(memcg::Runtime::builder());
    let query = limited(&runtime.root(), "query", KIB);
    let asks = Arc::new(Asks(query.clone(), Mutex::default()));
    let _registration = query.register_reclaimer(
        Arc::clone(&asks) as Arc<dyn Reclaim>,
        ReclaimPriority::NORMAL,
    );
    let _held = query.force_charge(Bytes(2 * KIB));
    assert_eq!(refused_by(&query), "/query");
    let inside = asks.1.lock().unwrap();
    assert!(
        !inside.is_empty() && inside.iter().all(|&refused| refused),
        "{inside:?}"
    );
}

/// A task whose group went offline asks for the nearest group above that is online: the limits of
/// its own stop no task.
#[test]
fn after_the_group_went_offline() {
    for runtime in runtimes() {
        let acme = limited(&runtime.root(), "acme", 10 * KIB);
        let query = limited(&acme, "query", KIB);
        let _held = query.force_charge(Bytes(2 * KIB));
        query.run(|| {
            assert_eq!(Group::checkpoint().unwrap_err().group(), &query);
            query.offline().unwrap();
            assert!(Group::checkpoint().is_ok());
            let more = acme.force_charge(Bytes(20 * KIB));
            assert_eq!(Group::checkpoint().unwrap_err().group(), &acme);
            drop(more);
            assert!(Group::checkpoint().is_ok());
        });
    }
}

/// So many steps of an allocation each, which keep so many of them.
fn allocate(steps: usize, kept: usize) -> Result<(), Box<(usize, ChargeError)>> {
    let mut held = Vec::new();
    for step in 0..steps {
        held.push(Group::current().unwrap().force_charge(Bytes(10 * KIB)));
        held.drain(..held.len().saturating_sub(kept));
        Group::checkpoint().map_err(|error| Box::new((step, error)))?;
    }
    Ok(())
}

/// A runaway task that never charges stops at a checkpoint; its neighbours on other threads do not
/// notice.
#[test]
fn a_runaway_task_stops() {
    for runtime in runtimes() {
        let runaway = limited(&runtime.root(), "runaway", MIB);
        let neighbours =
            [0, 1, 2].map(|number| limited(&runtime.root(), &format!("neighbour{number}"), MIB));
        thread::scope(|scope| {
            for group in &neighbours {
                scope.spawn(|| {
                    group
                        .run(|| allocate(5_000, 50))
                        .expect("it keeps within its max")
                });
            }
            let (step, error) = *runaway.run(|| allocate(100_000, usize::MAX)).unwrap_err();
            assert_eq!((step, error.group()), (102, &runaway));
            assert!(
                error
                    .to_string()
                    .starts_with("/runaway refuses a checkpoint of /runaway: usage is 6 KiB above")
            );
        });
        assert_sound(&runtime);
        assert_eq!(runtime.root().live(), 0);
    }
}
