//! The delay of a charge, told without one; and charges whose delay is left to the caller.

use std::time::Duration;

use memcg::{Bytes, Limit, Limits, OnFull};

use super::{BATCH, KIB, MIB, bare, build, create, kinds, left_empty, runtimes, with_high};

/// Never less for more usage, never less for a larger charge, never more than the cap.
#[test]
fn it_only_grows() {
    let runtime = left_empty(build(bare().delay_max(Duration::from_secs(5))));
    let group = with_high(&runtime.root(), "q", 100 * MIB);
    let mut held = group.force_charge(Bytes(100 * MIB));
    let mut last = Duration::ZERO;
    for _ in 0..60 {
        held.force_grow(Bytes(MIB));
        let delay = group.inspect().high_delay(Bytes(BATCH));
        assert!(
            delay >= last && delay <= Duration::from_secs(5),
            "{delay:?} after {last:?}"
        );
        last = delay;
        let parts: Vec<Duration> = (0..24)
            .map(|shift| group.inspect().high_delay(1 << shift))
            .collect();
        assert!(parts.is_sorted(), "{parts:?}");
    }
    assert_eq!(last, Duration::from_secs(5));
}

/// Numbers that no product of 64 bits holds.
#[test]
fn at_the_ends_of_what_can_be_counted() {
    for runtime in runtimes() {
        let group = with_high(&runtime.root(), "q", 0);
        assert_eq!(
            group.inspect().high_delay(Bytes(u64::MAX)),
            Duration::ZERO,
            "nothing is above nothing"
        );
        let one = group.force_charge(1);
        // The whole of it is above: (2^20)^2 >> 34, in seconds, and more.
        assert_eq!(
            group.inspect().high_delay(Bytes(BATCH)),
            Duration::from_secs(2)
        );
        drop(one);
        let _all = group.force_charge(1 << 62);
        for bytes in [1, KIB, MIB, 1 << 62, u64::MAX] {
            assert_eq!(
                group.inspect().high_delay(Bytes(bytes)),
                Duration::from_secs(2),
                "{bytes}"
            );
        }
        group
            .set_limits(Limits::new().high(1 << 61))
            .expect("a number");
        assert_eq!(
            group.inspect().high_delay(Bytes(BATCH)),
            Duration::from_secs(2)
        );
        group
            .set_limits(Limits::new().high(1 << 62))
            .expect("a number");
        assert_eq!(group.inspect().high_delay(Bytes(BATCH)), Duration::ZERO);
    }
}

/// The caller has the charge, and spends the delay as it likes.
#[test]
fn left_to_the_caller() {
    for builder in kinds() {
        // A charge that sleeps here sleeps too long for the test.
        let runtime = left_empty(build(builder.delay_max(Duration::from_secs(600))));
        let group = with_high(&runtime.root(), "q", MIB);
        let below = group
            .charge_with(Bytes(MIB), OnFull::Reclaim)
            .expect("room");
        let none = group.inspect().high_delay(Bytes(MIB));
        assert_eq!((below.bytes(), none), (MIB, Duration::ZERO));
        let above = group
            .charge_with(Bytes(7 * MIB), OnFull::Reclaim)
            .expect("high refuses no charge");
        let delay = group.inspect().high_delay(Bytes(7 * MIB));
        assert_eq!((above.bytes(), delay), (7 * MIB, Duration::from_secs(600)));
        assert_eq!(group.live(), 8 * MIB);
        let nothing = group.charge_with(0, OnFull::Reclaim).expect("nothing");
        let none = group.inspect().high_delay(0);
        assert_eq!((nothing.bytes(), none), (0, Duration::ZERO));
    }
}

#[test]
fn refused_as_any_charge_is() {
    for runtime in runtimes() {
        let limits = Limits::new()
            .high(Limit::Bytes(MIB))
            .max(Limit::Bytes(8 * MIB));
        let group = runtime.root().create("q", limits).expect("a free name");
        let below = create(&group, "below");
        let error = below
            .charge_with(Bytes(9 * MIB), OnFull::Reclaim)
            .expect_err("max refuses");
        assert!(
            error
                .over_limit()
                .is_some_and(|refusal| refusal.group() == &group),
            "{error}"
        );
        below.offline().expect("no children");
        assert!(matches!(below.charge_with(1, OnFull::Reclaim), Err(error) if error.is_offline()));
    }
}
