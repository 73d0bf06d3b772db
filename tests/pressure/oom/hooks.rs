//! Calls inside a cancel hook, and hooks that panic, do nothing, or are dropped.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memcg::{Bytes, Event, Limits, OnFull};

use super::{
    HASTY, KIB, WATCHDOG, all, assert_sound, build, charge, create, domain, kinds, left_empty,
    limited, local, lock, runtimes, until,
};
use crate::support::payloads::{DEPTHS, panic_with};

/// It gives nothing up: the next, each once, then no more.
#[test]
fn one_that_does_nothing() {
    for builder in kinds() {
        let time = Duration::from_millis(60);
        let runtime = left_empty(build(builder.oom_time(time)));
        let (domain, victims) = domain(&runtime);
        let groups = ["a", "b"].map(|name| create(&domain, name));
        let _held = [charge(&groups[0], 40 * KIB), charge(&groups[1], 60 * KIB)];
        let _hooks = groups.each_ref().map(|group| victims.stubborn(group));
        let started = Instant::now();
        let error = domain
            .charge(Bytes(KIB))
            .expect_err("no group gives anything");
        assert!(
            error
                .over_limit()
                .is_some_and(|refusal| refusal.group() == &domain),
            "{error}"
        );
        assert!(
            started.elapsed() >= 2 * time,
            "each had its time: {:?}",
            started.elapsed()
        );
        assert_eq!(victims.paths(), ["/domain/b", "/domain/a"]);
        assert_eq!(
            (local(&domain, Event::Oom), all(&domain, Event::OomKill)),
            (1, 2)
        );
        // The next charge begins anew.
        assert!(domain.charge(Bytes(KIB)).is_err());
        assert_eq!(victims.paths().len(), 2);
    }
}

/// One that gives enough is the last.
#[test]
fn enough_is_enough() {
    for runtime in runtimes() {
        let (domain, victims) = domain(&runtime);
        let sizes = [("a", 20), ("b", 50), ("c", 30)];
        let groups = sizes.map(|(name, _)| create(&domain, name));
        let _hooks: Vec<_> = groups
            .iter()
            .zip(sizes)
            .map(|(group, (_, kib))| victims.obedient(group, kib * KIB))
            .collect();
        drop(charge(&domain, 40 * KIB));
        assert_eq!(
            (victims.paths(), domain.live()),
            (vec!["/domain/b".to_string()], 50 * KIB)
        );
        // And one that does not give enough is not.
        drop(charge(&domain, 90 * KIB));
        assert_eq!(victims.paths(), ["/domain/c", "/domain/a"]);
    }
}

/// A hook's captured value panics when it is dropped: that is counted, and nothing keeps the group.
#[test]
fn one_whose_drop_panics() {
    struct Drops(u64);
    impl Drop for Drops {
        fn drop(&mut self) {
            panic_with(self.0);
        }
    }
    for depth in DEPTHS {
        for runtime in runtimes() {
            let group = create(&runtime.root(), "q");
            let captured = Drops(depth);
            let hook = group.on_cancel(move |_| _ = &captured);
            drop(hook);
            assert_eq!(local(&group, Event::Panic), 1);
        }
    }
}

/// Counted as any panic of foreign code is; the next one is asked.
#[test]
fn one_that_panics() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.oom_time(HASTY)));
        let (domain, victims) = domain(&runtime);
        let bad = create(&domain, "bad");
        let good = create(&domain, "good");
        let _held = charge(&bad, 60 * KIB);
        let _hooks = [
            victims.hook(&bad, || panic!("on purpose")),
            victims.obedient(&good, 40 * KIB),
        ];
        drop(charge(&domain, 10 * KIB));
        assert_eq!(victims.paths(), ["/domain/bad", "/domain/good"]);
        assert_eq!(
            (local(&bad, Event::Panic), all(&domain, Event::Panic)),
            (1, 1)
        );
        // Nothing is left behind.
        drop(charge(&domain, 40 * KIB));
        assert_sound(&runtime);
    }
}

#[test]
fn dropped_it_is_gone() {
    for runtime in runtimes() {
        let (domain, victims) = domain(&runtime);
        let group = create(&domain, "q");
        let _held = charge(&group, 100 * KIB);
        let hook = victims.stubborn(&group);
        drop(hook);
        assert!(matches!(domain.charge(Bytes(KIB)), Err(error) if error.is_over_limit()));
        assert!(victims.take().is_empty());
        assert_eq!(
            all(&domain, Event::OomKill),
            0,
            "no group is there to be stopped"
        );
    }
}

/// Several at one group are all called, and are one task.
#[test]
fn several_at_one_group() {
    for runtime in runtimes() {
        let (domain, victims) = domain(&runtime);
        let group = create(&domain, "q");
        let _hooks = [
            victims.stubborn(&group),
            victims.obedient(&group, 50 * KIB),
            victims.obedient(&group, 50 * KIB),
        ];
        drop(charge(&domain, 100 * KIB));
        assert_eq!(victims.paths(), ["/domain/q"; 3]);
        assert_eq!(domain.live(), 0);
    }
}

/// When the drop has returned, no call is under way.
#[test]
fn a_drop_waits_for_a_call() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.oom_time(HASTY)));
        let domain = limited(&runtime.root(), "domain", 100 * KIB);
        let group = create(&domain, "q");
        let _held = charge(&group, 100 * KIB);
        let began = Arc::new(AtomicU64::new(0));
        let ended = Arc::new(AtomicU64::new(0));
        let hook = {
            let began = Arc::clone(&began);
            let ended = Arc::clone(&ended);
            group.on_cancel(move |_| {
                began.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(50));
                ended.fetch_add(1, Ordering::SeqCst);
            })
        };
        std::thread::scope(|scope| {
            let domain = &domain;
            scope.spawn(move || assert!(domain.charge(Bytes(KIB)).is_err()));
            until("the call", || began.load(Ordering::SeqCst) == 1);
            drop(hook);
            assert_eq!(ended.load(Ordering::SeqCst), 1);
        });
    }
}

/// No lock is held: it may use the whole crate.
#[test]
fn it_may_do_anything() {
    for runtime in runtimes() {
        let (domain, victims) = domain(&runtime);
        let group = create(&domain, "q");
        let held = Mutex::new(Some(charge(&group, 100 * KIB)));
        let _hook = {
            let domain = domain.clone();
            let group = group.clone();
            victims.hook(&group.clone(), move || {
                assert_eq!((domain.live(), group.live()), (100 * KIB, 100 * KIB));
                // A charge that does not fit is refused, and chooses no group: not from in here.
                assert!(domain.charge(Bytes(KIB)).is_err());
                drop(domain.force_charge(Bytes(KIB)));
                let new = domain.create("new", Limits::new()).expect("a free name");
                new.offline().expect("no children");
                drop(group.on_cancel(|_| ()));
                assert!(domain.snapshot(usize::MAX).to_string().contains("/domain"));
                group.set_oom_group(false);
                drop(lock(&held).take());
                // Now there is room.
                drop(domain.charge(Bytes(KIB)));
            })
        };
        drop(charge(&domain, 50 * KIB));
        assert_eq!((victims.paths().len(), local(&group, Event::Panic)), (1, 0));
    }
}

/// A group that goes offline is not chosen any more, and what it holds is waited for by no group.
#[test]
fn one_that_is_offline() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.oom_time(HASTY)));
        let (domain, victims) = domain(&runtime);
        let gone = create(&domain, "gone");
        let stays = create(&domain, "stays");
        let _held = charge(&gone, 60 * KIB);
        let _hooks = [victims.stubborn(&gone), victims.obedient(&stays, 40 * KIB)];
        gone.offline().expect("no children");
        drop(charge(&domain, 10 * KIB));
        assert_eq!(
            victims.paths().last().map(String::as_str),
            Some("/domain/stays")
        );
        assert!(
            domain
                .charge_with(Bytes(61 * KIB), OnFull::Wait(HASTY.min(WATCHDOG)))
                .is_err()
        );
    }
}
