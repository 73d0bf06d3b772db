//! `Group::reclaim`: proactive, reported, and no sign of pressure to any group.

use memcg::{Bytes, Event, Limit, ReclaimCause};

use super::{
    Cache, Log, MIB, assert_sound, bare, build, charge, create, kinds, left_empty, runtimes,
};

#[test]
fn it_frees_what_was_asked_for() {
    for runtime in runtimes() {
        let root = runtime.root();
        let log = Log::default();
        let groups = ["x", "y", "z"].map(|name| create(&root, name));
        let _caches = groups
            .each_ref()
            .map(|group| Cache::of(group, 10 * MIB, &log));
        let pinned = charge(&groups[0], 5 * MIB);
        let report = root
            .reclaim(Bytes(12 * MIB))
            .expect("not inside a reclaimer");
        assert_eq!(
            (report.requested, report.freed, report.pending),
            (12 * MIB, 12 * MIB, 0)
        );
        assert_eq!(
            (report.panics, report.timed_out, report.soft_visited),
            (0, false, 0)
        );
        assert!(report.visited >= 3);
        assert_eq!(root.live(), 23 * MIB);
        let asked = log.take();
        assert!(
            asked
                .iter()
                .all(|asked| asked.cause == ReclaimCause::Asked && asked.target == "/")
        );
        assert_eq!(asked.iter().map(|asked| asked.freed).sum::<u64>(), 12 * MIB);
        // More than there is.
        let report = root
            .reclaim(Bytes(100 * MIB))
            .expect("not inside a reclaimer");
        assert_eq!(
            (report.requested, report.freed, root.live()),
            (100 * MIB, 18 * MIB, pinned.bytes())
        );
        let report = root
            .reclaim(Bytes(u64::MAX))
            .expect("not inside a reclaimer");
        assert_eq!((report.requested, report.freed), (u64::MAX, 0));
        for level in groups.iter().chain([&root]) {
            for event in [
                Event::Max,
                Event::High,
                Event::Oom,
                Event::Low,
                Event::Overcharge,
                Event::Panic,
            ] {
                assert_eq!(level.events().get(event), 0, "{event:?}");
            }
        }
        assert_sound(&runtime);
    }
}

#[test]
fn nothing_is_nothing() {
    for runtime in runtimes() {
        let group = create(&runtime.root(), "q");
        let log = Log::default();
        let (cache, _registration) = Cache::of(&group, MIB, &log);
        let report = group.reclaim(0).expect("not inside a reclaimer");
        assert_eq!((report.requested, report.freed), (0, 0));
        assert!(log.is_empty());
        assert_eq!(cache.bytes(), MIB);
        assert_sound(&runtime);
    }
}

/// Of a group that is offline there is no group left to ask.
#[test]
fn of_a_group_that_is_offline() {
    let runtime = left_empty(build(bare()));
    let group = create(&runtime.root(), "q");
    let log = Log::default();
    let (cache, _registration) = Cache::of(&group, MIB, &log);
    group.offline().expect("no children");
    assert_eq!(
        group
            .reclaim(Bytes(MIB))
            .expect("not inside a reclaimer")
            .freed,
        0
    );
    assert!(log.is_empty() && cache.bytes() == MIB);
}

/// A limit that refuses is not what is asked for here: a full group is reclaimed like any other.
#[test]
fn at_its_max() {
    for builder in kinds() {
        let runtime = build(builder.max(Limit::Bytes(10 * MIB)));
        let root = runtime.root();
        let log = Log::default();
        let (cache, _registration) = Cache::of(&root, 10 * MIB, &log);
        assert_eq!(
            root.reclaim(Bytes(4 * MIB))
                .expect("not inside a reclaimer")
                .freed,
            4 * MIB
        );
        let held = charge(&root, 4 * MIB);
        assert_eq!(
            (cache.bytes(), root.events().get(Event::Max)),
            (6 * MIB, 0),
            "what was made is room"
        );
        assert_sound(&runtime);
        drop(held);
    }
}
