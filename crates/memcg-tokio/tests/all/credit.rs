//! The bytes of a received message are credit for the next send, and belong to whatever charge
//! lacks them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use memcg::{Group, Limits, PressureLevel, Runtime};
use memcg_tokio::{channel, message_overhead};
use tokio::sync::Semaphore;

const MESSAGE: usize = 1000 + message_overhead::<Vec<u8>>();

/// A tenant with room for so many messages, and a queue below it.
fn tenant(fit: usize) -> (Runtime, Group, Group) {
    let runtime = Runtime::builder().audit(true).build().unwrap();
    let tenant = runtime
        .root()
        .create("tenant", Limits::new().max(fit * MESSAGE))
        .unwrap();
    let queue = tenant.create("queue", Limits::new()).unwrap();
    (runtime, tenant, queue)
}

fn message() -> Vec<u8> {
    vec![1; 1000]
}

#[tokio::test]
async fn what_was_received_pays_for_the_next_send() {
    let (runtime, tenant, queue) = tenant(4);
    let (sender, mut receiver) = channel(&queue);
    sender.send(message()).await.unwrap();
    assert_eq!(receiver.recv().await, Some(message()));
    let usage = tenant.usage();
    assert_eq!((tenant.live(), usage), (0, MESSAGE as u64));
    sender.send(message()).await.unwrap();
    assert_eq!(
        (tenant.live(), tenant.usage()),
        (usage, usage),
        "usage has not moved"
    );
    assert!(runtime.verify().is_ok());
    drop(receiver);
    assert_eq!(tenant.usage(), 0, "the receiver's drop leaves no credit");
}

#[tokio::test]
async fn another_charge_gets_the_credit() {
    let (runtime, tenant, queue) = tenant(4);
    let (sender, mut receiver) = channel(&queue);
    for _ in 0..4 {
        sender.send(message()).await.unwrap();
    }
    for _ in 0..4 {
        receiver.recv().await.unwrap();
    }
    assert_eq!(tenant.usage(), 4 * MESSAGE as u64);
    let cache = tenant.create("cache", Limits::new()).unwrap();
    let held = cache.charge(4 * MESSAGE).expect("no byte is held");
    assert!(
        sender.try_send(message()).is_err(),
        "the cache has all of it"
    );
    drop(held);
    sender.try_send(message()).unwrap();
    assert!(runtime.verify().is_ok());
}

#[tokio::test]
async fn a_charge_in_line_gets_what_is_received() {
    let (_runtime, tenant, queue) = tenant(2);
    let (sender, mut receiver) = channel(&queue);
    sender.send(message()).await.unwrap();
    receiver.recv().await.unwrap(); // from here on there is credit
    for _ in 0..2 {
        sender.send(message()).await.unwrap();
    }
    let cache = tenant.create("cache", Limits::new()).unwrap();
    let waits = tokio::spawn(cache.charge_async(MESSAGE));
    while tenant.waiting_count() == 0 {
        tokio::task::yield_now().await;
    }
    receiver.recv().await.unwrap();
    assert_eq!(waits.await.unwrap().unwrap().bytes(), MESSAGE as u64);
}

/// A neighbour charges all that the channel may not hold at that moment. It is never refused,
/// though the bytes of messages that were received lie there as credit.
#[test]
fn no_charge_of_a_neighbour_is_refused_for_credit() {
    const MESSAGES: u32 = 80_000;
    const IN_FLIGHT: u32 = 32;
    const BESIDE: u32 = 8;
    let (runtime, tenant, queue) = tenant(64);
    let neighbour = tenant.create("neighbour", Limits::new()).unwrap();
    let beside = || neighbour.charge((64 - BESIDE as usize) * MESSAGE);
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    let in_flight = Arc::new(Semaphore::new(IN_FLIGHT as usize));
    let done = Arc::new(AtomicU32::new(0));
    let received = async {
        let (sender, mut receiver) = channel(&queue);
        for _ in 0..IN_FLIGHT {
            sender.send(message()).await.unwrap();
        }
        for _ in 0..IN_FLIGHT {
            receiver.recv().await.unwrap();
        }
        assert_eq!(
            queue.memory().stocked(),
            u64::from(IN_FLIGHT) * MESSAGE as u64
        );
        drop(beside().expect("what is not held"));
        assert_eq!(queue.memory().stocked(), 0, "it had to drain the credit");
        for _ in 0..4 {
            let sender = sender.clone();
            let in_flight = Arc::clone(&in_flight);
            tokio::spawn(async move {
                for _ in 0..MESSAGES / 4 {
                    in_flight.acquire().await.unwrap().forget();
                    sender.send(message()).await.unwrap();
                }
            });
        }
        drop(sender);
        let receives = tokio::spawn({
            let in_flight = Arc::clone(&in_flight);
            let done = Arc::clone(&done);
            async move {
                while receiver.recv().await.is_some() {
                    in_flight.add_permits(1);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        while !receives.is_finished() {
            // Those that are left are for so many messages as are in flight at most.
            let permits = in_flight.acquire_many(IN_FLIGHT - BESIDE).await.unwrap();
            drop((beside().expect("what is not held"), permits));
        }
        receives.await.unwrap();
    };
    tokio
        .block_on(async { tokio::time::timeout(Duration::from_secs(300), received).await })
        .unwrap();
    assert_eq!(done.load(Ordering::Relaxed), MESSAGES);
    assert_eq!((tenant.live(), tenant.usage()), (0, 0));
    assert!(runtime.verify().is_ok());
}

/// Whichever way the receiver learns that no message will come: the credit is uncharged.
#[tokio::test]
async fn a_channel_that_has_ended_leaves_no_credit() {
    for way in 0..5 {
        let (_runtime, tenant, queue) = tenant(4);
        let (sender, mut receiver) = channel(&queue);
        sender.send(message()).await.unwrap();
        assert_eq!(receiver.recv().await, Some(message()));
        assert_eq!(tenant.usage(), MESSAGE as u64, "credit");
        assert_eq!(receiver.recv_many(&mut Vec::new(), 0).await, 0);
        assert!(
            receiver.try_recv().is_err() && tenant.usage() > 0,
            "a message may come"
        );
        drop(sender);
        match way {
            0 => assert_eq!(receiver.recv().await, None),
            1 => assert!(receiver.recv_charged().await.is_none()),
            2 => assert_eq!(receiver.recv_many(&mut Vec::new(), 8).await, 0),
            3 => assert!(receiver.try_recv().is_err()),
            _ => {
                receiver = tokio::task::spawn_blocking(move || {
                    assert_eq!(receiver.blocking_recv(), None);
                    receiver
                })
                .await
                .unwrap()
            }
        }
        assert_eq!(tenant.usage(), 0, "way {way}");
        drop(receiver);
    }
}

/// A loop that goes on to ask a channel that has ended takes no credit from another one of the same
/// group.
#[tokio::test]
async fn a_channel_that_has_ended_leaves_the_credit_of_another() {
    let (_runtime, _tenant, queue) = tenant(4);
    let (ended, mut of_ended) = channel::<Vec<u8>>(&queue);
    let (sender, mut receiver) = channel(&queue);
    drop(ended);
    assert_eq!(of_ended.recv().await, None);
    sender.send(message()).await.unwrap();
    assert_eq!(receiver.recv().await, Some(message()));
    for _ in 0..3 {
        assert!(of_ended.try_recv().is_err());
        assert_eq!(of_ended.recv().await, None);
        assert_eq!(queue.memory().stocked(), MESSAGE as u64);
    }
    drop(of_ended);
    assert_eq!(queue.memory().stocked(), MESSAGE as u64);
    drop(receiver);
    assert_eq!(queue.usage(), 0);
}

/// Senders that shed while the queue is not normal send again once it is empty: near the limit,
/// where the credit is central, and in a queue so large that its consumer keeps credit of its own.
#[tokio::test]
async fn an_empty_queue_is_normal() {
    for fit in [1, 9, 60, 400, 1_000, 4_000] {
        let (runtime, tenant, queue) = tenant(fit);
        tenant
            .set_limits(Limits::new().pressure_levels(70, 95))
            .unwrap();
        let (sender, mut receiver) = channel(&queue);
        for round in 0..3 {
            while queue.pressure_level() == PressureLevel::Normal {
                sender.try_send(message()).unwrap();
            }
            while receiver.try_recv().is_ok() {}
            assert_eq!(
                (queue.pressure_level(), queue.live()),
                (PressureLevel::Normal, 0),
                "{fit} messages, round {round}"
            );
        }
        assert!(runtime.verify().is_ok());
    }
}
