//! The charge for which a group is chosen, and the charges that wait.

use std::time::Duration;

use memcg::{Bytes, ChargeError, Event, OnFull};

use super::{
    HASTY, KIB, MIB, Process, WATCHDOG, admitted, all, block_on, blocked, build, charge, create,
    domain, in_line, join, kinds, left_empty, limited, local, runtimes, turned_away,
};

#[track_caller]
fn assert_cancelled(error: ChargeError, of: &memcg::Group, bytes: u64) {
    assert!(error.is_cancelled(), "{error}");
    assert_eq!((error.group(), error.requested()), (of, bytes));
}

/// Charges that wait in the victim's subtree are refused as cancelled, too. Others are not.
#[test]
fn charges_that_wait_in_the_victim() {
    for runtime in runtimes() {
        let (domain, victims) = domain(&runtime);
        domain.set_oom_policy(memcg::OomPolicy::Refuse);
        let victim = create(&domain, "victim");
        let other = create(&domain, "other");
        let below = create(&victim, "below");
        let _hook = victims.obedient(&victim, 60 * KIB);
        let held = charge(&other, 40 * KIB);
        let mut inside = [in_line(&victim, 70 * KIB), in_line(&below, 71 * KIB)];
        let mut outside = in_line(&other, 72 * KIB);
        let thread = blocked(&below, 73 * KIB, &domain);
        assert_eq!(domain.waiting_count(), 4);
        domain.set_oom_policy(memcg::OomPolicy::Choose);
        let charge = charge(&domain, 10 * KIB);
        assert_eq!(victims.paths(), ["/domain/victim"]);
        assert_cancelled(turned_away(&mut inside[0]), &victim, 70 * KIB);
        assert_cancelled(turned_away(&mut inside[1]), &below, 71 * KIB);
        assert_cancelled(
            join(thread).expect_err("its group is the victim"),
            &below,
            73 * KIB,
        );
        assert!(inside.iter().all(|waiter| waiter.wakes() == 1));
        assert_eq!((outside.wakes(), domain.waiting_count()), (0, 1));
        drop((held, charge));
        drop(admitted(&mut outside));
    }
}

/// Each form of charging that fails chooses; the ones that wait are in line meanwhile.
#[test]
fn in_every_form() {
    for runtime in runtimes() {
        let domain = limited(&runtime.root(), "domain", 10 * MIB);
        let charger = create(&domain, "charger");
        for form in 0..5 {
            let process = Process::below(&domain, &format!("process {form}"));
            process.allocate(10 * MIB).expect("room");
            let held = match form {
                0 => charger.charge(Bytes(MIB)),
                1 => charger.charge_with(Bytes(MIB), OnFull::Wait(WATCHDOG)),
                2 => block_on(charger.charge_async(Bytes(MIB))),
                3 => charger.charge_with(Bytes(MIB), OnFull::Wait(2 * WATCHDOG)),
                _ => charger.charge_with(Bytes(MIB), OnFull::Wait(WATCHDOG)),
            };
            assert_eq!(
                held.expect("the process is stopped").bytes(),
                MIB,
                "form {form}"
            );
            process.wait_until_dead();
            assert_eq!(process.kills(), 1);
            process.exit().offline().expect("no children");
        }
        assert_eq!(
            (local(&domain, Event::Oom), all(&domain, Event::OomKill)),
            (5, 5)
        );
    }
}

/// No group left: the charge is refused, or waits on as it would have without.
#[test]
fn when_no_group_is_left() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.oom_time(HASTY)));
        let (domain, victims) = domain(&runtime);
        let group = create(&domain, "q");
        let _held = charge(&group, 100 * KIB);
        let _hook = victims.stubborn(&group);
        assert!(matches!(domain.charge(Bytes(KIB)), Err(error) if error.is_over_limit()));
        let error = domain
            .charge_with(Bytes(KIB), OnFull::Wait(Duration::from_millis(50)))
            .expect_err("no group gives anything");
        assert!(error.is_timeout() || error.is_over_limit(), "{error}");
        assert_eq!(victims.paths(), ["/domain/q"; 2]);
    }
}

/// A reclaimer's charges choose no group.
#[test]
fn not_from_inside_a_reclaimer() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.oom_time(HASTY)));
        let (domain, victims) = domain(&runtime);
        let group = create(&domain, "q");
        let _held = charge(&group, 100 * KIB);
        let _hook = victims.stubborn(&group);
        let _registration = {
            let reclaimer = super::call(|_, context| {
                let error = context.group().charge(Bytes(KIB)).expect_err("full");
                assert!(error.is_in_reclaim(), "{error}");
                0
            });
            domain.register_reclaimer(reclaimer, memcg::ReclaimPriority::NORMAL)
        };
        domain.reclaim(Bytes(KIB)).expect("not inside a reclaimer");
        assert!(victims.take().is_empty());
        assert_eq!(
            (all(&domain, Event::OomKill), all(&domain, Event::Panic)),
            (0, 0)
        );
    }
}

/// The time limit is for all waits together, however long a victim may take.
#[test]
fn a_time_limit_is_one() {
    for runtime in runtimes() {
        let (domain, victims) = domain(&runtime);
        let groups = ["a", "b"].map(|name| create(&domain, name));
        let _held = groups.each_ref().map(|group| charge(group, 50 * KIB));
        let _hooks = groups.each_ref().map(|group| victims.stubborn(group));
        let started = std::time::Instant::now();
        let time = Duration::from_millis(20);
        let error = domain
            .charge_with(Bytes(KIB), OnFull::Wait(time))
            .expect_err("no group gives anything");
        let took = started.elapsed();
        assert!(
            error
                .waited()
                .is_some_and(|waited| waited >= time && waited <= took),
            "{error}"
        );
        assert!(
            took < super::PATIENT / 2,
            "{took:?}, and a victim may take {:?}",
            super::PATIENT
        );
        assert_eq!(domain.waiting_count(), 0);
    }
}
