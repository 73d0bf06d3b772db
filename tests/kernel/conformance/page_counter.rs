//! Statements 1 to 10: charge, limits, what a refusal leaves behind.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use memcg::{Bytes, CounterConfig, Limit, PageCounter};

use super::{adaptive, assert_sound, bare, fixed};

/// R{A{B}} with A.max = 100.
fn limited(config: CounterConfig) -> (PageCounter, PageCounter, PageCounter) {
    let r = PageCounter::root(config);
    let a = r.child();
    a.set_max(100).expect("nothing is charged yet");
    let b = a.child();
    (r, a, b)
}

/// 1, whatever the stock: the outcome.
fn refusal_names_the_level(config: CounterConfig) {
    let (r, a, b) = limited(config);
    b.charge(60).expect("60 of 100");
    let refused = b.charge(41).expect_err("101 of 100");
    assert_eq!((refused.level, refused.requester), (a.id(), b.id()));
    assert_eq!(
        (refused.requested, refused.usage, refused.max),
        (41, 60, 100)
    );
    assert_eq!([b.live(), a.live(), r.live()], [60; 3]);
    assert_eq!(
        (a.refused_count(), b.refused_count(), r.refused_count()),
        (1, 0, 0)
    );
    assert_sound(&r);
}

/// T: R{A{B}}, A.max = 100: B takes 60, is refused 41 at A, and nothing of the refused charge stays
/// anywhere.
#[test]
fn s001_refusal_names_the_level_and_leaves_no_trace() {
    refusal_names_the_level(bare());
    let (r, a, b) = limited(bare());
    b.charge(60).expect("60 of 100");
    assert_eq!([b.usage(), a.usage(), r.usage()], [60; 3]);
    b.charge(41).expect_err("101 of 100");
    assert_eq!([b.usage(), a.usage(), r.usage()], [60; 3]);
}

/// 1 with a fixed stock. Other than in the kernel the credit of the refusing subtree goes back
/// before the refusal, so usage is what is live.
#[test]
fn s001_refusal_returns_the_stock_first() {
    refusal_names_the_level(fixed());
    let (r, a, b) = limited(fixed());
    b.charge(60).expect("60 of 100");
    assert_eq!([b.usage(), a.usage(), r.usage()], [64; 3]);
    b.charge(41).expect_err("101 of 100");
    assert_eq!([b.usage(), a.usage(), r.usage()], [60; 3]);
}

#[test]
fn s001_adaptive() {
    refusal_names_the_level(adaptive());
}

fn usage_may_equal_max(config: CounterConfig) {
    let (r, a, b) = limited(config);
    b.charge(60).expect("60 of 100");
    b.charge(40).expect("100 of 100");
    assert_eq!([b.usage(), a.usage(), r.usage()], [100; 3]);
    assert_eq!(b.charge(1).expect_err("101 of 100").level, a.id());
    assert_eq!([b.live(), a.live(), r.live()], [100; 3]);
    assert_sound(&r);
}

twins! {
    usage_may_equal_max:
    /// usage == max is legal; one more is refused.
    s002_usage_may_equal_max(bare())(fixed()),
    s002_adaptive(adaptive()),
}

fn forced_charge_exceeds_max(config: CounterConfig) {
    let (r, a, b) = limited(config);
    b.force_charge(150);
    assert_eq!([b.live(), a.live(), r.live()], [150; 3]);
    assert_eq!((a.usage(), a.forced(), a.forced_total()), (150, 50, 50));
    assert_eq!(
        (b.forced(), r.forced()),
        (0, 0),
        "only A has a limit to exceed"
    );
    assert_eq!(b.charge(1).expect_err("already above").level, a.id());
    b.uncharge(51);
    assert_eq!((a.live(), a.forced()), (99, 0));
    b.charge(1).expect("100 of 100");
    assert_eq!([b.live(), a.live(), r.live()], [100; 3]);
    assert_eq!(a.forced_total(), 50, "the sum of all times stays");
    assert_sound(&r);
}

twins! {
    forced_charge_exceeds_max:
    /// A forced charge may exceed the limit; the next ordinary one is refused until enough is
    /// uncharged. The kernel does not tell forced units from others; here `forced` counts them.
    s003_forced_charge_exceeds_max(bare())(fixed()),
    s003_adaptive(adaptive()),
}

/// After 1 the kernel's B.peak is 101, a usage that never was. Here no refused charge enters a
/// peak.
#[test]
fn s005_refused_charge_enters_no_peak() {
    let (r, a, b) = limited(bare());
    b.charge(60).expect("60 of 100");
    b.charge(41).expect_err("101 of 100");
    assert_eq!([b.peak(), a.peak(), r.peak()], [60; 3]);
}

/// 5 with a stock: the batch that the admitted charge took is in the peak, the refused charge is
/// not.
#[test]
fn s005_refused_charge_enters_no_peak_with_a_stock() {
    let (r, a, b) = limited(fixed());
    b.charge(60).expect("60 of 100");
    b.charge(41).expect_err("101 of 100");
    assert_eq!([b.peak(), a.peak(), r.peak()], [64; 3]);
}

#[test]
fn s005_adaptive() {
    let (r, a, b) = limited(adaptive());
    b.charge(60).expect("60 of 100");
    b.charge(41).expect_err("101 of 100");
    for counter in [&b, &a, &r] {
        assert!(
            (60..=100).contains(&counter.peak()),
            "peak {}",
            counter.peak()
        );
    }
}

fn max_below_live_is_busy(config: CounterConfig) {
    let (r, a, b) = limited(config);
    b.charge(60).expect("60 of 100");
    let busy = a.set_max(59).expect_err("60 are live");
    assert_eq!((busy.level, busy.usage), (a.id(), 60));
    assert_eq!(a.max(), 100, "unchanged");
    a.set_max(60).expect("60 of 60");
    assert_eq!((a.max(), a.usage(), a.live()), (60, 60, 60));
    assert_sound(&r);
}

twins! {
    max_below_live_is_busy:
    /// A limit below what is charged is busy and changes nothing. Other than in the kernel, credit
    /// is no reason: it is drained first.
    s006_max_below_live_is_busy(bare())(fixed()),
    s006_adaptive(adaptive()),
}

/// Charger and setter start together; in the end it cannot be that the limit was taken and usage is
/// above it.
fn lowered_max_against_charge(config: impl Fn() -> CounterConfig) {
    const ROUNDS: u64 = 4_000;
    let r = PageCounter::root(config());
    let a = r.child();
    let start = Barrier::new(2);
    let end = Barrier::new(2);
    let charged = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                start.wait();
                charged.store(a.charge(10).is_ok(), Ordering::Relaxed);
                end.wait();
            }
        });
        for round in 0..ROUNDS {
            r.set_max(100).expect("nothing is live");
            start.wait();
            for _ in 0..round % 64 {
                std::hint::spin_loop();
            }
            let lowered = r.set_max(5).is_ok();
            end.wait();
            let charged = charged.load(Ordering::Relaxed);
            let usage = r.usage();
            let max = r.max();
            assert!(
                !(lowered && usage > 5),
                "round {round}: max 5 was taken, usage {usage}"
            );
            assert!(usage <= max, "round {round}: usage {usage}, max {max}");
            assert_eq!(max, if lowered { 5 } else { 100 }, "round {round}");
            assert_eq!(r.live(), if charged { 10 } else { 0 }, "round {round}");
            if charged {
                assert!(!lowered, "round {round}: both had their way");
                a.uncharge(10);
            }
        }
    });
    assert_sound(&r);
}

twins! {
    lowered_max_against_charge:
    /// A real race of two threads, many times; every order of the two is explored by the model of
    /// the same edge.
    s007_lowered_max_against_charge(bare)(fixed),
    s007_adaptive(adaptive),
}

/// The kernel rounds to pages (4097 bytes are one page, 4095 none) and clamps what is too large.
/// Here a size is exact to the byte, and what does not fit is refused with the place of the fault.
#[test]
fn s009_sizes_parse_to_the_byte() {
    let bytes = |text: &str| text.parse::<Bytes>().map(|bytes| bytes.as_u64());
    for (text, expected) in [
        ("30M", 31_457_280),
        ("4097", 4_097),
        ("4095", 4_095),
        ("1K", 1_024),
        ("18446744073709551615", u64::MAX),
    ] {
        assert_eq!(
            bytes(text).unwrap_or_else(|e| panic!("{text}: {e}")),
            expected,
            "{text}"
        );
        match text.parse::<Limit>() {
            Ok(Limit::Bytes(found)) => assert_eq!(found, expected, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
    assert_eq!(bytes("12x").expect_err("x is no unit").position(), 2);
    assert!(bytes("").is_err(), "nothing is no size");
    assert!(bytes("18446744073709551616").is_err(), "2^64 does not fit");
    assert!(matches!("max".parse::<Limit>(), Ok(Limit::Unlimited)));
    assert_eq!(Limit::Unlimited.to_string(), "max");
    assert_eq!(Bytes(31_457_280).to_string(), "30 MiB");
}

/// A new counter limits nothing, protects nothing and holds nothing; it takes its parent's batch.
#[test]
fn s010_new_child_has_default_limits() {
    let r = PageCounter::root(fixed());
    r.set_max(500).expect("nothing is charged yet");
    r.set_min(10);
    r.set_low(20);
    r.charge(1).expect("1 of 500");
    let child = r.child();
    assert_eq!(
        (child.max(), child.min(), child.low()),
        (PageCounter::UNLIMITED, 0, 0)
    );
    assert_eq!((child.usage(), child.live(), child.stocked()), (0, 0, 0));
    assert_eq!(
        (
            child.peak(),
            child.refused_count(),
            child.forced(),
            child.forced_total()
        ),
        (0, 0, 0, 0)
    );
    assert_eq!(
        (child.children_min_usage(), child.children_low_usage()),
        (0, 0)
    );
    assert_eq!(child.batch(), r.batch());
    assert_eq!(child.parent().as_ref(), Some(&r));
}
