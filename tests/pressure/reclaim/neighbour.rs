//! A neighbour that grows takes from every group in proportion, whatever it asks for at a time:
//! below low, where nothing else is left, as well as where nothing is protected.

use memcg::{Charge, Event, Group, Limit, Limits, Runtime, RuntimeBuilder};

use super::{
    Cache, KIB, Log, MIB, assert_sound, assert_within, bare, build, charge, create, create_with,
    soft,
};

/// No stock, and as it is set up by default.
fn stocks() -> [RuntimeBuilder; 2] {
    [bare(), Runtime::builder().reclaim_time(super::UNTIMED)]
}

fn low(bytes: u64) -> Limits {
    Limits::new().low(Limit::Bytes(bytes))
}

/// A neighbour takes half of what `sizes` fill, `bytes` at a time: each is left with half, within a
/// tenth.
#[track_caller]
fn neighbour_takes_half(
    builder: &RuntimeBuilder,
    sizes: &[u64],
    bytes: u64,
    limits: fn(u64) -> Limits,
) {
    let all: u64 = sizes.iter().sum();
    let runtime = build(builder.clone().max(Limit::Bytes(all)));
    let root = runtime.root();
    let log = Log::default();
    let make =
        |(number, &size): (usize, &u64)| create_with(&root, &number.to_string(), limits(size));
    let groups: Vec<Group> = sizes.iter().enumerate().map(make).collect();
    let caches: Vec<_> = groups
        .iter()
        .zip(sizes)
        .map(|(group, &size)| Cache::of(group, size, &log))
        .collect();
    let neighbour = create(&root, "neighbour");
    let mut held = charge(&neighbour, bytes);
    for _ in 1..all / 2 / bytes {
        held.merge(charge(&neighbour, bytes))
            .expect("of the same group");
    }
    for ((cache, _), &size) in caches.iter().zip(sizes) {
        assert_within(cache.bytes(), size / 2, 10);
    }
    for group in &groups {
        assert_eq!(
            group.events().local().get(Event::Low) > 0,
            group.inspect().low() > 0,
            "{}",
            group.path()
        );
    }
    assert_sound(&runtime);
}

/// Two that are equal, four tenants, and some of which the large give more; with requests of every
/// size.
#[test]
fn below_low_each_is_left_with_half() {
    let equal = [20 * MIB; 2];
    let tenants = [256 * MIB; 4];
    let unequal = [4 * MIB, 36 * MIB, 8 * MIB, 16 * MIB];
    let cases: [(&[u64], &[u64]); 3] = [
        (&equal, &[4 * KIB, 64 * KIB, MIB]),
        (&tenants, &[64 * KIB, 256 * KIB, MIB, 16 * MIB, 64 * MIB]),
        (&unequal, &[4 * KIB, 64 * KIB, MIB, 16 * MIB]),
    ];
    for builder in stocks() {
        for (sizes, requests) in cases {
            requests
                .iter()
                .for_each(|&bytes| neighbour_takes_half(&builder, sizes, bytes, low));
        }
    }
}

/// Sizes of which no lap is a multiple: a group that is left out when a request is met gives with
/// the next one.
#[test]
fn the_same_where_nothing_is_protected() {
    for builder in stocks() {
        for limits in [|_| Limits::new(), |_| soft(0)] {
            for bytes in [4 * KIB, 64 * KIB, 640 * KIB, MIB, 16 * MIB] {
                neighbour_takes_half(&builder, &[20 * MIB; 2], bytes.min(MIB), limits);
                neighbour_takes_half(
                    &builder,
                    &[4 * MIB, 36 * MIB, 8 * MIB, 16 * MIB],
                    bytes,
                    limits,
                );
            }
        }
    }
}

/// A subtree gives as a whole what a single group of its size does.
#[test]
fn subtrees_count_by_what_is_below_them() {
    for bytes in [4 * KIB, 64 * KIB, MIB, 16 * MIB] {
        let runtime = build(bare().max(Limit::Bytes(64 * MIB)));
        let root = runtime.root();
        let log = Log::default();
        let top = create_with(&root, "top", low(48 * MIB));
        let groups = [("a", 24), ("b", 16), ("c", 8)]
            .map(|(name, size)| create_with(&top, name, low(size * MIB)));
        let alone = create_with(&root, "alone", low(16 * MIB));
        let all = [
            (&groups[0], 24),
            (&groups[1], 16),
            (&groups[2], 8),
            (&alone, 16),
        ];
        let caches = all.map(|(group, size)| Cache::of(group, size * MIB, &log));
        let neighbour = create(&root, "neighbour");
        let held: Vec<Charge> = (0..32 * MIB / bytes)
            .map(|_| charge(&neighbour, bytes))
            .collect();
        for ((cache, _), (_, size)) in caches.iter().zip(all) {
            assert_within(cache.bytes(), size * MIB / 2, 10);
        }
        assert_sound(&runtime);
        drop(held);
    }
}
