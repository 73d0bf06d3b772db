//! Charges on threads that drive futures: none of them waits for a victim whose task needs that
//! thread.

use memcg::{Bytes, OnFull};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::{KIB, PATIENT, charge, create, domain, limited, lock, runtimes};

/// Far less than a victim may take, and more than a machine stands still.
const QUICK: Duration = Duration::from_secs(PATIENT.as_secs() / 2);

/// The victim's memory comes later: refused at once, and says so. The victim is told once.
#[test]
fn undelayed_does_not_wait_for_a_victim() {
    for runtime in runtimes() {
        let (domain, victims) = domain(&runtime);
        let victim = create(&domain, "victim");
        let group = create(&domain, "q");
        let held = charge(&victim, 100 * KIB);
        let _hook = victims.stubborn(&victim);
        let started = Instant::now();
        for _ in 0..3 {
            let error = group
                .charge_with(Bytes(10 * KIB), OnFull::Reclaim)
                .expect_err("nothing is given back yet");
            let Some(refusal) = error.over_limit() else {
                panic!("{error}")
            };
            assert_eq!(
                (refusal.group(), refusal.requester(), refusal.want()),
                (&domain, &group, 10 * KIB)
            );
            assert!(error.to_string().contains("does not wait"), "{error}");
        }
        assert!(started.elapsed() < QUICK, "{:?}", started.elapsed());
        assert_eq!(
            (victims.paths(), domain.waiting_count()),
            (vec!["/domain/victim".to_string()], 0)
        );
        drop(held);
        drop(
            group
                .charge_with(Bytes(10 * KIB), OnFull::Reclaim)
                .expect("given back"),
        );
    }
}

/// A group that gives all on the spot is no reason to be refused.
#[test]
fn undelayed_has_what_a_victim_gives_at_once() {
    for runtime in runtimes() {
        let (domain, victims) = domain(&runtime);
        let victim = create(&domain, "victim");
        let group = create(&domain, "q");
        let _hook = victims.obedient(&victim, 100 * KIB);
        let _held = group
            .charge_with(Bytes(10 * KIB), OnFull::Reclaim)
            .expect("the victim has given its memory back");
        assert_eq!(
            (victims.paths(), domain.live()),
            (vec!["/domain/victim".to_string()], 10 * KIB)
        );
        // No group is left to be asked: an ordinary refusal.
        assert!(
            matches!(group.charge_with(Bytes(91 * KIB), OnFull::Reclaim), Err(error) if error.is_over_limit())
        );
    }
}

/// One thread for all tasks: the victim's task gives back when it runs, and it runs when the charge
/// has not blocked.
#[test]
fn a_current_thread_runtime_goes_on() {
    for runtime in runtimes() {
        let domain = limited(&runtime.root(), "domain", 100 * KIB);
        let victim = create(&domain, "victim");
        let group = create(&domain, "q");
        let tasks = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime of one thread");
        let started = Instant::now();
        tasks.block_on(async {
            let stop = Arc::new(Notify::new());
            let hook = {
                let stop = Arc::clone(&stop);
                victim.on_cancel(move |_| stop.notify_one())
            };
            let held = Arc::new(Mutex::new(Some(charge(&victim, 100 * KIB))));
            let query = {
                let stop = Arc::clone(&stop);
                let held = Arc::clone(&held);
                tokio::spawn(async move {
                    stop.notified().await;
                    drop(lock(&held).take());
                })
            };
            let refused = group.charge_with(Bytes(10 * KIB), OnFull::Reclaim);
            assert!(
                matches!(&refused, Err(error) if error.is_would_block()),
                "{refused:?}"
            );
            assert!(lock(&held).is_some(), "the victim's task has not run yet");
            let charge = group
                .charge_async(Bytes(10 * KIB))
                .await
                .expect("the victim's task runs meanwhile");
            assert_eq!((charge.bytes(), lock(&held).is_none()), (10 * KIB, true));
            query.await.expect("no panic there");
            drop(hook);
        });
        assert!(started.elapsed() < QUICK, "{:?}", started.elapsed());
    }
}
