//! Events: which group counts what, in the group itself and above it, and that nothing is ever taken back.

use std::collections::HashMap;

use memcg::{Bytes, Event, Events, Group, GroupId, Limit, Limits};

use super::{Cache, Log, MIB, assert_sound, bare, build, charge, create, create_with, kinds, soft};

const ALL: [Event; 6] = [Event::Low, Event::High, Event::Max, Event::Oom, Event::Overcharge, Event::Panic];

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
        assert_eq!((figures(&level.events()), figures(&level.events().local())), ([0; 6], [0; 6]));
    }
    assert!(group.events().iter().all(|(_, times)| times == 0));
    for event in ALL {
        assert_eq!(group.events().iter().filter(|&(of, _)| of == event).count(), 1, "{event:?}");
    }
}

/// At the level that refused: one for each round; one more when it was for good.
#[test]
fn max_and_oom_at_the_level_that_refused() {
    for builder in kinds() {
        let runtime = build(builder);
        let top = create_with(&runtime.root(), "top", Limits::new().max(Limit::Bytes(8 * MIB)));
        let inner = create_with(&top, "inner", Limits::new().max(Limit::Bytes(100 * MIB)));
        let leaf = create(&inner, "leaf");
        let (cache, registration) = Cache::of(&leaf, 8 * MIB, &Log::default());
        let held = charge(&leaf, MIB);
        let (max, oom) = (top.events().local().get(Event::Max), top.events().local().get(Event::Oom));
        assert!(max >= 1 && oom == 0, "{max} and {oom}");
        drop(registration);
        assert!(leaf.try_charge(Bytes(2 * MIB)).is_err());
        assert!(top.events().local().get(Event::Max) > max);
        assert_eq!(top.events().local().get(Event::Oom), 1);
        for below in [&inner, &leaf] {
            assert_eq!(figures(&below.events()), [0; 6]);
        }
        assert_eq!(figures(&runtime.root().events().local()), [0; 6]);
        assert_eq!(figures(&runtime.root().events()), figures(&top.events()));
        assert_hierarchical(&runtime.root());
        assert_sound(&runtime);
        drop((held, cache));
    }
}

/// By force above a max: the level that has it counts.
#[test]
fn overcharge_at_the_level_that_is_passed() {
    for builder in kinds() {
        let runtime = build(builder);
        let top = create_with(&runtime.root(), "top", Limits::new().max(Limit::Bytes(8 * MIB)));
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

/// What happened below stays counted above when the group has gone; the next group of the object starts at nothing.
#[test]
fn they_outlive_their_group_above_it() {
    for builder in kinds() {
        let runtime = build(builder);
        let top = create(&runtime.root(), "top");
        for round in 1..=10 {
            let group = create_with(&top, "q", Limits::new().max(0));
            assert_eq!(figures(&group.events()), [0; 6], "another group's");
            assert!(group.try_charge(1).is_err());
            assert_eq!(group.events().local().get(Event::Oom), 1);
            group.offline().expect("no children");
            assert_eq!(group.events().get(Event::Oom), 1, "still told");
            drop(group);
            runtime.settle();
            assert_eq!((top.events().get(Event::Oom), top.events().local().get(Event::Oom)), (round, 0));
        }
        assert_sound(&runtime);
    }
}

/// Over a long life of a tree: never less than before, and each level is the sum of what is below it.
#[test]
fn they_only_grow() {
    for builder in kinds() {
        let runtime = build(builder.max(Limit::Bytes(24 * MIB)));
        let root = runtime.root();
        let log = Log::default();
        let mut groups = vec![root.clone()];
        for number in 0..8 {
            let parent = &groups[number / 2];
            let limits = match number % 4 {
                0 => soft(MIB),
                1 => Limits::new().low(Limit::Bytes(8 * MIB)),
                2 => Limits::new().max(Limit::Bytes(16 * MIB)),
                _ => Limits::new().min(Limit::Bytes(MIB)),
            };
            groups.push(create_with(parent, &number.to_string(), limits));
        }
        let caches: Vec<_> = groups[1..].iter().map(|group| Cache::of(group, 2 * MIB, &log)).collect();
        let mut before: HashMap<GroupId, [[u64; 6]; 2]> = HashMap::new();
        let mut held = Vec::new();
        for step in 0..120_usize {
            let group = &groups[step * 7 % groups.len()];
            match step % 9 {
                0 => held.push(group.force_charge(Bytes(20 * MIB))),
                1..=4 => held.extend(group.try_charge(Bytes(2 * MIB)).ok()),
                5 => drop(group.reclaim(Bytes(MIB))),
                6 => drop(caches[step % caches.len()].0.add(MIB)),
                _ if held.is_empty() => {}
                _ => drop(held.swap_remove(step % held.len())),
            }
            for group in &groups {
                let now = [figures(&group.events()), figures(&group.events().local())];
                let old = before.insert(group.id(), now).unwrap_or_default();
                let (now, old) = (now.as_flattened(), old.as_flattened());
                assert!(now.iter().zip(old).all(|(now, old)| now >= old), "{now:?} after {old:?}");
            }
        }
        assert_hierarchical(&root);
        assert!([Event::Max, Event::Oom, Event::Overcharge].iter().all(|&event| root.events().get(event) > 0));
        assert_sound(&runtime);
        drop((caches, held));
    }
}
