//! The reserve: room below max that only charges made inside reclaim may use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use memcg::{Bytes, Charge, ChargeError, Event, Group, Limit, Limits, Priority};

use super::{Cache, KIB, Log, MIB, assert_empty, assert_sound, bare, build, call, charge, create_with, kinds, lock};

const RESERVE: u64 = 64 * KIB;

fn limited(root: &Group, name: &str) -> Group {
    create_with(root, name, Limits::new().max(Limit::Bytes(4 * MIB)))
}

#[test]
fn only_charges_inside_reclaim_use_it() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = limited(&runtime.root(), "q");
        assert_eq!(group.reserve(), 0);
        group.set_reserve(Bytes(RESERVE));
        assert_eq!((group.reserve(), group.max()), (RESERVE, 4 * MIB));
        let refused = group.try_charge(Bytes(4 * MIB)).expect_err("some of it is reserved");
        assert!(matches!(&refused, ChargeError::Limit(by) if by.group() == &group), "{refused}");
        let cache = Cache::alone(&group, 4 * MIB - RESERVE, &Log::default());
        assert!(group.try_charge(1).is_err());
        let scratch: Arc<Mutex<Vec<Charge>>> = Arc::default();
        let calls = Arc::new(AtomicU64::new(0));
        let registration = {
            let (cache, scratch, calls) = (Arc::clone(&cache), Arc::clone(&scratch), Arc::clone(&calls));
            let reclaimer = call(move |want, context| {
                if calls.fetch_add(1, Ordering::SeqCst) == 0 {
                    // Buffers to write out what is evicted. No byte more than there is below max.
                    let group = context.group();
                    lock(&scratch).push(group.try_charge(Bytes(RESERVE)).expect("reserved for this"));
                    let refused = group.try_charge(1).expect_err("above max");
                    assert!(matches!(&refused, ChargeError::InReclaim(by) if by.max() == 4 * MIB), "{refused}");
                    assert_eq!(group.live(), 4 * MIB);
                    lock(&scratch).clear();
                }
                cache.evict(want)
            });
            group.register_reclaimer(reclaimer, Priority::NORMAL)
        };
        let held = charge(&group, MIB);
        assert!(calls.load(Ordering::SeqCst) > 0);
        assert_eq!(group.events().get(Event::Panic), 0, "an assertion inside failed");
        assert!(group.live() <= 4 * MIB - RESERVE, "the charge itself did not use it");
        assert_sound(&runtime);
        drop((registration, cache, held, group, refused));
        assert_empty(&runtime);
    }
}

/// A reserve belongs to the level that has it, whichever group below is charged.
#[test]
fn it_is_the_levels_own() {
    let runtime = build(bare());
    let top = limited(&runtime.root(), "top");
    top.set_reserve(Bytes(RESERVE));
    let below = create_with(&top, "below", Limits::new().max(Limit::Bytes(4 * MIB)));
    assert_eq!(below.reserve(), 0);
    let held = charge(&below, 4 * MIB - RESERVE);
    let refused = below.try_charge(1).expect_err("reserved above");
    assert!(matches!(&refused, ChargeError::Limit(by) if by.group() == &top), "{refused}");
    drop(held);
    top.set_reserve(0);
    drop(charge(&below, 4 * MIB));
    assert_sound(&runtime);
}

/// A reserve of the whole max leaves nothing to any other group; one beyond it is no more than that.
#[test]
fn it_may_be_all_there_is() {
    let runtime = build(bare());
    let group = limited(&runtime.root(), "q");
    for reserve in [4 * MIB, u64::MAX] {
        group.set_reserve(Bytes(reserve));
        assert!(group.try_charge(1).is_err(), "{reserve}");
        assert_eq!(group.usage(), 0);
    }
    group.set_reserve(0);
    drop(charge(&group, 4 * MIB));
    assert_sound(&runtime);
}

/// What is there when the reserve is set stays; nothing comes to it.
#[test]
fn it_takes_nothing_back() {
    let runtime = build(bare());
    let group = limited(&runtime.root(), "q");
    let mut held = charge(&group, 4 * MIB);
    group.set_reserve(Bytes(MIB));
    assert_eq!((group.usage(), group.forced()), (4 * MIB, 0));
    held.shrink(Bytes(MIB));
    assert!(group.try_charge(1).is_err());
    held.shrink(1);
    drop(charge(&group, 1));
    assert_sound(&runtime);
}
