use memcg::{Bytes, ChargeError, Group, Limits, RawCover};

use super::{Object, assert_figures, assert_verified, group, runtime};

const MIB: usize = 1 << 20;

fn covered(cover: &RawCover, bytes: usize) -> Object {
    cover.run(|| Object::new(bytes))
}

#[test]
fn usage_is_the_larger_of_what_is_charged_and_what_is_allocated() {
    let runtime = runtime();
    let query = group(&runtime, "q");
    let cover = query.raw_cover();
    cover.try_charge_now(100).unwrap();
    let first = covered(&cover, 60);
    assert!(first.owner.is_covered());
    assert_figures(&query, [100, 100, 60, 0, 0]);
    let second = covered(&cover, 90);
    assert_figures(&query, [150, 100, 150, 0, 50]);
    cover.try_charge_or_start(20).unwrap();
    assert_figures(&query, [150, 120, 150, 0, 30]);
    assert_eq!(cover.charge(40), 40);
    assert_figures(&query, [160, 160, 150, 0, 0]);
    drop(first);
    assert_figures(&query, [160, 160, 90, 0, 0]);
    cover.uncharge(160);
    assert_figures(&query, [90, 0, 90, 0, 90]);
    std::thread::spawn(move || drop(second)).join().unwrap();
    assert_figures(&query, [0; 5]);
    drop(cover);
    assert_eq!(query.live(), 0);
    assert_verified(&runtime);
}

#[test]
fn groups_below_pay_for_the_group_of_the_cover() {
    let runtime = runtime();
    let (tenant, other) = (group(&runtime, "tenant"), group(&runtime, "other"));
    let query = tenant.create("q", Limits::new()).unwrap();
    let [sorts, joins] = ["sorts", "joins"].map(|name| query.create(name, Limits::new()).unwrap());
    let cover = query.raw_cover();
    let [sorter, joiner] = [&sorts, &joins].map(|group| cover.of_below(group).unwrap());
    assert!(cover.of_below(&tenant).is_none() && cover.of_below(&other).is_none());
    assert_eq!((sorter.group(), sorter.charged_group()), (&query, &sorts));

    sorter.try_charge_now(100).unwrap();
    joiner.charge(50);
    let object = covered(&cover, 140);
    assert_figures(&query, [150, 150, 140, 0, 0]);
    sorter.uncharge(70);
    assert_figures(&query, [140, 80, 140, 0, 60]);
    assert_eq!((sorts.live(), joins.live(), tenant.live()), (30, 50, 140));
    joiner.try_charge_now(40).unwrap();
    assert_figures(&query, [140, 120, 140, 0, 20]);
    assert_eq!((sorts.live(), joins.live(), tenant.peak()), (30, 90, 150));
    drop((sorter, joiner));
    assert_figures(&query, [260, 120, 140, 0, 140]);
    sorts.raw().uncharge(30);
    joins.raw().uncharge(90);
    assert_figures(&query, [140, 0, 140, 0, 140]);
    drop((cover, object));
    assert_eq!((query.live(), runtime.root().live()), (0, 0));
    assert_verified(&runtime);
}

/// So much that no reader has to ask for it.
#[test]
fn what_is_given_up_at_once_comes_back_at_once() {
    let runtime = runtime();
    let query = group(&runtime, "q");
    let cover = query.raw_cover();
    cover.try_charge_now(8 * MIB).unwrap();
    assert_eq!(query.usage(), 8 * MIB as u64);
    cover.uncharge(8 * MIB);
    assert!(query.usage() < MIB as u64, "{} bytes are charged for nothing", query.usage());
    drop(cover);
    assert_verified(&runtime);
}

/// What is allocated before it is charged needs its room once; a refusal changes nothing.
#[test]
fn a_charge_takes_over_what_is_unpaid() {
    let runtime = runtime();
    let query = runtime.root().create("q", Limits::new().max(4 * MIB)).unwrap();
    let sorts = query.create("sorts", Limits::new()).unwrap();
    let cover = query.raw_cover();
    let sorter = cover.of_below(&sorts).unwrap();
    let batch = covered(&cover, 3 * MIB);
    let unpaid = [3, 0, 3, 0, 3].map(|mib| mib * MIB as u64);
    assert_figures(&query, unpaid);
    let refused = sorter.try_charge_now(5 * MIB).unwrap_err();
    assert!(refused.to_string().starts_with("/q refused 2 MiB for /q/sorts: short by 1 MiB"), "{refused}");
    assert_figures(&query, unpaid);
    assert_eq!((sorts.live(), sorter.bytes()), (0, 0));
    sorter.try_charge_now(4 * MIB).unwrap();
    assert_figures(&query, [4, 4, 3, 0, 0].map(|mib| mib * MIB as u64));
    assert_eq!((query.peak(), sorts.live()), (4 * MIB as u64, 4 * MIB as u64));
    drop(batch);
    sorter.uncharge(4 * MIB);
    query.flush();
    assert_eq!((query.live(), sorts.live()), (0, 0));
    assert_verified(&runtime);
}

/// Who allocates and reserves nothing takes the group above its max: the next charge and the checkpoint are refused there,
/// and nowhere else.
#[test]
fn unpaid_bytes_count_against_the_limit() {
    let runtime = runtime();
    let [query, other] = ["q", "other"].map(|name| runtime.root().create(name, Limits::new().max(4 * MIB)).unwrap());
    let [cover, theirs] = [&query, &other].map(Group::raw_cover);
    let batches: Vec<_> = (0..8).map(|_| covered(&cover, MIB)).collect();
    assert_eq!(query.live(), 8 * MIB as u64, "each passes a step");
    let refused = cover.try_charge_now(9 * MIB).unwrap_err();
    assert!(refused.to_string().starts_with("/q refused 1 MiB for /q"), "{refused}");
    assert!(query.run(Group::checkpoint).is_err());
    theirs.try_charge_now(4 * MIB).unwrap();
    assert!(other.run(Group::checkpoint).is_ok());
    drop(batches);
    assert_eq!(query.live(), 0, "each passes a step");
    cover.try_charge_now(4 * MIB).unwrap();
    cover.uncharge(4 * MIB);
    theirs.uncharge(4 * MIB);
    runtime.root().flush();
    assert_figures(&runtime.root(), [0; 5]);
    assert_verified(&runtime);
}

#[test]
fn after_the_last_cover_each_free_is_found_at_once() {
    let runtime = runtime();
    let query = group(&runtime, "q");
    let [one, two] = [query.raw_cover(), query.raw_cover()];
    let objects = [&one, &two].map(|cover| covered(cover, 70));
    two.try_charge_now(30).unwrap();
    drop(one);
    let [first, second] = objects;
    query.offline().unwrap();
    assert!(matches!(two.try_charge_now(0), Err(ChargeError::Offline { .. })));
    drop(first);
    drop(two);
    assert_eq!(query.live(), 100, "30 without a guard, and 70 unpaid");
    query.raw().uncharge(Bytes(30));
    assert_eq!(query.live(), 70);
    drop(second);
    assert_eq!((query.live(), runtime.root().live()), (0, 0));
    assert_verified(&runtime);
}

#[test]
fn more_than_was_charged_is_a_bug_that_is_counted() {
    let runtime = runtime();
    let query = group(&runtime, "q");
    let cover = query.raw_cover();
    cover.try_charge_now(10).unwrap();
    cover.uncharge(11);
    query.flush();
    assert_eq!((query.live(), cover.bytes(), runtime.counts().underflows), (0, 0, 1));
}

/// Threads charge, allocate, free each other's objects and uncharge, under two covers of one group and another below: at
/// the end nothing is left, and no figure contradicts another.
#[test]
fn threads_under_raw_covers_leave_nothing() {
    let runtime = runtime();
    let query = group(&runtime, "q");
    let below = query.create("below", Limits::new()).unwrap();
    let cover = query.raw_cover();
    let under = cover.of_below(&below).unwrap();
    let (send, receive) = std::sync::mpsc::channel::<Object>();
    std::thread::scope(|scope| {
        for thread in 0..3_usize {
            let (cover, send) = (if thread == 0 { &cover } else { &under }, send.clone());
            scope.spawn(move || {
                for round in 0..300_usize {
                    let bytes = (round * 7_919 + thread * 104_729) % (200 << 10) + 1;
                    let early = (round % 3 == 0).then(|| covered(cover, bytes));
                    cover.try_charge_now(bytes).unwrap();
                    send.send(early.unwrap_or_else(|| covered(cover, bytes))).unwrap();
                    cover.uncharge(bytes);
                }
            });
        }
        drop(send);
        scope.spawn(move || receive.into_iter().for_each(drop));
    });
    query.flush();
    assert_figures(&query, [0; 5]);
    drop((cover, under));
    assert_eq!((query.live(), below.live(), runtime.counts().underflows), (0, 0, 0));
    assert_verified(&runtime);
}
