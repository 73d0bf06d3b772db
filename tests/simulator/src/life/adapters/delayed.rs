//! Sends, and charges by tokio's clock, in a tree of their own, as a seed says: above a high each
//! of them has its bytes at once and is delayed, at a max it waits for them.
//!
//! Nothing makes room, and the crate's clock stands still: what ends a wait is its own time, by
//! tokio's clock, or the end of the channel, or who waits goes.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_sink::Sink;
use memcg::{Bytes, Charge, ChargeError, Group, Limits};
use memcg_tokio::{
    OwnedPermit, PollSender, Receiver, SendError, Sender, channel, charge_timeout, charge_until,
    message_overhead,
};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

use super::{Waits, is_let_go};
use crate::script::pick;

type Message = Vec<u8>;

const STEPS: usize = 12;
const WAITING_MAX: usize = 6;

/// Polls until what lets others run before it waits has done so.
const POLLS: usize = 8;

/// Of a group, or of a high: what is held beside those that wait is far above it, or just below it.
const MAX: u64 = 5_000;
const HIGH: u64 = 1_000;

/// What was waited for.
enum Got {
    Sent,
    Charge(Charge),
    Permit(OwnedPermit<Message>),
}

/// Why it has not come.
enum No {
    Closed,
    Refused(ChargeError),
}

impl<T> From<SendError<T>> for No {
    fn from(error: SendError<T>) -> No {
        match error.refusal() {
            Some(refusal) => No::Refused(refusal.clone()),
            None => No::Closed,
        }
    }
}

struct Waiting {
    waits: Waits<Result<Got, No>>,
    bytes: u64,
    of_channel: bool,
    /// Its first attempt does not wait, and so is not delayed.
    by_sink: bool,
    /// By tokio's clock it ends then.
    until: Option<Instant>,
    /// By the system's clock it waits since then: before its first poll and after that.
    since: [std::time::Instant; 2],
}

struct Delayed {
    tokio: Runtime,
    group: Group,
    is_above_high: bool,
    sender: Option<Sender<Message>>,
    receiver: Option<Receiver<Message>>,
    held: Charge,
    waiting: Vec<Waiting>,
    /// What has come of those that have ended.
    got: Vec<Got>,
    /// Of the messages that were sent.
    sent: u64,
}

/// One of the calls that wait: with its bytes, and its time if it has one.
fn call(
    way: u8,
    (sender, group): (Sender<Message>, Group),
    bytes: u64,
    time: Duration,
) -> impl Future<Output = Result<Got, No>> + Send {
    let length = bytes as usize - message_overhead::<Message>();
    async move {
        Ok(match way {
            0 => sender.send(vec![0; length]).await.map(|()| Got::Sent)?,
            1 => sender.reserve(bytes as usize).await.map(Got::Charge)?,
            2 => sender
                .reserve_owned(bytes as usize)
                .await
                .map(Got::Permit)?,
            3 => {
                let sent = sender.send_timeout(vec![0; length], time).await;
                sent.map(|()| Got::Sent)?
            }
            6 | 7 => {
                send_by_sink(sender, vec![0; length], way == 7).await?;
                Got::Sent
            }
            way => {
                let charged = match way {
                    4 => charge_timeout(&group, Bytes(bytes), time).await,
                    _ => charge_until(&group, Bytes(bytes), Instant::now() + time).await,
                };
                charged.map(Got::Charge).map_err(No::Refused)?
            }
        })
    }
}

/// A sink has refused a message that never fits, and takes the next one all the same. Closed by its
/// user it sends that on.
async fn send_by_sink(
    sender: Sender<Message>,
    message: Message,
    closes: bool,
) -> Result<(), SendError<Option<Message>>> {
    let most = sender.max_capacity();
    let mut sink = PollSender::new(sender);
    if let Ok(most) = usize::try_from(most)
        && most < 1 << 20
        && !sink.is_closed()
    {
        let taken = sink.send_item(vec![0; most]);
        assert!(taken.is_ok(), "a sink takes each message");
        let sent = poll_fn(|context| Pin::new(&mut sink).poll_flush(context)).await;
        if !sink.is_closed() {
            let is_right = matches!(&sent, Err(SendError::Refused(Some(message), error))
                if message.len() == most && error.is_over_limit());
            assert!(is_right, "of a message that never fits: {sent:?}");
        }
    }
    poll_fn(|context| Pin::new(&mut sink).poll_ready(context)).await?;
    Pin::new(&mut sink).start_send(message)?;
    if closes {
        sink.close();
        assert!(sink.is_closed(), "closed by its user");
    }
    poll_fn(|context| Pin::new(&mut sink).poll_flush(context)).await
}

impl Delayed {
    fn begin(&mut self, rng: &mut Xoshiro256PlusPlus) {
        let Some(sender) = self.sender.clone() else {
            return;
        };
        // A handle that keeps nothing open gives back one that does.
        let sender = match rng.random_bool(0.3) {
            true => sender.downgrade().upgrade().expect("it is there"),
            false => sender,
        };
        let way = rng.random_range(0..8);
        let bytes = pick(rng, &[1_300, 2_000, 4_500]);
        let time = Duration::from_millis(pick(rng, &[0, 1, 20, 400]));
        let _inside = self.tokio.enter();
        let waits = call(way, (sender, self.group.clone()), bytes, time);
        let mut one = Waiting {
            waits: Waits::new(waits),
            bytes,
            of_channel: !(4..6).contains(&way),
            by_sink: way >= 6,
            // Tokio's clock is told in whole milliseconds.
            until: (3..6).contains(&way).then(|| Instant::now() + time),
            since: [std::time::Instant::now(); 2],
        };
        let polled = one.waits.poll(self.tokio.handle());
        one.since[1] = std::time::Instant::now();
        match polled {
            Poll::Pending => self.waiting.push(one),
            Poll::Ready(ended) => self.ends(one, ended),
        }
    }

    /// A wait is over, for a reason.
    fn ends(&mut self, one: Waiting, ended: Result<Got, No>) {
        let is_over = one.until.is_some_and(|until| until <= Instant::now());
        let Waiting { waits, bytes, .. } = one;
        let elapsed = one.since[0].elapsed();
        match ended {
            Ok(got) => {
                let may_end = is_over || one.by_sink;
                assert!(self.is_above_high && may_end, "{bytes} bytes are there");
                match &got {
                    Got::Sent => self.sent += bytes,
                    Got::Charge(charge) => assert_eq!(charge.bytes(), bytes, "of a charge"),
                    Got::Permit(permit) => assert_eq!(permit.bytes(), bytes, "of a permit"),
                }
                self.got.push(got);
            }
            Err(No::Closed) => {
                let is_closed = one.of_channel && self.receiver.is_none();
                assert!(is_closed, "the channel is open");
            }
            Err(No::Refused(error)) => {
                let is_right = !self.is_above_high && is_over && error.is_timeout();
                assert!(is_right, "{bytes} bytes are refused: {error:?}");
                let waited = error.waited().unwrap_or_default();
                assert!(waited <= elapsed, "{waited:?}, of {elapsed:?}");
            }
        }
        let rung = Arc::clone(&waits.rung);
        drop(waits);
        assert!(is_let_go(&rung), "the waker of what is over is kept");
    }

    /// What was woken is polled, and nothing waits that has a reason to end.
    fn settle(&mut self) {
        let tokio = self.tokio.handle().clone();
        let _inside = tokio.enter();
        let mut at = 0;
        while at < self.waiting.len() {
            let one = &mut self.waiting[at];
            let before = std::time::Instant::now();
            let mut polled = Poll::Pending;
            for _ in 0..POLLS {
                if polled.is_pending() && one.waits.is_rung() {
                    polled = one.waits.poll(&tokio);
                }
            }
            let Poll::Ready(ended) = polled else {
                at += 1;
                continue;
            };
            let one = self.waiting.remove(at);
            if let Err(No::Refused(error)) = &ended
                && one.of_channel
            {
                let (waited, known) = (error.waited().unwrap_or_default(), before - one.since[1]);
                assert!(waited >= known, "waited {waited:?}, and {known:?} went by");
            }
            self.ends(one, ended);
        }
        let now = Instant::now();
        let is_late = |one: &Waiting| {
            let moment = Duration::from_millis(1);
            let is_over = one.until.is_some_and(|until| until + moment <= now);
            is_over || one.of_channel && self.receiver.is_none()
        };
        if let Some(one) = self.waiting.iter().find(|one| is_late(one)) {
            let bytes = one.bytes;
            panic!("{bytes} bytes wait, and their time is over, or their channel is");
        }
        self.agree();
    }

    /// Each byte is charged once, and a channel has one place in line.
    fn agree(&self) {
        let of_got = |got: &Got| match got {
            Got::Sent => 0,
            Got::Charge(charge) => charge.bytes(),
            Got::Permit(permit) => permit.bytes(),
        };
        let waiting: u64 = self.waiting.iter().map(|one| one.bytes).sum();
        let in_queue = if self.receiver.is_some() {
            self.sent
        } else {
            0
        };
        let got: u64 = self.got.iter().map(of_got).sum();
        let there = self.held.bytes() + in_queue + got;
        let (known, in_line) = if self.is_above_high {
            (there + waiting, 0)
        } else {
            let of_channel = self.waiting.iter().filter(|one| one.of_channel).count();
            let alone = self.waiting.len() - of_channel;
            (there, alone + of_channel.min(1))
        };
        let found = (self.group.live(), self.group.waiting_count());
        assert_eq!(found, (known, in_line), "live, and in line");
    }

    fn close(&mut self, drops: bool) {
        if let Some(mut receiver) = self.receiver.take()
            && !drops
        {
            receiver.close();
            let left = std::iter::from_fn(|| receiver.try_recv().ok()).count();
            let known = self.got.iter().filter(|got| matches!(got, Got::Sent));
            assert_eq!(left, known.count(), "messages of a channel that is closed");
        }
    }
}

pub(super) fn live(seed: u64) {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let tokio = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    let tokio = tokio.expect("a runtime of one thread");
    let delays = Duration::from_secs(600);
    let runtime = memcg::Runtime::builder().batch(0).delay_max(delays).build();
    let runtime = runtime.expect("a configuration that holds");
    let is_above_high = rng.random();
    let limits = match is_above_high {
        true => Limits::new().high(Bytes(HIGH)),
        false => Limits::new().max(Bytes(MAX)),
    };
    let group = runtime.root().create("queue", limits);
    let group = group.expect("nothing is in the way");
    let held = group.force_charge(Bytes(match is_above_high {
        true => HIGH * 100,
        false => MAX - 1_000,
    }));
    let (sender, receiver) = channel::<Message>(&group);
    let mut life = Delayed {
        tokio,
        group,
        is_above_high,
        sender: Some(sender),
        receiver: Some(receiver),
        held,
        waiting: Vec::new(),
        got: Vec::new(),
        sent: 0,
    };
    for _ in 0..STEPS {
        match rng.random_range(0..12) {
            0..=5 if life.waiting.len() < WAITING_MAX => life.begin(rng),
            6 | 7 if !life.waiting.is_empty() => {
                let one = life.waiting.remove(rng.random_range(0..life.waiting.len()));
                let _inside = life.tokio.enter();
                let rung = Arc::clone(&one.waits.rung);
                drop(one);
                assert!(is_let_go(&rung), "the waker of what is gone is kept");
            }
            8..=10 => {
                let time = Duration::from_millis(pick(rng, &[1, 2, 30, 500]));
                life.tokio.block_on(tokio::time::advance(time));
                if rng.random_bool(0.1) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            11 if rng.random_bool(0.3) => life.close(rng.random()),
            _ => {}
        }
        life.settle();
    }
    let Delayed { held, group, .. } = {
        let _inside = life.tokio.enter();
        life.waiting.clear();
        life.got.clear();
        life.sender = None;
        life.receiver = None;
        life
    };
    assert_eq!(group.live(), held.bytes(), "left of what is over");
}
