//! Covered bytes: what is paid by a charge, what is unpaid, and what keeps the group.

use super::common::end;
use super::loom_lifecycle::{assert_released_once, bare};
use super::{beside, model_without_pair, race, with_group};
use crate::allocator::{Owner, settle};
use crate::counter::cover;
use crate::counter::ledger::{self, LedgerSums};
use crate::sync::Arc;
use crate::{Charge, Group};

fn covered(charge: &Charge, bytes: usize) -> Owner {
    charge.cover(|| Owner::charge(bytes))
}

#[allow(unsafe_code)]
fn free(owner: Owner, bytes: usize) {
    // SAFETY: the model frees what it has allocated, once.
    unsafe { owner.uncharge(bytes) };
}

/// A group of one object of 2 bytes that a charge of 1 byte covers: 1 is unpaid once a thread has looked.
fn beyond_its_charge(group: &Group) -> (Charge, Owner) {
    let charge = group.try_charge(1).unwrap();
    let object = covered(&charge, 2);
    (charge, object)
}

/// E49. A thread looks while another one frees what a third has allocated: it never finds fewer bytes than were there
/// throughout.
#[test]
fn loom_covered_freed_elsewhere_vs_look() {
    model_without_pair(|| {
        let (_runtime, group) = with_group(bare(), "g");
        let (charge, object) = beyond_its_charge(&group);
        let charge = Arc::new(charge);
        let looks = beside(group.clone(), |group| {
            assert!(cover::covered(group.first()) >= 2, "an object of 2 bytes is there");
        });
        // This thread has its cell already; the other one makes its own.
        let passed = beside(Arc::clone(&charge), |charge| covered(&charge, 2)).join().unwrap();
        free(passed, 2);
        looks.join().unwrap();
        group.flush();
        assert_eq!(group.usage(), 2);
        drop(charge);
        free(object, 2);
        assert_eq!(group.usage(), 0);
    });
}

/// E50. A covering charge goes while a thread frees in debt: what stays is unpaid, to the byte.
#[test]
fn loom_cover_dropped_vs_free_in_debt() {
    model_without_pair(|| {
        let (_runtime, group) = with_group(bare(), "g");
        let (charge, stays) = beyond_its_charge(&group);
        let goes = covered(&charge, 1);
        group.flush();
        assert_eq!(group.usage(), 3);
        race(goes, |goes| free(goes, 1), || drop(charge));
        assert_eq!(group.usage(), 2, "the object that stays");
        free(stays, 2);
        assert_eq!(group.usage(), 0);
    });
}

/// E50. Two covering charges go at once, with all that they cover still there: nothing is given back, and nothing charged.
#[test]
fn loom_covers_dropped_at_once() {
    model_without_pair(|| {
        let (_runtime, group) = with_group(bare(), "g");
        let charges = [1, 1].map(|bytes| group.try_charge(bytes).unwrap());
        let object = covered(&charges[0], 2);
        charges[1].cover(|| {});
        let [one, two] = charges;
        race(one, drop, || drop(two));
        assert_eq!((group.usage(), group.peak()), (2, 2));
        free(object, 2);
        assert_eq!(group.usage(), 0);
    });
}

/// E15. A thread that frees in debt looks for another one, whose covering charge has become raw, been given back, and
/// taken its group with it: the object that stays keeps the group.
#[test]
fn loom_last_covered_free_vs_handle_drop() {
    model_without_pair(|| {
        let (runtime, gone) = with_group(bare(), "gone");
        let charge = gone.try_charge(1).unwrap();
        let [stays, goes] = [1, 1].map(|bytes| covered(&charge, bytes));
        gone.flush();
        gone.offline().unwrap();
        let gives_up = |(gone, charge): (Group, Charge)| {
            gone.flush();
            let (_, bytes) = charge.into_raw();
            gone.raw().uncharge(crate::Bytes(bytes));
            drop(gone);
        };
        race((gone, charge), gives_up, || free(goes, 1));
        settle();
        assert_eq!(runtime.root().usage(), 1, "the object that stays");
        free(stays, 1);
        settle();
        assert_released_once(&runtime);
    });
}

/// E51. Two threads cover in a group that has no record yet, and a third looks.
#[test]
fn loom_first_covers() {
    model_without_pair(|| {
        let (_runtime, group) = with_group(bare(), "g");
        let first = |group: &Group| {
            let charge = group.try_charge(1).unwrap();
            let object = covered(&charge, 1);
            (charge, object)
        };
        let (theirs, ours) = race(group.clone(), move |group| first(&group), || first(&group));
        let ledger = group.ledger();
        assert_eq!((ledger.covering(), ledger.covered(), ledger.unpaid()), (2, 2, 0));
        for (charge, object) in [theirs, ours] {
            drop(charge);
            free(object, 1);
        }
        assert_eq!(group.usage(), 0);
        end(group);
    });
}

/// Covered, held and unpaid bytes of the group, after a look, against those of each moment of the other thread's work.
#[track_caller]
fn assert_of_one_moment(group: &Group, moments: &[[u64; 3]]) {
    cover::look_below(Some(group.first()));
    let LedgerSums { covered, held, unpaid, error, .. } = ledger::own(group.first());
    let is_near = |moment: &[u64; 3]| [covered, held, unpaid].iter().zip(moment).all(|(a, b)| a.abs_diff(*b) <= error);
    assert!(moments.iter().any(is_near), "{covered} covered, {held} held, {unpaid} unpaid, off by {error}");
}

/// E50. A thread reads the ledger while another one frees in debt, and may be about to look, or look: what is shown is of
/// one moment.
#[test]
fn loom_ledger_vs_free_in_debt() {
    model_without_pair(|| {
        let (_runtime, group) = with_group(bare(), "g");
        let (charge, stays) = beyond_its_charge(&group);
        let goes = covered(&charge, 1);
        group.flush();
        race(goes, |goes| free(goes, 1), || assert_of_one_moment(&group, &[[3, 1, 2], [2, 1, 1]]));
        drop(charge);
        free(stays, 2);
        assert_eq!(group.usage(), 0);
    });
}

/// E52. A thread reads the ledger while another one drops a covering charge and covers with its next: what both held is
/// never shown together, but within the error.
#[test]
fn loom_ledger_vs_next_cover() {
    model_without_pair(|| {
        let (_runtime, group) = with_group(bare(), "g");
        let (charge, stays) = beyond_its_charge(&group);
        // Charged before: a charge runs a fence.
        let next = beside((charge, group.force_charge(1)), |(charge, next)| {
            drop(charge);
            next.cover(|| {});
            next
        });
        assert_of_one_moment(&group, &[[2, 1, 1], [2, 0, 2]]);
        drop(next.join().unwrap());
        free(stays, 2);
        assert_eq!(group.usage(), 0);
    });
}
