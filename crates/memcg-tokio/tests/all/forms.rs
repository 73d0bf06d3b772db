//! The forms of send and receive that tokio's channel has beside the usual ones, with charges.

#![allow(clippy::result_large_err, reason = "an error has the message and why")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll, Waker};

use memcg::{Charged, Group, Limits, Runtime, Weigh};
use memcg_tokio::{SendError, channel, message_overhead};
use tokio::sync::mpsc::error::TryRecvError;

const MESSAGE: usize = message_overhead::<u64>();

/// A group for so many messages.
fn queue(fit: usize) -> (Runtime, Group) {
    let runtime = Runtime::builder().audit(true).build().unwrap();
    let group = runtime
        .root()
        .create("queue", Limits::new().max(fit * MESSAGE))
        .unwrap();
    (runtime, group)
}

#[track_caller]
fn assert_sound(runtime: &Runtime, group: &Group) {
    assert_eq!(group.live(), 0);
    let verdict = runtime.verify().to_string();
    assert!(verdict.ends_with("all add up"), "{verdict}");
}

/// Threads send without a runtime, and wait where there is no room.
#[test]
fn threads_send_and_block() {
    const THREADS: u64 = 4;
    const EACH: u64 = 500;
    let (runtime, group) = queue(2);
    let (sender, mut receiver) = channel::<u64>(&group);
    let sends: Vec<_> = (0..THREADS)
        .map(|_| {
            let sender = sender.clone();
            std::thread::spawn(move || {
                (0..EACH).for_each(|number| sender.blocking_send(number).unwrap())
            })
        })
        .collect();
    drop(sender);
    let received: Vec<u64> = std::iter::from_fn(|| receiver.blocking_recv()).collect();
    assert_eq!(
        (received.len() as u64, received.iter().sum::<u64>()),
        (THREADS * EACH, THREADS * EACH * (EACH - 1) / 2)
    );
    sends.into_iter().for_each(|send| send.join().unwrap());
    drop(receiver);
    assert_sound(&runtime, &group);
}

/// A thread that waits for room gets its message back where the receiver goes.
#[test]
fn a_thread_that_blocks_ends_with_the_receiver() {
    let (runtime, group) = queue(1);
    let (sender, receiver) = channel::<u64>(&group);
    sender.blocking_send(1).unwrap();
    let waits = std::thread::spawn(move || sender.blocking_send(2));
    while group.waiting_count() == 0 {
        std::thread::yield_now();
    }
    drop(receiver);
    assert!(matches!(waits.join().unwrap(), Err(SendError::Closed(2))));
    assert_sound(&runtime, &group);
}

#[tokio::test]
async fn a_task_must_not_block() {
    let (_runtime, group) = queue(1);
    let (sender, _receiver) = channel::<u64>(&group);
    let panicked = catch_unwind(AssertUnwindSafe(|| sender.blocking_send(1))).unwrap_err();
    let text = panicked.downcast_ref::<&str>().copied().map(str::to_owned);
    let text = text
        .or_else(|| panicked.downcast_ref::<String>().cloned())
        .unwrap();
    assert!(
        text.contains("Cannot block the current thread from within a runtime"),
        "{text}"
    );
    // A thread for blocking work may.
    let sends = tokio::task::spawn_blocking(move || sender.blocking_send(1).is_ok());
    assert!(sends.await.unwrap());
}

#[tokio::test]
async fn permits_hold_their_bytes() {
    let (runtime, group) = queue(2);
    let (sender, mut receiver) = channel::<u64>(&group);
    let charge = sender.try_reserve(MESSAGE).unwrap();
    let permit = sender.clone().reserve_owned(MESSAGE).await.unwrap();
    assert_eq!(
        (permit.bytes(), group.live()),
        (MESSAGE as u64, 2 * MESSAGE as u64)
    );
    assert!(permit.same_channel(&permit) && permit.same_channel_as_sender(&sender));
    let refused = sender.try_reserve(MESSAGE).unwrap_err();
    assert!(refused.refusal().is_some(), "{refused}");
    let refused = sender.clone().try_reserve_owned(MESSAGE).unwrap_err();
    assert!(refused.into_message().same_channel(&sender));
    // In the order of the sends, not of the reservations.
    let sender = permit.send(1).unwrap();
    sender.send_charged(Charged::new(2, charge)).unwrap();
    assert_eq!(
        (receiver.recv().await, receiver.recv().await),
        (Some(1), Some(2))
    );
    let permit = sender.try_reserve_owned(MESSAGE).unwrap();
    let sender = permit.release();
    assert_eq!(group.live(), 0);
    let permit = sender.clone().try_reserve_owned(MESSAGE).unwrap();
    receiver.close();
    assert!(matches!(permit.send(3), Err(SendError::Closed(3))));
    assert!(matches!(
        sender.try_reserve(MESSAGE),
        Err(SendError::Closed(()))
    ));
    assert!(matches!(
        sender.reserve_owned(MESSAGE).await,
        Err(SendError::Closed(()))
    ));
    drop(receiver);
    assert_sound(&runtime, &group);
}

#[tokio::test]
async fn each_form_of_receive_has_one_with_the_charge() {
    let (runtime, group) = queue(100);
    let (sender, mut receiver) = channel::<u64>(&group);
    assert!(matches!(
        receiver.try_recv_charged(),
        Err(TryRecvError::Empty)
    ));
    let mut context = Context::from_waker(Waker::noop());
    assert!(receiver.poll_recv_charged(&mut context).is_pending());
    let mut plain = Vec::new();
    let mut charged = Vec::new();
    assert!(
        receiver
            .poll_recv_many(&mut context, &mut plain, 4)
            .is_pending()
    );
    assert!(
        receiver
            .poll_recv_many_charged(&mut context, &mut charged, 4)
            .is_pending()
    );
    for number in 0..90 {
        sender.send(number).await.unwrap();
    }
    let mut held = vec![receiver.try_recv_charged().unwrap()];
    let Poll::Ready(Some(next)) = receiver.poll_recv_charged(&mut context) else {
        panic!("a message is there")
    };
    held.push(next);
    // More than one batch.
    assert_eq!(receiver.recv_many_charged(&mut charged, 50).await, 50);
    assert_eq!(
        receiver.poll_recv_many(&mut context, &mut plain, 1000),
        Poll::Ready(38)
    );
    assert_eq!(
        receiver.poll_recv_many(&mut context, &mut plain, 0),
        Poll::Ready(0)
    );
    held.append(&mut charged);
    let seen: Vec<u64> = held.iter().map(|number| **number).chain(plain).collect();
    assert_eq!(seen, (0..90).collect::<Vec<_>>());
    assert_eq!(
        group.live(),
        52 * MESSAGE as u64,
        "what has its charge is held"
    );
    drop((held, sender));
    assert!(matches!(
        receiver.try_recv_charged(),
        Err(TryRecvError::Disconnected)
    ));
    assert_eq!(receiver.recv_many_charged(&mut charged, 50).await, 0);
    assert!(matches!(
        receiver.poll_recv_charged(&mut context),
        Poll::Ready(None)
    ));
    assert_sound(&runtime, &group);
}

#[tokio::test]
async fn counts_and_room() {
    let (_runtime, group) = queue(4);
    let (sender, mut receiver) = channel::<u64>(&group);
    assert_eq!(
        (
            sender.strong_count(),
            sender.weak_count(),
            receiver.sender_strong_count()
        ),
        (1, 0, 1)
    );
    let second = sender.clone();
    let weak = sender.downgrade();
    let again = weak.clone();
    assert_eq!(
        (
            sender.strong_count(),
            weak.strong_count(),
            receiver.sender_strong_count()
        ),
        (2, 2, 2)
    );
    assert_eq!(
        (
            sender.weak_count(),
            again.weak_count(),
            receiver.sender_weak_count()
        ),
        (2, 2, 2)
    );
    drop((second, again));
    assert_eq!((sender.strong_count(), sender.weak_count()), (1, 1));

    let whole = 4 * MESSAGE as u64;
    assert_eq!((sender.capacity(), sender.max_capacity()), (whole, whole));
    sender.send(1).await.unwrap();
    assert_eq!(sender.capacity(), whole - MESSAGE as u64);
    assert_eq!(receiver.recv().await, Some(1));
    assert_eq!(sender.capacity(), whole, "credit is room");
    group.parent().unwrap().set_max(2 * MESSAGE).unwrap();
    assert_eq!(
        (sender.capacity(), sender.max_capacity()),
        (whole / 2, whole / 2)
    );
    drop(sender);
    assert!(weak.upgrade().is_none() && weak.strong_count() == 0);
}

/// A message that is larger than a place of the queue goes the same way.
#[tokio::test]
async fn a_large_message_is_as_any_other() {
    struct Large([u64; 100]);
    impl Weigh for Large {
        fn heap_bytes(&self) -> usize {
            0
        }
    }
    let runtime = Runtime::builder().audit(true).build().unwrap();
    let group = runtime
        .root()
        .create("queue", Limits::new().max(2 * message_overhead::<Large>()))
        .unwrap();
    let (sender, mut receiver) = channel::<Large>(&group);
    let weak = sender.downgrade();
    for number in 0..2 {
        sender.try_send(Large([number; 100])).unwrap();
    }
    assert!(sender.try_send(Large([2; 100])).is_err());
    assert!(sender.same_channel(&weak.upgrade().unwrap()) && receiver.len() == 2);
    let mut received = Vec::new();
    assert_eq!(receiver.recv_many(&mut received, 10).await, 2);
    sender.send(Large([2; 100])).await.unwrap();
    received.push(receiver.try_recv().ok().unwrap());
    assert_eq!(
        received.iter().map(|large| large.0[99]).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    receiver.close();
    assert!(receiver.is_closed() && receiver.is_empty() && sender.is_closed());
    sender.closed().await;
    let Err(SendError::Closed(Large(unsent))) = sender.send(Large([7; 100])).await else {
        panic!("it is closed")
    };
    assert_eq!(unsent[0], 7);
    drop(receiver);
    assert_sound(&runtime, &group);
}

#[cfg(feature = "tokio-util")]
mod polled {
    use futures_util::{SinkExt, StreamExt};
    use memcg_tokio::PollSender;

    use super::*;

    #[tokio::test]
    async fn a_sink_and_a_stream() {
        const MESSAGES: u64 = 300;
        let (runtime, group) = queue(3);
        let (sender, receiver) = channel::<u64>(&group);
        let mut sink = PollSender::new(sender);
        let sends = tokio::spawn(async move {
            let mut numbers = futures_util::stream::iter((0..MESSAGES).map(Ok));
            sink.send_all(&mut numbers).await.unwrap();
            SinkExt::close(&mut sink).await.unwrap();
            assert!(sink.get_ref().is_none() && sink.is_closed());
        });
        let received: Vec<u64> = receiver.collect().await;
        assert_eq!(received, (0..MESSAGES).collect::<Vec<_>>());
        sends.await.unwrap();
        assert_sound(&runtime, &group);
    }

    /// It takes one message more than fits, and holds no room for the next one.
    #[tokio::test]
    async fn a_sink_waits_with_one_message() {
        let (runtime, group) = queue(1);
        let (sender, mut receiver) = channel::<u64>(&group);
        let mut sink = PollSender::new(sender);
        let mut context = Context::from_waker(Waker::noop());
        let is_ready = |sink: &mut PollSender<u64>, context: &mut Context<'_>| {
            matches!(
                futures_util::Sink::poll_ready(std::pin::Pin::new(sink), context),
                Poll::Ready(Ok(()))
            )
        };
        for number in 0..2 {
            assert!(is_ready(&mut sink, &mut context));
            sink.start_send_unpin(number).unwrap();
        }
        assert!(!is_ready(&mut sink, &mut context) && group.live() == MESSAGE as u64);
        assert_eq!(receiver.recv().await, Some(0));
        sink.flush().await.unwrap();
        assert!(is_ready(&mut sink, &mut context));
        assert_eq!(receiver.recv().await, Some(1));
        // A message that could never fit comes back, and the sink goes on.
        group.set_max(MESSAGE - 1).unwrap();
        sink.start_send_unpin(2).unwrap();
        let refused = sink.flush().await.unwrap_err();
        assert!(refused.refusal().is_some() && refused.into_message() == Some(2));
        group.set_max(MESSAGE).unwrap();
        sink.send(3).await.unwrap();
        sink.start_send_unpin(4).unwrap();
        drop(receiver);
        assert!(matches!(
            sink.flush().await,
            Err(SendError::Closed(Some(4)))
        ));
        assert!(matches!(sink.send(5).await, Err(SendError::Closed(None))));
        drop(sink);
        assert_sound(&runtime, &group);
    }
}
