//! A max that is set below what reclaim can make of usage.

use memcg::{Event, Limit, OomPolicy};

use super::{
    Cache, HASTY, KIB, Log, MIB, Process, Victims, all, build, charge, create, kinds, left_empty,
    limited, local, runtimes,
};

#[test]
fn one_victim_after_the_other_until_it_fits() {
    for runtime in runtimes() {
        let domain = create(&runtime.root(), "domain");
        let processes = [(0, 40), (1, 30), (2, 20)].map(|(number, mib)| {
            let process = Process::below(&domain, &format!("process {number}"));
            process.allocate(mib * MIB).expect("room");
            process
        });
        assert_eq!(domain.set_max(Limit::Bytes(25 * MIB)).expect("a number"), 0);
        assert!(domain.usage() <= 25 * MIB, "{}", domain.usage());
        for (process, kills) in processes.iter().zip([1, 1, 0]) {
            assert_eq!(process.kills(), kills);
        }
        assert!(local(&domain, Event::Oom) >= 1);
        assert_eq!(all(&domain, Event::OomKill), 2);
        for process in processes {
            process.exit();
        }
    }
}

/// The excess that remains when no group is left. The first one gives nothing, and the second one
/// holds too little.
#[test]
fn what_no_group_gives_is_told() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.oom_time(HASTY)));
        let domain = create(&runtime.root(), "domain");
        let stubborn = create(&domain, "stubborn");
        let obedient = create(&domain, "obedient");
        let victims = Victims::default();
        let _held = charge(&stubborn, 60 * KIB);
        let _hooks = [
            victims.stubborn(&stubborn),
            victims.obedient(&obedient, 30 * KIB),
        ];
        assert_eq!(
            domain.set_max(Limit::Bytes(50 * KIB)).expect("a number"),
            40 * KIB
        );
        assert_eq!(victims.paths(), ["/domain/stubborn"]);
        assert_eq!(
            (domain.live(), domain.forced(), domain.max()),
            (90 * KIB, 40 * KIB, 50 * KIB)
        );
        assert_eq!(domain.set_max(Limit::Bytes(60 * KIB)).expect("a number"), 0);
        assert_eq!(victims.paths(), ["/domain/stubborn", "/domain/obedient"]);
    }
}

#[test]
fn reclaim_comes_first() {
    for runtime in runtimes() {
        let domain = create(&runtime.root(), "domain");
        let victims = Victims::default();
        let task = create(&domain, "task");
        let _hook = victims.obedient(&task, 40 * KIB);
        let (cache, _registration) = Cache::of(&domain, 60 * KIB, &Log::default());
        assert_eq!(domain.set_max(Limit::Bytes(50 * KIB)).expect("a number"), 0);
        assert!(victims.take().is_empty() && cache.bytes() <= 10 * KIB);
        assert_eq!(
            (local(&domain, Event::Oom), all(&domain, Event::OomKill)),
            (0, 0)
        );
    }
}

/// Without a policy that chooses, as ever: reported, and no event.
#[test]
fn refuse_stops_no_group() {
    for runtime in runtimes() {
        let domain = create(&runtime.root(), "domain");
        domain.set_oom_policy(OomPolicy::Refuse);
        let victims = Victims::default();
        let task = create(&domain, "task");
        let _hook = victims.obedient(&task, 40 * KIB);
        assert_eq!(
            domain.set_max(Limit::Bytes(10 * KIB)).expect("a number"),
            30 * KIB
        );
        assert!(victims.take().is_empty());
        assert_eq!(
            (local(&domain, Event::Oom), all(&domain, Event::OomKill)),
            (0, 0)
        );
    }
}

/// Stored, and no group is asked for anything.
#[test]
fn now_is_now() {
    for runtime in runtimes() {
        let domain = create(&runtime.root(), "domain");
        let log = Log::default();
        let victims = Victims::default();
        let task = create(&domain, "task");
        let _hook = victims.obedient(&task, 40 * KIB);
        let (cache, _registration) = Cache::of(&domain, 60 * KIB, &log);
        assert_eq!(
            domain
                .memory()
                .set_max_now(Limit::Bytes(50 * KIB))
                .expect("a number"),
            50 * KIB
        );
        assert_eq!(
            (domain.live(), domain.max(), domain.forced()),
            (100 * KIB, 50 * KIB, 50 * KIB)
        );
        assert!(victims.take().is_empty() && log.is_empty());
        assert_eq!(
            Event::ALL.map(|event| all(&domain, event)),
            [0; Event::ALL.len()]
        );
        // It holds for a group that charges from now on.
        drop(charge(&domain, KIB));
        assert!(cache.bytes() <= 9 * KIB, "{}", cache.bytes());
        assert_eq!(
            domain
                .memory()
                .set_max_now(Limit::Unlimited)
                .expect("no number"),
            0
        );
        let half = limited(&runtime.root(), "half", MIB);
        let below = create(&half, "below");
        below
            .memory()
            .set_max_now(Limit::percent(50))
            .expect("of half");
        assert_eq!(below.max(), 512 * KIB);
        let refused = domain
            .memory()
            .set_max_now(Limit::percent(50))
            .expect_err("of nothing");
        assert_eq!(
            refused.to_string(),
            "cannot set max 50% for /domain: no group above has a max; set one, or bytes here"
        );
    }
}

/// The thread that lowers the max may work for a group below: it makes none of the charges.
#[test]
fn by_a_thread_of_the_victim() {
    for runtime in runtimes() {
        let domain = create(&runtime.root(), "domain");
        let victims = Victims::default();
        let _hook = victims.obedient(&domain, 40 * KIB);
        assert_eq!(domain.set_max(Limit::Bytes(10 * KIB)).expect("a number"), 0);
        assert_eq!(
            (victims.paths(), domain.live()),
            (vec!["/domain".to_string()], 0)
        );
    }
}
