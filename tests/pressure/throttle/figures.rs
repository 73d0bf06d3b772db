//! What a charge would be delayed, told without one; and charges whose delay is left to the caller.

use std::time::Duration;

use memcg::{Bytes, ChargeError, Limit, Limits, OnFull};

use super::{BATCH, KIB, MIB, assert_empty, bare, build, create, kinds, with_high};

/// The kernel's formula for a batch, in milliseconds: it grows with the square of the part by which usage is above.
fn penalty(usage: u64, high: u64) -> u64 {
    let overage = (u128::from(usage.saturating_sub(high)) << 20) / u128::from(high.max(1));
    let millis = (overage * overage * 1_000) >> 34;
    u64::try_from(millis.min(2_000)).expect("at most 2,000")
}

/// Over the whole range, at several highs.
#[test]
fn by_the_formula() {
    for high in [MIB, 10 * MIB, 100 * MIB, 3_000 * MIB] {
        let runtime = build(bare());
        let group = with_high(&runtime.root(), "q", high);
        for percent in [0, 50, 99, 100, 101, 102, 103, 104, 105, 107, 110, 113, 115, 117, 118, 150, 1_000] {
            let held = group.force_charge(Bytes(high * percent / 100));
            let told = group.high_delay(Bytes(BATCH)).as_millis();
            let formula = u128::from(penalty(group.usage(), high));
            // Whole milliseconds in the kernel; here perhaps parts of one.
            assert!(told.abs_diff(formula) <= 1, "{percent} % of {high}: {told} ms, not {formula}");
            drop(held);
        }
        drop(group);
        assert_empty(&runtime);
    }
}

/// Never less for more usage, never less for a larger charge, never more than the cap.
#[test]
fn it_only_grows() {
    let runtime = build(bare().delay_max(Duration::from_secs(5)));
    let group = with_high(&runtime.root(), "q", 100 * MIB);
    let mut held = group.force_charge(Bytes(100 * MIB));
    let mut last = Duration::ZERO;
    for _ in 0..60 {
        held.force_grow(Bytes(MIB));
        let delay = group.high_delay(Bytes(BATCH));
        assert!(delay >= last && delay <= Duration::from_secs(5), "{delay:?} after {last:?}");
        last = delay;
        let parts: Vec<Duration> = (0..24).map(|shift| group.high_delay(1 << shift)).collect();
        assert!(parts.is_sorted(), "{parts:?}");
    }
    assert_eq!(last, Duration::from_secs(5));
    drop((held, group));
    assert_empty(&runtime);
}

/// Numbers that no product of 64 bits holds.
#[test]
fn at_the_ends_of_what_can_be_counted() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = with_high(&runtime.root(), "q", 0);
        assert_eq!(group.high_delay(Bytes(u64::MAX)), Duration::ZERO, "nothing is above nothing");
        let one = group.force_charge(1);
        // The whole of it is above: (2^20)^2 >> 34, in seconds, and more.
        assert_eq!(group.high_delay(Bytes(BATCH)), Duration::from_secs(2));
        drop(one);
        let all = group.force_charge(1 << 62);
        for bytes in [1, KIB, MIB, 1 << 62, u64::MAX] {
            assert_eq!(group.high_delay(Bytes(bytes)), Duration::from_secs(2), "{bytes}");
        }
        group.set_high(1 << 61).expect("a number");
        assert_eq!(group.high_delay(Bytes(BATCH)), Duration::from_secs(2));
        group.set_high(1 << 62).expect("a number");
        assert_eq!(group.high_delay(Bytes(BATCH)), Duration::ZERO);
        drop((all, group));
        assert_empty(&runtime);
    }
}

/// The caller has the charge, and spends the delay as it likes.
#[test]
fn left_to_the_caller() {
    for builder in kinds() {
        // A charge that sleeps here sleeps too long for the test.
        let runtime = build(builder.delay_max(Duration::from_secs(600)));
        let group = with_high(&runtime.root(), "q", MIB);
        let below = group.try_charge_with(Bytes(MIB), OnFull::Reclaim).expect("room");
        let none = group.high_delay(Bytes(MIB));
        assert_eq!((below.bytes(), none), (MIB, Duration::ZERO));
        let above = group.try_charge_with(Bytes(7 * MIB), OnFull::Reclaim).expect("high refuses no charge");
        let delay = group.high_delay(Bytes(7 * MIB));
        assert_eq!((above.bytes(), delay), (7 * MIB, Duration::from_secs(600)));
        assert_eq!(group.live(), 8 * MIB);
        let nothing = group.try_charge_with(0, OnFull::Reclaim).expect("nothing");
        let none = group.high_delay(0);
        assert_eq!((nothing.bytes(), none), (0, Duration::ZERO));
        drop((below, above, nothing, group));
        assert_empty(&runtime);
    }
}

#[test]
fn refused_as_any_charge_is() {
    for builder in kinds() {
        let runtime = build(builder);
        let limits = Limits::new().high(Limit::Bytes(MIB)).max(Limit::Bytes(8 * MIB));
        let group = runtime.root().create("q", limits).expect("a free name");
        let below = create(&group, "below");
        let error = below.try_charge_with(Bytes(9 * MIB), OnFull::Reclaim).expect_err("max refuses");
        assert!(matches!(&error, ChargeError::Limit(refusal) if refusal.group() == &group), "{error}");
        below.offline().expect("no children");
        assert!(matches!(below.try_charge_with(1, OnFull::Reclaim), Err(ChargeError::Offline { .. })));
        drop((error, below, group));
        assert_empty(&runtime);
    }
}
