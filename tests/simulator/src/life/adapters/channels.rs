//! Channels whose messages are charged, and charges that wait by tokio's clock.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_sink::Sink;
use memcg::{Bytes, CentralStock, Charged, Group};
use memcg_tokio::{
    DropPolicy, LossySender, OwnedPermit, PollSender, Receiver, SendError, Sender, WeakSender,
    channel, charge_timeout, charge_until, message_overhead,
};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::time::Instant;

use super::super::Life;
use super::Waits;
use crate::denied;
use crate::holds::{Holds, ensure, ensure_eq};
use crate::script::{Act, Adapter, Op, Size, Verb, What};
use crate::twin::{Key, No};

const CHANNELS_MAX: usize = 4;
const MESSAGES_MAX: usize = 24;
const SENDS_MAX: usize = 8;

/// Polls of a send before it is polled with another waker.
const MOVES: u32 = 5;

/// Sends that wait at once, and the bytes of the heap that may stay of them.
const BURST: usize = 200;
const LEFT_MAX: usize = 4_096;

/// A message has its number in its first bytes.
pub(super) type Message = Vec<u8>;

pub(super) fn message(number: u64, bytes: usize) -> Message {
    let mut message = vec![0; bytes];
    message[..8].copy_from_slice(&number.to_le_bytes());
    message
}

pub(super) fn number_of(message: &Message) -> u64 {
    u64::from_le_bytes(message[..8].try_into().expect("eight of them"))
}

/// What a message is charged for beside its bytes if it may be dropped again.
pub(super) fn droppable_overhead() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let runtime = memcg::Runtime::builder().build().expect("as by default");
        let (sender, _receiver) = channel::<Message>(&runtime.root());
        let sent = sender.lossy(DropPolicy::Oldest).send(message(0, 8));
        sent.expect("no limit");
        let bytes = runtime.root().live() - 8;
        let place = message_overhead::<Message>() as u64;
        assert!(
            (place + 1..3 * place).contains(&bytes),
            "{bytes} bytes for its place in the queue, {place}, and that in the list"
        );
        bytes
    })
}

/// A message in the channel.
struct InQueue {
    number: u64,
    key: Key,
    may_be_dropped: bool,
}

/// A send that waits.
pub(super) struct Send {
    number: u64,
    bytes: u64,
    waits: Waits<Result<(), SendError<Message>>>,
    /// By tokio's clock it has ended by then.
    until: Option<Instant>,
}

/// Sinks that were closed: they keep no channel open.
type Closed = Arc<Mutex<Vec<PollSender<Message>>>>;

pub(super) struct Channel {
    group: usize,
    /// A plain one, one that drops earlier messages, one that drops later ones.
    senders: Option<(Sender<Message>, LossySender<Message>, LossySender<Message>)>,
    receiver: Option<Receiver<Message>>,
    queue: VecDeque<InQueue>,
    pub(super) sends: Vec<Send>,
    sinks: Closed,
    permits: Vec<(Key, OwnedPermit<Message>)>,
    weak: Option<WeakSender<Message>>,
    is_closed: bool,
}

fn kind<T>(received: &Poll<Option<T>>) -> Poll<Option<()>> {
    match received {
        Poll::Pending => Poll::Pending,
        Poll::Ready(message) => Poll::Ready(message.as_ref().map(|_| ())),
    }
}

fn refusal(unsent: SendError<Message>) -> Option<memcg::ChargeError> {
    match unsent {
        SendError::Refused(_, refusal) => Some(refusal),
        _ => None,
    }
}

/// Of a sink that is closed, or whose channel is, the message that has come to nothing.
fn unsent(error: SendError<Option<Message>>) -> SendError<Message> {
    let is_there = "the sink has taken a message";
    match error {
        SendError::Refused(message, refusal) => {
            SendError::Refused(message.expect(is_there), refusal)
        }
        SendError::Closed(message) => SendError::Closed(message.expect(is_there)),
        other => unreachable!("no other reason is known: {other}"),
    }
}

/// A sink takes a message, and is closed, whatever becomes of that.
async fn send_by_sink(
    sender: Sender<Message>,
    message: Message,
    flushes: bool,
    closed: Closed,
) -> Result<(), SendError<Message>> {
    let was_closed = sender.is_closed();
    let mut sink = PollSender::new(sender);
    let ready = poll_fn(|context| Pin::new(&mut sink).poll_ready(context)).await;
    let found = (sink.is_closed(), ready.is_err());
    assert_eq!(found, (was_closed, was_closed), "closed, as a sink says");
    let mut sent = match ready {
        Ok(()) => Pin::new(&mut sink).start_send(message).map_err(unsent),
        Err(_) => Err(SendError::Closed(message)),
    };
    if flushes && sent.is_ok() {
        sent = poll_fn(|context| Pin::new(&mut sink).poll_flush(context).map_err(unsent)).await;
    }
    let ends = poll_fn(|context| Pin::new(&mut sink).poll_close(context).map_err(unsent)).await;
    let is_over = sink.is_closed() && sink.get_ref().is_none();
    assert!(is_over, "a sink that was closed has its sender");
    let mut closed = closed.lock().unwrap_or_else(PoisonError::into_inner);
    closed.push(sink);
    sent.and(ends)
}

/// Of many messages that take the place of earlier ones nothing is left while the receiver stands
/// still, however many they are. Then it finds the last of them.
fn turns_of_messages(bytes: usize) {
    let most = (bytes as u64 + droppable_overhead()) * 3;
    let runtime = memcg::Runtime::builder().batch(0);
    let runtime = runtime.max(memcg::Limit::Bytes(most)).build();
    let runtime = runtime.expect("a configuration that holds");
    let (sender, mut receiver) = channel::<Message>(&runtime.root());
    let oldest = sender.lossy(DropPolicy::Oldest);
    let mut sent = 0;
    let mut send = |many: u64| {
        for number in sent..sent + many {
            let lost = oldest.send(message(number, bytes));
            let expected = u64::from(number >= 3);
            assert_eq!(lost.ok(), Some(expected), "lost for message {number}");
        }
        sent += many;
    };
    send(BURST as u64);
    let before = denied::in_use();
    send(8 * BURST as u64);
    let left = denied::in_use().saturating_sub(before);
    assert!(
        left <= LEFT_MAX,
        "{left} bytes are left of messages that went"
    );
    assert_eq!(receiver.len(), 3, "messages");
    for number in sent - 3..sent {
        let received = receiver.try_recv().ok();
        assert_eq!(received.as_ref().map(number_of), Some(number), "received");
    }
    assert!(receiver.try_recv().is_err(), "there are no more");
    assert_eq!(runtime.root().live(), 0, "live at the end");
}

/// A message is sent before those of the sends that came earlier: these were woken, and have their
/// answer.
fn is_in_turn(earlier: &[Send]) {
    let waits = earlier.iter().find(|send| !send.waits.is_rung());
    if let Some(send) = waits {
        panic!(
            "a message is sent before one of {} bytes that has waited for longer",
            send.bytes
        );
    }
}

impl Channel {
    fn droppable(&self) -> impl Iterator<Item = &InQueue> {
        self.queue.iter().filter(|message| message.may_be_dropped)
    }

    /// Takes the oldest message out that may be dropped, or else may not.
    fn take(&mut self, may_be_dropped: bool) -> Option<InQueue> {
        let is_one = |message: &InQueue| message.may_be_dropped == may_be_dropped;
        let at = self.queue.iter().position(is_one)?;
        self.queue.remove(at)
    }

    /// That message was received: the oldest of its kind.
    fn receive(&mut self, message: &Message) -> InQueue {
        let number = number_of(message);
        let found = self.queue.iter().find(|sent| sent.number == number);
        let found = found.unwrap_or_else(|| panic!("message {number} is received, and not there"));
        let kind = found.may_be_dropped;
        let taken = self.take(kind).expect("it is there");
        assert_eq!(taken.number, number, "the oldest message");
        taken
    }

    fn has_senders(&self) -> bool {
        self.senders.is_some() || !self.sends.is_empty() || !self.permits.is_empty()
    }

    /// What the channel says of itself.
    fn holds(&self) -> Holds {
        let has_senders = self.has_senders();
        if let Some(weak) = &self.weak {
            let found = (weak.strong_count() > 0, weak.upgrade().is_some());
            ensure_eq!(found, (has_senders, has_senders), "senders of a channel");
        }
        let Some(receiver) = &self.receiver else {
            return Ok(());
        };
        let found = (receiver.len(), receiver.is_empty());
        let known = (self.queue.len(), self.queue.is_empty());
        ensure_eq!(found, known, "messages of a channel");
        let found = (
            receiver.is_closed(),
            receiver.sender_strong_count() > 0,
            receiver.sender_weak_count(),
        );
        let is_closed = self.is_closed || !has_senders;
        let known = (is_closed, has_senders, usize::from(self.weak.is_some()));
        ensure_eq!(found, known, "closed, senders and weak ones of a channel");
        if let Some((sender, ..)) = &self.senders {
            let found = (sender.strong_count(), sender.weak_count());
            let known = (receiver.sender_strong_count(), receiver.sender_weak_count());
            ensure_eq!(
                found,
                known,
                "senders, as senders say and as the receiver does"
            );
            let mut closed = pin!(sender.closed());
            let polled = closed
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
            let found = (sender.is_closed(), polled.is_ready());
            let known = (self.is_closed, self.is_closed);
            ensure_eq!(found, known, "closed, as senders say");
        }
        for (_, permit) in &self.permits {
            ensure!(permit.bytes() > 0, "{permit:?}");
        }
        Ok(())
    }
}

impl Life {
    fn channel(&self, number: u8) -> Option<usize> {
        let most = self.adapters.channels.len();
        (most > 0).then(|| usize::from(number) % most)
    }

    pub(super) fn step_channels(&mut self, op: &Op, adapter: &Adapter) {
        match *adapter {
            Adapter::Channel(group) => {
                let room = self.adapters.channels.len() < CHANNELS_MAX;
                if let Some(group) = self.group(group).filter(|_| room) {
                    let (sender, receiver) = self.on(op, group, channel::<Message>);
                    let lossy =
                        [DropPolicy::Oldest, DropPolicy::Newest].map(|policy| sender.lossy(policy));
                    let [oldest, newest] = lossy;
                    self.adapters.channels.push(Channel {
                        group,
                        senders: Some((sender, oldest, newest)),
                        receiver: Some(receiver),
                        queue: VecDeque::new(),
                        sends: Vec::new(),
                        sinks: Closed::default(),
                        permits: Vec::new(),
                        weak: None,
                        is_closed: false,
                    });
                }
            }
            Adapter::TurnsOfMessages(bytes) => {
                self.actor(op).run(move || turns_of_messages(bytes.into()));
            }
            Adapter::Tasks(seed) => {
                self.actor(op).run(move || super::tasks::live(seed));
            }
            Adapter::Queued(seed) => {
                self.actor(op).run(move || super::queued::live(seed));
            }
            Adapter::Delayed(seed) => {
                self.actor(op).run(move || super::delayed::live(seed));
            }
            Adapter::ChargeTimeout(group, size, milliseconds) => {
                self.charge_timeout(op, group, size, milliseconds);
            }
            Adapter::Send(number, ..)
            | Adapter::SendTimeout(number, ..)
            | Adapter::TrySend(number, ..)
            | Adapter::SendLossy(number, ..)
            | Adapter::Reserve(number, ..)
            | Adapter::SendBySink(number, ..)
            | Adapter::Permit(number, _)
            | Adapter::UsePermit(number, _)
            | Adapter::Weak(number)
            | Adapter::SendCharged(number, _)
            | Adapter::DropSend(number, _)
            | Adapter::DropWoken(number)
            | Adapter::BurstOfSends(number)
            | Adapter::Receive(number)
            | Adapter::ReceiveCharged(number)
            | Adapter::ReceiveMany(number, _)
            | Adapter::Close(number)
            | Adapter::DropReceiver(number)
            | Adapter::DropSenders(number) => {
                if let Some(at) = self.channel(number) {
                    self.step_channel(op, at, adapter);
                    self.settle_accounts();
                    self.adapters
                        .channels
                        .retain(|channel| channel.receiver.is_some() || channel.has_senders());
                }
            }
            _ => unreachable!("an operation on channels"),
        }
    }

    fn step_channel(&mut self, op: &Op, at: usize, adapter: &Adapter) {
        match *adapter {
            Adapter::Send(_, size) => {
                let verb = Verb::WaitNot;
                self.send(op, at, size, verb, |sender, message, _| async move {
                    sender.send(message).await
                });
            }
            Adapter::SendTimeout(_, size, milliseconds) => {
                let (verb, time) = (Verb::WaitNot, Duration::from_millis(milliseconds.into()));
                let sends = self.adapters.channels[at].sends.len();
                self.send(op, at, size, verb, move |sender, message, _| async move {
                    sender.send_timeout(message, time).await
                });
                let _inside = self.adapters.tokio.enter();
                if let Some(send) = self.adapters.channels[at].sends.get_mut(sends) {
                    // Tokio's clock is told in whole milliseconds.
                    send.until = Some(Instant::now() + time + Duration::from_millis(1));
                }
            }
            Adapter::SendBySink(_, size, flushes) => {
                // Its first attempt does not wait.
                let (verb, closed) = (Verb::Try, Arc::clone(&self.adapters.channels[at].sinks));
                self.send(op, at, size, verb, move |sender, message, _| {
                    send_by_sink(sender, message, flushes, closed)
                });
            }
            Adapter::Reserve(_, size) => {
                let verb = Verb::WaitNot;
                self.send(op, at, size, verb, |sender, message, bytes| async move {
                    let was_closed = sender.is_closed();
                    match sender.reserve(Bytes(bytes)).await {
                        Ok(charge) => {
                            assert!(!was_closed, "room in a channel that is closed");
                            sender.send_charged(Charged::new(message, charge))
                        }
                        Err(SendError::Refused((), refusal)) => {
                            Err(SendError::Refused(message, refusal))
                        }
                        Err(_) => Err(SendError::Closed(message)),
                    }
                });
            }
            Adapter::TrySend(_, size) => self.try_send(op, at, size),
            Adapter::Permit(_, size) => self.permit(op, at, size),
            Adapter::UsePermit(_, way) => self.use_permit(op, at, way),
            Adapter::Weak(_) => {
                let channel = &mut self.adapters.channels[at];
                channel.weak = match (channel.weak.take(), &channel.senders) {
                    (None, Some((sender, ..))) => Some(sender.downgrade()),
                    (Some(weak), None) => {
                        // As long as a send or a permit has one it brings a sender back.
                        let policies = [DropPolicy::Oldest, DropPolicy::Newest];
                        channel.senders = weak.upgrade().map(|sender| {
                            let [oldest, newest] = policies.map(|policy| sender.lossy(policy));
                            (sender, oldest, newest)
                        });
                        Some(weak)
                    }
                    (_, _) => None,
                };
            }
            Adapter::SendLossy(_, newest, size) => self.send_lossy(op, at, newest, size),
            Adapter::SendCharged(_, charge) => self.send_charged(op, at, charge),
            Adapter::DropSend(_, number) => {
                let sends = self.adapters.channels[at].sends.len();
                if sends > 0 {
                    self.drop_send(op, at, usize::from(number) % sends);
                }
            }
            Adapter::DropWoken(_) => {
                self.receive(op, at);
                let mut sends = self.adapters.channels[at].sends.iter();
                if let Some(woken) = sends.position(|send| send.waits.is_rung()) {
                    self.drop_send(op, at, woken);
                }
            }
            Adapter::BurstOfSends(_) => self.burst_of_sends(op, at),
            Adapter::Receive(_) => self.receive(op, at),
            Adapter::ReceiveCharged(_) => self.receive_charged(op, at),
            Adapter::ReceiveMany(_, most) => self.receive_many(op, at, most.into()),
            Adapter::Close(_) => {
                let channel = &mut self.adapters.channels[at];
                if let Some(mut receiver) = channel.receiver.take() {
                    channel.is_closed = true;
                    let receiver = self.actor(op).run(move || {
                        receiver.close();
                        receiver
                    });
                    self.adapters.channels[at].receiver = Some(receiver);
                }
            }
            Adapter::DropReceiver(_) => self.drop_receiver(op, at),
            Adapter::DropSenders(_) => {
                let senders = self.adapters.channels[at].senders.take();
                self.actor(op).run(move || drop(senders));
            }
            _ => unreachable!("an operation on a channel"),
        }
    }

    fn drop_send(&mut self, op: &Op, at: usize, number: usize) {
        let send = self.adapters.channels[at].sends.remove(number);
        let (tokio, rung) = (self.tokio(), Arc::clone(&send.waits.rung));
        self.actor(op).run(move || {
            let _inside = tokio.enter();
            drop(send);
        });
        assert!(
            self.lets_go(&rung),
            "the waker of a send that is gone is kept"
        );
    }

    /// Many sends wait for what is not there, and are dropped: the channel keeps no room for so many.
    fn burst_of_sends(&mut self, op: &Op, at: usize) {
        let channel = &self.adapters.channels[at];
        let group = channel.group;
        let overhead = message_overhead::<Message>() as u64;
        let bytes = self.bytes(group, 0, Size::More(1)).max(overhead + 8);
        let waits_alone = self.waiting().next().is_none() && !self.adapters_wait();
        let sender = channel.senders.as_ref().map(|(sender, ..)| sender.clone());
        // A cache or a victim would make room.
        let gives = self.had_caches || !self.hooks.is_empty();
        let Some(sender) = sender.filter(|_| waits_alone && !gives && !channel.is_closed) else {
            return;
        };
        let admits = self.twin.admits(group, 0, bytes, None);
        if self.twin.never_fits(group, bytes) || !matches!(admits, Err(No::Full(_))) {
            return;
        }
        let tokio = self.tokio();
        let burst = move || {
            let _inside = tokio.enter();
            let send = || {
                Some(Box::pin(
                    sender.send(message(0, (bytes - overhead) as usize)),
                ))
            };
            let mut sends: Vec<_> = (0..BURST).map(|_| send()).collect();
            let mut context = Context::from_waker(Waker::noop());
            // The first polls do no more than let others run.
            for _ in 0..6 {
                for place in &mut sends {
                    let sent = place.as_mut().map(|send| send.as_mut().poll(&mut context));
                    if let Some(Poll::Ready(sent)) = sent {
                        assert!(sent.is_err(), "it has no room");
                        *place = None;
                    }
                }
            }
            drop(sends);
        };
        let before = denied::in_use();
        self.actor(op).run(burst);
        self.settle_accounts();
        self.hold(move |_| {
            let now = denied::in_use();
            let left = now.saturating_sub(before);
            ensure!(
                left <= LEFT_MAX,
                "{left} bytes are left of {BURST} sends that waited"
            );
            Ok(())
        });
    }

    fn charge_timeout(&mut self, op: &Op, group: u8, size: Size, milliseconds: u16) {
        let room = self.has_room_for_tasks();
        let Some(group) = self.group(group).filter(|_| room) else {
            return;
        };
        let bytes = self.bytes(group, 0, size);
        let time = Duration::from_millis(milliseconds.into());
        let handle: Group = self.handle(group).clone();
        let tokio = self.tokio();
        let has_deadline = op.0 % 2 == 1;
        let mut waits = Box::pin(async move {
            match has_deadline {
                true => charge_until(&handle, Bytes(bytes), Instant::now() + time).await,
                false => charge_timeout(&handle, Bytes(bytes), time).await,
            }
        });
        // Of a time of nothing tokio's clock tells a moment later.
        let told = Some(time.max(Duration::from_millis(1)));
        let inside = std::future::poll_fn(move |context| {
            let _inside = tokio.enter();
            waits.as_mut().poll(context)
        });
        self.begin_charging(op, group, bytes, Act::Nothing, told, Box::pin(inside));
    }

    // === Sends ===

    /// The bytes of a message, and its number.
    fn next_message(&mut self, at: usize, size: Size) -> Option<(u64, u64)> {
        let channel = &self.adapters.channels[at];
        let is_full = channel.queue.len() >= MESSAGES_MAX || channel.sends.len() >= SENDS_MAX;
        if channel.senders.is_none() || is_full || self.handles[channel.group].is_empty() {
            return None;
        }
        // So that it fits as a whole, or just not.
        let whole = self.bytes(channel.group, 0, size).min(1 << 20);
        let bytes = whole.saturating_sub(message_overhead::<Message>() as u64);
        self.adapters.next_message += 1;
        Some((self.adapters.next_message, bytes.max(8)))
    }

    fn put(&mut self, at: usize, number: u64, bytes: u64, may_be_dropped: bool) {
        let group = self.adapters.channels[at].group;
        let key = self.twin.hold(group, 0, bytes);
        self.adapters.channels[at].queue.push_back(InQueue {
            number,
            key,
            may_be_dropped,
        });
    }

    fn send<F>(
        &mut self,
        op: &Op,
        at: usize,
        size: Size,
        verb: Verb,
        call: impl FnOnce(Sender<Message>, Message, u64) -> F,
    ) where
        F: Future<Output = Result<(), SendError<Message>>> + std::marker::Send + 'static,
    {
        let Some((number, length)) = self.next_message(at, size) else {
            return;
        };
        let channel = &self.adapters.channels[at];
        let (group, is_closed) = (channel.group, channel.is_closed);
        let Some((sender, ..)) = &channel.senders else {
            return;
        };
        let bytes = length + message_overhead::<Message>() as u64;
        let of_call = call(sender.clone(), message(number, length as usize), bytes);
        let mut waits = Waits::new(of_call);
        let ask = self.ask(group, 0, verb, bytes);
        let tokio = self.tokio();
        let (waits, polled) = self.actor(op).run(move || {
            let polled = waits.poll(&tokio);
            (waits, polled)
        });
        match polled {
            // It may have let others run before it learns that the channel is closed.
            Poll::Pending => {
                self.adapters.channels[at].sends.push(Send {
                    number,
                    bytes,
                    waits,
                    until: None,
                });
            }
            Poll::Ready(Ok(())) => {
                assert!(!is_closed, "it is sent, and the channel is closed");
                // One whose time is over asks for the last time, as others that do not wait.
                let is_last = matches!(op.1, What::With(Adapter::SendTimeout(_, _, 0)));
                if verb != Verb::Try && !is_last {
                    is_in_turn(&self.adapters.channels[at].sends);
                }
                self.put(at, number, bytes, false);
                // Beside itself.
                let key = self.adapters.channels[at]
                    .queue
                    .back()
                    .expect("it is there")
                    .key;
                self.twin.set(key, 0);
                self.agree(ask, Ok(()));
                self.twin.set(key, bytes);
            }
            Poll::Ready(Err(unsent)) => {
                let message = number_of(&match &unsent {
                    SendError::Refused(message, _) | SendError::Closed(message) => message.clone(),
                    _ => unreachable!("no other reason is known"),
                });
                assert_eq!(message, number, "of the message that comes back");
                match refusal(unsent) {
                    Some(error) => self.agree_on_end(group, bytes, &error),
                    None => assert!(is_closed, "the channel is open"),
                }
            }
        }
    }

    fn try_send(&mut self, op: &Op, at: usize, size: Size) {
        let Some((number, length)) = self.next_message(at, size) else {
            return;
        };
        let channel = &self.adapters.channels[at];
        let (group, is_closed) = (channel.group, channel.is_closed);
        let Some((sender, ..)) = channel.senders.as_ref() else {
            return;
        };
        let sender = sender.clone();
        let bytes = length + message_overhead::<Message>() as u64;
        let ask = self.ask(group, 0, Verb::Try, bytes);
        let found = self.actor(op).run(move || {
            let sent = sender.try_send(message(number, length as usize));
            sent.map_err(refusal)
        });
        match found {
            Ok(()) => {
                assert!(!is_closed, "it is sent, and the channel is closed");
                self.agree(ask, Ok(()));
                self.put(at, number, bytes, false);
            }
            Err(None) => assert!(is_closed, "the channel is open"),
            Err(Some(error)) => {
                self.agree::<()>(ask, Err(error));
            }
        }
    }

    fn permit(&mut self, op: &Op, at: usize, size: Size) {
        if self.adapters.channels[at].permits.len() >= SENDS_MAX {
            return;
        }
        let Some((_, length)) = self.next_message(at, size) else {
            return;
        };
        let channel = &self.adapters.channels[at];
        let (group, is_closed) = (channel.group, channel.is_closed);
        let Some((sender, ..)) = channel.senders.as_ref() else {
            return;
        };
        let sender = sender.clone();
        let bytes = length + message_overhead::<Message>() as u64;
        let ask = self.ask(group, 0, Verb::Try, bytes);
        let found = self.actor(op).run(move || {
            let taken = sender.try_reserve_owned(Bytes(bytes));
            taken.map_err(|error| error.refusal().cloned())
        });
        match found {
            Ok(permit) => {
                assert!(!is_closed, "room is there, and the channel is closed");
                assert_eq!(permit.bytes(), bytes, "of a permit");
                self.agree(ask, Ok(()));
                let key = self.twin.hold(group, 0, bytes);
                self.adapters.channels[at].permits.push((key, permit));
            }
            Err(None) => assert!(is_closed, "the channel is open"),
            Err(Some(error)) => {
                self.agree::<()>(ask, Err(error));
            }
        }
    }

    fn use_permit(&mut self, op: &Op, at: usize, way: u8) {
        let channel = &mut self.adapters.channels[at];
        if channel.permits.is_empty() {
            return;
        }
        let number = usize::from(way / 4) % channel.permits.len();
        let (key, permit) = channel.permits.remove(number);
        let is_closed = channel.is_closed;
        if way.is_multiple_of(4) {
            self.twin.release(key);
            return self.actor(op).run(move || drop(permit));
        }
        if way % 4 == 1 {
            self.twin.release(key);
            return self.actor(op).run(move || drop(permit.release()));
        }
        self.adapters.next_message += 1;
        let number = self.adapters.next_message;
        let sent = self
            .actor(op)
            .run(move || permit.send(message(number, 8)).is_ok());
        assert_eq!(sent, !is_closed, "what is permitted is sent");
        if is_closed {
            self.twin.release(key);
        } else {
            self.adapters.channels[at].queue.push_back(InQueue {
                number,
                key,
                may_be_dropped: false,
            });
        }
    }

    /// A message goes where it fits, or others make room for it, or it is lost.
    fn send_lossy(&mut self, op: &Op, at: usize, newest: bool, size: Size) {
        let Some((number, length)) = self.next_message(at, size) else {
            return;
        };
        let waits = self.adapters_wait() || self.waiting().next().is_some();
        let channel = &self.adapters.channels[at];
        let (group, is_closed) = (channel.group, channel.is_closed);
        let Some((_, oldest, for_later)) = channel.senders.as_ref() else {
            return;
        };
        let sender = if newest { for_later } else { oldest }.clone();
        let overhead = if newest {
            message_overhead::<Message>() as u64
        } else {
            droppable_overhead()
        };
        let bytes = length + overhead;
        let fitted = self.twin.admits(group, 0, bytes, None).is_ok();
        let before = sender.dropped();
        let told = sender.clone();
        let found = self.actor(op).run(move || {
            let sent = sender.send(message(number, length as usize));
            sent.map_err(refusal)
        });
        let lost = told.dropped() - before;
        let is_quiet = self.shared.is_quiet() && self.caches.is_empty() && !self.cancelled;
        if newest {
            assert!(lost <= 1, "one message is sent");
        } else {
            for dropped in 0..lost {
                let gone = self.adapters.channels[at].take(true);
                let gone = gone.expect("a message that may be dropped");
                self.twin.release(gone.key);
                let fits = self.twin.admits(group, 0, bytes, None).is_ok();
                // It ends with the first that makes room.
                assert!(
                    !fits || dropped + 1 == lost || waits || !is_quiet,
                    "more messages are dropped than had to"
                );
            }
        }
        assert!(
            !fitted || lost == 0 || waits,
            "a message is lost, and had room"
        );
        match found {
            Ok(told) => {
                assert_eq!(told, lost, "messages that are lost");
                assert!(!is_closed, "it is sent, and the channel is closed");
                if newest && lost == 1 {
                    // What never fits, or has no group any more, is no loss but an error.
                    let is_right =
                        matches!(self.twin.admits(group, 0, bytes, None), Err(No::Full(_)))
                            && !self.twin.never_fits(group, bytes);
                    assert!(is_right || !is_quiet || waits, "a message is lost silently");
                    return;
                }
                let fits = self.twin.admits(group, 0, bytes, None).is_ok();
                assert!(fits || !is_quiet, "it is sent, and has no room");
                self.put(at, number, bytes, !newest);
            }
            Err(None) => assert!(is_closed, "the channel is open"),
            Err(Some(error)) => {
                let could = self.twin.admits(group, 0, bytes, None).is_ok();
                let is_right = error.is_offline() || error.is_cancelled() || !could || waits;
                assert!(is_right, "{error}, and it has room");
                assert!(
                    lost == 0 || waits || !is_quiet || !error.is_over_limit(),
                    "messages are dropped in vain: {error}"
                );
            }
        }
    }

    fn send_charged(&mut self, op: &Op, at: usize, number: u8) {
        let channel = &self.adapters.channels[at];
        let is_full = channel.queue.len() >= MESSAGES_MAX;
        let Some((sender, ..)) = channel.senders.as_ref().filter(|_| !is_full) else {
            return;
        };
        let (sender, is_closed) = (sender.clone(), channel.is_closed);
        let of_memory = |(key, _): &&(Key, memcg::Charge)| self.twin.of(*key).counter == 0;
        let candidates: Vec<Key> = self
            .charges
            .iter()
            .filter(of_memory)
            .map(|it| it.0)
            .collect();
        if candidates.is_empty() {
            return;
        }
        let key = candidates[usize::from(number) % candidates.len()];
        let of_charge = self.charges.iter().position(|it| it.0 == key);
        let (key, charge) = self.charges.swap_remove(of_charge.expect("it is one"));
        self.adapters.next_message += 1;
        let number = self.adapters.next_message;
        let is_sent = self.actor(op).run(move || {
            let message = Charged::new(message(number, 8), charge);
            sender.send_charged(message).is_ok()
        });
        assert_eq!(is_sent, !is_closed, "the channel is closed");
        if is_closed {
            self.twin.release(key);
        } else {
            self.adapters.channels[at].queue.push_back(InQueue {
                number,
                key,
                may_be_dropped: false,
            });
        }
    }

    /// Polls sends that were woken. True: one has ended.
    pub(super) fn poll_sends(&mut self) -> bool {
        let tokio = self.tokio();
        let mut has_ended = false;
        for at in 0..self.adapters.channels.len() {
            let mut number = 0;
            while number < self.adapters.channels[at].sends.len() {
                let channel = &mut self.adapters.channels[at];
                let (group, is_closed) = (channel.group, channel.is_closed);
                let send = &mut channel.sends[number];
                // Some tasks move to another thread, once they have let others run and are in the
                // list.
                let moves = send.number.is_multiple_of(2) && send.waits.polls == MOVES;
                if !send.waits.is_rung() && !moves {
                    number += 1;
                    continue;
                }
                let Poll::Ready(sent) = send.waits.poll(&tokio) else {
                    continue;
                };
                let send = channel.sends.remove(number);
                has_ended = true;
                match sent {
                    Ok(()) => {
                        assert!(!is_closed, "it is sent, and the channel is closed");
                        let _inside = tokio.enter();
                        let a_moment = Duration::from_millis(1);
                        let now = Instant::now() + a_moment;
                        let is_last = send.until.is_some_and(|until| until <= now);
                        if !is_last {
                            is_in_turn(&channel.sends[..number]);
                        }
                        self.put(at, send.number, send.bytes, false);
                    }
                    Err(unsent) => match refusal(unsent) {
                        Some(error) => self.agree_on_end(group, send.bytes, &error),
                        None => assert!(is_closed, "the channel is open"),
                    },
                }
                let rung = Arc::clone(&send.waits.rung);
                drop(send);
                assert!(
                    self.lets_go(&rung),
                    "the waker of a send that is over is kept"
                );
                number = 0;
            }
        }
        has_ended
    }

    /// No send is forgotten: the first does not fit, where nothing else waits.
    pub(super) fn sends_hold(&self) -> Holds {
        self.adapters.channels.iter().try_for_each(Channel::holds)?;
        self.capacities_hold()?;
        let mut all = self
            .adapters
            .channels
            .iter()
            .filter(|it| !it.sends.is_empty());
        let Some(channel) = all.next() else {
            return Ok(());
        };
        if channel.is_closed {
            return Err("a send waits, and the channel is closed".into());
        }
        let _inside = self.adapters.tokio.enter();
        let now = Instant::now();
        let mut all_sends = self.adapters.channels.iter().flat_map(|it| &it.sends);
        let is_late = |send: &&Send| send.until.is_some_and(|until| until < now);
        if let Some(send) = all_sends.find(is_late) {
            return Err(format!(
                "{} bytes of a message wait, and time is over",
                send.bytes
            ));
        }
        let others = all.next().is_some()
            || self.waiting().next().is_some()
            || self
                .adapters
                .requests
                .iter()
                .any(super::requests::Call::waits);
        if others || !self.shared.is_quiet() || self.cancelled {
            return Ok(());
        }
        // No max admits it any more, whoever is before it.
        let never = |send: &&Send| self.is_vain(channel.group, send.bytes).is_some();
        if let Some(send) = channel.sends.iter().find(never) {
            return Err(format!(
                "{} bytes of a message wait, and never fit",
                send.bytes
            ));
        }
        let first = &channel.sends[0];
        let path = self.twin.path(channel.group);
        if self.twin.admits(channel.group, 0, first.bytes, None) != Err(crate::twin::No::Offline)
            && self
                .twin
                .admits(channel.group, 0, first.bytes, None)
                .is_err()
        {
            return Ok(());
        }
        Err(format!(
            "{} bytes of a message wait at {path}, and it has an answer",
            first.bytes
        ))
    }

    /// What senders say that fits: nothing where others wait for it.
    fn capacities_hold(&self) -> Holds {
        if !self.shared.is_quiet() {
            return Ok(());
        }
        for channel in &self.adapters.channels {
            let Some((sender, ..)) = &channel.senders else {
                continue;
            };
            let left = |level: usize| {
                let of = self.handles[level].first()?;
                let max = self.twin.groups[level].max[0];
                Some(match (max, of.waiting_count()) {
                    (u64::MAX, _) => u64::MAX,
                    (_, 1..) => 0,
                    (max, 0) => max.saturating_sub(self.twin.live(level, 0)),
                })
            };
            let all: Option<Vec<u64>> = self.twin.levels(channel.group).map(left).collect();
            if let Some(least) = all.and_then(|all| all.into_iter().min()) {
                ensure_eq!(sender.capacity(), least, "what fits, as a sender says");
            }
            if self.twin.groups[channel.group].online {
                let most = self.effective_max(channel.group);
                ensure_eq!(sender.max_capacity(), most, "what may ever fit");
            }
        }
        Ok(())
    }

    // === Receives ===

    /// What a receive must bring: a message, none any more, or none yet.
    fn expected(&self, at: usize) -> Poll<Option<()>> {
        let channel = &self.adapters.channels[at];
        if !channel.queue.is_empty() {
            Poll::Ready(Some(()))
        } else if channel.is_closed || !channel.has_senders() {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    }

    fn with_receiver<R: std::marker::Send + 'static>(
        &mut self,
        op: &Op,
        at: usize,
        job: impl FnOnce(&mut Receiver<Message>) -> R + std::marker::Send + 'static,
    ) -> Option<R> {
        let mut receiver = self.adapters.channels[at].receiver.take()?;
        let tokio = self.tokio();
        let (receiver, result) = self.actor(op).run(move || {
            let _inside = tokio.enter();
            let result = job(&mut receiver);
            (receiver, result)
        });
        self.adapters.channels[at].receiver = Some(receiver);
        Some(result)
    }

    fn receive(&mut self, op: &Op, at: usize) {
        let expected = self.expected(at);
        let only_looks = op.0 % 2 == 1;
        let received = self.with_receiver(op, at, move |receiver| match only_looks {
            false => receiver.poll_recv(&mut Context::from_waker(Waker::noop())),
            true => match receiver.try_recv() {
                Ok(message) => Poll::Ready(Some(message)),
                Err(TryRecvError::Disconnected) => Poll::Ready(None),
                Err(TryRecvError::Empty) => Poll::Pending,
            },
        });
        let Some(received) = received else { return };
        assert_eq!(kind(&received), expected, "received");
        match received {
            Poll::Ready(Some(message)) => {
                let taken = self.adapters.channels[at].receive(&message);
                self.twin.release(taken.key);
            }
            Poll::Ready(None) => self.credit_has_gone(at),
            Poll::Pending => {}
        }
    }

    fn receive_charged(&mut self, op: &Op, at: usize) {
        let expected = self.expected(at);
        let received = self.with_receiver(op, at, |receiver| {
            receiver.poll_recv_charged(&mut Context::from_waker(Waker::noop()))
        });
        let Some(received) = received else { return };
        assert_eq!(kind(&received), expected, "received");
        match received {
            Poll::Ready(Some(message)) => self.keep_charged(at, message),
            Poll::Ready(None) => self.credit_has_gone(at),
            Poll::Pending => {}
        }
    }

    fn keep_charged(&mut self, at: usize, message: Charged<Message>) {
        let (message, charge) = Charged::into_parts(message);
        let taken = self.adapters.channels[at].receive(&message);
        assert_eq!(charge.bytes(), self.held(taken.key), "of the message");
        self.charges.push((taken.key, charge));
    }

    fn receive_many(&mut self, op: &Op, at: usize, most: usize) {
        let there = self.adapters.channels[at].queue.len();
        let expected = match self.expected(at) {
            _ if most == 0 => Poll::Ready(0),
            Poll::Ready(Some(())) => Poll::Ready(there.min(most)),
            Poll::Ready(None) => Poll::Ready(0),
            Poll::Pending => Poll::Pending,
        };
        let keeps = op.0 % 3 == 1;
        let received = self.with_receiver(op, at, move |receiver| {
            let (mut messages, mut charged) = (Vec::new(), Vec::new());
            let mut context = Context::from_waker(Waker::noop());
            let polled = match keeps {
                false => receiver.poll_recv_many(&mut context, &mut messages, most),
                true => receiver.poll_recv_many_charged(&mut context, &mut charged, most),
            };
            (messages, charged, polled)
        });
        let Some((messages, charged, polled)) = received else {
            return;
        };
        assert_eq!(polled, expected, "received");
        if polled == Poll::Ready(0) && most > 0 {
            self.credit_has_gone(at);
        }
        for message in messages {
            let taken = self.adapters.channels[at].receive(&message);
            self.twin.release(taken.key);
        }
        for message in charged {
            self.keep_charged(at, message);
        }
    }

    fn drop_receiver(&mut self, op: &Op, at: usize) {
        let channel = &mut self.adapters.channels[at];
        let Some(receiver) = channel.receiver.take() else {
            return;
        };
        channel.is_closed = true;
        for message in std::mem::take(&mut channel.queue) {
            self.twin.release(message.key);
        }
        self.actor(op).run(move || drop(receiver));
        self.credit_has_gone(at);
    }

    /// No credit is kept for a channel that has no receiver any more, beside that of threads.
    fn credit_has_gone(&mut self, at: usize) {
        self.settle_accounts();
        let group = self.adapters.channels[at].group;
        // What is used is also what others below have.
        let is_below = |(other, channel): (usize, &Channel)| {
            other != at && self.twin.is_within(channel.group, group)
        };
        let has_others = self.adapters.channels.iter().enumerate().any(is_below);
        let is_alone = !has_others && !self.central && self.shared.is_quiet();
        let are_free = self.actors.iter().all(|actor| !actor.is_busy());
        let Some(runtime) = self.runtime.clone().filter(|_| is_alone && are_free) else {
            return;
        };
        if self.handles[group].is_empty() {
            return;
        }
        for actor in &self.actors {
            let runtime = runtime.clone();
            actor.run(move || _ = runtime.release_thread_credit());
        }
        runtime.release_thread_credit();
        // At once: a thread of the runtime would take back what is idle for a while.
        let (usage, live) = (self.handle(group).usage(), self.twin.live(group, 0));
        let kept = CentralStock::of(self.handle(group)).credit();
        // What a thread had that has ended, another one may inherit.
        let has_ended = self.threads > self.setup.threads.max(1).into();
        assert!(
            kept == 0 && (usage == live || has_ended) || self.had_caches,
            "{usage} bytes are used of a channel that is gone, {live} are live, and its stock has \
             {kept}"
        );
    }

    pub(super) fn end_channels(&mut self, op: &Op) {
        for at in 0..self.adapters.channels.len() {
            let held: Vec<u64> = self.adapters.channels[at]
                .droppable()
                .map(|message| self.held(message.key))
                .collect();
            assert!(held.iter().all(|&bytes| bytes > 0), "each is charged");
            let sends = std::mem::take(&mut self.adapters.channels[at].sends);
            let tokio = self.tokio();
            self.actor(op).run(move || {
                let _inside = tokio.enter();
                drop(sends);
            });
            self.settle_accounts();
            let channel = &mut self.adapters.channels[at];
            let permits = std::mem::take(&mut channel.permits);
            let (senders, weak) = (channel.senders.take(), channel.weak.take());
            for (key, _) in &permits {
                self.twin.release(*key);
            }
            self.actor(op).run(move || drop((permits, senders, weak)));
            self.settle_accounts();
            self.drop_receiver(op, at);
            self.settle_accounts();
        }
        self.adapters.channels.clear();
    }
}
