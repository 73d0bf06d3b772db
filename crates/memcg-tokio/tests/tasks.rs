//! Tasks in groups, charges with tokio's clock, and credit of workers that park.

use std::sync::mpsc;
use std::time::Duration;

use memcg::{Group, Limits, Runtime};
use memcg_tokio::{charge_timeout, charge_until, release_credit, spawn_blocking_in, spawn_in};
use tokio::time::Instant;

fn current() -> Option<String> {
    Group::current().map(|group| group.path())
}

/// Says in which group it is dropped.
struct Dropped(mpsc::Sender<Option<String>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.send(current()).unwrap();
    }
}

fn acme() -> (Runtime, Group) {
    let runtime = Runtime::builder().audit(true).build().unwrap();
    let acme = runtime
        .root()
        .create("acme", Limits::new().max(1000))
        .unwrap();
    (runtime, acme)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_runs_and_ends_in_its_group() {
    let (_runtime, acme) = acme();
    let (says, drops) = mpsc::channel();
    let dropped = Dropped(says.clone());
    let task = spawn_in(&acme, async move {
        let _dropped = dropped;
        tokio::task::yield_now().await;
        current()
    });
    assert_eq!(task.await.unwrap().as_deref(), Some("/acme"));
    assert_eq!(drops.recv().unwrap().as_deref(), Some("/acme"));
    let dropped = Dropped(says);
    let aborted = spawn_in(&acme, async move {
        let _dropped = dropped;
        std::future::pending::<()>().await;
    });
    aborted.abort();
    assert!(aborted.await.unwrap_err().is_cancelled());
    assert_eq!(
        drops.recv().unwrap().as_deref(),
        Some("/acme"),
        "dropped by the abort"
    );
    assert_eq!(current(), None);
}

#[test]
fn blocking_work_runs_in_its_group_or_is_dropped_there() {
    let (_runtime, acme) = acme();
    let tokio = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    let (says, drops) = mpsc::channel();
    let (hold, held) = mpsc::channel::<()>();
    let (begin, begun) = mpsc::channel();
    tokio.block_on(async {
        assert_eq!(
            spawn_blocking_in(&acme, current).await.unwrap().as_deref(),
            Some("/acme")
        );
        let panics = spawn_blocking_in(&acme, || panic!("work of the test")).await;
        assert!(panics.unwrap_err().is_panic());
        // The only thread is busy, so the second work never runs.
        spawn_blocking_in(&acme, move || {
            begin.send(()).unwrap();
            held.recv().ok();
        });
        let dropped = Dropped(says);
        spawn_blocking_in(&acme, move || {
            let _never = &dropped;
            unreachable!("it is not to run");
        });
    });
    begun.recv().unwrap();
    tokio.shutdown_background();
    drop(hold);
    assert_eq!(
        drops
            .recv_timeout(Duration::from_secs(30))
            .unwrap()
            .as_deref(),
        Some("/acme")
    );
}

#[tokio::test(start_paused = true)]
async fn a_charge_gives_up_by_tokios_clock() {
    let (runtime, acme) = acme();
    let held = charge_timeout(&acme, 800, Duration::ZERO).await.unwrap();
    let begun = Instant::now();
    let late = charge_timeout(&acme, 300, Duration::from_secs(7000))
        .await
        .unwrap_err();
    assert!(late.is_timeout(), "{late:?}");
    assert_eq!(begun.elapsed().as_secs(), 7000);
    let deadline = Instant::now() + Duration::from_secs(100);
    let waits = tokio::spawn({
        let acme = acme.clone();
        async move { charge_until(&acme, 300, deadline).await }
    });
    tokio::time::sleep(Duration::from_secs(99)).await;
    drop(held);
    let charge = waits.await.unwrap().unwrap();
    assert!(
        charge_until(&acme, 800, deadline - Duration::from_secs(1000))
            .await
            .is_err()
    );
    assert!(
        charge_until(&acme, 700, deadline - Duration::from_secs(1000))
            .await
            .is_ok(),
        "it fits"
    );
    drop(charge);
    assert_eq!(acme.live(), 0);
    assert!(runtime.verify().to_string().ends_with("all add up"));
}

#[test]
fn a_worker_that_parks_gives_its_credit_back() {
    let runtime = Runtime::builder().build().unwrap();
    let acme = runtime.root().create("acme", Limits::new()).unwrap();
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .on_thread_park(release_credit(&runtime))
        .build()
        .unwrap();
    let charges = tokio.block_on(async {
        let tenant = acme.clone();
        let charges = tokio::spawn(async move {
            let charges: Vec<_> = (0..100).map(|_| tenant.charge(100).unwrap()).collect();
            assert!(tenant.usage() > tenant.live(), "charged in advance");
            charges
        });
        charges.await.unwrap()
    });
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while acme.usage() != 10_000 {
        assert!(
            std::time::Instant::now() < until,
            "{} of 10,000 bytes",
            acme.usage()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(charges);
}
