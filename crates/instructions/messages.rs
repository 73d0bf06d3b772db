//! A message's way through the channel of memcg-tokio: where there is room for each message, and where
//! each send waits for the bytes of the message before it.

use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use memcg::{Bytes, Limit, Limits, Runtime, Weigh};
use memcg_bench_rows::instructions::{CountedPath, counted};
use memcg_tokio::channel;

use crate::finish;

/// A message that is sent and received: 295 on x86-64 with rustc 1.95, and a tenth more for other
/// compilers. Through tokio's bounded channel it takes 338.
const MESSAGE_INSTRUCTIONS_MAX: f64 = 325.0;

/// A message whose send waits, and gets its bytes from hand to hand: 1,081.
const HAND_OVER_INSTRUCTIONS_MAX: f64 = 1_190.0;

/// Messages that fit at a time.
const ROOM: usize = 128;
const WEIGHT: usize = 1024;

struct Packet(u64);

impl Weigh for Packet {
    fn heap_bytes(&self) -> usize {
        WEIGHT
    }
}

/// The same for the other path. With a type of its own the compiler makes code of its own for it, and
/// inlines either into its one caller.
struct Parcel(u64);

impl Weigh for Parcel {
    fn heap_bytes(&self) -> usize {
        WEIGHT
    }
}

fn messages(rounds: u64) {
    let runtime = Runtime::builder().build().expect("memory for a runtime");
    let group = runtime
        .root()
        .create("channel", Limits::new().max(4 * ROOM * WEIGHT))
        .expect("a group");
    let (sender, mut receiver) = channel(&group);
    let mut pass = |times: u64| {
        for _ in 0..times {
            let sent = finish(sender.send(Packet(black_box(1))));
            assert!(sent.is_ok(), "the receiver is there");
            black_box(finish(receiver.recv()).map_or(0, |Packet(value)| value));
        }
    };
    pass(1_000);
    counted(|| pass(rounds));
}

/// Each send waits, and the receiver gives it the bytes of the message that it takes.
fn hand_overs(rounds: u64) {
    let runtime = Runtime::builder()
        .batch(Bytes(0))
        .build()
        .expect("memory for a runtime");
    let group = runtime
        .root()
        .create("channel", Limits::new())
        .expect("a group");
    let (sender, mut receiver) = channel(&group);
    assert!(finish(sender.send(Parcel(1))).is_ok(), "it fits");
    let full = Limit::Bytes(group.live());
    group.set_max(full).expect("what is live fits");
    let mut pass = |times: u64| {
        let context = &mut Context::from_waker(Waker::noop());
        for _ in 0..times {
            let mut sent = pin!(sender.send(Parcel(black_box(1))));
            assert!(sent.as_mut().poll(context).is_pending(), "it is full");
            black_box(finish(receiver.recv()).map_or(0, |Parcel(value)| value));
            assert!(
                matches!(sent.poll(context), Poll::Ready(Ok(()))),
                "the bytes of the message before are the sender's"
            );
        }
    };
    pass(1_000);
    counted(|| pass(rounds));
}

pub(crate) fn paths() -> [CountedPath<()>; 2] {
    [
        CountedPath::new(
            "messages",
            "a message that is sent and received",
            MESSAGE_INSTRUCTIONS_MAX,
            |(), rounds| messages(rounds),
        ),
        CountedPath::new(
            "hand-overs",
            "a message whose send waits and gets its bytes from hand to hand",
            HAND_OVER_INSTRUCTIONS_MAX,
            |(), rounds| hand_overs(rounds),
        ),
    ]
}
