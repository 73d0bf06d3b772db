//! On and off, at whatever usage.

use std::sync::atomic::{AtomicBool, Ordering};

use memcg::Bytes;

use super::{Cache, KIB, Log, assert_sound, charge, create, limited, locals, runtimes};

/// On where usage is above max already.
#[test]
fn on_while_usage_is_above_max() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let forced = group.force_charge(Bytes(30 * KIB));
        assert!(group.charge(1).is_err());
        let before = locals(&group);
        group.set_observe_only(true);
        let _held = charge(&group, KIB);
        assert_eq!(locals(&group), [before[0] + 1, 1, before[2]]);
        drop(forced);
        drop(charge(&group, 9 * KIB));
        assert_eq!(locals(&group)[1], 1, "within max it is nothing");
        assert_sound(&runtime);
    }
}

/// The same while other threads charge: it adds up, and in the end the limit holds.
#[test]
fn while_others_charge() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 20 * KIB);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for number in 0..2 {
                let below = create(&group, &number.to_string());
                let stop = &stop;
                scope.spawn(move || {
                    let mut held = Vec::new();
                    while !stop.load(Ordering::SeqCst) {
                        match below.charge(Bytes(3 * KIB)) {
                            Ok(charge) => held.push(charge),
                            Err(_) => drop(held.pop()),
                        }
                        if held.len() > 10 {
                            held.clear();
                        }
                    }
                });
            }
            for round in 0..500 {
                group.set_observe_only(round % 2 == 0);
                std::thread::yield_now();
            }
            group.set_observe_only(false);
            stop.store(true, Ordering::SeqCst);
        });
        assert_sound(&runtime);
        drop(charge(&group, 20 * KIB));
        assert!(group.charge(Bytes(20 * KIB + 1)).is_err());
    }
}

/// When it ends, whichever group can give gives.
#[test]
fn at_its_end_reclaim_is_asked() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        let log = Log::default();
        group.set_observe_only(true);
        let (cache, _registration) = Cache::of(&group, 30 * KIB, &log);
        assert!(log.is_empty());
        group.set_observe_only(false);
        drop(charge(&group, KIB));
        assert!(
            cache.bytes() <= 9 * KIB && group.forced() == 0,
            "{} and {}",
            cache.bytes(),
            group.forced()
        );
    }
}
