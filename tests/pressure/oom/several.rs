//! Several chargers at once: one victim at a time in a domain.

use std::sync::Barrier;
use std::thread;

use memcg::Event;

use super::{MIB, Process, all, charge, create, limited, local, runtimes};

/// Two that meet the same limit need one victim, whose memory is enough for both.
#[test]
fn one_victim_for_all() {
    for runtime in runtimes() {
        let domain = limited(&runtime.root(), "domain", 16 * MIB);
        let chargers = ["a", "b", "c", "d"].map(|name| create(&domain, name));
        for round in 0..20 {
            let victims = [0, 1, 2]
                .map(|number| Process::below(&domain, &format!("process {round} {number}")));
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
            assert_eq!(
                victims.each_ref().map(Process::kills),
                [1, 0, 0],
                "round {round}"
            );
            for process in victims {
                process.exit().offline().expect("no children");
            }
        }
        assert_eq!(all(&domain, Event::OomKill), 20);
    }
}

/// Two domains, one in the other: each has a victim of its own.
#[test]
fn one_for_each_domain() {
    for runtime in runtimes() {
        let domains = ["one", "two"].map(|name| limited(&runtime.root(), name, 10 * MIB));
        let processes = domains
            .each_ref()
            .map(|domain| Process::below(domain, "process"));
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
    }
}
