//! The largest numbers: nothing panics, nothing is lost that comes back, and no bound wraps.

use memcg::{Freshness, Runtime, StatKey};

use super::{Other, assert_exact, assert_honest, build, create, kinds};

const ENDS: [i64; 4] = [i64::MAX, i64::MIN, i64::MAX - 1, i64::MIN + 1];

#[test]
fn the_largest_numbers_are_read_as_they_are() {
    for stat in [StatKey::ANON, StatKey::WORKINGSET_REFAULT] {
        for builder in kinds() {
            for delta in ENDS {
                let runtime = build(builder.clone());
                let group = create(&runtime.root(), "q");
                group.stat_add(stat, delta);
                assert_honest(&group.read(Freshness::Stale), stat, delta);
                assert_honest(&runtime.root().read(Freshness::Threshold), stat, delta);
                assert_exact(&group, stat, delta, delta);
                assert_exact(&runtime.root(), stat, delta, 0);
                group.stat_add(stat, 0);
                assert_exact(&group, stat, delta, delta);
            }
        }
    }
}

/// Beyond what a figure can hold it is what it is, but nothing is lost: taken back, it is exact
/// again.
#[test]
fn what_overflows_comes_back() {
    for builder in kinds() {
        let runtime = build(builder);
        let root = runtime.root();
        let other = Other::spawn();
        let [a, b] = ["a", "b"].map(|name| create(&root, name));
        for round in 0..3 {
            for delta in [i64::MAX, i64::MAX, i64::MAX, 17] {
                a.stat_add(StatKey::FILE, delta);
                other.add(&b, StatKey::FILE, delta);
                if round > 0 {
                    // In the middle of it: no panic, whatever is read.
                    for group in [&root, &a, &b] {
                        std::hint::black_box((
                            group.read(Freshness::Stale),
                            group.read(Freshness::Threshold),
                            group.read(Freshness::Exact),
                        ));
                    }
                }
            }
            for delta in [-i64::MAX, -i64::MAX, -i64::MAX, -16] {
                b.stat_add(StatKey::FILE, delta);
                other.add(&a, StatKey::FILE, delta);
            }
            for group in [&a, &b] {
                assert_exact(group, StatKey::FILE, round + 1, round + 1);
            }
            assert_exact(&root, StatKey::FILE, 2 * (round + 1), 0);
        }
        a.offline().expect("no children");
        drop(a);
        assert_exact(&root, StatKey::FILE, 6, 0);
    }
}

/// Five steps forward and three back of 2^61 each are 2^64 in magnitude and 2^62 in sum: a bound
/// that wraps would say that nothing is missing.
#[test]
fn a_bound_does_not_wrap() {
    const STEP: i64 = 1 << 61;
    for stat in [StatKey::WORKINGSET_REFAULT, StatKey::ANON] {
        for builder in kinds() {
            for threads in 1..=4 {
                let runtime = build(builder.clone());
                let root = runtime.root();
                let others = (0..threads).map(|_| Other::spawn()).collect::<Vec<_>>();
                let [top, below] = [create(&root, "top"), create(&create(&root, "way"), "below")];
                let mut sum = 0_i64;
                // The signs of the first five balance, so that no sum leaves the range of a figure.
                for (number, sign) in [1, -1, 1, -1, 1, -1, 1, 1].into_iter().enumerate() {
                    let delta = sign * STEP;
                    sum += delta;
                    others[number % threads].add([&top, &below][number % 2], stat, delta);
                    assert_honest(&root.read(Freshness::Stale), stat, sum);
                }
                assert_eq!(sum, 1 << 62);
                assert!(root.read(Freshness::Within(1_000)).max_error() <= 1_000);
                assert_exact(&root, stat, sum, 0);
                // All of it came off the bound again, but for what each may hold back.
                assert!(
                    root.read(Freshness::Stale).max_error() <= 8 * 500_000,
                    "{:?}",
                    root.read(Freshness::Stale)
                );
            }
        }
    }
}

/// In one cell no thread looks at: the thread itself must notice that it holds back more than it
/// may.
#[test]
fn a_thread_notices_that_it_went_around() {
    for stat in [StatKey::WORKINGSET_REFAULT, StatKey::SOCK] {
        for batch in [0, 1, 2, 64, 1 << 20, 1 << 40] {
            let runtime = build(Runtime::builder().stat_batch(batch));
            let root = runtime.root();
            let mut sum = 0_i64;
            // No sum leaves the range of a figure: a bound is a distance, and there is none around
            // the end.
            for delta in [
                i64::MIN,
                i64::MAX,
                1,
                i64::MAX,
                i64::MIN,
                7,
                -i64::MAX,
                i64::MAX,
                i64::MIN,
            ] {
                sum += delta;
                root.stat_add(stat, delta);
                assert_honest(&root.read(Freshness::Stale), stat, sum);
                assert_honest(&root.read(Freshness::Threshold), stat, sum);
            }
            assert_exact(&root, stat, sum, sum);
        }
    }
}

/// The largest errors to ask for, and a bound in units that has no number.
#[test]
fn any_error_may_be_asked_for() {
    let runtime = build(Runtime::builder());
    let group = create(&runtime.root(), "q");
    group.stat_add(StatKey::ANON, i64::MIN);
    for most in [u64::MAX, u64::MAX / 4_096 + 1, 1 << 52] {
        assert!(group.read(Freshness::Within(most)).max_error() <= most);
    }
    let stale = group.read(Freshness::Stale);
    assert!(stale.max_error_of(StatKey::ANON) >= 1 << 63);
    assert!(stale.max_error_of(StatKey::WORKINGSET_REFAULT) == stale.max_error());
    assert_exact(&group, StatKey::ANON, i64::MIN, i64::MIN);
}
