//! Which level counts that usage is above high: each that is above, once for a charge, and none for
//! a forced charge.

use memcg::{Bytes, Event, Group, OnFull};

use super::{BATCH, MIB, bare, build, charge, create, left_empty, undelayed, until, with_high};

fn local(group: &Group) -> u64 {
    group.events().local().get(Event::High)
}

fn all(group: &Group) -> u64 {
    group.events().get(Event::High)
}

#[test]
fn once_for_a_charge_and_a_level() {
    for builder in undelayed() {
        let runtime = left_empty(build(builder));
        let root = runtime.root();
        let top = with_high(&root, "top", 8 * MIB);
        let inner = with_high(&top, "inner", 4 * MIB);
        let leaf = create(&inner, "leaf");
        let beside = create(&top, "beside");
        let levels = [&root, &top, &inner, &leaf, &beside];
        let first = charge(&leaf, 4 * MIB);
        assert_eq!(levels.map(local), [0; 5], "at high is not above it");
        let second = charge(&leaf, MIB);
        assert_eq!(
            (levels.map(local), levels.map(all)),
            ([0, 0, 1, 0, 0], [1, 1, 1, 0, 0])
        );
        let third = charge(&beside, 4 * MIB);
        assert_eq!(
            (levels.map(local), levels.map(all)),
            ([0, 1, 1, 0, 0], [2, 2, 1, 0, 0])
        );
        let fourth = charge(&leaf, MIB);
        assert_eq!(
            (levels.map(local), levels.map(all)),
            ([0, 2, 2, 0, 0], [4, 4, 2, 0, 0])
        );
        drop((first, second, third, fourth));
        drop(charge(&leaf, 3 * MIB));
        assert_eq!(levels.map(local), [0, 2, 2, 0, 0], "below again");
    }
}

/// However many rounds of reclaim it takes.
#[test]
fn once_with_reclaim_too() {
    for builder in undelayed() {
        let runtime = left_empty(build(builder));
        let group = with_high(&runtime.root(), "q", 8 * MIB);
        let (cache, _registration) = super::Cache::of(&group, 8 * MIB, &super::Log::default());
        let _held = charge(&group, 4 * MIB);
        assert_eq!((local(&group), cache.bytes() <= 4 * MIB), (1, true));
    }
}

#[test]
fn in_every_form_but_by_force() {
    let runtime = left_empty(build(bare().delay_max(std::time::Duration::ZERO)));
    let group = with_high(&runtime.root(), "q", MIB);
    let mut held = group.force_charge(Bytes(8 * MIB));
    held.force_grow(Bytes(MIB));
    assert_eq!(local(&group), 0);
    held.grow(Bytes(BATCH)).expect("high refuses no charge");
    assert_eq!(local(&group), 1);
    drop(
        group
            .charge_with(Bytes(BATCH), OnFull::Reclaim)
            .expect("high refuses no charge"),
    );
    assert_eq!(local(&group), 2);
    drop(
        group
            .charge_with(Bytes(BATCH), OnFull::Wait(super::WATCHDOG))
            .expect("high refuses no charge"),
    );
    assert_eq!(local(&group), 3);
    drop(
        crate::support::waiters::block_on(group.charge_async(Bytes(BATCH)))
            .expect("high refuses no charge"),
    );
    assert_eq!(local(&group), 4);
    drop(
        group
            .try_charge(Bytes(BATCH))
            .expect("high refuses no charge"),
    );
    // By the thread that reclaims in the place of the delay.
    until("it is counted", || local(&group) == 5);
}
