//! Events: which group counts what, in the group itself and above it, and that nothing is ever
//! taken back.

use memcg::figures::Events;
use memcg::{Bytes, Event, Group, Limit, Limits};

use super::{MIB, assert_sound, bare, build, charge, create, create_with, runtimes};

const ALL: [Event; 6] = [
    Event::Low,
    Event::High,
    Event::Max,
    Event::Oom,
    Event::Overcharge,
    Event::Panic,
];

fn figures(events: &Events) -> [u64; 6] {
    ALL.map(|event| events.get(event))
}

/// `events` is the sum of `Events::local` over the subtree, for each event.
#[track_caller]
fn assert_hierarchical(top: &Group) {
    let mut sum = figures(&top.events().local());
    for below in top.children() {
        assert_hierarchical(&below);
        for (sum, below) in sum.iter_mut().zip(figures(&below.events())) {
            *sum += below;
        }
    }
    assert_eq!(figures(&top.events()), sum, "{}", top.path());
}

#[test]
fn nothing_has_happened_yet() {
    let runtime = build(bare());
    let group = create(&runtime.root(), "q");
    drop(charge(&group, MIB));
    for level in [&group, &runtime.root()] {
        assert_eq!(
            (figures(&level.events()), figures(&level.events().local())),
            ([0; 6], [0; 6])
        );
    }
    assert!(group.events().iter().all(|(_, times)| times == 0));
    for event in ALL {
        assert_eq!(
            group.events().iter().filter(|&(of, _)| of == event).count(),
            1,
            "{event:?}"
        );
    }
}

/// By force above a max: the level that has it counts.
#[test]
fn overcharge_at_the_level_that_is_passed() {
    for runtime in runtimes() {
        let top = create_with(
            &runtime.root(),
            "top",
            Limits::new().max(Limit::Bytes(8 * MIB)),
        );
        let leaf = create(&top, "leaf");
        let mut held = leaf.force_charge(Bytes(8 * MIB));
        assert_eq!(top.events().get(Event::Overcharge), 0, "it fits");
        held.force_grow(Bytes(MIB));
        assert_eq!(top.events().local().get(Event::Overcharge), 1);
        drop(leaf.force_charge(1));
        assert_eq!(top.events().local().get(Event::Overcharge), 2);
        assert_eq!((figures(&leaf.events()), top.forced()), ([0; 6], MIB));
        assert_eq!(top.events().get(Event::Oom), 0);
        assert_hierarchical(&runtime.root());
        assert_sound(&runtime);
    }
}

/// Events below stay counted above when the group has gone; the next group of the object starts at
/// nothing.
#[test]
fn they_outlive_their_group_above_it() {
    for runtime in runtimes() {
        let top = create(&runtime.root(), "top");
        for round in 1..=10 {
            let group = create_with(&top, "q", Limits::new().max(0));
            assert_eq!(figures(&group.events()), [0; 6], "another group's");
            assert!(group.charge(1).is_err());
            assert_eq!(group.events().local().get(Event::Oom), 1);
            group.offline().expect("no children");
            assert_eq!(group.events().get(Event::Oom), 1, "still told");
            drop(group);
            runtime.settle();
            assert_eq!(
                (
                    top.events().get(Event::Oom),
                    top.events().local().get(Event::Oom)
                ),
                (round, 0)
            );
        }
        assert_sound(&runtime);
    }
}
