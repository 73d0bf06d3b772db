//! At a group above: it hears of all that happens below, with its own count.

use memcg::{Event, Group};

use super::{Ear, Heard, assert_empty, build, create, full, kinds, oom};

#[test]
fn each_level_in_its_own_name() {
    for builder in kinds() {
        let runtime = build(builder);
        let root = runtime.root();
        let top = create(&root, "top");
        let [one, other] = ["one", "other"].map(|name| full(&top, name));
        let levels = [&root, &top, &one, &other];
        let ears = levels.map(|group| {
            let ear = Ear::default();
            let subscription = ear.listen(group, Event::Oom);
            (ear, subscription)
        });
        oom(&one);
        oom(&other);
        oom(&other);
        let expected =
            [("/", vec![1, 2, 3]), ("/top", vec![1, 2, 3]), ("/top/one", vec![1]), ("/top/other", vec![1, 2])];
        for ((ear, _), (group, counts)) in ears.iter().zip(expected) {
            let all: Vec<Heard> = counts
                .into_iter()
                .map(|count| Heard { group: group.into(), event: Event::Oom, count, times: 1 })
                .collect();
            assert_eq!(ear.take(), all);
        }
        drop((ears, one, other, top));
        assert_empty(&runtime);
    }
}

/// Groups that are made afterwards, and that have gone, are below it as well.
#[test]
fn whoever_is_below() {
    for builder in kinds() {
        let runtime = build(builder);
        let top = create(&runtime.root(), "top");
        let ear = Ear::default();
        let subscription = ear.listen(&top, Event::Oom);
        for round in 0..20 {
            let inner = create(&top, &round.to_string());
            let group: Group = full(&inner, "q");
            oom(&group);
            inner.offline_tree();
        }
        assert_eq!((ear.times(), top.events_local().get(Event::Oom)), (20, 0));
        drop((subscription, top));
        assert_empty(&runtime);
    }
}

/// Where nothing is below the limit that is met, nothing is told.
#[test]
fn nobody_beside_or_below() {
    for builder in kinds() {
        let runtime = build(builder);
        let top = full(&runtime.root(), "top");
        let (below, beside) = (create(&top, "below"), create(&runtime.root(), "beside"));
        let ears = [&below, &beside].map(|group| {
            let ear = Ear::default();
            let subscription = ear.listen(group, Event::Oom);
            (ear, subscription)
        });
        oom(&below);
        assert!(ears.iter().all(|(ear, _)| ear.take().is_empty()));
        assert_eq!(top.events_local().get(Event::Oom), 1);
        drop((ears, below, beside, top));
        assert_empty(&runtime);
    }
}
