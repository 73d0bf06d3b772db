//! Charges without a guard: figures as of guards, what they keep, and what giving back too much
//! does.

use std::thread;

use memcg::inspect::VerifyFaultKind;
use memcg::{Bytes, Charge, Group, Runtime};

use super::{bare, build, charge, create, fixed, left_empty};

#[test]
fn an_amount_keeps_its_group_and_no_amount_keeps_none() {
    for builder in [bare(), fixed(), Runtime::builder().batch(Bytes(64))] {
        let runtime = left_empty(build(builder));
        let group = create(&runtime.root(), "q");
        let id = group.id();
        group.raw().charge(0).expect("online");
        group.raw().charge(10).expect("room");
        group.offline().expect("no children");
        assert!(
            matches!(group.raw().charge(0), Err(error) if error.is_offline() && error.requested() == 0)
        );
        assert!(
            matches!(group.raw().charge(1), Err(error) if error.is_offline() && error.requested() == 1)
        );
        assert_eq!(group.raw().force_charge(5), 5, "by force, also offline");
        drop(group);
        runtime.settle();
        let group = runtime.find(id).expect("15 bytes keep it");
        assert_eq!((group.live(), runtime.dying_count()), (15, 1));
        group.raw().uncharge(0);
        group.raw().uncharge(15);
        drop(group);
        runtime.settle();
        assert_eq!((runtime.find(id), runtime.dying_count()), (None, 0));
    }
}

#[test]
#[allow(unsafe_code)]
fn a_guard_becomes_a_word_and_a_number_and_a_guard_again() {
    let mut builder = Runtime::builder().batch(Bytes(64));
    let spill = builder.counter("spill", memcg::Unit::Bytes);
    let runtime = left_empty(build(builder));
    let group = create(&runtime.root(), "q");
    let id = group.id();
    let mut guards = Vec::from(group.charge_set(&[(spill, 30)]).expect("room"));
    guards.push(charge(&group, 20));
    guards.push(charge(&group, 0));
    let raw: Vec<_> = guards
        .into_iter()
        .map(|guard| {
            let (word, bytes) = guard.into_raw();
            (word as usize, bytes)
        })
        .collect();
    group.offline().expect("no children");
    drop(group);
    runtime.settle();
    assert_eq!(runtime.find(id).map(|group| group.live()), Some(20));
    let back = move || {
        for (word, bytes) in raw {
            // SAFETY: each is from `into_raw`, and this is its one use, in two parts where it has
            // bytes.
            let parts = unsafe {
                let word = word as *const ();
                if bytes == 0 {
                    vec![Charge::from_raw(word, 0)]
                } else {
                    [1, bytes - 1]
                        .map(|part| Charge::from_raw(word, part))
                        .into()
                }
            };
            assert!(parts.iter().all(|part| part.group().id() == id));
        }
    };
    thread::spawn(back).join().expect("no panic");
    assert_eq!(runtime.find(id), None);
}

/// More than the group has: its usage ends at zero, the others keep theirs, and the verdict names
/// it.
#[test]
fn too_much_given_back_is_counted_and_taken_from_no_other_group() {
    for batch in [0, 64] {
        let runtime = build(Runtime::builder().batch(Bytes(batch)).adaptive(false));
        let root = runtime.root();
        let [group, other] = ["q", "other"].map(|name| create(&root, name));
        let theirs = charge(&other, 500);
        group.raw().charge(10).expect("room");
        group.raw().uncharge(1_000);
        assert_eq!((group.live(), other.live(), root.live()), (0, 500, 500));
        assert_eq!(runtime.counts().underflows, 1);
        let verdict = runtime.verify();
        let fault = verdict
            .faults()
            .iter()
            .find(|fault| fault.kind == VerifyFaultKind::Underflow)
            .expect("one fault");
        assert_eq!(fault.path.as_deref(), Some("/q"));
        // It goes on without stock, and exactly.
        group.raw().charge(7).expect("room");
        assert_eq!((group.usage(), group.live()), (7, 7));
        group.raw().uncharge(7);
        group.raw().uncharge(Bytes(u64::MAX));
        assert_eq!((group.usage(), other.live()), (0, 500));
        drop(theirs);
    }
}

/// The handle is gone, and what was given back too much was a guard's: the guard's drop must not
/// reach the next group.
#[test]
fn a_guard_whose_bytes_were_given_back_by_amount_finds_its_own_group() {
    for builder in [
        fixed().audit(false),
        bare().audit(false),
        bare(),
        Runtime::builder().batch(Bytes(64)),
    ] {
        let runtime = build(builder);
        let root = runtime.root();
        let group = create(&root, "q");
        let guard = charge(&group, 40);
        group.raw().charge(60).expect("room");
        group.raw().uncharge(100);
        group.offline().expect("no children");
        drop(group);
        runtime.settle();
        let next: Vec<Group> = (0..100)
            .map(|number| create(&root, &format!("next{number}")))
            .collect();
        let held: Vec<Charge> = next.iter().map(|next| charge(next, 50)).collect();
        assert_eq!(
            (guard.bytes(), guard.group().path()),
            (40, "/q".to_owned()),
            "no other group has the object"
        );
        drop(guard);
        assert!(next.iter().all(|next| next.live() == 50));
        assert_eq!(root.live(), 5_000);
        assert_eq!(
            (runtime.counts().underflows, runtime.dying_count()),
            (1, 1),
            "counted, and kept"
        );
        drop(held);
    }
}

/// The amounts of guards whose bytes were given back by amount pass 2^63, once by merging and once
/// by growing.
#[test]
fn a_guard_holds_no_more_than_a_counter_counts() {
    const HALF: u64 = 1 << 62;
    const MOST: u64 = 2 * HALF - 1;
    let runtime = build(bare().audit(false));
    let root = runtime.root();
    let group = create(&root, "q");
    let mut guards = [
        group.force_charge(Bytes(HALF)),
        group.force_charge(Bytes(0)),
        group.force_charge(Bytes(0)),
    ];
    let more = || {
        group.raw().uncharge(Bytes(group.usage()));
        group.force_charge(Bytes(HALF))
    };
    for expected in [MOST, MOST] {
        guards[0].merge(more()).expect("one group");
        assert_eq!(guards[0].bytes(), expected);
        // A charge that holds nothing takes what there is, and grows beyond it.
        guards[1].merge(more()).expect("one group");
        guards[2].merge(more()).expect("one group");
    }
    group.raw().uncharge(Bytes(group.usage()));
    guards[1].force_grow(Bytes(HALF));
    group.raw().uncharge(Bytes(group.usage()));
    guards[2].grow(Bytes(HALF)).expect("no limit");
    assert_eq!(guards.each_ref().map(Charge::bytes), [MOST; 3]);
    group.raw().uncharge(Bytes(group.usage()));
    let id = group.id();
    group.offline().expect("no children");
    drop(group);
    let next: Vec<Group> = (0..100)
        .map(|number| create(&root, &format!("next{number}")))
        .collect();
    assert_eq!(runtime.dying_count(), 1, "guards live");
    assert_eq!(
        runtime.find(id).map(|group| group.path()).as_deref(),
        Some("/q")
    );
    drop(guards);
    assert!(next.iter().all(|next| next.usage() == 0));
}

/// Guards hold a multiple of 2^64 bytes, on one thread and on two.
#[test]
fn guards_of_any_amounts_keep_their_group() {
    for threads in [1, 2] {
        let runtime = build(bare().audit(false));
        let root = runtime.root();
        let group = create(&root, "q");
        let n = Bytes(1 << 62);
        let make = || {
            let guard = group.force_charge(n);
            group.raw().uncharge(n);
            guard
        };
        let guards: Vec<Charge> = thread::scope(|scope| {
            let each = || (0..4 / threads).map(|_| make()).collect::<Vec<Charge>>();
            (0..threads)
                .flat_map(|_| scope.spawn(each).join().expect("no panic"))
                .collect()
        });
        assert_eq!(
            guards
                .iter()
                .map(|guard| u128::from(guard.bytes()))
                .sum::<u128>(),
            1 << 64
        );
        group.offline().expect("no children");
        drop(group);
        assert_eq!(runtime.dying_count(), 1, "guards live");
        let next: Vec<Group> = (0..80)
            .map(|number| create(&root, &format!("next{number}")))
            .collect();
        let held: Vec<Charge> = next.iter().map(|next| charge(next, 100)).collect();
        assert!(guards.iter().all(|guard| guard.group().path() == "/q"));
        drop(guards);
        assert!(next.iter().all(|next| next.usage() == 100));
        drop(held);
    }
}

/// Amounts that a thread has charged in another runtime do not make its first amounts here go
/// uncounted.
#[test]
fn a_guard_finds_its_own_group_after_amounts_in_another_runtime() {
    let other = build(fixed());
    let others: Vec<Group> = (0..300)
        .map(|number| create(&other.root(), &format!("other{number}")))
        .collect();
    for group in &others {
        group.raw().charge(1).expect("room");
        group.raw().uncharge(1);
    }
    let runtime = build(fixed().audit(false));
    // The objects of these go to the groups that come, and with them places whose pages the thread
    // has.
    drop(others);
    let groups: Vec<Group> = (0..20)
        .map(|number| create(&runtime.root(), &format!("q{number}")))
        .collect();
    for (at, group) in groups.into_iter().enumerate() {
        drop(charge(&group, 64)); // there is credit: what follows hits
        let guard = charge(&group, 40);
        group.raw().uncharge(40);
        group.offline().expect("no children");
        let path = group.path();
        drop(group);
        runtime.settle();
        let next: Vec<Group> = (0..5)
            .map(|number| create(&runtime.root(), &format!("next{number} of {at}")))
            .collect();
        assert_eq!(guard.group().path(), path, "no other group has the object");
        drop(guard);
        assert!(next.iter().all(|next| next.live() == 0));
    }
    assert_eq!(
        (runtime.counts().underflows, runtime.dying_count()),
        (20, 20),
        "counted, and kept"
    );
}

/// Too much was given back, and no guard is left: the object is used again.
#[test]
fn a_group_that_gave_back_too_much_and_has_no_guards_goes() {
    let runtime = build(Runtime::builder().batch(Bytes(0)));
    let group = create(&runtime.root(), "q");
    let guard = charge(&group, 40);
    group.raw().uncharge(45);
    drop(guard);
    assert_eq!((runtime.counts().underflows, group.live()), (2, 0));
    group.offline().expect("no children");
    drop(group);
    assert_eq!(runtime.dying_count(), 0);
}
