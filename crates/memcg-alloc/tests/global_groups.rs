//! Groups that come and go under the process's allocator, ten thousand of them: each with a task
//! that is aborted, and with objects that other threads free after the group has gone offline.

mod support;

use std::alloc::System;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use memcg::{Group, GroupName, InGroup, Limits, Runtime};
use memcg_alloc::MemcgAlloc;
use support::{alone, bytes};

#[global_allocator]
static ALLOCATOR: MemcgAlloc = MemcgAlloc::new(System);

const GROUPS: usize = 10_000;
const AT_ONCE: usize = 100;

/// Everything that allocators and groups have left is done.
fn settle(runtime: &Runtime) {
    memcg_alloc::catch_up();
    runtime.settle();
}

#[track_caller]
fn assert_nothing_is_left(runtime: &Runtime, tenant: &Group) {
    settle(runtime);
    tenant.memory().drain();
    assert_eq!(
        (tenant.live(), tenant.usage(), tenant.ledger().allocated()),
        (0, 0, 0)
    );
    assert_eq!(
        (
            runtime.dying_count(),
            tenant.children().len(),
            runtime.counts().underflows
        ),
        (0, 0, 0)
    );
    assert!(runtime.verify().is_ok(), "{}", runtime.verify());
}

/// As tokio's `yield_now`, which keeps a list of its own: that grows in the group of whichever task
/// comes first.
async fn let_others_run() {
    let mut waited = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[test]
fn ten_thousand_groups_with_aborted_tasks_leave_nothing() {
    let _alone = alone();
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    let runtime = Runtime::builder().build().unwrap();
    let tenant = runtime.root().create("tenant", Limits::new()).unwrap();
    let left = Arc::new(Mutex::new(Vec::<Vec<u8>>::with_capacity(AT_ONCE)));
    let mut own_bytes = 0;
    let mut outlived = 0;
    for round in 0..GROUPS / AT_ONCE {
        tokio.block_on(async {
            let mut tasks = Vec::new();
            for at in 0..AT_ONCE {
                let query = tenant
                    .scope(GroupName::Unnamed, Limits::new().max(1 << 20))
                    .unwrap();
                let left = Arc::clone(&left);
                let task = async move {
                    let mut held = vec![bytes(1, 10 * at), bytes(2, 3_000)];
                    let outlives = bytes(3, 500 + at);
                    left.lock().unwrap().push(outlives);
                    loop {
                        held.push(bytes(4, 20));
                        Group::checkpoint()?;
                        let_others_run().await;
                        held.truncate(40);
                    }
                    #[allow(unreachable_code, reason = "it says what the loop returns")]
                    Ok::<(), memcg::ChargeError>(())
                };
                tasks.push((tokio::spawn(task.in_group(&query)), query));
            }
            // Some tasks are aborted before their first poll, and some groups go offline before
            // their tasks end.
            for (at, (task, query)) in tasks.into_iter().enumerate() {
                let query = if at % 2 == 0 { None } else { Some(query) };
                task.abort();
                assert!(task.await.unwrap_err().is_cancelled());
                drop(query);
            }
        });
        // The groups are offline and their tasks are gone; what outlives them is freed on a thread
        // of no group.
        let objects = std::mem::replace(&mut *left.lock().unwrap(), Vec::with_capacity(AT_ONCE));
        outlived += objects.len();
        let live = objects
            .iter()
            .map(|object| object.capacity() as u64)
            .sum::<u64>();
        settle(&runtime);
        assert_eq!(tenant.live(), live, "round {round}");
        assert!(objects.is_empty() || runtime.dying_count() > 0);
        std::thread::spawn(move || drop(objects)).join().unwrap();
        assert_nothing_is_left(&runtime, &tenant);
        match round {
            0..10 => own_bytes = runtime.own_bytes().total(),
            _ => assert!(
                runtime.own_bytes().total() <= own_bytes + (256 << 10),
                "the memory of groups is used again"
            ),
        }
    }
    assert!(outlived > GROUPS / 100, "{outlived} tasks have run");
}

/// No round waits for the objects of the one before: at any time some groups are offline and own
/// objects.
#[test]
fn ten_thousand_groups_are_freed_by_another_thread() {
    let _alone = alone();
    let runtime = Runtime::builder().build().unwrap();
    let tenant = runtime.root().create("tenant", Limits::new()).unwrap();
    let (give, take) = channel::<(Vec<u8>, Vec<String>)>();
    std::thread::scope(|scope| {
        scope.spawn(move || take.into_iter().for_each(drop));
        for number in 0..GROUPS {
            let query = tenant.scope(number as u64, Limits::new()).unwrap();
            let object = query.run(|| {
                (
                    bytes(1, 1 + number),
                    vec![format!("row {number}"), "x".repeat(number % 300)],
                )
            });
            give.send(object).unwrap();
        }
        drop(give);
    });
    assert_nothing_is_left(&runtime, &tenant);
}
