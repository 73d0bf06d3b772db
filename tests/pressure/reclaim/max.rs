//! A max that is lowered below usage: drained, reclaimed at once, and what is still above is told.

use memcg::{Bytes, Event, Limit, Limits, ReclaimCause};

use super::{
    Cache, Crowded, Log, MIB, assert_sound, bare, build, charge, create, create_with, left_empty,
    runtimes,
};

#[test]
fn written_below_usage_it_reclaims() {
    for runtime in runtimes() {
        let crowded = Crowded::below(&runtime.root());
        let asked = crowded.lowered_to(16, |group, to| group.set_max(to).expect("a number"));
        assert!(
            asked
                .iter()
                .all(|asked| asked.cause == ReclaimCause::Lowered),
            "{asked:?}"
        );
        let Crowded {
            group,
            pinned,
            outside,
            ..
        } = &crowded;
        assert_eq!(group.forced(), 0);
        // More than there is to give.
        let above = group.set_max(Limit::Bytes(MIB)).expect("a number");
        assert_eq!(
            (above, group.usage(), group.forced(), group.max()),
            (3 * MIB, 4 * MIB, 3 * MIB, MIB)
        );
        assert_eq!(group.live(), pinned.bytes());
        assert!(group.charge(1).is_err());
        assert_eq!(
            outside.bytes(),
            8 * MIB,
            "a group that is not below is not asked"
        );
        // It goes on where it left off.
        let Crowded { group, pinned, .. } = crowded;
        drop(pinned);
        assert_eq!((group.usage(), group.forced()), (0, 0));
        drop(charge(&group, MIB));
        assert_sound(&runtime);
    }
}

/// No kernel of ours kills for it; no group is refused either.
#[test]
fn it_is_no_oom() {
    for runtime in runtimes() {
        let group = create(&runtime.root(), "q");
        let held = charge(&group, MIB);
        assert_eq!(group.set_max(0).expect("a number"), MIB);
        assert_eq!(
            (group.events().get(Event::Oom), group.refused_count()),
            (0, 0)
        );
        assert_eq!(group.set_max(0).expect("a number"), MIB, "again");
        drop(held);
        assert_sound(&runtime);
    }
}

/// More than a level could ever hold: no group gives anything up for what cannot be.
#[test]
fn what_can_never_fit_evicts_no_group() {
    for runtime in runtimes() {
        let log = Log::default();
        let group = create_with(
            &runtime.root(),
            "q",
            Limits::new().max(Limit::Bytes(16 * MIB)),
        );
        let (cache, _registration) = Cache::of(&group, 15 * MIB, &log);
        for bytes in [16 * MIB + 1, 17 * MIB, u64::MAX] {
            assert!(group.charge(Bytes(bytes)).is_err());
        }
        assert_eq!((cache.bytes(), log.len()), (15 * MIB, 0));
        assert_eq!(group.events().local().get(Event::Oom), 3);
        drop(charge(&group, 16 * MIB));
        assert_eq!(cache.bytes(), 0);
        assert_sound(&runtime);
    }
}

/// The next charge makes up for what was forced in, in one go.
#[test]
fn a_charge_makes_up_for_what_is_above() {
    for runtime in runtimes() {
        let log = Log::default();
        let group = create_with(
            &runtime.root(),
            "q",
            Limits::new().max(Limit::Bytes(16 * MIB)),
        );
        let (cache, _registration) = Cache::of(&group, 15 * MIB, &log);
        let _forced = group.force_charge(Bytes(8 * MIB));
        let _held = charge(&group, 1);
        assert!(
            cache.bytes() <= 8 * MIB && cache.bytes() >= 7 * MIB,
            "{}",
            cache.bytes()
        );
        assert_eq!(group.forced(), 0);
        assert_sound(&runtime);
    }
}

/// A percentage that follows it below is a max that was lowered, too.
#[test]
fn a_percentage_below_shrinks_too() {
    for runtime in runtimes() {
        let log = Log::default();
        let top = create_with(
            &runtime.root(),
            "top",
            Limits::new().max(Limit::Bytes(64 * MIB)),
        );
        let half = create_with(&top, "half", Limits::new().max(Limit::percent(50)));
        let (cache, _registration) = Cache::of(&half, 32 * MIB, &log);
        assert_eq!(top.set_max(Limit::Bytes(40 * MIB)).expect("a number"), 0);
        assert_eq!((half.max(), half.forced()), (20 * MIB, 0));
        assert!(
            cache.bytes() <= 20 * MIB && cache.bytes() >= 19 * MIB,
            "{}",
            cache.bytes()
        );
        assert!(
            log.take()
                .iter()
                .all(|asked| asked.cause == ReclaimCause::Lowered && asked.target == "/top/half")
        );
        assert_sound(&runtime);
    }
}

/// The same where there is no max at all, and nothing that long can be waited for.
#[test]
fn what_cannot_be_counted_evicts_no_group() {
    let runtime = left_empty(build(bare().reclaim_time(std::time::Duration::MAX)));
    let group = create(&runtime.root(), "q");
    let (cache, _registration) = Cache::of(&group, MIB, &Log::default());
    group
        .charge(Bytes(u64::MAX))
        .expect_err("more than can be counted");
    assert_eq!(cache.bytes(), MIB);
    assert_eq!(
        group.reclaim(1).expect("not inside a reclaimer").freed,
        1,
        "time without end is no fault"
    );
}
