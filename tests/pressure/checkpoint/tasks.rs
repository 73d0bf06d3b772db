//! Checkpoints of tasks: they block no thread, and wait for what others are about to give.

use std::task::Poll;
use std::time::Duration;

use memcg::{Bytes, Charge, ChargeError, Group, InGroup, OomPolicy};
use tokio::task::yield_now;

use super::{
    KIB, MIB, Polled, WATCHDOG, block_on, build, charge, create, kinds, left_empty, limited,
};

async fn allocate_for_ever() -> Result<Vec<Charge>, ChargeError> {
    let mut held = Vec::new();
    loop {
        held.push(
            Group::current()
                .expect("a task in a group")
                .force_charge(Bytes(10 * KIB)),
        );
        yield_now().await;
        Group::checkpoint_async().await?;
    }
}

/// Many tasks on few threads; those that run away stop, each with the name of its own group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runaway_tasks_stop() {
    let runtime = left_empty(build(super::kinds()[1].clone()));
    let groups: Vec<Group> = (0..20)
        .map(|name| limited(&runtime.root(), &name.to_string(), MIB))
        .collect();
    let tasks: Vec<_> = groups
        .iter()
        .map(|group| tokio::spawn(allocate_for_ever().in_group(group)))
        .collect();
    let fine = create(&runtime.root(), "fine");
    let neighbour = async {
        for _ in 0..1_000 {
            drop(Group::current().unwrap().charge(KIB as usize).unwrap());
            yield_now().await;
            Group::checkpoint_async().await.unwrap();
        }
    };
    tokio::spawn(neighbour.in_group(&fine)).await.unwrap();
    for (task, group) in tasks.into_iter().zip(&groups) {
        let error = task.await.unwrap().expect_err("it stops");
        assert!(
            error
                .to_string()
                .starts_with(&format!("{0} refuses a checkpoint of {0}: ", group.path())),
            "{error}"
        );
        assert_eq!(group.live(), 0);
    }
}

/// One thread for all: the hog's task runs while its neighbour waits for it, and is told.
#[tokio::test]
async fn a_neighbour_waits_for_a_victim() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.oom_time(WATCHDOG)));
        let domain = limited(&runtime.root(), "domain", MIB);
        domain.set_oom_policy(OomPolicy::Choose);
        let [hog, query] = ["hog", "query"].map(|name| create(&domain, name));
        let _hook = hog.on_cancel(|_| {});
        let _small = charge(&query, 10 * KIB);
        let held = hog.force_charge(Bytes(2 * MIB));
        let waits = tokio::spawn(async { Group::checkpoint_async().await }.in_group(&query));
        yield_now().await;
        assert!(!waits.is_finished());
        let told = async { Group::checkpoint_async().await }
            .in_group(&hog)
            .await;
        assert!(
            matches!(&told, Err(error) if error.is_cancelled()),
            "{told:?}"
        );
        drop(held);
        waits.await.unwrap().unwrap();
    }
}

/// Memory that was about to come does not come: the task is told when the time is over.
#[test]
fn a_victim_that_gives_nothing() {
    for builder in kinds() {
        let runtime = left_empty(build(builder.oom_time(Duration::from_millis(20))));
        let domain = limited(&runtime.root(), "domain", MIB);
        domain.set_oom_policy(OomPolicy::Choose);
        let [hog, query] = ["hog", "query"].map(|name| create(&domain, name));
        let _hook = hog.on_cancel(|_| {});
        let _held = hog.force_charge(Bytes(2 * MIB));
        let error = block_on(query.run(Group::checkpoint_async)).expect_err("nothing came");
        assert_eq!(
            error.over_limit().map(|refusal| refusal.group()),
            Some(&domain),
            "{error}"
        );
    }
}

/// The group is that of the moment in which the future is made. A future that is done stays done.
#[test]
fn the_group_of_a_future() {
    let runtime = left_empty(build(memcg::Runtime::builder().audit(true)));
    let query = limited(&runtime.root(), "query", 10);
    let mut quiet = Polled::new(query.run(Group::checkpoint_async));
    let _held = query.force_charge(20);
    assert!(
        matches!(quiet.poll(), Poll::Ready(Ok(()))),
        "nothing was wrong when it was made"
    );
    let mut refused = Polled::new(query.run(Group::checkpoint_async));
    assert!(matches!(refused.poll(), Poll::Ready(Err(error)) if error.is_over_limit()));
    assert!(matches!(refused.poll(), Poll::Ready(Ok(()))));
}
