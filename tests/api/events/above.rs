//! A listener at a group above is notified of all that happens below, with its own count.

use memcg::{Event, Group};

use super::{Notified, Recorder, create, full, oom, runtimes};

#[test]
fn each_level_in_its_own_name() {
    for runtime in runtimes() {
        let root = runtime.root();
        let top = create(&root, "top");
        let [one, other] = ["one", "other"].map(|name| full(&top, name));
        let levels = [&root, &top, &one, &other];
        let recorders = levels.map(|group| {
            let recorder = Recorder::default();
            let subscription = recorder.listen(group, Event::Oom);
            (recorder, subscription)
        });
        oom(&one);
        oom(&other);
        oom(&other);
        let expected = [
            ("/", vec![1, 2, 3]),
            ("/top", vec![1, 2, 3]),
            ("/top/one", vec![1]),
            ("/top/other", vec![1, 2]),
        ];
        for ((recorder, _), (group, counts)) in recorders.iter().zip(expected) {
            let all: Vec<Notified> = counts
                .into_iter()
                .map(|count| Notified {
                    group: group.into(),
                    event: Event::Oom,
                    count,
                    times: 1,
                })
                .collect();
            assert_eq!(recorder.take(), all);
        }
    }
}

/// Groups that are made afterwards, and that have gone, are below it as well.
#[test]
fn a_thread_that_is_below() {
    for runtime in runtimes() {
        let top = create(&runtime.root(), "top");
        let recorder = Recorder::default();
        let _subscription = recorder.listen(&top, Event::Oom);
        for round in 0..20 {
            let inner = create(&top, &round.to_string());
            let group: Group = full(&inner, "q");
            oom(&group);
            inner.offline_tree();
        }
        assert_eq!(
            (recorder.times(), top.events().local().get(Event::Oom)),
            (20, 0)
        );
    }
}

/// If nothing is below the limit that is met, nothing is told.
#[test]
fn no_thread_beside_or_below() {
    for runtime in runtimes() {
        let top = full(&runtime.root(), "top");
        let below = create(&top, "below");
        let beside = create(&runtime.root(), "beside");
        let recorders = [&below, &beside].map(|group| {
            let recorder = Recorder::default();
            let subscription = recorder.listen(group, Event::Oom);
            (recorder, subscription)
        });
        oom(&below);
        assert!(
            recorders
                .iter()
                .all(|(recorder, _)| recorder.take().is_empty())
        );
        assert_eq!(top.events().local().get(Event::Oom), 1);
    }
}
