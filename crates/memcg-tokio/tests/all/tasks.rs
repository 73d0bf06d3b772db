//! Tasks in groups, charges with tokio's clock, and credit of workers that park.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::sync::mpsc;
use std::time::Duration;

use memcg::{Group, Limits, Runtime};
use memcg_tokio::{
    charge_timeout, charge_until, checkpoint, release_credit, spawn_blocking_in, spawn_in,
};
use tokio::task::LocalSet;
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

const STEPS: usize = 2_000;

/// Runs [`STEPS`] steps, each of which is ready at once, beside a second task of the same thread.
/// Returns the steps after which the second task ran first.
async fn first_turn_beside<S: Future<Output = ()>>(mut step: impl FnMut() -> S) -> usize {
    let done = Cell::new(0);
    let neighbour_ran_after = Cell::new(STEPS);
    let busy = async {
        for _ in 0..STEPS {
            step().await;
            done.set(done.get() + 1);
        }
    };
    let tasks = LocalSet::new();
    tasks
        .run_until(async {
            let (starts, started) = tokio::sync::oneshot::channel();
            let neighbour = tokio::task::spawn_local(async move {
                let _ = starts.send(());
            });
            let looks = async {
                let _ = started.await;
                neighbour_ran_after.set(done.get());
                neighbour.await.unwrap();
            };
            tokio::join!(busy, looks);
        })
        .await;
    assert_eq!(done.get(), STEPS);
    neighbour_ran_after.get()
}

/// Forms that are ready at once count in tokio's budget of a task, which is 128 steps: a loop of
/// them does not keep the thread from its other tasks.
#[tokio::test(flavor = "current_thread")]
async fn a_loop_of_ready_forms_leaves_turns_to_others() {
    let (_runtime, acme) = acme();
    let hour = Duration::from_secs(3600);
    let deadline = Instant::now() + hour;
    let (sender, receiver) = memcg_tokio::channel::<u64>(&acme);
    let receiver = RefCell::new(receiver);
    let turns = [
        first_turn_beside(|| async { drop(charge_timeout(&acme, 9, hour).await.unwrap()) }).await,
        first_turn_beside(|| async { drop(charge_until(&acme, 9, deadline).await.unwrap()) }).await,
        first_turn_beside(|| async { acme.run(checkpoint).await.unwrap() }).await,
        first_turn_beside(|| async { drop(sender.reserve(9).await.unwrap()) }).await,
        first_turn_beside(|| async {
            sender.send(1).await.unwrap();
            receiver.borrow_mut().try_recv().unwrap();
        })
        .await,
        first_turn_beside(|| async {
            sender.send_timeout(1, hour).await.unwrap();
            receiver.borrow_mut().try_recv().unwrap();
        })
        .await,
        first_turn_beside(|| async {
            sender.try_send(1).unwrap();
            poll_fn(|context| receiver.borrow_mut().poll_recv(context)).await;
        })
        .await,
    ];
    assert!(turns.iter().all(|&turn| turn <= 256), "{turns:?}");
    let of_the_core = || async { drop(acme.charge_async(9).await.unwrap()) };
    assert_eq!(
        first_turn_beside(of_the_core).await,
        STEPS,
        "the core knows no executor: this test sees what its forms keep to themselves"
    );
}

/// The checkpoint is one of the group that is current where it is made, and says what the core's
/// says.
#[tokio::test(flavor = "current_thread")]
async fn a_checkpoint_tells_the_group_that_is_above() {
    let (_runtime, acme) = acme();
    let over = acme.force_charge(1200);
    assert!(checkpoint().await.is_ok(), "no group is current");
    let stopped = acme.run(checkpoint).await.unwrap_err();
    assert_eq!((stopped.group(), stopped.is_over_limit()), (&acme, true));
    drop(over);
    let goes_on = async { checkpoint().await };
    assert!(spawn_in(&acme, goes_on).await.unwrap().is_ok());
}
