//! When a group is asked: those above their soft limit first, then all that is not protected, then
//! low, and min never.

use memcg::{Bytes, Event, Group, Limit, Limits, ReclaimPass};

use super::{
    Cache, KIB, Log, MIB, assert_sound, assert_within, bare, build, charge, create, create_with,
    kinds, runtimes, soft,
};

fn low(bytes: u64) -> Limits {
    Limits::new().low(Limit::Bytes(bytes))
}

fn min(bytes: u64) -> Limits {
    Limits::new().min(Limit::Bytes(bytes))
}

#[test]
fn soft_then_everyone_then_low_and_min_never() {
    for builder in kinds() {
        for recursive in [true, false] {
            let runtime = build(builder.clone().recursive_protection(recursive));
            let top = create_with(
                &runtime.root(),
                "top",
                Limits::new().max(Limit::Bytes(40 * MIB)),
            );
            let log = Log::default();
            // Made in another order than they are asked in.
            let made = [
                ("pinned", min(10 * MIB)),
                ("low", low(10 * MIB)),
                ("plain", Limits::new()),
                ("over", soft(0)),
            ];
            let groups = made.map(|(name, limits)| create_with(&top, name, limits));
            let caches = groups
                .each_ref()
                .map(|group| Cache::of(group, 10 * MIB, &log));
            let mut held = Vec::new();
            let mut live = [10 * MIB; 4];
            while let Ok(charge) = top.charge(Bytes(MIB)) {
                held.push(charge);
                let now = groups.each_ref().map(Group::live);
                assert_eq!(now[0], 10 * MIB, "min gives nothing");
                assert!(
                    now[1] == 10 * MIB || now[2] == 0,
                    "low gives while a plain one has {}",
                    now[2]
                );
                assert!(
                    now[2] == live[2] || now[3] == 0,
                    "a plain one gives while one in excess has {}",
                    now[3]
                );
                live = now;
            }
            assert_eq!((held.len(), live), (30, [10 * MIB, 0, 0, 0]));
            assert_eq!(log.order(), ["/top/over", "/top/plain", "/top/low"]);
            for asked in log.take() {
                let pass = match asked.group.as_str() {
                    "/top/over" => ReclaimPass::Soft,
                    "/top/plain" => ReclaimPass::Unprotected,
                    _ => ReclaimPass::Low,
                };
                assert_eq!(asked.pass, pass, "{asked:?}");
            }
            let events = groups
                .each_ref()
                .map(|group| group.events().local().get(Event::Low) > 0);
            assert_eq!(events, [false, true, false, false]);
            assert!(
                top.events().local().get(Event::Oom) == 1
                    && top.events().local().get(Event::Low) == 0
            );
            assert_sound(&runtime);
            drop(caches);
        }
    }
}

/// In one call, too, and no more of the later than the earlier leave.
#[test]
fn one_call_goes_through_all() {
    for runtime in runtimes() {
        let root = runtime.root();
        let log = Log::default();
        let made = [
            ("pinned", min(10 * MIB)),
            ("low", low(10 * MIB)),
            ("plain", Limits::new()),
            ("over", soft(0)),
        ];
        let groups = made.map(|(name, limits)| create_with(&root, name, limits));
        let _caches = groups
            .each_ref()
            .map(|group| Cache::of(group, 10 * MIB, &log));
        let report = root
            .reclaim(Bytes(25 * MIB))
            .expect("not inside a reclaimer");
        assert_eq!(report.freed, 25 * MIB);
        assert_eq!(
            groups.each_ref().map(Group::live),
            [10 * MIB, 5 * MIB, 0, 0]
        );
        assert!(
            report.soft_visited > 0 && report.soft_visited < report.visited,
            "{report:?}"
        );
        let report = root
            .reclaim(Bytes(100 * MIB))
            .expect("not inside a reclaimer");
        assert_eq!((report.requested, report.freed), (100 * MIB, 5 * MIB));
        assert_eq!(groups[0].live(), 10 * MIB);
        assert_sound(&runtime);
    }
}

/// Low is broken for each group that it protects, and each says so; what is above its low gives
/// first.
#[test]
fn what_is_above_low_goes_first() {
    let runtime = build(bare());
    let root = runtime.root();
    let log = Log::default();
    let groups = ["a", "b"].map(|name| create_with(&root, name, low(10 * MIB)));
    let _caches =
        [(0, 30), (1, 12)].map(|(at, size): (usize, u64)| Cache::of(&groups[at], size * MIB, &log));
    root.reclaim(Bytes(22 * MIB))
        .expect("not inside a reclaimer");
    assert_eq!(groups.each_ref().map(Group::live), [10 * MIB; 2]);
    assert_eq!(root.events().get(Event::Low), 0);
    assert!(log.in_pass(ReclaimPass::Low).is_empty());
    root.reclaim(Bytes(4 * MIB))
        .expect("not inside a reclaimer");
    assert_eq!(groups[0].live() + groups[1].live(), 16 * MIB);
    for group in &groups {
        assert!(group.live() < 10 * MIB, "both gave");
        assert!(group.events().local().get(Event::Low) > 0);
    }
    assert_eq!(root.events().local().get(Event::Low), 0);
    assert_sound(&runtime);
}

/// Protected in part: what each gives is in proportion to what is not protected.
#[test]
fn protection_scales_what_is_asked() {
    let runtime = build(bare());
    let root = runtime.root();
    let log = Log::default();
    let half = create_with(&root, "half", low(32 * MIB));
    let none = create(&root, "none");
    let _caches = [&half, &none].map(|group| Cache::of(group, 64 * MIB, &log));
    for _ in 0..64 {
        root.reclaim(Bytes(256 * KIB))
            .expect("not inside a reclaimer");
    }
    // 16 MiB of 32 + 64.
    let gone = [&half, &none].map(|group| 64 * MIB - group.live());
    assert_eq!(gone[0] + gone[1], 16 * MIB);
    assert!(gone[0] > 3 * MIB && gone[0] < gone[1] * 6 / 10, "{gone:?}");
    assert_sound(&runtime);
}

/// Those in excess are no more than a pass away from every group: what they have is taken, then the
/// others'.
#[test]
fn excess_that_has_nothing_to_give_is_no_obstacle() {
    let runtime = build(bare());
    let root = runtime.root();
    let log = Log::default();
    let over = create_with(&root, "over", soft(0));
    let held = charge(&over, 20 * MIB);
    let _small = Cache::of(&over, MIB, &log);
    let plain = create(&root, "plain");
    let _cache = Cache::of(&plain, 20 * MIB, &log);
    let report = root
        .reclaim(Bytes(3 * MIB))
        .expect("not inside a reclaimer");
    assert_eq!(
        (report.freed, over.live(), plain.live()),
        (3 * MIB, held.bytes(), 18 * MIB)
    );
    let report = root
        .reclaim(Bytes(3 * MIB))
        .expect("not inside a reclaimer");
    assert_eq!((report.freed, plain.live()), (3 * MIB, 15 * MIB));
    assert!(over.inspect().is_in_excess());
    assert_sound(&runtime);
}

/// Those in excess have no group to ask, or went offline with what they hold: the first pass ends
/// with no group visited, and every group is asked in the same call.
#[test]
fn excess_with_no_group_to_ask_is_no_obstacle() {
    for runtime in runtimes() {
        let root = runtime.root();
        let log = Log::default();
        let over = create_with(&root, "over", soft(0));
        let inner = create_with(&over, "inner", soft(0));
        let _held = [charge(&over, MIB), charge(&inner, MIB)];
        let gone = create_with(&root, "gone", soft(0));
        let _left = charge(&gone, MIB);
        gone.offline().expect("no children");
        let (cache, _registration) = Cache::of(&create(&root, "plain"), 20 * MIB, &log);
        assert_eq!(root.inspect().descendants_in_excess(), 2);
        let report = root
            .reclaim(Bytes(3 * MIB))
            .expect("not inside a reclaimer");
        assert_eq!(
            (report.freed, report.soft_visited, cache.bytes()),
            (3 * MIB, 0, 17 * MIB),
            "{report:?}"
        );
        // One that is asked there shows that it was a pass.
        let _inner = Cache::of(&inner, MIB, &log);
        assert!(
            root.reclaim(Bytes(MIB))
                .expect("not inside a reclaimer")
                .soft_visited
                > 0
        );
        assert_eq!(cache.bytes(), 17 * MIB);
        assert_sound(&runtime);
    }
}

/// The protection of a group in excess holds: soft limits say which group is first, not which has
/// no protection.
#[test]
fn excess_does_not_break_protection() {
    let runtime = build(bare());
    let root = runtime.root();
    let log = Log::default();
    let both = create_with(&root, "both", soft(0).min(Limit::Bytes(8 * MIB)));
    let plain = create(&root, "plain");
    let _caches = [&both, &plain].map(|group| Cache::of(group, 10 * MIB, &log));
    assert_eq!(
        root.reclaim(Bytes(12 * MIB))
            .expect("not inside a reclaimer")
            .freed,
        12 * MIB
    );
    assert_eq!((both.live(), plain.live()), (8 * MIB, 0));
    assert_eq!(
        root.reclaim(Bytes(MIB))
            .expect("not inside a reclaimer")
            .freed,
        0
    );
    assert_eq!(both.live(), 8 * MIB);
    assert_sound(&runtime);
}

/// A call begins where the one before it stopped: equals give the same after any number of small
/// calls.
#[test]
fn calls_take_turns() {
    for builder in kinds() {
        let runtime = build(builder.max(Limit::Bytes(128 * MIB)));
        let root = runtime.root();
        let log = Log::default();
        let groups: Vec<Group> = (0..8)
            .map(|number| create(&root, &number.to_string()))
            .collect();
        let caches: Vec<_> = groups
            .iter()
            .map(|group| Cache::of(group, 16 * MIB, &log))
            .collect();
        let mut held = Vec::new();
        // 32 MiB of 128, in steps smaller than what any group gives in one go.
        for _ in 0..32 * 64 {
            held.push(charge(&root, 16 * KIB));
        }
        for (cache, _) in &caches {
            assert_within(cache.bytes(), 12 * MIB, 10);
        }
        assert_sound(&runtime);
        drop(held);
    }
}

/// A charge to the root that does not fit may find turns half over: the group that has memory was
/// asked just before, by its own max. Reclaim for the root asks it all the same.
#[test]
fn a_group_that_gave_for_itself_gives_to_the_level_above() {
    for builder in kinds() {
        for depth in 0..3 {
            let runtime = build(builder.clone().max(Limit::Bytes(64 * KIB)));
            let root = runtime.root();
            let log = Log::default();
            let top = (0..depth).fold(root.clone(), |above, level| {
                create(&above, &format!("level{level}"))
            });
            let [full, empty] = ["full", "empty"].map(|name| create(&top, name));
            let caches = [&full, &empty].map(|group| Cache::of(group, 32 * KIB, &log));
            // One turn of each: the lap of the root ends with the group that holds nothing from
            // here on.
            root.reclaim(Bytes(20 * KIB))
                .expect("not inside a reclaimer");
            empty
                .reclaim(Bytes(64 * KIB))
                .expect("not inside a reclaimer");
            full.reclaim(Bytes(KIB)).expect("not inside a reclaimer");
            let left = caches[0].0.bytes();
            assert!(left >= KIB && caches[1].0.bytes() == 0, "{left}");
            let _all = root
                .charge(Bytes(64 * KIB))
                .expect("what the full group has is asked for");
            assert_eq!(full.live() + empty.live(), 0);
            assert_sound(&runtime);
        }
    }
}
