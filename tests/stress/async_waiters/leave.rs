//! Tasks that do not stay until they are admitted: nothing of them remains, and no thread waits for
//! them.

use memcg::Bytes;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use memcg::ChargeFuture;

use super::run;
use super::world::{TASKS, World};
use crate::support::executor::Executor;
use crate::support::turns::turn;

/// The way in which a task ends its wait.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// It is admitted.
    Stays,
    /// It goes while there is no room for any thread.
    Goes,
    /// It is woken, and goes without a look: what was handed to it is the next one's.
    GoesWhenWoken,
    /// Another thread polled it first, which is not to be woken.
    IsPassedOn,
}

fn way_of(number: usize) -> Way {
    [Way::Stays, Way::Goes, Way::GoesWhenWoken, Way::IsPassedOn][number / 100 % 4]
}

/// Polls once.
async fn once(future: &mut ChargeFuture) {
    let pending =
        poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context).is_pending())).await;
    assert!(pending, "there is no room");
}

/// Returns when it is woken.
async fn woken() {
    let mut waits = true;
    poll_fn(move |_| {
        if std::mem::replace(&mut waits, false) {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
}

async fn end_in_some_way(world: Arc<World>, number: usize, woken_and_gone: Arc<AtomicUsize>) {
    let mut future = world
        .group_of(number)
        .charge_async(Bytes(world.bytes_of(number)));
    match way_of(number) {
        Way::Goes => return once(&mut future).await,
        Way::GoesWhenWoken => {
            once(&mut future).await;
            woken().await;
            woken_and_gone.fetch_add(1, Ordering::SeqCst);
            return;
        }
        Way::IsPassedOn => {
            let mut context = Context::from_waker(Waker::noop());
            assert!(
                Pin::new(&mut future).poll(&mut context).is_pending(),
                "there is no room"
            );
        }
        Way::Stays => {}
    }
    world.admitted(&future.await.expect("it fits"));
}

#[test]
fn a_future_that_leaves_leaves_nothing_behind() {
    let _turn = turn(module_path!());
    let world = Arc::new(World::new());
    let plugs = world.plug();
    let woken_and_gone = Arc::new(AtomicUsize::new(0));
    let count = |way| (0..TASKS).filter(|&number| way_of(number) == way).count();
    let spawn = |executor: &Arc<Executor>| {
        for number in 0..TASKS {
            executor.spawn(end_in_some_way(
                Arc::clone(&world),
                number,
                Arc::clone(&woken_and_gone),
            ));
        }
    };
    run("leave", &world, spawn, || {
        assert_eq!(
            world.waiting_count(),
            TASKS - count(Way::Goes),
            "a future that has gone waits no more"
        );
        drop(plugs);
    });
    assert_eq!(
        woken_and_gone.load(Ordering::SeqCst),
        count(Way::GoesWhenWoken)
    );
    world.check_end(count(Way::Stays) + count(Way::IsPassedOn));
}
