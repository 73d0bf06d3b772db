//! Limits that only observe ask no group for memory, and choose no group.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memcg::{Bytes, Limit, Limits, OomPolicy};

use super::{Cache, KIB, Log, charge, create, limited, locals, runtimes};

#[test]
fn no_group_is_asked() {
    for runtime in runtimes() {
        let log = Log::default();
        let limits = Limits::new()
            .max(Limit::Bytes(10 * KIB))
            .high(Limit::Bytes(5 * KIB));
        let group = runtime.root().create("q", limits).expect("a free name");
        let (cache, _registration) = Cache::of(&group, 4 * KIB, &log);
        group.set_observe_only(true);
        let _held = charge(&group, 100 * KIB);
        group.set_max(Limit::Bytes(KIB)).expect("a number");
        group
            .set_limits(Limits::new().high(Limit::Bytes(KIB)))
            .expect("a number");
        assert!(log.is_empty() && cache.bytes() == 4 * KIB);
        // A group that asks for itself is answered, and a limit above is another matter.
        assert_eq!(
            group
                .reclaim(Bytes(KIB))
                .expect("not inside a reclaimer")
                .freed,
            KIB
        );
        assert!(!log.is_empty());
    }
}

#[test]
fn a_limit_above_asks_those_below() {
    for runtime in runtimes() {
        let top = limited(&runtime.root(), "top", 100 * KIB);
        let group = limited(&top, "q", KIB);
        group.set_observe_only(true);
        let (cache, _registration) = Cache::of(&group, 80 * KIB, &Log::default());
        let _held = charge(&group, 50 * KIB);
        assert!(
            cache.bytes() <= 50 * KIB && top.usage() <= 100 * KIB,
            "{}",
            cache.bytes()
        );
    }
}

#[test]
fn no_group_is_chosen() {
    for runtime in runtimes() {
        let group = limited(&runtime.root(), "q", 10 * KIB);
        group.set_oom_policy(OomPolicy::Choose);
        let victim = create(&group, "victim");
        let told = Arc::new(AtomicU64::new(0));
        let _hook = {
            let told = Arc::clone(&told);
            victim.on_cancel(move |_| {
                told.fetch_add(1, Ordering::SeqCst);
            })
        };
        group.set_observe_only(true);
        let _held = [charge(&victim, 10 * KIB), charge(&group, 10 * KIB)];
        group.set_max(Limit::Bytes(KIB)).expect("a number");
        assert_eq!((told.load(Ordering::SeqCst), locals(&group)[2]), (0, 0));
    }
}
