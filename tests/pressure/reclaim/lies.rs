//! Reclaimers that say what is not so: no group is admitted for it, no other group pays more than
//! is missing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memcg::{Bytes, Event, Group, Limit, Limits, ReclaimPriority, Registration};

use super::{
    Cache, KIB, Log, MIB, assert_sound, bare, build, call, call_of, charge, create, create_with,
    kinds, left_empty, lock, runtimes, soft,
};

fn full(root: &Group) -> Group {
    create_with(root, "q", Limits::new().max(Limit::Bytes(16 * MIB)))
}

/// Asked for `want`, frees what `frees` says, and claims what `claims` says.
fn liar(
    group: &Group,
    bytes: u64,
    reclaimable: u64,
    frees: impl Fn(u64) -> u64 + Send + Sync + 'static,
    claims: impl Fn(u64) -> u64 + Send + Sync + 'static,
) -> (Arc<Cache>, Arc<AtomicU64>, Registration) {
    let cache = Cache::alone(group, bytes, &Log::default());
    let calls = Arc::new(AtomicU64::new(0));
    let reclaimer = {
        let cache = Arc::clone(&cache);
        let calls = Arc::clone(&calls);
        call_of(reclaimable, move |want, _| {
            calls.fetch_add(1, Ordering::SeqCst);
            cache.evict(frees(want));
            claims(want)
        })
    };
    let registration = group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL);
    (cache, calls, registration)
}

/// It frees nothing and says otherwise: the charge is refused, after few questions, and nothing is
/// above max.
#[test]
fn a_claim_of_nothing_admits_no_group() {
    for claim in [1, 64 * KIB, 16 * MIB, u64::MAX] {
        for runtime in runtimes() {
            let group = full(&runtime.root());
            let (cache, calls, _registration) =
                liar(&group, 16 * MIB, u64::MAX, |_| 0, move |_| claim);
            let refused = group.charge(Bytes(MIB)).expect_err("nothing was freed");
            assert!(
                refused.over_limit().is_some_and(|by| by.group() == &group),
                "{refused}"
            );
            assert!(calls.load(Ordering::SeqCst) > 0);
            assert_eq!(
                (cache.bytes(), group.live(), group.events().get(Event::Oom)),
                (16 * MIB, 16 * MIB, 1)
            );
            let bound = group.memory().stocked_bound();
            let report = group.reclaim(Bytes(MIB)).expect("not inside a reclaimer");
            assert!(
                report.freed <= bound,
                "{report:?}: no more than may have gone to a stock, {bound}"
            );
            assert_eq!(group.events().get(Event::Oom), 1);
            assert_sound(&runtime);
        }
    }
}

/// Nobody asks one that overstates what it gives for much longer than one that says that it has
/// nothing, however little it claims: not a charge at a max, nor above a high, nor a max that is
/// lowered, nor `Group::reclaim`.
#[test]
fn a_claim_of_little_holds_nobody_up() {
    type Way = fn(&Group);
    let ways: [(&str, Way); 4] = [
        ("a charge", |group| drop(group.charge(Bytes(MIB)))),
        ("above high", |group| {
            group
                .set_limits(Limits::new().high(Limit::Bytes(KIB)))
                .expect("a number");
            drop(group.charge(Bytes(16 * MIB - group.live())));
        }),
        ("lowered", |group| {
            group.set_max(Limit::Bytes(MIB)).expect("a number");
        }),
        ("asked", |group| {
            group.reclaim(Bytes(MIB)).expect("not inside a reclaimer");
        }),
    ];
    for (name, way) in ways {
        for builder in kinds() {
            let asked = |claim: u64| {
                let runtime = left_empty(build(builder.clone().delay_max(Duration::ZERO)));
                let group = full(&runtime.root());
                let (_cache, calls, _registration) =
                    liar(&group, 16 * MIB - KIB, 1, |_| 0, move |_| claim);
                // A second thread may have credit, so that there may be some that shows nowhere.
                std::thread::scope(|scope| {
                    scope.spawn(|| drop(charge(&group, 1)));
                });
                way(&group);
                calls.load(Ordering::SeqCst)
            };
            let (honest, claims) = (asked(0), asked(1));
            assert!(claims <= honest + 16, "{name}: {claims} calls for {honest}");
        }
    }
}

/// Nor one whose promises are kept by word alone.
#[test]
fn a_promise_that_is_kept_by_word_holds_nobody_up() {
    for runtime in runtimes() {
        let group = full(&runtime.root());
        let cache = Cache::alone(&group, 16 * MIB, &Log::default());
        let calls = Arc::new(AtomicU64::new(0));
        let reclaimer = {
            let calls = Arc::clone(&calls);
            call(move |want, context| {
                calls.fetch_add(1, Ordering::SeqCst);
                context.promise().report(want);
                0
            })
        };
        let _registration = group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL);
        assert!(group.charge(Bytes(MIB)).is_err());
        let calls = calls.load(Ordering::SeqCst);
        assert!((1..=32).contains(&calls), "{calls} calls");
        assert_eq!(cache.bytes(), 16 * MIB);
        assert_sound(&runtime);
    }
}

/// It frees all that it has: the others keep theirs.
#[test]
fn too_much_at_once_ends_the_walk() {
    for runtime in runtimes() {
        let root = runtime.root();
        let log = Log::default();
        let first = create_with(&root, "first", soft(0));
        let (cache, calls, _registration) =
            liar(&first, 8 * MIB, 8 * MIB, |_| u64::MAX, |_| 8 * MIB);
        let (other, _registered) = Cache::of(&create_with(&root, "other", soft(0)), 8 * MIB, &log);
        // Either group may be asked first. Once the one that gives all is asked, no other is.
        while calls.load(Ordering::SeqCst) == 0 {
            root.reclaim(Bytes(16 * KIB))
                .expect("not inside a reclaimer");
        }
        assert_eq!(cache.bytes(), 0);
        let left = other.bytes();
        assert!(left >= 8 * MIB - 64 * KIB, "{left}");
        let report = root
            .reclaim(Bytes(16 * KIB))
            .expect("not inside a reclaimer");
        assert_eq!((report.freed, other.bytes()), (16 * KIB, left - 16 * KIB));
        assert_sound(&runtime);
    }
}

/// The estimate is far too small or far too large: what can be given is given before any group is
/// refused.
#[test]
fn a_wrong_estimate_refuses_no_group() {
    for reclaimable in [0, 1, 1 << 62, u64::MAX - 1] {
        for runtime in runtimes() {
            let group = full(&runtime.root());
            let (cache, _calls, _registration) =
                liar(&group, 16 * MIB, reclaimable, |want| want, |want| want);
            let held = group.charge(Bytes(10 * MIB));
            if reclaimable <= 1 {
                // It says that there is nothing to ask for, or next to nothing.
                assert!(held.is_err() || cache.bytes() <= 6 * MIB);
                assert!(
                    reclaimable > 0 || cache.bytes() == 16 * MIB,
                    "it said that there was nothing"
                );
            } else {
                assert!(held.is_ok(), "estimate {reclaimable}: {held:?}");
                assert!(cache.bytes() <= 6 * MIB);
            }
            assert_sound(&runtime);
        }
    }
}

/// Memory that it frees belongs to others: a claim for memory that the target does not hold is not
/// believed.
#[test]
fn what_it_frees_elsewhere_is_nothing_here() {
    for runtime in runtimes() {
        let root = runtime.root();
        let group = full(&root);
        let elsewhere = create(&root, "elsewhere");
        let cache = Cache::alone(&elsewhere, 64 * MIB, &Log::default());
        let pinned = charge(&group, 16 * MIB);
        let _registration = {
            let cache = Arc::clone(&cache);
            group.register_reclaimer(
                call(move |want, _| cache.evict(want)),
                ReclaimPriority::NORMAL,
            )
        };
        assert!(group.charge(Bytes(MIB)).is_err());
        assert!(cache.bytes() < 64 * MIB, "it was asked");
        assert_eq!(
            (group.live(), group.events().get(Event::Oom)),
            (pinned.bytes(), 1)
        );
        assert_sound(&runtime);
    }
}

/// A buffer that it charges for its work, by force or not, and gives back is nothing that it freed.
#[test]
fn what_it_charged_itself_is_nothing_freed() {
    for builder in kinds() {
        for forced in [false, true] {
            let runtime = build(builder.clone());
            let group = full(&runtime.root());
            let cache = Cache::alone(&group, 15 * MIB, &Log::default());
            let _registration = {
                let cache = Arc::clone(&cache);
                let reclaimer = call(move |want, context| {
                    let group = context.group();
                    let buffer = if forced {
                        group.force_charge(Bytes(2 * MIB))
                    } else {
                        charge(&group, MIB)
                    };
                    let freed = cache.evict(want / 64);
                    drop(buffer);
                    freed
                });
                group.register_reclaimer(reclaimer, ReclaimPriority::NORMAL)
            };
            let live = group.live();
            let report = group
                .reclaim(Bytes(4 * MIB))
                .expect("not inside a reclaimer");
            let freed = live - group.live();
            assert!(
                report.freed.abs_diff(freed) <= 64 * KIB,
                "{report:?}, {freed} freed"
            );
            assert_eq!(group.events().get(Event::Panic), 0);
            assert_sound(&runtime);
        }
    }
}

/// Units of a further counter are no memory, and claims for them are not believed.
#[test]
fn a_further_counter_is_no_memory() {
    let mut builder = bare();
    let spill = builder.counter("spill", memcg::Unit::Bytes);
    let runtime = left_empty(build(builder));
    let root = runtime.root();
    let _held = charge(&root, MIB);
    let spilt = root.charge_set(&[(spill, Bytes(MIB))]).expect("no max");
    let spilt = Mutex::new(Some(spilt));
    let _registration = root.register_reclaimer(
        call(move |want, _| {
            drop(lock(&spilt).take());
            want
        }),
        ReclaimPriority::NORMAL,
    );
    assert_eq!(
        root.reclaim(Bytes(KIB))
            .expect("not inside a reclaimer")
            .freed,
        0
    );
    assert_eq!(
        (root.counter(spill).expect("declared").usage(), root.usage()),
        (0, MIB)
    );
}
