//! Memory of a channel beside its messages, by an allocator that counts: a program of its own, with
//! one test at a time.

use std::alloc::System;
use std::future::Future as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use memcg::{Group, Limit, Limits, Runtime, Weigh};
use memcg_alloc::{MemcgAlloc, PROCESS_ONLY, unowned_bytes};
use memcg_tokio::{DropPolicy, channel, message_overhead};

#[global_allocator]
static ALLOCATOR: MemcgAlloc<System, PROCESS_ONLY> = MemcgAlloc::with_threshold(System);

/// The harness has threads of its own, which allocate a little.
const NOISE: u64 = 64 << 10;

fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    assert!(memcg_alloc::is_installed());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn queue(max: u64) -> (Runtime, Group) {
    let runtime = Runtime::builder().audit(true).build().unwrap();
    let group = runtime
        .root()
        .create("queue", Limits::new().max(Limit::Bytes(max)))
        .unwrap();
    (runtime, group)
}

/// Bytes that channels of such a message hold once they are drained.
fn drained<T: Weigh>(channels: u64, messages: usize, make: impl Fn() -> T) -> u64 {
    let (_runtime, group) = queue(u64::MAX - 1);
    let warm = channel::<T>(&group);
    let before = unowned_bytes();
    let mut open = Vec::with_capacity(channels as usize);
    let own = unowned_bytes() - before;
    for _ in 0..channels {
        let (sender, mut receiver) = channel::<T>(&group);
        for _ in 0..messages {
            sender.try_send(make()).unwrap();
        }
        while receiver.try_recv().is_ok() {}
        open.push((sender, receiver));
    }
    assert_eq!(group.live(), 0);
    let held = unowned_bytes().saturating_sub(before + own);
    drop((open, warm));
    held
}

/// Nothing is charged for them, so they are small, whatever the message and however many came.
#[test]
fn a_drained_channel_keeps_little() {
    let _turn = turn();
    const CHANNELS: u64 = 200;
    const EACH: u64 = 10 << 10;
    let held = [
        drained(CHANNELS, 1, || [0_u8; 65536]),
        drained(CHANNELS, 200, || [0_u8; 1024]),
        drained(CHANNELS, 200, || vec![0_u8; 100]),
        drained(CHANNELS, 200, || 7_u64),
    ];
    for held in held {
        assert!(
            held <= CHANNELS * EACH + NOISE,
            "{held} bytes of {CHANNELS} channels"
        );
    }
}

/// A message that is large by itself is charged for what it holds, and not for more.
#[test]
fn a_large_message_is_charged_what_it_holds() {
    let _turn = turn();
    const MESSAGES: u64 = 50;
    let (_runtime, group) = queue(1 << 30);
    let (sender, mut receiver) = channel::<[u8; 65536]>(&group);
    let before = unowned_bytes();
    for _ in 0..MESSAGES {
        sender.try_send([1; 65536]).unwrap();
    }
    let held = unowned_bytes() - before;
    assert_eq!(
        group.live(),
        MESSAGES * message_overhead::<[u8; 65536]>() as u64
    );
    assert!(
        held <= group.live() + NOISE,
        "{held} bytes, of which {} are charged",
        group.live()
    );
    while receiver.try_recv().is_ok() {}
    assert!(
        unowned_bytes() <= before + NOISE,
        "{} bytes are left",
        unowned_bytes() - before
    );
}

/// Nor do messages that were dropped: while the receiver stands still, a queue holds what its messages
/// are charged, and once it goes on nothing is left.
#[test]
fn dropped_messages_leave_nothing_behind() {
    let _turn = turn();
    const MESSAGES: u64 = 300_000;
    let (_runtime, group) = queue(1 << 20);
    let (sender, mut receiver) = channel::<u64>(&group);
    let before = unowned_bytes();
    let latest = sender.lossy(DropPolicy::Oldest);
    for number in 0..MESSAGES {
        latest.send(number).unwrap();
    }
    let held = unowned_bytes() - before;
    assert!(
        latest.dropped() > MESSAGES / 2 && held <= group.live() + NOISE,
        "{held} bytes, of which {} are charged; {latest:?}",
        group.live()
    );
    let received = std::iter::from_fn(|| receiver.try_recv().ok()).count() as u64;
    assert_eq!(received + latest.dropped(), MESSAGES);
    assert!(
        unowned_bytes() <= before + NOISE,
        "{} bytes are left",
        unowned_bytes() - before
    );
}

/// The room for a batch does not stay as large as the largest one.
#[test]
fn a_large_batch_leaves_no_room_behind() {
    let _turn = turn();
    const MESSAGES: usize = 200_000;
    let (_runtime, group) = queue(1 << 30);
    let (sender, mut receiver) = channel::<u64>(&group);
    let before = unowned_bytes();
    let executor = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    for _ in 0..2 {
        for number in 0..MESSAGES as u64 {
            sender.try_send(number).unwrap();
        }
        let mut buffer = Vec::new();
        let received = executor.block_on(async {
            let mut received = 0;
            while received < MESSAGES {
                received += receiver.recv_many(&mut buffer, MESSAGES).await;
            }
            received
        });
        assert_eq!(
            (received, buffer.len(), buffer[MESSAGES - 1]),
            (MESSAGES, MESSAGES, MESSAGES as u64 - 1)
        );
    }
    assert!(
        unowned_bytes() <= before + NOISE,
        "{} bytes are left",
        unowned_bytes() - before
    );
}

/// Nor does the list of senders that wait.
#[test]
fn senders_that_have_waited_leave_nothing_behind() {
    let _turn = turn();
    const SENDERS: usize = 20_000;
    let (_runtime, group) = queue(1);
    group.set_max(message_overhead::<u64>()).unwrap();
    let (sender, _receiver) = channel::<u64>(&group);
    sender.try_send(0).unwrap();
    let before = unowned_bytes();
    let executor = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    executor.block_on(async {
        let mut sends: Vec<_> = (0..SENDERS as u64)
            .map(|number| Box::pin(sender.send(number)))
            .collect();
        for _ in 0..3 {
            for send in &mut sends {
                let _ = std::future::poll_fn(|context| {
                    std::task::Poll::Ready(send.as_mut().poll(context))
                })
                .await;
            }
        }
        assert!(unowned_bytes() > before + 40 * SENDERS as u64, "they wait");
    });
    drop(executor);
    assert!(
        unowned_bytes() <= before + NOISE,
        "{} bytes are left",
        unowned_bytes() - before
    );
}
