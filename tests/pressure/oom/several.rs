//! Several chargers at once: one victim at a time in a domain.

use memcg::{Bytes, OnFull};
use std::sync::Barrier;
use std::thread;

use memcg::Event;

use super::{KIB, MIB, Process, Victims, WATCHDOG, all, assert_empty, build, charge, create, kinds, limited, local};

/// Two that meet the same limit need one victim, whose memory is enough for both.
#[test]
fn one_victim_for_all() {
    for builder in kinds() {
        let runtime = build(builder);
        let domain = limited(&runtime.root(), "domain", 16 * MIB);
        let chargers = ["a", "b", "c", "d"].map(|name| create(&domain, name));
        for round in 0..20 {
            let victims = [0, 1, 2].map(|number| Process::below(&domain, &format!("process {round} {number}")));
            victims[0].allocate(10 * MIB).expect("room");
            victims[1].allocate(3 * MIB).expect("room");
            victims[2].allocate(3 * MIB).expect("room");
            let start = Barrier::new(chargers.len());
            thread::scope(|scope| {
                for charger in &chargers {
                    let start = &start;
                    scope.spawn(move || {
                        start.wait();
                        let held = charge(charger, 2 * MIB);
                        assert_eq!(held.bytes(), 2 * MIB);
                    });
                }
            });
            victims[0].wait_until_dead();
            assert_eq!(victims.each_ref().map(Process::kills), [1, 0, 0], "round {round}");
            for process in victims {
                process.exit().offline().expect("no children");
            }
        }
        assert_eq!(all(&domain, Event::OomKill), 20);
        drop((chargers, domain));
        assert_empty(&runtime);
    }
}

/// Two domains, one in the other: each has a victim of its own.
#[test]
fn one_for_each_domain() {
    for builder in kinds() {
        let runtime = build(builder);
        let domains = ["one", "two"].map(|name| limited(&runtime.root(), name, 10 * MIB));
        let processes = domains.each_ref().map(|domain| Process::below(domain, "process"));
        for process in &processes {
            process.allocate(10 * MIB).expect("room");
        }
        thread::scope(|scope| {
            for domain in &domains {
                scope.spawn(move || drop(charge(domain, MIB)));
            }
        });
        for (process, domain) in processes.iter().zip(&domains) {
            process.wait_until_dead();
            assert_eq!((process.kills(), local(domain, Event::Oom)), (1, 1));
        }
        for process in processes {
            process.exit();
        }
        drop(domains);
        assert_empty(&runtime);
    }
}

/// Processes that come and are stopped again, one after the other, while others charge and wait: it goes on and ends.
#[test]
fn many_rounds() {
    for builder in kinds() {
        let runtime = build(builder);
        let domain = limited(&runtime.root(), "domain", 8 * MIB);
        thread::scope(|scope| {
            for number in 0..2 {
                let domain = &domain;
                scope.spawn(move || {
                    let charger = create(domain, &format!("charger {number}"));
                    for _ in 0..100 {
                        drop(
                            charger
                                .try_charge_with(Bytes(2 * MIB), OnFull::Wait(WATCHDOG))
                                .expect("room, or a group to stop"),
                        );
                    }
                });
            }
            let domain = &domain;
            scope.spawn(move || {
                for round in 0..30 {
                    let process = Process::below(domain, &format!("process {round}"));
                    // Until it is stopped, or has all there is.
                    drop(process.allocate(32 * MIB));
                    process.exit().offline().expect("no children");
                }
            });
        });
        runtime.settle();
        assert_eq!(domain.live(), 0);
        drop(domain);
        assert_empty(&runtime);
    }
}

/// Releases that no thread waits for: hooks that give up everything at once, on the thread that charges.
#[test]
fn hooks_that_free_at_once() {
    for builder in kinds() {
        let runtime = build(builder);
        let domain = limited(&runtime.root(), "domain", 100 * KIB);
        for round in 0..50 {
            let groups: Vec<_> = (0..4).map(|number| create(&domain, &format!("{round} {number}"))).collect();
            let victims = Victims::default();
            let hooks: Vec<_> = groups.iter().map(|group| victims.obedient(group, 25 * KIB)).collect();
            let start = Barrier::new(2);
            thread::scope(|scope| {
                for _ in 0..2 {
                    let (domain, start) = (&domain, &start);
                    scope.spawn(move || {
                        start.wait();
                        drop(domain.try_charge_with(Bytes(60 * KIB), OnFull::Wait(WATCHDOG)).expect("a group to stop"));
                    });
                }
            });
            let mut paths = victims.paths();
            paths.sort();
            paths.dedup();
            assert!((3..=4).contains(&paths.len()), "{paths:?}");
            drop(hooks);
            groups.iter().for_each(|group| group.offline().expect("no children"));
        }
        drop(domain);
        assert_empty(&runtime);
    }
}
