//! No group is cancelled where all candidates together hold too little, and who asks for much is no
//! better than who holds much.

use std::sync::Mutex;
use std::time::Duration;

use memcg::{Bytes, ChargeError, Event, Group, Limit, Limits, OnFull, ReclaimPriority};

use super::{
    KIB, MIB, Victims, all, assert_sound, bare, block_on, build, call, charge, create, domain,
    left_empty, limited, lock, runtimes, until,
};

type Form = fn(&memcg::Group, u64) -> Result<memcg::Charge, ChargeError>;

/// As each form of charging asks: `Err` where it was refused at once.
const FORMS: [Form; 4] = [
    |group, bytes| group.charge(Bytes(bytes)),
    |group, bytes| group.charge_with(Bytes(bytes), OnFull::Reclaim),
    |group, bytes| group.charge_with(Bytes(bytes), OnFull::Wait(Duration::from_millis(1))),
    |group, bytes| {
        block_on(
            group
                .charge_async(Bytes(bytes))
                .timeout(Duration::from_millis(1)),
        )
    },
];

#[test]
fn all_candidates_together_hold_too_little() {
    for runtime in runtimes() {
        let (domain, victims) = domain(&runtime);
        let asks = create(&domain, "asks");
        let _held = charge(&asks, 80 * KIB);
        let queries: Vec<_> = (0..5)
            .map(|number| create(&domain, &number.to_string()))
            .collect();
        let _hooks: Vec<_> = queries
            .iter()
            .map(|group| victims.obedient(group, 2 * KIB))
            .collect();
        for form in FORMS {
            form(&asks, 20 * KIB + 1).expect_err("all have 20 KiB with what is free");
        }
        let above = domain
            .set_max(Limit::Bytes(80 * KIB - 1))
            .expect("a number");
        assert_eq!(above, 10 * KIB + 1, "as before");
        assert_eq!((victims.paths(), all(&domain, Event::OomKill)), (vec![], 0));
        // One byte less is worth it.
        assert_eq!(
            domain.set_max(Limit::Bytes(100 * KIB)).expect("a number"),
            0
        );
        let _more = asks
            .charge(Bytes(20 * KIB))
            .expect("all five give what they have");
        assert_eq!(victims.paths().len(), 5);
        assert_sound(&runtime);
    }
}

/// A checkpoint asks as well, for what is above max.
#[test]
fn a_checkpoint_whose_group_is_far_above() {
    let runtime = left_empty(build(bare()));
    let (domain, victims) = domain(&runtime);
    let asks = create(&domain, "asks");
    let other = create(&domain, "other");
    let _hook = victims.obedient(&other, 10 * KIB);
    let mut held = asks.force_charge(Bytes(100 * KIB + 1));
    asks.run(Group::checkpoint)
        .expect_err("10 KiB of 10 KiB and a byte");
    assert_eq!(victims.paths(), Vec::<String>::new());
    held.shrink(Bytes(1));
    asks.run(Group::checkpoint)
        .expect("the other one gives what it has");
    assert_eq!(victims.paths(), ["/domain/other"]);
}

/// A reclaimer's promise counts: here all that is short.
#[test]
fn with_what_is_promised() {
    for promises in [false, true] {
        let runtime = build(bare());
        let (domain, victims) = domain(&runtime);
        let asks = create(&domain, "asks");
        let other = create(&domain, "other");
        let held = charge(&asks, 90 * KIB);
        let hook = victims.obedient(&other, 10 * KIB);
        let promise = Mutex::new(None);
        let reclaimer = call(move |_, context| {
            if promises {
                lock(&promise).get_or_insert_with(|| context.promise());
            }
            0
        });
        let registration = asks.register_reclaimer(reclaimer, ReclaimPriority::NORMAL);
        let charged = asks.charge_with(Bytes(20 * KIB), OnFull::Reclaim);
        assert_eq!(
            (charged.is_ok(), victims.paths().len()),
            (false, usize::from(promises))
        );
        drop((registration, hook, held, charged, asks, other, domain));
    }
}

/// A group that holds little and asks for much is the victim itself.
#[test]
fn what_is_asked_for_counts_as_held() {
    for runtime in runtimes() {
        let (domain, victims) = domain(&runtime);
        let asks = create(&domain, "asks");
        let other = create(&domain, "other");
        let held = charge(&asks, 5 * KIB);
        let _hooks = [victims.stubborn(&asks), victims.obedient(&other, 10 * KIB)];
        let error = asks.charge(Bytes(90 * KIB)).expect_err("it is the victim");
        assert!(error.is_cancelled(), "{error}");
        let told = victims.take();
        assert_eq!(
            told.iter()
                .map(|told| (told.group.as_str(), told.overrun))
                .collect::<Vec<_>>(),
            [("/domain/asks", 5 * KIB)]
        );
        // Of a tenant, too, where that is the one with a hook. The first victim gives back what it
        // has.
        drop(held);
        let below = create(&other, "below");
        below
            .charge(Bytes(95 * KIB))
            .expect_err("its tenant is the victim");
        assert_eq!(victims.paths(), ["/domain/other"]);
    }
}

/// A charge that does not wait has a victim cancelled, is refused now and comes again, also while
/// the victim waits in line for more than there is.
#[test]
fn a_charge_that_does_not_wait_comes_again() {
    for waits in [false, true] {
        let runtime = left_empty(build(bare()));
        let acme = limited(&runtime.root(), "acme", 2 * MIB);
        let one = create(&acme, "1");
        let two = acme.create("2", Limits::new()).expect("a free name");
        let victims = Victims::default();
        let _hook = victims.obedient(&one, 11 * MIB / 10);
        acme.set_oom_policy(memcg::OomPolicy::Refuse);
        let _waiter = waits.then(|| super::in_line(&one, 2 * MIB));
        acme.set_oom_policy(memcg::OomPolicy::Choose);
        let mut charged = None;
        until("a charge of the second", || {
            charged = two.charge_with(Bytes(3 * MIB / 2), OnFull::Start).ok();
            charged.is_some()
        });
        assert_eq!(victims.paths(), ["/acme/1"]);
    }
}

/// Who is spared is no part of what comes.
#[test]
fn an_exempt_asker_is_not_its_own_victim() {
    let runtime = left_empty(build(bare()));
    let (domain, victims) = domain(&runtime);
    let asks = create(&domain, "asks");
    let other = create(&domain, "other");
    asks.set_oom_exempt(true);
    let _hooks = [victims.stubborn(&asks), victims.obedient(&other, 10 * KIB)];
    let _held = charge(&asks, 5 * KIB);
    let _more = asks
        .charge(Bytes(90 * KIB))
        .expect("the other one gives what it has");
    assert_eq!(victims.paths(), ["/domain/other"]);
}
