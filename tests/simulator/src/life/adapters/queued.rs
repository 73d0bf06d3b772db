//! What a channel does at once, in a tree of its own, as a seed says: messages that are sent if
//! they fit, that take the place of others, or are lost, and receives of every kind.
//!
//! Nobody else is there but a charge that waits now and then, so each answer is known, and each byte:
//! also the credit that the channel keeps, which has gone once the receiver knows that no message will
//! come.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures_sink::Sink;
use memcg::{Charge, ChargeError, ChargeFuture, Charged, Group, Limit, Limits, Weigh};
use memcg_tokio::{
    DropPolicy, LossySender, PollSender, Receiver, SendError, Sender, channel, message_overhead,
};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tokio::runtime::Builder;
use tokio::sync::mpsc::error::TryRecvError;

use super::Waits;
use super::channels::{Message, droppable_overhead, message, number_of};
use crate::script::pick;
use crate::threads::rest;

const STEPS: usize = 120;

/// Of each level, the channel's group last.
const MAXES: [u64; 6] = [u64::MAX, u64::MAX, 6_000, 3_000, 1_000, 400];

/// A message of more than 64 bytes of its own has them beside the queue.
struct Large(u64, [u8; 200]);

impl Weigh for Large {
    fn heap_bytes(&self) -> usize {
        0
    }
}

struct InQueue {
    number: u64,
    bytes: u64,
    may_be_dropped: bool,
}

struct Queued {
    /// It keeps the tree.
    runtime: memcg::Runtime,
    levels: [Group; 3],
    maxes: [u64; 3],
    /// Beside the messages, of each level.
    others: Vec<(usize, Charge)>,
    /// A charge of that level and of so many bytes, before which no other is made.
    in_line: Option<(usize, u64, Pin<Box<ChargeFuture>>)>,
    sender: Option<Sender<Message>>,
    /// One that drops earlier messages, and one that drops later ones.
    lossy: Vec<LossySender<Message>>,
    dropped: [u64; 2],
    receiver: Receiver<Message>,
    queue: VecDeque<InQueue>,
    kept: Vec<Charged<Message>>,
    is_closed: bool,
    next: u64,
}

impl Queued {
    fn new(batch: usize) -> Queued {
        let runtime = memcg::Runtime::builder().batch(batch).build();
        let runtime = runtime.expect("a configuration that holds");
        let root = runtime.root();
        let make = |group: &Group, name| {
            let made = group.create(name, Limits::new());
            made.expect("nothing is in the way")
        };
        let above = make(&root, "above");
        let group = make(&above, "queue");
        let (sender, receiver) = channel::<Message>(&group);
        let policies = [DropPolicy::Oldest, DropPolicy::Newest];
        let lossy = policies.map(|policy| sender.lossy(policy));
        assert_eq!(lossy.each_ref().map(LossySender::policy), policies);
        Queued {
            runtime,
            levels: [root, above, group],
            maxes: [u64::MAX; 3],
            others: Vec::new(),
            in_line: None,
            sender: Some(sender),
            lossy: lossy.into(),
            dropped: [0; 2],
            receiver,
            queue: VecDeque::new(),
            kept: Vec::new(),
            is_closed: false,
            next: 0,
        }
    }

    fn live(&self, level: usize) -> u64 {
        let others = self.others.iter().filter(|(other, _)| *other >= level);
        let others: u64 = others.map(|(_, charge)| charge.bytes()).sum();
        let kept: u64 = self.kept.iter().map(|it| Charged::charge(it).bytes()).sum();
        let queue: u64 = self.queue.iter().map(|it| it.bytes).sum();
        others + kept + queue
    }

    /// It fits beside what is live, less so much.
    fn fits(&self, bytes: u64, less: u64) -> bool {
        let fits = |level: usize| self.live(level) - less + bytes <= self.maxes[level];
        (0..3).all(fits)
    }

    /// How many messages go for one of so many bytes; `None`: all of them would not do.
    fn goes(&self, bytes: u64) -> Option<usize> {
        let droppable = self.queue.iter().filter(|it| it.may_be_dropped);
        let mut less = 0;
        let mut all = droppable.map(|it| it.bytes);
        let mut many = 0;
        while !self.fits(bytes, less) {
            less += all.next()?;
            many += 1;
        }
        Some(many)
    }

    /// How many messages have as much as one of so many bytes; `None`: all of them have less.
    fn have(&self, bytes: u64) -> Option<usize> {
        let droppable = self.queue.iter().filter(|it| it.may_be_dropped);
        let mut sum = 0;
        let sums = droppable.map(|it| {
            sum += it.bytes;
            sum
        });
        let at = sums.enumerate().find(|&(_, sum)| sum >= bytes);
        at.map(|(at, _)| at + 1)
    }

    fn wait_in_line(&mut self, rng: &mut Xoshiro256PlusPlus) {
        if self.in_line.is_none() {
            let level = rng.random_range(0..3);
            let left = |of: usize| self.maxes[of].saturating_sub(self.live(of));
            let left = (0..=level).map(left).min().unwrap_or(0);
            // A little more than there is: one message that goes may be enough.
            let bytes = left.min(10_000) + pick(rng, &[1, 100, 300, 600]);
            let future = self.levels[level].charge_async(bytes as usize);
            self.in_line = Some((level, bytes, Box::pin(future)));
            self.look_at_line();
        }
    }

    /// It waits as long as it does not fit, and could.
    fn look_at_line(&mut self) {
        let Some((level, bytes, mut future)) = self.in_line.take() else {
            return;
        };
        let fits = |of: usize| self.live(of) + bytes <= self.maxes[of];
        let fits = (0..=level).all(fits);
        let ever = self.maxes[..=level].iter().all(|&max| bytes <= max);
        let mut context = Context::from_waker(Waker::noop());
        // A thread of the runtime may have the line to serve.
        rest();
        match future.as_mut().poll(&mut context) {
            Poll::Ready(Ok(charge)) => {
                assert!(fits, "{bytes} bytes are charged");
                self.others.push((level, charge));
            }
            Poll::Ready(Err(error)) => {
                let is_right = error.is_over_limit() && !ever;
                assert!(is_right, "{bytes} bytes may fit: {error}");
            }
            Poll::Pending => {
                assert!(!fits && ever, "{bytes} bytes wait, and fit: {fits}");
                self.in_line = Some((level, bytes, future));
            }
        }
    }

    fn put(&mut self, number: u64, bytes: u64, may_be_dropped: bool) {
        self.queue.push_back(InQueue {
            number,
            bytes,
            may_be_dropped,
        });
    }

    fn next_message(&mut self, rng: &mut Xoshiro256PlusPlus) -> (u64, Message) {
        self.next += 1;
        let bytes = pick(rng, &[8, 60, 60, 200, 200, 400, 900, 2_500]);
        (self.next, message(self.next, bytes))
    }

    fn try_send(&mut self, rng: &mut Xoshiro256PlusPlus) {
        let (number, message) = self.next_message(rng);
        let Some(sender) = &self.sender else { return };
        let bytes = (message.len() + message_overhead::<Message>()) as u64;
        let fits = self.fits(bytes, 0);
        let is_behind = self.in_line.is_some();
        let sent = match fits && !is_behind && rng.random() {
            true => sender.blocking_send(message),
            false => sender.try_send(message),
        };
        match sent {
            Ok(()) => {
                assert!(fits && !self.is_closed, "{bytes} bytes are sent");
                self.put(number, bytes, false);
            }
            Err(SendError::Closed(_)) => assert!(self.is_closed, "the channel is open"),
            Err(error) => {
                let is_right = (!fits || is_behind) && !self.is_closed;
                assert!(is_right, "{bytes} bytes fit: {error:?}");
            }
        }
    }

    /// Room is charged for a message that is never made.
    fn reserve(&mut self, rng: &mut Xoshiro256PlusPlus) {
        let Some(sender) = &self.sender else { return };
        let bytes: u64 = pick(rng, &[100, 900, 2_500]);
        // `Err`: whether it is closed.
        let is_closed = |refusal: Option<&ChargeError>| refusal.is_none();
        let reserved = match rng.random() {
            true => {
                let reserved = sender.try_reserve(bytes as usize).map(drop);
                reserved.map_err(|error| is_closed(error.refusal()))
            }
            false => {
                let reserved = sender.clone().try_reserve_owned(bytes as usize).map(drop);
                reserved.map_err(|error| is_closed(error.refusal()))
            }
        };
        let fits = self.fits(bytes, 0);
        let known = match (self.is_closed, fits) {
            (true, _) => Err(true),
            (false, true) if self.in_line.is_none() => Ok(()),
            (false, true) => reserved,
            (false, false) => Err(false),
        };
        assert_eq!(reserved, known, "{bytes} bytes, or is it closed?");
    }

    /// Whatever finds out that no message will come.
    fn ends(&mut self, rng: &mut Xoshiro256PlusPlus) {
        if rng.random() {
            self.is_closed = true;
            self.receiver.close();
        } else {
            self.sender = None;
            self.lossy.clear();
        }
        // What is received without its charge leaves credit.
        while !self.queue.is_empty() {
            // A look at what is live would take the credit back.
            self.receive(rng.random_range(0..7), 2);
        }
        self.receive(rng.random_range(0..7), 1);
    }

    fn send_lossy(&mut self, rng: &mut Xoshiro256PlusPlus, which: usize) {
        if self.lossy.is_empty() {
            return;
        }
        let overhead = [droppable_overhead(), message_overhead::<Message>() as u64][which];
        let (number, mut message) = self.next_message(rng);
        // Those that wait are there when messages go.
        if which == 0 && self.queue.len() > 1 && rng.random_bool(0.3) {
            self.wait_in_line(rng);
            // As much as a few of these have.
            let droppable = self.queue.iter().filter(|it| it.may_be_dropped);
            let few = droppable.take(rng.random_range(2..4)).map(|it| it.bytes);
            let bytes = few.sum::<u64>().saturating_sub(overhead).max(8);
            message = super::channels::message(number, bytes as usize);
        }
        let bytes = message.len() as u64 + overhead;
        let goes = self.goes(bytes);
        let sender = self.lossy[which].clone();
        let sent = sender.send(message);
        let ever = self.maxes.iter().all(|&max| bytes <= max);
        match (sent, which) {
            (Err(SendError::Closed(_)), _) => assert!(self.is_closed, "the channel is open"),
            (sent, 0) => {
                let lost = sent.as_ref().ok().map(|&lost| lost as usize);
                let gone = (sender.dropped() - self.dropped[0]) as usize;
                if self.in_line.is_none() {
                    assert_eq!(lost, goes, "messages that go for one of {bytes} bytes");
                } else {
                    // Behind a charge that waits it has what they had, and no room beside that, unless
                    // it is credit. Nothing stays theirs where a max has fallen below what is live.
                    let most = self.have(bytes).filter(|_| self.fits(0, 0));
                    let is_right = match (lost, goes) {
                        (Some(lost), Some(least)) => (least..=most.unwrap_or(lost)).contains(&lost),
                        (None, goes) => goes.is_none() || most.is_none(),
                        (Some(_), None) => false,
                    };
                    let told = format!("{lost:?} go, {goes:?} to {most:?}");
                    assert!(is_right, "{told}, for one of {bytes} bytes behind another");
                }
                assert!(lost.is_none_or(|lost| lost == gone), "{gone} are lost");
                assert!(goes.is_some() || gone == 0, "{gone} are lost in vain");
                for _ in 0..gone {
                    let at = self.queue.iter().position(|it| it.may_be_dropped);
                    _ = self.queue.remove(at.expect("as many are there"));
                }
                self.dropped[0] += gone as u64;
                if lost.is_some() {
                    self.put(number, bytes, true);
                }
            }
            (sent, _) => {
                let fits = self.fits(bytes, 0);
                let known = match (fits, ever) {
                    (true, _) if self.in_line.is_none() => Some(0),
                    (true, _) => sent.as_ref().ok().copied().filter(|&lost| lost <= 1),
                    (false, true) => Some(1),
                    (false, false) => None,
                };
                assert_eq!(sent.ok(), known, "lost, of {bytes} bytes");
                self.dropped[1] += u64::from(known == Some(1));
                if known == Some(0) {
                    self.put(number, bytes, false);
                }
            }
        }
    }

    /// What was received, each the oldest of its kind; none: `None` where more may come.
    fn received(&mut self, numbers: &[u64], is_over: Option<bool>, most: usize) {
        let there = self.queue.len().min(most);
        assert_eq!(numbers.len(), there, "messages that are received");
        let may_come = !self.is_closed && self.sender.is_some();
        let known = (there == 0 && most > 0).then_some(!may_come);
        assert_eq!(is_over, known, "no message will come");
        for &number in numbers {
            let found = self.queue.iter().position(|it| it.number == number);
            let found = found.expect("it was sent, and not received");
            let taken = self.queue.remove(found).expect("it is there");
            let kind = taken.may_be_dropped;
            let mut earlier = self.queue.iter().take(found);
            assert!(earlier.all(|it| it.may_be_dropped != kind), "the oldest");
        }
        if is_over == Some(true) {
            self.has_no_credit();
        }
    }

    fn receive(&mut self, way: u8, most: usize) {
        let mut context = Context::from_waker(Waker::noop());
        let over = |polled: &Poll<bool>| match polled {
            Poll::Pending => Some(false),
            Poll::Ready(is_there) => (!is_there).then_some(true),
        };
        let receiver = &mut self.receiver;
        let mut taken: Vec<Message> = Vec::new();
        let mut charged: Vec<Charged<Message>> = Vec::new();
        let mut one = 1;
        let is_over = match way {
            0 => over(&receiver.poll_recv(&mut context).map(|it| {
                let is_there = it.is_some();
                taken.extend(it);
                is_there
            })),
            1 => match receiver.try_recv() {
                Ok(message) => {
                    taken.push(message);
                    None
                }
                Err(error) => Some(error == TryRecvError::Disconnected),
            },
            2 => match receiver.try_recv_charged() {
                Ok(message) => {
                    charged.push(message);
                    None
                }
                Err(error) => Some(error == TryRecvError::Disconnected),
            },
            // It would wait where nothing is there, and something may come.
            6 if !self.queue.is_empty() || self.is_closed || self.sender.is_none() => {
                let received = receiver.blocking_recv();
                let is_there = received.is_some();
                taken.extend(received);
                (!is_there).then_some(true)
            }
            3 | 6 => over(&receiver.poll_recv_charged(&mut context).map(|it| {
                let is_there = it.is_some();
                charged.extend(it);
                is_there
            })),
            way => {
                one = most;
                let polled = match way {
                    4 => receiver.poll_recv_many(&mut context, &mut taken, most),
                    _ => receiver.poll_recv_many_charged(&mut context, &mut charged, most),
                };
                let many = taken.len() + charged.len();
                assert!(polled.is_pending() || polled == Poll::Ready(many));
                over(&polled.map(|many| many > 0 || most == 0))
            }
        };
        let numbers = taken.iter().chain(charged.iter().map(|it| &**it));
        let numbers: Vec<u64> = numbers.map(number_of).collect();
        self.received(&numbers, is_over, one);
        self.kept.append(&mut charged);
    }

    fn has_no_credit(&self) {
        let group = &self.levels[2];
        // Beside that of the thread.
        self.runtime.release_thread_credit();
        let (usage, live) = (group.usage(), group.live());
        assert_eq!(usage, live, "used, and live, once no message will come");
    }

    fn agree(&self) {
        for (level, group) in self.levels.iter().enumerate() {
            assert_eq!(group.live(), self.live(level), "live at {}", group.path());
        }
        let found = (self.receiver.len(), self.receiver.is_empty());
        let known = (self.queue.len(), self.queue.is_empty());
        assert_eq!(found, known, "messages of a channel");
        for (sender, known) in self.lossy.iter().zip(self.dropped) {
            assert_eq!(sender.dropped(), known, "messages that were lost");
        }
        if let Some(sender) = &self.sender {
            let mut sink = PollSender::new(sender.clone());
            let ready = Pin::new(&mut sink).poll_ready(&mut Context::from_waker(Waker::noop()));
            let is_right = match ready {
                Poll::Ready(ready) => ready.is_err() == self.is_closed,
                Poll::Pending => false,
            };
            assert!(
                is_right,
                "a sink that has nothing to send, closed: {}",
                self.is_closed
            );
            let left = |level: usize| match self.maxes[level] {
                _ if self.in_line.is_some() => 0,
                u64::MAX => u64::MAX,
                max => max.saturating_sub(self.live(level)),
            };
            let capacity = (0..3).map(left).min();
            // A thread of the runtime may have what waits to move to another line.
            rest();
            assert_eq!(Some(sender.capacity()), capacity, "what fits");
            let most = self.maxes.iter().min();
            assert_eq!(Some(&sender.max_capacity()), most, "what may ever fit");
        }
    }
}

/// Messages that are not small are charged for all that they take, their place included.
fn large_messages(many: usize) {
    let runtime = memcg::Runtime::builder().batch(0).build();
    let runtime = runtime.expect("a configuration that holds");
    let root = runtime.root();
    let (sender, mut receiver) = channel::<Large>(&root);
    let before = crate::denied::in_use();
    for number in 0..many {
        let sent = sender.try_send(Large(number as u64, [7; 200]));
        assert!(sent.is_ok(), "no limit");
    }
    let taken = crate::denied::in_use().saturating_sub(before);
    // Each block of the queue has room for some that are not there.
    let (live, block) = (root.live() as usize, 4 << 10);
    assert!(
        taken <= live + block,
        "{many} messages take {taken} bytes, and {live} are charged"
    );
    for number in 0..many {
        let received = receiver.try_recv().ok();
        let is_right = received.is_some_and(|it| it.0 == number as u64 && it.1 == [7; 200]);
        assert!(is_right, "message {number}");
    }
}

/// What ends the waits of many senders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    Closes,
    ReceiverGoes,
    Offline,
    MaxFalls,
    /// The largest alone never fit.
    MaxFallsBelowSome,
    MaxRises,
    Receives,
}

/// Many senders wait, some of them go, and something ends the waits of all others: each is woken and
/// has its answer, and what is sent comes in the order in which they came.
fn many_wait(rng: &mut Xoshiro256PlusPlus) {
    let tokio = Builder::new_current_thread().build();
    let tokio = tokio.expect("a runtime of one thread");
    let runtime = memcg::Runtime::builder().batch(0).build();
    let runtime = runtime.expect("a configuration that holds");
    let limits = Limits::new().max(pick(rng, &[4_000, 20_000]));
    let group = runtime.root().create("queue", limits);
    let group = group.expect("nothing is in the way");
    let (sender, receiver) = channel::<Message>(&group);
    let mut sent = 0;
    let (oldest, may_be_dropped) = (sender.lossy(DropPolicy::Oldest), rng.random());
    while sender.capacity() >= 300 + droppable_overhead() {
        let message = message(sent, 300);
        let is_sent = match may_be_dropped {
            true => oldest.send(message).is_ok(),
            false => sender.try_send(message).is_ok(),
        };
        assert!(is_sent, "message {sent} fits");
        sent += 1;
    }
    // What is left is too little for any.
    let left = sender.capacity() as usize;
    let rest = group.try_charge(left).expect("it is there");
    let many = pick(rng, &[1, 2, 15, 16, 17, 33, 70]);
    let mut sends: Vec<(u64, usize, Waits<_>)> = Vec::new();
    for number in sent..sent + many {
        let size = pick(rng, &[300, 300, 900]);
        let message = message(number, size);
        let sender = sender.clone();
        let send = Waits::new(async move { sender.send(message).await });
        sends.push((number, size, send));
    }
    // The first polls do no more than let others run.
    for _ in 0..6 {
        for (number, _, send) in &mut sends {
            let polled = send.poll(tokio.handle());
            assert!(polled.is_pending(), "message {number} has no room");
        }
    }
    if rng.random() {
        sends.retain(|_| rng.random_bool(0.8));
    }
    let ways = [
        Ends::Closes,
        Ends::ReceiverGoes,
        Ends::Offline,
        Ends::MaxFalls,
        Ends::MaxFallsBelowSome,
        Ends::MaxRises,
        Ends::Receives,
    ];
    let ends = pick(rng, &ways);
    let mut receiver = Some(receiver).filter(|_| ends != Ends::ReceiverGoes);
    let set_max = |bytes| {
        let set = group.memory().set_max_now(Limit::Bytes(bytes));
        set.expect("no percentage");
    };
    match (ends, &mut receiver) {
        (Ends::Closes, Some(receiver)) => receiver.close(),
        (Ends::Offline, _) => group.offline_tree(),
        (Ends::MaxFalls, _) => set_max(100),
        (Ends::MaxFallsBelowSome, _) => set_max(700),
        (Ends::MaxRises, _) => set_max(1 << 20),
        _ => {}
    }
    let is_sent = |size: usize| match ends {
        Ends::MaxRises | Ends::Receives => true,
        Ends::MaxFallsBelowSome => size < 700,
        _ => false,
    };
    let waited = sends.iter().filter(|(_, size, _)| is_sent(*size));
    let known: Vec<u64> = (0..sent)
        .chain(waited.map(|(number, ..)| *number))
        .collect();
    let mut received = Vec::new();
    let mut goes_on = true;
    while goes_on {
        goes_on = false;
        sends.retain_mut(|(number, size, send)| {
            let polled = match send.is_rung() {
                true => send.poll(tokio.handle()),
                false => return true,
            };
            goes_on = true;
            let Poll::Ready(ended) = polled else {
                return true;
            };
            let is_right = match &ended {
                Ok(()) => is_sent(*size),
                Err(SendError::Closed(_)) => matches!(ends, Ends::Closes | Ends::ReceiverGoes),
                Err(SendError::Refused(_, error)) if error.is_offline() => ends == Ends::Offline,
                Err(SendError::Refused(_, error)) => {
                    let never = matches!(ends, Ends::MaxFalls | Ends::MaxFallsBelowSome);
                    error.is_over_limit() && never && !is_sent(*size)
                }
                Err(_) => false,
            };
            assert!(is_right, "message {number}, {ends:?}: {ended:?}");
            false
        });
        // Those that never fit know so before there is room.
        let never = sends.iter().filter(|(_, size, _)| !is_sent(*size)).count();
        assert!(goes_on || never == 0, "{never} of {many} wait on: {ends:?}");
        let next = (ends == Ends::Receives || !goes_on)
            .then(|| receiver.as_mut()?.try_recv().ok())
            .flatten();
        goes_on |= next.is_some();
        received.extend(next.as_ref().map(number_of));
    }
    let wait = sends.len();
    assert_eq!(wait, 0, "of {many} senders so many wait on: {ends:?}");
    if receiver.is_some() {
        assert_eq!(received, known, "messages, of {many} that waited: {ends:?}");
    }
    drop(rest);
    let left = (group.live(), group.waiting_count());
    assert_eq!(left, (0, 0), "live, and in line: {ends:?}");
}

pub(super) fn live(seed: u64) {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    many_wait(rng);
    let mut life = Queued::new(pick(rng, &[0, 600, 4_096]));
    for _ in 0..STEPS {
        match rng.random_range(0..25) {
            24 => life.wait_in_line(rng),
            0..=2 => life.try_send(rng),
            3 => life.reserve(rng),
            4..=10 => life.send_lossy(rng, 0),
            11 | 12 => life.send_lossy(rng, 1),
            13..=17 => {
                let most = pick(rng, &[0, 1, 2, 40]);
                life.receive(rng.random_range(0..7), most);
            }
            18..=20 => {
                let (level, max) = (rng.random_range(0..3), pick(rng, &MAXES));
                life.maxes[level] = max;
                let max = match max {
                    u64::MAX => Limit::Unlimited,
                    max => Limit::Bytes(max),
                };
                let set = life.levels[level].memory().set_max_now(max);
                set.expect("no percentage");
            }
            21 => {
                let level = rng.random_range(0..3);
                let charge = life.levels[level].try_charge(pick(rng, &[100, 500]));
                life.others
                    .extend(charge.ok().map(|charge| (level, charge)));
            }
            22 => {
                life.others.clear();
                life.kept.clear();
                life.in_line = life.in_line.take().filter(|_| rng.random());
            }
            _ if rng.random_bool(0.1) => {
                life.is_closed = true;
                life.receiver.close();
            }
            _ if rng.random_bool(0.1) => {
                life.sender = None;
                life.lossy.clear();
            }
            _ => {}
        }
        life.look_at_line();
        life.agree();
    }
    life.in_line = None;
    life.ends(rng);
    if rng.random_bool(0.1) {
        large_messages(rng.random_range(1..100));
    }
    let Queued {
        levels,
        others,
        kept,
        receiver,
        runtime,
        ..
    } = life;
    drop((others, kept, receiver));
    runtime.release_thread_credit();
    for group in levels {
        let left = (group.usage(), group.live());
        assert_eq!(left, (0, 0), "used, and live, of a channel that is gone");
    }
    drop(runtime);
}
