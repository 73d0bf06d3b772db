//! Statements 41 to 46: high, which slows down and never refuses.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use memcg::{
    Bytes, Charge, ChargeError, ChargeFuture, Event, Group, Limit, Limits, Runtime, RuntimeBuilder,
};

use super::{adaptive_groups, assert_groups_sound, bare_groups, create};
use crate::support::reclaimers::{Cache, KIB, Log, MIB};

/// The kernel's batch of 64 pages.
const BATCH: u64 = 64 * 4 * KIB;

fn high(bytes: u64) -> Limits {
    Limits::new().high(Limit::Bytes(bytes))
}

#[track_caller]
fn assert_no_max_no_oom(group: &Group) {
    let counts = [Event::Max, Event::Oom, Event::OomKill, Event::OomGroupKill]
        .map(|event| group.events().get(event));
    assert_eq!(counts, [0; 4], "{}", group.path());
}

/// 31M of anonymous memory, a page after the other in the kernel's test; here a MiB.
fn over_high_is_no_failure(builder: RuntimeBuilder) {
    let runtime = builder
        .delay_max(Duration::from_millis(20))
        .build()
        .expect("a configuration");
    let group = create(&runtime.root(), "q", high(30 * MIB));
    let held: Vec<_> = (0..31)
        .map(|_| group.charge(Bytes(MIB)).expect("high refuses no charge"))
        .collect();
    assert_eq!(group.live(), 31 * MIB);
    assert!(group.events().get(Event::High) > 0);
    assert_no_max_no_oom(&group);
    assert_groups_sound(&runtime);
    drop(held);
}

twins! {
    over_high_is_no_failure:
    s041_over_high_is_no_failure(bare_groups()),
    s041_adaptive(adaptive_groups()),
}

fn a_cache_stays_close_to_high(builder: RuntimeBuilder) {
    let runtime = builder.build().expect("a configuration");
    let group = create(&runtime.root(), "q", high(30 * MIB));
    let (cache, _registration) = Cache::of(&group, 0, &Log::default());
    for _ in 0..50 {
        cache.add(MIB).expect("high refuses no charge");
    }
    let live = group.live();
    assert!(
        live.abs_diff(30 * MIB) <= (live + 30 * MIB) / 100 * 5,
        "{live}"
    );
    assert_eq!(live, cache.bytes());
    assert!(group.events().get(Event::High) > 0);
    assert_no_max_no_oom(&group);
    assert_groups_sound(&runtime);
}

twins! {
    a_cache_stays_close_to_high:
    s042_a_cache_stays_close_to_high(bare_groups()),
    s042_adaptive(adaptive_groups()),
}

/// The kernel's one call populates 200M page by page, so that throttling begins in the middle of
/// it. Here a call that is refused takes nothing, so 200M in one charge are refused at a max of
/// 140M, and its event tells so; what the statement is about is shown by the two halves: 200M in
/// one go through a cache, and one charge far above high, whose delay is over when it returns.
fn one_big_charge_is_throttled_at_once(builder: RuntimeBuilder) {
    let delay = Duration::from_millis(300);
    let runtime = builder.delay_max(delay).build().expect("a configuration");
    let group = create(
        &runtime.root(),
        "q",
        high(30 * MIB).max(Limit::Bytes(140 * MIB)),
    );
    let (cache, registration) = Cache::of(&group, 0, &Log::default());
    for _ in 0..200 {
        cache.add(MIB).expect("high keeps it below max");
    }
    let noticed = group.events().get(Event::High);
    assert!(noticed > 0 && group.live() < 140 * MIB);
    drop((registration, cache));
    let started = Instant::now();
    let held = group
        .charge(Bytes(100 * MIB))
        .expect("high refuses no charge");
    assert!(
        started.elapsed() >= delay,
        "while the call is in progress: {:?}",
        started.elapsed()
    );
    assert!(group.events().get(Event::High) > noticed);
    assert_no_max_no_oom(&group);
    assert_groups_sound(&runtime);
    drop(held);
}

twins! {
    one_big_charge_is_throttled_at_once:
    s043_one_big_charge_is_throttled_at_once(bare_groups()),
    s043_adaptive(adaptive_groups()),
}

/// Usage in MiB at a high of 100 MiB, and the milliseconds of delay for one batch.
const PENALTIES: [(u64, u64); 12] = [
    (99, 0),
    (100, 0),
    (101, 6),
    (102, 25),
    (103, 57),
    (104, 102),
    (105, 159),
    (107, 313),
    (110, 639),
    (115, 1_439),
    (118, 2_000),
    (1_000, 2_000),
];

/// With `mib` charged by force, which is not delayed.
fn over(builder: RuntimeBuilder, bytes: u64) -> (Runtime, Group, Charge) {
    let runtime = builder.build().expect("a configuration");
    let group = create(&runtime.root(), "q", high(100 * MIB));
    let held = group.force_charge(Bytes(bytes));
    assert_eq!(group.usage(), bytes);
    (runtime, group, held)
}

fn penalties(builder: &RuntimeBuilder) {
    for (mib, millis) in PENALTIES {
        let (runtime, group, _held) = over(builder.clone(), mib * MIB);
        assert_eq!(
            group.inspect().high_delay(Bytes(BATCH)).as_millis(),
            u128::from(millis),
            "{mib} MiB"
        );
        drop(runtime);
        let (runtime, group, held) = over(builder.clone(), mib * MIB - BATCH);
        let mut future = group.charge_async(Bytes(BATCH));
        let charge = polled(&mut future);
        // Below 10 ms no group sleeps.
        assert_eq!(
            (charge.is_ready(), group.usage()),
            (millis <= 10, mib * MIB),
            "{mib} MiB"
        );
        assert_eq!(
            group.events().local().get(Event::High),
            u64::from(mib > 100),
            "{mib} MiB"
        );
        assert_groups_sound(&runtime);
        drop((charge, future, held));
    }
}

/// Polls a future once. A charge that is delayed is made, and the future has it.
fn polled(future: &mut ChargeFuture) -> Poll<Result<Charge, ChargeError>> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn s044_the_penalty_table() {
    penalties(&bare_groups());
}

#[test]
fn s044_adaptive() {
    // Credit is usage: with it there is more to be over. So without any.
    penalties(&adaptive_groups().batch(Bytes(BATCH)).budget(Bytes(0)));
}

/// Twice as much is delayed twice as long, half as much half as long; the cap comes after that.
#[test]
fn s044_scales_with_what_is_charged() {
    let page = 4 * KIB;
    let cases = [
        (110, BATCH, 639),
        (110, BATCH / 2, 319),
        (110, BATCH / 4, 159),
        (110, page, 9),
        (103, 4 * BATCH, 230),
        (110, 4 * BATCH, 2_000),
        (118, BATCH / 4, 518),
        (200, page, 1_000),
        (200, 2 * page, 2_000),
        (200, u64::MAX, 2_000),
        (110, 0, 0),
    ];
    for (mib, bytes, millis) in cases {
        let (_runtime, group, _held) = over(bare_groups(), mib * MIB);
        let delay = group.inspect().high_delay(Bytes(bytes));
        // The kernel rounds before it scales: 4 x 57 is 228.
        let off = delay.as_millis().abs_diff(millis);
        assert!(
            off <= u128::from(bytes / BATCH),
            "{mib} MiB, {bytes}: {delay:?}, not {millis} ms"
        );
    }
}

/// The greatest of all levels counts, and a cap of the runtime's own.
#[test]
fn s044_of_all_ancestors_the_greatest() {
    let runtime = bare_groups()
        .delay_max(Duration::from_millis(500))
        .build()
        .expect("a configuration");
    let outer = create(&runtime.root(), "outer", high(100 * MIB));
    let inner = create(&outer, "inner", high(50 * MIB));
    let leaf = create(&inner, "leaf", Limits::new());
    let mut held = leaf.force_charge(Bytes(51 * MIB));
    // 1 of 50: as 2 of 100.
    assert_eq!(
        (
            leaf.inspect().high_delay(Bytes(BATCH)).as_millis(),
            outer.inspect().high_delay(Bytes(BATCH))
        ),
        (25, Duration::ZERO)
    );
    let other = outer.force_charge(Bytes(52 * MIB));
    assert_eq!(
        (
            leaf.inspect().high_delay(Bytes(BATCH)).as_millis(),
            outer.inspect().high_delay(Bytes(BATCH)).as_millis()
        ),
        (57, 57)
    );
    held.force_grow(Bytes(MIB));
    // 2 of 50 is more than 4 of 100 is: the same.
    assert_eq!(
        (
            leaf.inspect().high_delay(Bytes(BATCH)).as_millis(),
            outer.inspect().high_delay(Bytes(BATCH)).as_millis()
        ),
        (102, 102)
    );
    held.force_grow(Bytes(7 * MIB));
    assert_eq!(
        leaf.inspect().high_delay(Bytes(BATCH)),
        Duration::from_millis(500),
        "the cap"
    );
    drop((held, other));
}

/// 101 MiB: 6 ms, which no group sleeps.
#[test]
fn s044_below_ten_milliseconds_is_ignored() {
    for builder in [bare_groups(), adaptive_groups()] {
        let (_runtime, group, held) = over(builder, 101 * MIB - BATCH);
        let charge = polled(&mut group.charge_async(Bytes(BATCH)));
        assert_eq!(
            (
                charge.is_ready(),
                group.inspect().high_delay(Bytes(BATCH)).as_millis()
            ),
            (true, 6)
        );
        assert_eq!(
            group.events().local().get(Event::High),
            1,
            "noticed all the same"
        );
        drop((charge, held));
    }
}

/// The first charge takes a batch in advance; up to its end no charge looks at high.
#[test]
fn s046_a_hit_does_not_look() {
    let page = 4 * KIB;
    let builder = Runtime::builder()
        .audit(true)
        .batch(Bytes(BATCH))
        .adaptive(false)
        .delay_max(Duration::ZERO);
    let runtime = builder.build().expect("a configuration");
    let group = create(&runtime.root(), "q", high(MIB));
    let above = group.force_charge(Bytes(2 * MIB));
    assert_eq!(group.events().get(Event::High), 0, "by force");
    let mut held = Vec::new();
    for batch in 1..=3 {
        for _ in 0..64 {
            held.push(group.charge(Bytes(page)).expect("high refuses no charge"));
            assert_eq!(group.events().local().get(Event::High), batch);
        }
    }
    assert_groups_sound(&runtime);
    drop((above, held));
}

/// Outcome only: noticed, at most once a charge, and the charge is made.
#[test]
fn s046_adaptive() {
    let runtime = adaptive_groups()
        .delay_max(Duration::ZERO)
        .build()
        .expect("a configuration");
    let group = create(&runtime.root(), "q", high(MIB));
    let held: Vec<_> = (0..1_000)
        .map(|_| {
            group
                .charge(Bytes(4 * KIB))
                .expect("high refuses no charge")
        })
        .collect();
    let noticed = group.events().local().get(Event::High);
    assert!((1..=1_000).contains(&noticed), "{noticed}");
    assert_eq!(group.live(), 4_000 * KIB);
    assert_groups_sound(&runtime);
    drop(held);
}
