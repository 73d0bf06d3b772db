//! The surplus of a parent's protection protects its children by their use: they give in
//! proportion, whatever is asked for at a time.

use memcg::{Bytes, Group, Limit, Limits, ReclaimPass, Runtime, RuntimeBuilder};

use super::{
    Cache, KIB, Log, MIB, assert_sound, assert_within, bare, build, charge, create, create_with,
};

const SIZES: [u64; 7] = [
    4 * KIB,
    64 * KIB,
    MIB,
    7 * MIB,
    16 * MIB,
    64 * MIB,
    200 * MIB,
];

fn low(bytes: u64) -> Limits {
    Limits::new().low(Limit::Bytes(bytes))
}

fn min(bytes: u64) -> Limits {
    Limits::new().min(Limit::Bytes(bytes))
}

/// Asks for `bytes` in all, so much at a time.
fn reclaim(target: &Group, bytes: u64, at_a_time: u64) {
    let mut left = bytes;
    while left > 0 {
        let part = left.min(at_a_time);
        target.reclaim(Bytes(part)).expect("not inside a reclaimer");
        left -= part;
    }
}

/// 60, 30 and 10 MiB below a parent that keeps 50: 30, 15 and 5 are left.
#[test]
fn siblings_are_left_with_equal_parts() {
    for order in [[60, 30, 10], [10, 30, 60], [30, 60, 10]] {
        for at_a_time in SIZES {
            // Memory that low protects is given if nothing else is left, so no more than the rest
            // is asked for.
            for (limits, asked) in [
                (low(50 * MIB), 49 * MIB),
                (min(50 * MIB), 50 * MIB),
                (min(50 * MIB), 200 * MIB),
            ] {
                let runtime = build(bare());
                let root = runtime.root();
                let log = Log::default();
                let top = create_with(&root, "top", limits);
                let caches =
                    order.map(|size| Cache::of(&create(&top, &size.to_string()), size * MIB, &log));
                if asked > 50 * MIB {
                    root.reclaim(Bytes(asked)).expect("not inside a reclaimer");
                } else {
                    reclaim(&root, asked, at_a_time);
                }
                let left = (100 * MIB).saturating_sub(asked).max(50 * MIB);
                assert_within(root.live(), left, 1);
                for ((cache, _), size) in caches.iter().zip(order) {
                    assert_within(cache.bytes(), left * size / 100, 10);
                }
                assert!(log.in_pass(ReclaimPass::Low).is_empty());
                assert_sound(&runtime);
            }
        }
    }
}

/// The same one level further down, and beside one that nothing protects, at any time.
#[test]
fn subtrees_are_left_with_equal_parts() {
    for at_a_time in SIZES {
        let runtime = build(bare());
        let root = runtime.root();
        let log = Log::default();
        let top = create_with(&root, "top", low(40 * MIB));
        let [left, right] = ["left", "right"].map(|name| create(&top, name));
        let made = [
            (&left, "a", 40),
            (&left, "b", 8),
            (&right, "c", 20),
            (&right, "d", 12),
            (&root, "free", 40),
        ];
        let caches =
            made.map(|(parent, name, size)| Cache::of(&create(parent, name), size * MIB, &log));
        // Of 80 MiB that are not protected.
        for asked in [40, 28] {
            reclaim(&root, asked * MIB, at_a_time);
            let unprotected = root.live() - 40 * MIB;
            for ((cache, _), (_, name, size)) in caches.iter().zip(made) {
                let kept = if name == "free" { 0 } else { size * MIB / 2 };
                assert_within(
                    cache.bytes(),
                    kept + (size * MIB - kept) * unprotected / (80 * MIB),
                    10,
                );
            }
        }
        assert!(log.in_pass(ReclaimPass::Low).is_empty());
        assert_sound(&runtime);
    }
}

/// Charges of a neighbour at a full level, with and without stock.
#[test]
fn a_neighbour_takes_what_is_left_over() {
    let stocks: [RuntimeBuilder; 2] = [bare(), Runtime::builder().reclaim_time(super::UNTIMED)];
    for builder in stocks {
        for bytes in [64 * KIB, MIB, 16 * MIB, 48 * MIB] {
            let runtime = build(builder.clone().max(Limit::Bytes(100 * MIB)));
            let root = runtime.root();
            let log = Log::default();
            let top = create_with(&root, "top", low(50 * MIB));
            let caches = [60, 30, 10]
                .map(|size| Cache::of(&create(&top, &size.to_string()), size * MIB, &log));
            let neighbour = create(&root, "neighbour");
            let mut held = charge(&neighbour, bytes);
            while held.bytes() + bytes <= 48 * MIB {
                held.merge(charge(&neighbour, bytes))
                    .expect("of the same group");
            }
            for ((cache, _), size) in caches.iter().zip([60, 30, 10]) {
                assert_within(cache.bytes(), 52 * MIB * size / 100, 10);
            }
            assert!(log.in_pass(ReclaimPass::Low).is_empty());
            assert_sound(&runtime);
        }
    }
}
