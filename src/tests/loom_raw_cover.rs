//! Covered bytes that charges without a guard pay for.

use super::loom_lifecycle::bare;
use super::{model_without_pair, race, with_group};
use crate::allocator::Owner;
use crate::{Bytes, Group, RawCover};

#[allow(unsafe_code)]
fn free(owner: Owner, bytes: usize) {
    // SAFETY: the model frees what it has allocated, once.
    unsafe { owner.uncharge(bytes) };
}

/// A cover of the group with an object of 2 bytes that nothing pays for yet, after a look.
fn unpaid(group: &Group) -> (RawCover, Owner) {
    let cover = group.raw_cover();
    let object = cover.run(|| Owner::charge(2));
    group.flush();
    assert_eq!((group.usage(), group.ledger().unpaid()), (2, 2));
    (cover, object)
}

/// E50. The cover ends while another thread looks: the record is in debt from then on, so the free is found at once.
#[test]
fn loom_raw_cover_ends_vs_look() {
    model_without_pair(|| {
        let (_runtime, group) = with_group(bare(), "g");
        let (cover, object) = unpaid(&group);
        race(group.clone(), |group| group.flush(), || drop(cover));
        assert_eq!(group.usage(), 2);
        free(object, 2);
        assert_eq!(group.usage(), 0);
    });
}

/// E50. A charge takes over what is unpaid while another thread looks, which may find it first: it is paid once.
#[test]
fn loom_raw_cover_charge_vs_look() {
    model_without_pair(|| {
        let (_runtime, group) = with_group(bare(), "g");
        let (cover, object) = unpaid(&group);
        race(group.clone(), |group| group.flush(), || cover.try_charge_now(Bytes(2)).unwrap());
        group.flush();
        assert_eq!((group.usage(), cover.bytes()), (2, 2), "paid once");
        cover.uncharge(Bytes(2));
        group.flush();
        assert_eq!((group.usage(), group.ledger().unpaid()), (2, 2), "and held by nothing any more");
        free(object, 2);
        group.flush();
        assert_eq!(group.usage(), 0);
        drop(cover);
        assert_eq!(group.usage(), 0);
    });
}

/// E50. Two threads give up bytes of one group below at once, with all that they cover still there: the group that has the
/// cover gives nothing back, and is charged for nothing.
#[test]
fn loom_raw_covers_given_up_at_once() {
    model_without_pair(|| {
        let (_runtime, group) = with_group(bare(), "g");
        let below = super::group(&group, "below");
        let cover = group.raw_cover();
        let sorter = cover.of_below(&below).unwrap();
        sorter.try_charge_now(Bytes(2)).unwrap();
        let object = cover.run(|| Owner::charge(2));
        let sorter = crate::sync::Arc::new(sorter);
        race(sorter.clone(), |sorter| sorter.uncharge(Bytes(1)), || sorter.uncharge(Bytes(1)));
        assert_eq!(sorter.bytes(), 0, "each byte is taken once");
        group.flush();
        assert_eq!((group.usage(), group.peak(), below.usage()), (2, 2, 0));
        free(object, 2);
        group.flush();
        assert_eq!(group.usage(), 0);
    });
}
