//! The counts of a snapshot.

use std::collections::BTreeSet;
use std::time::Duration;

use memcg::Event;

use super::{build, create, full, kinds, oom, runtimes};

/// The kernel's names where there is one.
#[test]
fn names() {
    let named = [
        (Event::Low, "low"),
        (Event::High, "high"),
        (Event::Max, "max"),
        (Event::Oom, "oom"),
        (Event::OomKill, "oom_kill"),
        (Event::OomGroupKill, "oom_group_kill"),
        (Event::Overcharge, "overcharge"),
        (Event::Observed, "observed"),
        (Event::TimedOut, "timed_out"),
        (Event::Panic, "panic"),
        (Event::PressureLevel, "pressure_level"),
        (Event::ReclaimStuck, "reclaim_stuck"),
        (Event::Underflow, "underflow"),
    ];
    for (event, name) in named {
        assert_eq!(event.name(), name);
        assert_eq!(
            Event::ALL.iter().filter(|&&other| other == event).count(),
            1,
            "{name}"
        );
    }
    assert_eq!(Event::ALL.len(), named.len());
    assert_eq!(
        Event::ALL
            .iter()
            .map(|event| event.name())
            .collect::<BTreeSet<_>>()
            .len(),
        named.len()
    );
}

/// It stays as it was, whatever happens.
#[test]
fn it_is_of_one_moment() {
    for runtime in runtimes() {
        let group = full(&runtime.root(), "q");
        let before = [
            group.events(),
            group.events().local(),
            runtime.root().events(),
        ];
        oom(&group);
        assert!(
            before
                .iter()
                .all(|events| events.iter().all(|(_, count)| count == 0))
        );
        assert_eq!(
            (
                group.events().get(Event::Oom),
                before[0].clone().get(Event::Oom)
            ),
            (1, 0)
        );
        assert!(format!("{:?}", group.events()).contains("oom"));
    }
}

/// It may outlive the group, and everything.
#[test]
fn it_keeps_what_it_needs() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = full(&runtime.root(), "q");
        oom(&group);
        let events = group.events();
        group.offline().expect("no children");
        drop(group);
        let other = create(&runtime.root(), "q");
        assert_eq!(
            (events.get(Event::Oom), other.events().get(Event::Oom)),
            (1, 0)
        );
        assert!(
            !events.wait(Event::Oom, Duration::from_millis(1)),
            "another group's events are not its"
        );
        drop(runtime);
        assert!(!events.wait(Event::Max, Duration::from_millis(1)));
        assert_eq!(events.get(Event::Oom), 1);
    }
}
