//! The bytes of a received message are credit for the next send, and belong to whatever charge lacks them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use memcg::{Group, Limits, Runtime};
use memcg_tokio::{channel, message_overhead};

const MESSAGE: usize = 1000 + message_overhead::<Vec<u8>>();

/// A tenant with room for so many messages, and a queue below it.
fn tenant(fit: usize) -> (Runtime, Group, Group) {
    let runtime = Runtime::builder().audit(true).build().unwrap();
    let tenant = runtime.root().create("tenant", Limits::new().max(fit * MESSAGE)).unwrap();
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
    assert_eq!((tenant.live(), tenant.usage()), (usage, usage), "usage has not moved");
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
    let held = cache.try_charge(4 * MESSAGE).expect("no byte is held");
    assert!(sender.try_send(message()).is_err(), "the cache has all of it");
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

/// A full channel beside a neighbour that charges what the channel never holds: no charge of the neighbour is refused.
#[test]
fn no_charge_of_a_neighbour_is_refused_for_credit() {
    let (runtime, tenant, queue) = tenant(64);
    queue.set_max(32 * MESSAGE).unwrap();
    let neighbour = tenant.create("neighbour", Limits::new()).unwrap();
    let (ends, charges) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let charger = std::thread::spawn({
        let (ends, charges) = (Arc::clone(&ends), Arc::clone(&charges));
        move || {
            while !ends.load(Ordering::Relaxed) {
                drop(neighbour.try_charge(32 * MESSAGE).expect("the other half of the tenant"));
                charges.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    tokio.block_on(async {
        let (sender, mut receiver) = channel(&queue);
        for _ in 0..4 {
            let sender = sender.clone();
            tokio::spawn(async move {
                for _ in 0..20_000 {
                    sender.send(message()).await.unwrap();
                }
            });
        }
        drop(sender);
        let mut received = 0;
        while let Ok(Some(_)) = tokio::time::timeout(Duration::from_secs(60), receiver.recv()).await {
            received += 1;
        }
        assert_eq!(received, 80_000);
    });
    ends.store(true, Ordering::Relaxed);
    charger.join().unwrap();
    assert!(charges.load(Ordering::Relaxed) > 100);
    assert_eq!((tenant.live(), tenant.stocked()), (0, tenant.usage()));
    assert!(runtime.verify().is_ok());
}
