//! What a charge may become.

use memcg::{Bytes, Charge, ChargeError};

use super::{Other, assert_empty, assert_sound, build, charge, create, kinds};

#[test]
fn every_verb_keeps_the_sum() {
    for builder in kinds() {
        let runtime = build(builder);
        let group = create(&runtime.root(), "q");
        let other = Other::spawn();
        let mut held = charge(&group, 100);
        let check = |charges: &[&Charge], what: &str| {
            let sum: u64 = charges.iter().map(|charge| charge.bytes()).sum();
            assert_eq!((group.live(), runtime.root().live()), (sum, sum), "{what}");
            assert_sound(&runtime);
        };
        held.force_grow(20);
        check(&[&held], "grow");
        held.try_grow(30).expect("room");
        check(&[&held], "try_grow");
        assert_eq!(held.shrink(50), 50);
        check(&[&held], "shrink");
        held.resize(70).expect("less");
        check(&[&held], "resize down");
        held.resize(300).expect("room");
        check(&[&held], "resize up");
        let mut part = held.split(120).expect("of 300");
        assert_eq!((held.bytes(), part.bytes()), (180, 120));
        check(&[&held, &part], "split");
        let taken = held.take();
        assert_eq!((held.bytes(), taken.bytes()), (0, 180));
        check(&[&held, &part, &taken], "take");
        part.merge(taken).expect("one group");
        check(&[&held, &part], "merge");
        held.merge(part.split(1).expect("of 300")).expect("one group");
        check(&[&held, &part], "merge into none");
        part.merge(held.take()).expect("one group");
        check(&[&held, &part], "merge of a split");
        let part = other.run(move || {
            let mut part = part;
            part.shrink(17);
            part.force_grow(4);
            part
        });
        check(&[&held, &part], "on another thread");
        assert!(format!("{part:?}").contains("/q") && !format!("{part:?}").contains('\n'));
        other.run(move || drop(held));
        drop(part);
        check(&[], "drop");
        drop(group);
        assert_empty(&runtime);
    }
}

#[test]
fn a_refusal_leaves_the_charge_as_it_was() {
    for builder in kinds() {
        let runtime = build(builder.max(1_000));
        let group = create(&runtime.root(), "q");
        let other = Other::spawn();
        let theirs = other.with(&group, |group| charge(group, 100));
        let mut held = charge(&group, 800);
        for bytes in [101, 1_000, u64::MAX] {
            let Err(ChargeError::Limit(refusal)) = held.try_grow(Bytes(bytes)) else { panic!("{bytes} do not fit") };
            assert_eq!((refusal.group(), refusal.requester()), (&runtime.root(), &group));
            assert_eq!((refusal.requested(), refusal.usage(), refusal.max()), (bytes, 900, 1_000));
            assert!(held.resize(Bytes(800_u64.saturating_add(bytes))).is_err());
            assert_eq!((held.bytes(), group.live()), (800, 900));
        }
        held.try_grow(100).expect("to the byte, wherever credit is");
        assert!(group.try_charge(1).is_err());
        held.resize(899).expect("less");
        drop(charge(&group, 1));
        drop((theirs, held));
        assert_eq!(runtime.root().live(), 0);
        assert_empty(&runtime);
    }
}

#[test]
fn a_debug_line_names_group_and_bytes() {
    let runtime = build(super::bare());
    let group = create(&runtime.root(), "q");
    assert_eq!(format!("{:?}", charge(&group, 5)), r#"Charge { group: "/q", bytes: 5 }"#);
}
